"""Article 3, emulated: our data parallelism on eight ranks, over shaped links, between kernels that only take time.

The model is the article's with every length divided by `shrink`: gradients and what kernels move shrink by its square,
products by its cube. Links and memory are slower by the square times the time dilation, products by the cube times it,
so that everything takes `dilation` times what it would take the article's machine. From article 3 comes one number, its
one-GPU step: the card is slowed until that step stands to an all-reduce of all gradients, as measured on these links,
as it does in the article (article 2's table has the all-reduce). Caps are shrunk with the gradients.

The predictor is the ledger's simulator for the emulated machine: kernels by the virtual clock, collectives by a table
that is measured in the same launch.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from pydantic import Field

from fivedim.articles.a03_ddp import CAP, ONE_GPU, DdpConfig, Predictor
from fivedim.articles.a03_emulation import FROZEN, SINGLE, Emulated, Emulation, cap_name

if TYPE_CHECKING:
    from pandas import DataFrame

    from fivedim.articles.a03_emulation import Case

WHOLE = 500  # MiB: a cap that no gradient reaches before the last
TIMEOUT = 60  # s that a collective waits before it fails


class BucketSweepEmulatedConfig(DdpConfig):
    """`dilation` is of time; a point is timed `repeats` times, after one step that is not; `drawn` ranks have spans.

    Where the host cannot keep up the dilation is doubled, up to `doublings` times. `products` names the machine's rate
    for products of fp32 tensors.
    """

    shrink: int = Field(8, ge=1)
    dilation: float = Field(30, gt=0)
    doublings: int = Field(2, ge=0)
    repeats: int = Field(3, ge=1)
    drawn: tuple[int, ...] = (0, 7)
    products: str = "tf32"


def bucket_sweep_emulated(cfg: BucketSweepEmulatedConfig) -> list[dict]:
    """The step time against the bucket cap, emulated beside reported and predicted; and what the embedding costs.

    `row` is setup, all_reduce (the measured table), case (one GPU, a cap, or a frozen embedding) or span (of one step
    at the default cap, of `drawn` ranks). Times are the emulator's, in s; a case's are the slowest rank's, the median
    of `repeats` steps with the 10th and 90th percentile. `ratio` is over one GPU's step; `exposed` is what of the step
    the compute lane stood still, also over one GPU's. Sends an all-reduce a bucket and step, and the buffers.
    """
    from fivedim.lab import fabric

    emulation = Emulation(cfg)

    def emulate(dilation: float) -> list[dict]:
        links = fabric.dilated(emulation.article.model.topology, dilation * cfg.shrink**2)
        with fabric.build(links) as built:
            return rows(emulation, dilation, built.run(emulation.on_rank, cfg.ranks, timeout=TIMEOUT))

    return long_enough(emulate, cfg)


def long_enough(emulate: Callable[[float], list[dict]], cfg: BucketSweepEmulatedConfig) -> list[dict]:
    """`emulate` under the least of the allowed dilations for which the host keeps up."""
    from fivedim.lab.accelerator import TooShortError
    from fivedim.lab.ranks import RankError

    for doubled in range(cfg.doublings):
        try:
            return emulate(cfg.dilation * 2**doubled)
        except RankError as error:
            if error.kind != TooShortError.__name__:
                raise
    return emulate(cfg.dilation * 2**cfg.doublings)


def rows(emulation: Emulation, links_dilation: float, found: list[dict]) -> list[dict]:
    """The experiment's rows from what every rank returned."""
    from fivedim.ledger.collectives import Curve

    dilation, buffers = found[0]["dilation"], slowest([each["buffers"] for each in found])
    table = {size: slowest([each["table"][size] for each in found]) for size in found[0]["table"]}
    curve = Curve(tuple(table), tuple(map(median, table.values())))
    machine = Emulated(emulation.accelerator.card, dilation, curve, median(buffers), emulation.buffer_bytes)
    listed = [
        _case(case, machine.predict(profiled, case, emulation.cfg.shrink), [each["steps"][index] for each in found])
        for index, (case, profiled) in enumerate(zip(emulation.cases, emulation.profiles, strict=True))
    ]
    return [
        _setup(emulation, machine, links_dilation),
        *({"row": "all_reduce", "bytes": size} | quantiles(seconds) for size, seconds in table.items()),
        *compared(listed, emulation.article),
        *({"row": "span", "rank": rank} | span for rank in emulation.cfg.drawn for span in found[rank]["spans"]),
    ]


