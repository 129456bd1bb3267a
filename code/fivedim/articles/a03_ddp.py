"""Article 3, From DP to DDP: what buckets and overlap are predicted to cost, and where the exposed time goes.

A prediction takes one number from the article, its one-GPU step. All-reduce and broadcast come from article 2's tables,
the optimizer from the data sheet's memory bandwidth; the rest of the step is shared among the model's operations by
their FLOP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from fivedim.lab.machine import MachineConfig

if TYPE_CHECKING:
    from pandas import DataFrame

    from fivedim.ledger.data_parallel import Step
    from fivedim.ledger.simulator import Timeline

MASK = 4  # bytes an entry of the causal mask that every layer keeps as a buffer
CAP = 25  # MiB, torch's default
MICROBATCHES = {"0": (True,) * 4, "1": (False, False, False, True)}  # no_sync: which of four are synchronized
ONE_GPU, MEMORY, LAUNCH = "one-GPU step, ms", "memory, GB/s", "kernel launch, us"
ALL_REDUCE, BROADCAST = "all-reduce table, times as fast", "broadcast table, times as fast"


class DdpConfig(MachineConfig):
    """The article's run: `model` on `ranks` GPUs, `sequences` of `length` tokens each, fp32 gradients."""

    model: str = "124M"
    ranks: int = Field(8, ge=2)
    sequences: int = 12
    length: int = 1024


class BucketSweepPredictedConfig(DdpConfig):
    """`within` is how near every predicted step must be, for the ranges of the constants."""

    within: float = 0.10


class NaivePredictedConfig(DdpConfig):
    """`times` is how often the other way's exposed time the naive one's must be, for the ranges of the constants."""

    times: float = 2.0


class Predictor:
    """The article's run under one machine's cost model, and the article's own numbers (ms as reported)."""

    def __init__(self, cfg: DdpConfig):
        from fivedim.lab.cost_model import CostModel, reported
        from fivedim.ledger.layers import operations
        from fivedim.model.config import named

        self.cfg = cfg
        self.model = CostModel.of(cfg.machine)
        self.shape = named(cfg.model, fused_attention=False)  # fused attention would keep no masks
        self.operations = operations(self.shape, cfg.length, cfg.sequences)
        self.rows = reported(self.model.root / "configs/reported/ddp.csv")
        card = self.model.machine.card
        self.constants = {
            ONE_GPU: self.reported_ms(mode="single"),
            MEMORY: card.memory_gb_per_second.value,
            ALL_REDUCE: 1.0,
            BROADCAST: 1.0,
            LAUNCH: card.launch_us.value,
        }

    def reported_ms(self, **cells: str) -> float:
        """The reported step of the first row that has these cells."""
        return next(float(row["step_ms"]) for row in self.rows if cells.items() <= row.items())

    def reported_sweep(self) -> dict[float, float]:
        """The reported step by cap in MiB, without accumulation."""
        sweep = [row for row in self.rows if row["mode"] == "ddp" and row["gas"] == "1"]
        return {float(row["bucket_cap_mb"]): float(row["step_ms"]) for row in sweep}

    def step(self, constants: dict[str, float] | None = None, **changes) -> Step:
        """One step under the cost model's own `constants` or these; `changes` to the shape keep the rate of FLOP."""
        from fivedim.ledger.data_parallel import Step
        from fivedim.ledger.layers import operations, tensors, work

        given, times, n = constants or self.constants, self.model.times, self.cfg.ranks
        shape, article, listed = self.shape, self.operations, self.operations
        if changes:
            shape = replace(shape, **changes)
            listed = operations(shape, self.cfg.length, self.cfg.sequences)
        card = replace(self.model.accelerator, memory=given[MEMORY] * 1e9)
        compute = given[ONE_GPU] / 1e3 - card.adamw(sum(tensors(article).values()))
        return Step(
            listed,
            compute=compute * work(listed) / work(article),
            optimizer=card.adamw(sum(tensors(listed).values())),
            all_reduce=lambda size: times.seconds("all_reduce", n, size) / given[ALL_REDUCE],
            buffers=times.seconds("broadcast", n, MASK * shape.layers * shape.context**2) / given[BROADCAST],
            launch=given[LAUNCH] / 1e6,
        )


def ranges(constants: dict[str, float], predict: Callable, holds: Callable) -> list[dict]:
    """The rows of the ranges of the constants over which `holds` says the same of what `predict` makes of them."""
    from fivedim.ledger.sensitivity import verdict_ranges

    found = verdict_ranges(predict, constants, holds)
    return [
        {"row": "range", "constant": name, "value": constants[name], "low": each.low, "high": each.high}
        for name, each in found.items()
    ]


def exposed(timeline: Timeline) -> dict[str, float]:
    """What the compute lane does not cover of a step with one microbatch, ms, by what is waited for."""
    waiting = timeline.uncovered(0)
    buckets = [seconds for name, seconds in waiting.items() if "bucket" in name]
    waits = {"buffers": sum(waiting.values()) - sum(buckets), "tail": sum(buckets[:-1]), "last_bucket": buckets[-1]}
    return {name: 1e3 * seconds for name, seconds in waits.items()}


