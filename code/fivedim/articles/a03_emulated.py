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

from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any

from pydantic import Field

from fivedim.articles.a03_ddp import CAP, ONE_GPU, DdpConfig, Predictor, exposed

if TYPE_CHECKING:
    from pandas import DataFrame

    from fivedim.lab.accelerator import Span, VirtualAccelerator
    from fivedim.ledger.collectives import Curve
    from fivedim.ledger.data_parallel import Step
    from fivedim.ledger.kernels import Accelerator

WHOLE = 500  # MiB: a cap that no gradient reaches before the last
SINGLE, FROZEN, SMALL = "one GPU", "embedding frozen", "a quarter of the vocabulary"
HALVINGS = 11  # sizes of the table of all-reduces: the whole gradient, and halves of it
PHASES = ("forward", "backward", "optimizer")
TIMEOUT = 60  # s that a collective waits before it fails


class BucketSweepEmulatedConfig(DdpConfig):
    """`dilation` is of time; a point is timed `repeats` times, after one step that is not; `drawn` ranks have spans.

    `products` names the machine's rate for products of fp32 tensors.
    """

    shrink: int = Field(8, ge=1)
    dilation: float = Field(10, gt=0)
    repeats: int = Field(5, ge=1)
    drawn: tuple[int, ...] = (0, 7)
    products: str = "tf32"


@dataclass(frozen=True)
class Case:
    """One kind of step: under buckets of `cap_mib` of the article's (None: on one GPU), with changes to the model."""

    name: str
    cap_mib: float | None
    changes: dict[str, Any] = field(default_factory=dict)
    frozen: bool = False


@dataclass(frozen=True)
class Profile:
    """One GPU's step by the virtual clock, undilated seconds: when forward and backward end, and each gradient is done.

    `elements` and `ready` are by parameter, in the order of registration.
    """

    forward: float
    backward: float
    whole: float
    elements: dict[str, int]
    ready: dict[str, float]