def slowest(by_rank: list[list[float]]) -> list[float]:
    """Of every repetition the slowest rank's."""
    return [max(each) for each in zip(*by_rank, strict=True)]


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile."""
    import numpy as np

    low, middle, high = np.quantile(seconds, [0.1, 0.5, 0.9])
    return {"seconds": float(middle), "low_s": float(low), "high_s": float(high)}


def compared(cases: list[dict], article: Predictor) -> list[dict]:
    """Every case over one GPU's step: emulated, predicted for the same machine, and reported."""
    one, predicted_one = cases[0]["seconds"], cases[0]["predicted_s"]
    reported = {cap_name(cap): ms / article.constants[ONE_GPU] for cap, ms in article.reported_sweep().items()}
    for case in cases:
        case["ratio"], case["predicted_ratio"] = case["seconds"] / one, case["predicted_s"] / predicted_one
        case["exposed"] = (case["seconds"] - case["busy_s"]) / one
        case["disagreement"] = case["predicted_s"] / case["seconds"] - 1
        if case["name"] in reported:
            case["reported_ratio"] = reported[case["name"]]
            case["error"] = case["ratio"] / case["reported_ratio"] - 1
    return cases


def _case(case: Case, predicted: dict, by_rank: list[list]) -> dict:
    seconds = slowest([[step.seconds for step in steps] for steps in by_rank])
    late = max(step.late for steps in by_rank for step in steps)
    shared = {"row": "case", "name": case.name, "busy_s": median(step.busy for step in by_rank[0]), "late_s": late}
    return shared | quantiles(seconds) | predicted


def _setup(emulation: Emulation, machine: Emulated, dilation: float) -> dict:
    """What was built and how near it comes to what was meant."""
    profiled, article, cfg = emulation.profiles[0], emulation.article, emulation.cfg
    step = article.step()
    links = machine.all_reduce.times[-1] / (dilation * step.all_reduce(sum(step.gradients().values())))
    return {
        **{"row": "setup", "ranks": cfg.ranks, "shrink": cfg.shrink, "products": cfg.products},
        **{"links_dilation": dilation, "card_dilation": machine.dilation, "repeats": cfg.repeats},
        **{"gradient_bytes": emulation.gradient_bytes, "buffer_bytes": emulation.buffer_bytes},
        **{"roofline_ms": 1e3 * profiled.whole, "reported_ms": article.constants[ONE_GPU]},
        **{"all_reduce_s": machine.all_reduce.times[-1], "all_reduce_over_table": links},
        **{"broadcast_s": machine.broadcast, "broadcast_over_table": machine.broadcast / (dilation * step.buffers)},
    }


def right_arm(rows: DataFrame) -> float:
    """1 if the emulated steps of the caps from 25 MiB on are in the reported order, else 0."""
    arm = rows[(rows.row == "case") & rows.reported_ratio.notna() & (rows.cap_mib >= CAP)]
    return float(arm.sort_values("reported_ratio").ratio.is_monotonic_increasing)


def fastest_cap(rows: DataFrame) -> float:
    """The cap with the shortest emulated step, MiB."""
    points = rows[(rows.row == "case") & rows.reported_ratio.notna()]
    return float(points.cap_mib[points.ratio.idxmin()])


def left_arm(rows: DataFrame) -> float:
    """How much longer the step with a cap of 1 MiB is than with 25, over one GPU's."""
    return of(rows, cap_name(1)) - of(rows, cap_name(CAP))


def shortest_all_reduce(rows: DataFrame) -> float:
    """The smallest all-reduce of the measured table over that of all gradients: the host's own work, not dilated."""
    table = rows[rows.row == "all_reduce"].seconds
    return float(table.min() / table.iloc[-1])


def one_bucket(rows: DataFrame) -> float:
    """What the step with one bucket takes longer than one GPU's, over one GPU's."""
    return of(rows, cap_name(WHOLE)) - 1


def cost_over_all_reduce(rows: DataFrame) -> float:
    """The same over an all-reduce of all gradients."""
    return one_bucket(rows) * of(rows, SINGLE, "seconds") / float(rows[rows.row == "setup"].all_reduce_s.iloc[0])


def hidden_share(rows: DataFrame) -> float:
    """Of what one bucket costs, the share that is gone with buckets of 25 MiB."""
    return 1 - (of(rows, cap_name(CAP)) - 1) / one_bucket(rows)


def efficiency(rows: DataFrame) -> float:
    """One GPU's step over the one with buckets of 25 MiB."""
    return 1 / of(rows, cap_name(CAP))


def embedding_share(rows: DataFrame) -> float:
    """Of the exposed time with buckets of 25 MiB, the share that is gone when the embedding is frozen."""
    return 1 - of(rows, FROZEN, "exposed") / of(rows, cap_name(CAP), "exposed")


def of(rows: DataFrame, case: str, column: str = "ratio") -> float:
    """A case's value; by default its step over one GPU's."""
    return float(rows[(rows.row == "case") & (rows["name"] == case)][column].iloc[0])