def bucket_sweep_predicted(cfg: BucketSweepPredictedConfig) -> list[dict]:
    """The step time against the bucket cap, predicted beside the reported.

    `row` is point (a cap), accumulated (4 microbatches, all of them or only the last synchronized) or range: from `low`
    to `high` of one constant, the others as they are, every point is within `within` and the caps from 25 on keep their
    order (a bound at a tenth or ten times the constant is where the search ended). Times in ms. Sends nothing;
    charged are an all-reduce a bucket, and a broadcast of the buffers.
    """
    from fivedim.ledger.data_parallel import timeline

    predictor = Predictor(cfg)
    sweep = predictor.reported_sweep()
    buckets = [predictor.step().bucketed(cap) for cap in sweep]

    def predict(constants: dict[str, float]) -> list[float]:
        step = predictor.step(constants)
        return [1e3 * timeline(step, bucketed).makespan for bucketed in buckets]

    def holds(steps: list[float]) -> bool:
        near = all(abs(ms / each - 1) <= cfg.within for ms, each in zip(steps, sweep.values(), strict=True))
        arm = [ms for cap, ms in zip(sweep, steps, strict=True) if cap >= CAP]
        return near and arm == sorted(arm)

    return [
        *(_point(predictor, cap, reported) for cap, reported in sweep.items()),
        *(_accumulated(predictor, no_sync) for no_sync in MICROBATCHES),
        *ranges(predictor.constants, predict, holds),
    ]


def _point(predictor: Predictor, cap: float, reported: float) -> dict:
    from fivedim.ledger.data_parallel import timeline

    step, one_gpu = predictor.step(), predictor.constants[ONE_GPU]
    bucketed = step.bucketed(cap)
    simulated = timeline(step, bucketed)
    predicted = 1e3 * simulated.makespan
    return {
        **{"row": "point", "cap_mib": cap, "buckets": len(bucketed)},
        **{"reported_ms": reported, "predicted_ms": predicted, "error": predicted / reported - 1},
        **{"reported_exposed_ms": reported - one_gpu, "exposed_ms": predicted - one_gpu},
        **{f"{name}_ms": ms for name, ms in exposed(simulated).items()},
        **{"reported_efficiency": one_gpu / reported, "efficiency": one_gpu / predicted},
    }


def _accumulated(predictor: Predictor, no_sync: str) -> dict:
    from fivedim.ledger.data_parallel import timeline

    step, reported = predictor.step(), predictor.reported_ms(gas="4", no_sync=no_sync)
    predicted = 1e3 * timeline(step, step.bucketed(CAP), MICROBATCHES[no_sync]).makespan
    alone = 1e3 * (len(MICROBATCHES[no_sync]) * step.compute + step.optimizer)
    return {
        **{"row": "accumulated", "cap_mib": float(CAP), "no_sync": no_sync == "1"},
        **{"reported_ms": reported, "predicted_ms": predicted, "error": predicted / reported - 1},
        **{"exposed_ms": predicted - alone, "efficiency": alone / predicted},
    }


def right_arm(rows: DataFrame) -> float:
    """1 if the predicted steps of the caps from 25 MiB on are in the reported order, else 0."""
    arm = rows[(rows.row == "point") & (rows.cap_mib >= CAP)]
    return float(arm.sort_values("reported_ms").predicted_ms.is_monotonic_increasing)


def fastest_cap(rows: DataFrame) -> float:
    """The cap with the shortest predicted step, MiB."""
    points = rows[rows.row == "point"]
    return float(points.cap_mib[points.predicted_ms.idxmin()])


def left_arm(rows: DataFrame) -> float:
    """How much longer the step with a cap of 1 MiB is predicted to be than with 25, in ms."""
    predicted = rows[rows.row == "point"].set_index("cap_mib").predicted_ms
    return float(predicted[1] - predicted[CAP])


def naive_predicted(cfg: NaivePredictedConfig) -> list[dict]:
    """Four ways to reduce the same gradients: a tensor or a bucket at a time, after the backward or under it.

    `row` is scheme or range (of the constants over which the naive way, a tensor at a time after the backward, exposes
    `times` as much as buckets under it). Times in ms; `latencies` is what is spent beyond one all-reduce of everything,
    as a multiple of the smallest reported time. No buffers. Sends nothing; charged is an all-reduce a collective.
    """
    predictor = Predictor(cfg)

    def predict(constants: dict[str, float]) -> list[dict]:
        return _schemes(predictor, replace(predictor.step(constants), buffers=0.0))

    def holds(schemes: list[dict]) -> bool:
        return schemes[0]["exposed_ms"] >= cfg.times * schemes[-1]["exposed_ms"]

    return [*predict(predictor.constants), *ranges(predictor.constants, predict, holds)]


def _schemes(predictor: Predictor, step: Step) -> list[dict]:
    from fivedim.ledger.data_parallel import timeline

    one_by_one, bucketed = [[name] for name in step.gradients()], step.bucketed(CAP)
    together, floor = step.all_reduce(sum(step.gradients().values())), step.all_reduce(1)
    schemes = {
        "a tensor, after": (one_by_one, False),
        "a bucket, after": (bucketed, False),
        "a tensor, under": (one_by_one, True),
        "a bucket, under": (bucketed, True),
    }
    rows = []
    for name, (groups, overlap) in schemes.items():
        simulated = timeline(replace(step, overlap=overlap), groups)
        communication = simulated.busy(0, "communication")
        rows.append(
            {
                **{"row": "scheme", "scheme": name, "collectives": len(groups), "step_ms": 1e3 * simulated.makespan},
                **{"communication_ms": 1e3 * communication, "exposed_ms": 1e3 * simulated.exposed(0)},
                **{"exposed_share": simulated.exposed(0) / communication},
                **{"extra_ms": 1e3 * (communication - together), "latencies": (communication - together) / floor},
            }
        )
    return rows