class Emulation:
    """What all ranks share, made before they are forked: models, priced kernels, and what the article says."""

    def __init__(self, cfg: BucketSweepEmulatedConfig):
        from fivedim.lab.accelerator import VirtualAccelerator

        self.cfg, self.article = cfg, Predictor(cfg)
        card = self.article.model.accelerator.slowed(cfg.shrink**2, cfg.shrink)
        self.accelerator = VirtualAccelerator(card, rates={"float32": cfg.products})
        self.cases = cases(self.article.reported_sweep())
        self.models = [self.model(case) for case in self.cases]
        self.profiles = [profile(self.accelerator, model, self.step) for model in self.models]

    @cached_property
    def tokens(self):
        """Tokens [B, T]: what they are does not matter."""
        import torch

        return torch.zeros(self.cfg.sequences, self.cfg.length // self.cfg.shrink, dtype=torch.long)

    @property
    def gradient_bytes(self) -> int:
        """Of the whole model."""
        return 4 * sum(self.profiles[0].elements.values())

    @property
    def buffer_bytes(self) -> int:
        """Of the whole model."""
        return sum(x.nbytes for x in self.models[0].buffers())

    def model(self, case: Case):
        """The shrunk model, with a causal mask that nobody reads in every layer, as the article's has them."""
        import torch

        from fivedim.model import GPT
        from fivedim.model.attention import causal
        from fivedim.model.config import named

        shape, shrink = named(self.cfg.model, **case.changes), self.cfg.shrink
        lengths = {name: getattr(shape, name) // shrink for name in ("vocabulary", "context", "width")}
        model = GPT(replace(shape, **lengths))
        for block in model.blocks:
            block.register_buffer("mask", causal(lengths["context"], torch.float32))
        model.tokens.weight.requires_grad_(not case.frozen)
        return model

    def step(self, model, optimizer) -> list[float]:
        """One step; when the lane will be done with forward and backward."""
        from fivedim.model import cross_entropy

        marks = []
        optimizer.zero_grad()
        loss, _ = cross_entropy(model(self.tokens), self.tokens)
        marks.append(self.accelerator.now)
        loss.backward()
        marks.append(self.accelerator.now)
        optimizer.step()
        return marks

    def on_rank(self) -> dict:
        """One rank's part: the table of collectives, the dilation that follows from it, then all cases in turn.

        Sends an all-reduce a bucket and the buffers' broadcast a step, and a few of each for the table.
        """
        import torch.distributed as dist

        group = dist.group.WORLD
        table = {size: self.collective("all_reduce_", size, group) for size in sizes(self.gradient_bytes)}
        buffers = self.collective("broadcast_", self.buffer_bytes, group)
        self.accelerator.dilation = self.dilation(agreed(table[self.gradient_bytes], group))
        self.accelerator.steps.clear()
        replicas = [self.replica(*each, group) for each in zip(self.cases, self.models, strict=True)]
        spans = []
        for _ in range(1 + self.cfg.repeats):
            for case, replica in zip(self.cases, replicas, strict=True):
                marks = self.together(replica, group)
                if case.name == cap_name(CAP):
                    spans = merged(self.accelerator.trace, marks)
        self.accelerator.check()
        return {
            **{"table": table, "buffers": buffers, "dilation": self.accelerator.dilation, "spans": spans},
            **{"steps": [self.accelerator.steps[index :: len(self.cases)][1:] for index in range(len(self.cases))]},
        }

    def collective(self, name: str, size: int, group) -> list[float]:
        """Seconds of a collective on `size` bytes, as data parallelism calls it."""
        import torch

        from fivedim.comm import asynchronous

        x = torch.zeros(size // 4)
        return timed(lambda: getattr(asynchronous, name)(x, group).wait(), self.cfg.repeats, group)

    def dilation(self, all_reduce: float) -> float:
        """The card's: one GPU's step stands to an all-reduce of everything as it does in the article."""
        article = self.article.step()
        reported = self.article.constants[ONE_GPU] / 1e3 / article.all_reduce(sum(article.gradients().values()))
        return reported * all_reduce / self.profiles[0].whole

    def replica(self, case: Case, model, group):
        """The model and its optimizer, under our data parallelism unless it is one GPU's."""
        import torch

        from fivedim.data_parallel import Overlapped

        if case.cap_mib is not None:
            model = Overlapped(model, group, case.cap_mib / self.cfg.shrink**2)
            for bucket in model.buckets:
                bucket.flat.zero_()  # it is added up for real, and what was left in memory can be slow to add
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    def together(self, replica, group) -> list[float]:
        """One step of all ranks, which begin together."""
        from fivedim import comm

        comm.barrier(group)
        with self.accelerator:
            return self.step(*replica)


def cap_name(cap: float) -> str:
    """The case of a cap of the article, MiB."""
    return f"cap {cap:g}"


def cases(caps) -> list[Case]:
    """One GPU, every cap, and two embeddings that are less in the way of the last bucket."""
    return [
        Case(SINGLE, None),
        *(Case(cap_name(cap), cap) for cap in caps),
        Case(FROZEN, CAP, frozen=True),
        Case(SMALL, CAP, {"vocabulary": 50257 // 4}),
    ]


def sizes(whole: int) -> list[int]:
    """Bytes of the all-reduces of the table, in fp32 elements."""
    return sorted({max(4, (whole >> halving) // 4 * 4) for halving in range(HALVINGS)})


def profile(accelerator: VirtualAccelerator, model, step) -> Profile:
    """One step of this process alone. It also prices all kernels, so that forked ranks need not."""
    import torch

    ready: dict[str, float] = {}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    hooks = [
        p.register_post_accumulate_grad_hook(lambda _, name=name: ready.__setitem__(name, accelerator.now))
        for name, p in trained.items()
    ]
    optimizer = torch.optim.AdamW(trained.values(), fused=True)
    for _ in range(2):  # the first also makes the optimizer's state
        with accelerator:
            forward, backward = step(model, optimizer)
    for hook in hooks:
        hook.remove()
    for parameter in trained.values():
        parameter.grad = None
    elements = {name: p.numel() for name, p in trained.items()}
    return Profile(forward, backward, accelerator.now, elements, {name: ready[name] for name in trained})


def timed(work, repeats: int, group) -> list[float]:
    """Seconds of `repeats` calls of `work`, which all ranks begin together, after one that is not timed."""
    import time

    from fivedim import comm

    seconds = []
    for _ in range(1 + repeats):
        comm.barrier(group)
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def agreed(seconds: list[float], group) -> float:
    """The median of position 0."""
    import torch

    from fivedim import comm

    return comm.broadcast(torch.tensor(median(seconds), dtype=torch.float64), group).item()


def merged(trace: list[Span], marks: list[float]) -> list[dict]:
    """A step as few spans: what the compute lane did without a pause in one phase, and every collective."""
    spans = []
    for span in sorted(trace, key=lambda each: each.start):
        name, last = span.name.split("_")[0], spans[-1] if spans else None
        if span.lane == "compute":
            name = PHASES[sum(span.start >= mark for mark in marks)]
        if last and last["lane"] == span.lane == "compute" and last["name"] == name and span.start == last["end"]:
            last["end"] = span.end
        else:
            spans.append({"lane": span.lane, "name": name, "start": span.start, "end": span.end})
    return spans


def bucket_sweep_emulated(cfg: BucketSweepEmulatedConfig) -> list[dict]:
    """The step time against the bucket cap, emulated beside reported and predicted; and what the embedding costs.

    `row` is setup, all_reduce (the measured table), case (one GPU, a cap, or another embedding) or span (of one step
    at the default cap, of `drawn` ranks). Times are the emulator's, in s; a case's are the slowest rank's, by the median
    over `repeats` steps with the 10th and 90th percentile. `ratio` is over one GPU's step; `exposed` is what of the
    step the compute lane stood still, also over one GPU's. Sends an all-reduce a bucket and step, and the buffers.
    """
    from fivedim.lab import fabric

    emulation = Emulation(cfg)
    slower = cfg.dilation * cfg.shrink**2
    with fabric.build(fabric.dilated(emulation.article.model.topology, slower)) as links:
        found = links.run(emulation.on_rank, cfg.ranks, timeout=TIMEOUT)
    return rows(emulation, found)


def rows(emulation: Emulation, found: list[dict]) -> list[dict]:
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
        _setup(emulation, machine, table, found),
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


@dataclass(frozen=True)
class Emulated:
    """The emulated machine for the predictor: its card, what its links were seen to take, and the model's buffers."""

    card: Accelerator
    dilation: float
    all_reduce: Curve
    broadcast: float
    buffer_bytes: int

    def step(self, profiled: Profile) -> Step:
        """A step for the ledger, kernels by the virtual clock: an operation a gradient, of the time until it is done.

        Data parallelism adds four passes over what it moves: gradients are copied into their bucket and divided there,
        buffers are joined and split.
        """
        from fivedim.ledger.data_parallel import Step
        from fivedim.ledger.layers import Operation, work

        last, listed = profiled.forward, []
        for name, elements in reversed(profiled.elements.items()):
            done = max(last, profiled.ready[name])
            moved = self.card.stream(4 * 4 * elements)
            listed.append(Operation(name, 0.0, self.dilation * (done - last + moved), {name: elements}))
            last = done
        forward = profiled.forward + self.card.stream(4 * self.buffer_bytes)
        listed.append(Operation("forward", self.dilation * forward, self.dilation * (profiled.backward - last), {}))
        return Step(
            listed[::-1],
            compute=work(listed),
            optimizer=self.dilation * (profiled.whole - profiled.backward),
            all_reduce=self.all_reduce.seconds,
            buffers=self.broadcast,
        )

    def predict(self, profiled: Profile, case: Case, shrink: int) -> dict:
        """The simulated step of a case: seconds, and how many buckets."""
        from fivedim.ledger.data_parallel import timeline

        if case.cap_mib is None:
            return {"buckets": 0, "predicted_s": self.dilation * profiled.whole}
        step = self.step(profiled)
        bucketed = step.bucketed(case.cap_mib / shrink**2)
        simulated = timeline(step, bucketed)
        waits = {f"predicted_{name}_s": ms / 1e3 for name, ms in exposed(simulated).items()}
        return {"buckets": len(bucketed), "cap_mib": case.cap_mib, "predicted_s": simulated.makespan} | waits


def _case(case: Case, predicted: dict, by_rank: list[list]) -> dict:
    seconds = slowest([[step.seconds for step in steps] for steps in by_rank])
    late = max(step.late for steps in by_rank for step in steps)
    shared = {"row": "case", "name": case.name, "busy_s": median(step.busy for step in by_rank[0]), "late_s": late}
    return shared | quantiles(seconds) | predicted


def _setup(emulation: Emulation, machine: Emulated, table: dict[int, list[float]], found: list[dict]) -> dict:
    """What was built and how near it comes to what was meant."""
    profiled, article, cfg = emulation.profiles[0], emulation.article, emulation.cfg
    step = article.step()
    links = machine.all_reduce.times[-1] / (cfg.dilation * step.all_reduce(sum(step.gradients().values())))
    return {
        **{"row": "setup", "ranks": cfg.ranks, "shrink": cfg.shrink, "products": cfg.products},
        **{"links_dilation": cfg.dilation, "card_dilation": machine.dilation, "repeats": cfg.repeats},
        **{"gradient_bytes": emulation.gradient_bytes, "buffer_bytes": emulation.buffer_bytes},
        **{"roofline_ms": 1e3 * profiled.whole, "reported_ms": article.constants[ONE_GPU]},
        **{"all_reduce_s": machine.all_reduce.times[-1], "all_reduce_over_table": links},
        **{"broadcast_s": machine.broadcast},
    }


def ratio(rows: DataFrame, name: str) -> float:
    """A case's step over one GPU's."""
    return float(rows[(rows.row == "case") & (rows.name == name)].ratio.iloc[0])
