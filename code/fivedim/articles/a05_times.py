"""Article 5, FSDP: the predicted steps of DDP and of FSDP2, with and without resharding, and what their difference is.

The steps are torch's as the article configures them: its default AdamW; for FSDP2 one unit a block and a root, bf16
parameters, and gradients reduced in fp32; for DDP fp32 parameters under bf16 autocast. See `a04_run` for what is
charged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fivedim.articles.a03_ddp import CAP, ranges
from fivedim.articles.a04_run import BF16, FP32, TABLES, LargeConfig, Rates, Run, account

if TYPE_CHECKING:
    from pandas import DataFrame

    from fivedim.ledger import data_parallel, sharded
    from fivedim.ledger.simulator import Timeline

# Bytes an element of the passes around the collectives
AUTOCAST = {"weights to bf16": 6, "gradients to fp32": 6}  # DDP's
# Bytes a token, layer and unit of width that autocast's kernels move beyond those of bf16: norms, residuals and, for
# the power in it, the article's GELU are computed in fp32
FP32_ACTIVATIONS = 484
INTO_BUCKET = {"divide into the bucket": 8}
UNPACK = {"out of the gathered": 4}  # FSDP2's parameters, bf16
PACK = {"to fp32, into what is reduced": 6}  # and its gradients
DDP, FSDP, KEPT = "ddp", "fsdp2", "fsdp2-noreshard"  # the reported modes


class FsdpTimesPredictedConfig(LargeConfig):
    """`within` and `ddp_within` are how near the predicted steps must be, for the ranges of the constants.

    Resharding counts as free where it costs less than the share `free` of a step.
    """

    within: float = 0.10
    ddp_within: float = 0.20
    free: float = 0.02


@dataclass(frozen=True)
class Modes:
    """The modes' steps under one set of constants.

    DDP has `mask_bytes` of buffers; `activations` are the model's tokens times layers times width.
    """

    rates: Rates
    mask_bytes: int
    activations: int

    @classmethod
    def of(cls, run: Run, constants: dict[str, float] | None = None) -> Modes:
        """A run's modes."""
        return cls(run.rates(constants), run.mask_bytes, run.activations)

    @property
    def update(self) -> float:
        """Seconds in which torch's AdamW updates everything."""
        from fivedim.ledger.kernels import FOREACH_ADAMW_BYTES

        return self.rates.stream(FOREACH_ADAMW_BYTES * self.rates.parameters)

    @property
    def autocast(self) -> float:
        """Seconds that autocast's fp32 activations take more than bf16 ones."""
        return self.rates.stream(FP32_ACTIVATIONS * self.activations)

    @property
    def ddp(self) -> data_parallel.Step:
        """DDP's step."""
        from fivedim.ledger.data_parallel import Step

        rates = self.rates
        passes = sum((AUTOCAST | INTO_BUCKET).values())
        return Step(
            rates.operations,
            compute=rates.compute + rates.stream(passes * rates.parameters) + self.autocast,
            optimizer=self.update,
            all_reduce=lambda size: rates.collective("all_reduce", size),
            buffers=rates.collective("broadcast", self.mask_bytes),
            launch=rates.launch,
            width=FP32,
        )

    @property
    def fsdp(self) -> sharded.Step:
        """FSDP2's step with resharding."""
        from fivedim.ledger.sharded import Step

        rates = self.rates
        return Step(
            rates.visits,
            rates.compute,
            self.update / rates.ranks,
            gather=lambda n: rates.collective("all_gather", BF16 * n),
            scatter=lambda n: rates.collective("reduce_scatter", FP32 * n),
            unpack=rates.stream(sum(UNPACK.values())),
            pack=rates.stream(sum(PACK.values())),
            launch=rates.launch,
        )

    def timelines(self) -> dict[str, Timeline]:
        """The modes' steps by their reported names."""
        return {DDP: overlapped(self.ddp)} | self.sharded()

    def sharded(self) -> dict[str, Timeline]:
        """Those of FSDP2."""
        from fivedim.ledger.sharded import timeline

        step = self.fsdp
        return {FSDP: timeline(step), KEPT: timeline(replace(step, kept=frozenset(step.units)))}

    def variants(self) -> dict[str, Timeline]:
        """Steps that differ from a mode's in one thing."""
        from fivedim.ledger.sharded import timeline

        ddp = self.ddp
        return {
            "ddp, nothing overlapped": overlapped(replace(ddp, overlap=False)),
            "ddp, activations in bf16": overlapped(replace(ddp, compute=ddp.compute - self.autocast)),
            "fsdp2, nothing gathered ahead": timeline(replace(self.fsdp, prefetch=0)),
        }


def overlapped(step: data_parallel.Step) -> Timeline:
    """The simulated step of DDP with its default buckets."""
    from fivedim.ledger.data_parallel import timeline

    return timeline(step, step.bucketed(CAP))


def fsdp_times_predicted(cfg: FsdpTimesPredictedConfig) -> list[dict]:
    """The steps of DDP and FSDP2, predicted beside the reported; what they differ by; what resharding costs, and where.

    `row` is mode, variant (one thing changed), quantity (what the article says, predicted), part (of the reported lead
    of FSDP2 over DDP, in order), break_even (of the links' rate) or range: from `low` to `high` of one constant, the
    others as they are, FSDP2's steps are within `within`, DDP's within `ddp_within`, and the reported order is kept (a
    bound at a tenth or ten times the constant is where the search ended). Times in ms. Sends nothing; charged are the
    collectives of a step.
    """
    run = Run(cfg)
    reported = run.reported("fsdp", "mode")
    within = {DDP: cfg.ddp_within, FSDP: cfg.within, KEPT: cfg.within}

    def predict(constants: dict[str, float]) -> dict[str, float]:
        timelines = Modes.of(run, constants).timelines()
        return {mode: 1e3 * each.makespan for mode, each in timelines.items()}

    def holds(steps: dict[str, float]) -> bool:
        near = all(abs(ms / reported[mode] - 1) <= within[mode] for mode, ms in steps.items())
        return near and steps[KEPT] < steps[FSDP] < steps[DDP]

    modes = Modes.of(run)
    return [
        *_modes(modes, reported),
        *_variants(modes),
        *_quantities(run, modes, reported),
        *_parts(modes, reported),
        _break_even(run, cfg.free),
        *ranges(run.constants, predict, holds),
    ]


def _modes(modes: Modes, reported: dict[str, float]) -> Iterator[dict]:
    for mode, timeline in modes.timelines().items():
        predicted, said = 1e3 * timeline.makespan, reported[mode]
        row = {"row": "mode", "mode": mode, "reported_ms": said, "predicted_ms": predicted}
        yield row | {"error": predicted / said - 1} | account(timeline)


def _variants(modes: Modes) -> Iterator[dict]:
    for name, timeline in modes.variants().items():
        yield {"row": "variant", "name": name, "predicted_ms": 1e3 * timeline.makespan} | account(timeline)


def _quantities(run: Run, modes: Modes, reported: dict[str, float]) -> Iterator[dict]:
    """What the article says of the steps, predicted; ms, with what is said where it gives a number."""
    from fivedim.articles.a03_ddp import ONE_GPU

    rates, timelines = modes.rates, modes.timelines()
    ms = {mode: 1e3 * each.makespan for mode, each in timelines.items()}
    ddp, one_gpu = account(timelines[DDP]), run.constants[ONE_GPU]
    idle = ddp["communication_ms"] - ddp["hidden_ms"]
    pairs = {
        "saved without resharding": (ms[FSDP] - ms[KEPT], reported[FSDP] - reported[KEPT]),
        "one all-gather of the bf16 model": (1e3 * rates.collective("all_gather", BF16 * rates.parameters), None),
        "ddp over one GPU": (ms[DDP] - one_gpu, reported[DDP] - one_gpu),
        "of it communication": (idle, None),
        "of it update, casts and activations": (ms[DDP] - one_gpu - idle, None),
        "one all-reduce of the fp32 gradients": (1e3 * rates.collective("all_reduce", FP32 * rates.parameters), None),
    }
    for name, (predicted, said) in pairs.items():
        row = {"row": "quantity", "name": name, "predicted_ms": predicted}
        yield row if said is None else row | {"reported_ms": said, "error": predicted / said - 1}


def _parts(modes: Modes, reported: dict[str, float]) -> Iterator[dict]:
    """The reported lead of FSDP2 over DDP: what is predicted, by cause, and what no part accounts for."""
    ddp, fsdp = (account(modes.timelines()[mode]) for mode in (DDP, FSDP))
    lead, buffers, autocast = reported[DDP] - reported[FSDP], 1e3 * modes.ddp.buffers, 1e3 * modes.autocast
    parts = {
        "a shard is updated": ddp["update_ms"] - fsdp["update_ms"],
        "activations are bf16": autocast,
        "casts and copies": ddp["compute_ms"] - fsdp["compute_ms"] - autocast,
        "no masks are broadcast": buffers,
        "gradients and weights take less to send": ddp["communication_ms"] - buffers - fsdp["communication_ms"],
        "more is hidden": fsdp["hidden_ms"] - ddp["hidden_ms"],
    }
    parts["open"] = lead - sum(parts.values())
    for order, (name, value) in enumerate(parts.items()):
        yield {"row": "part", "order": order, "name": name, "ms": value, "share": value / lead}


def _break_even(run: Run, free: float) -> dict:
    """How fast the links must be for resharding to cost less than a share `free` of the step."""
    from fivedim.ledger.break_even import root
    from fivedim.ledger.time import bus_bandwidth

    def spared(times: float) -> float:
        found = Modes.of(run, dict.fromkeys(TABLES.values(), times)).sharded()
        return free * found[KEPT].makespan - (found[FSDP].makespan - found[KEPT].makespan)

    times, rates = root(spared, 1, 100), run.rates()
    size = BF16 * rates.parameters
    now = bus_bandwidth("all_gather", rates.ranks, size, rates.collective("all_gather", size)) / 1e9
    return {"row": "break_even", "name": "resharding is free", "times": times, "gb_s": times * now, "now_gb_s": now}


def order(rows: DataFrame) -> float:
    """1 if the predicted steps are in the reported order, else 0."""
    modes = rows[rows.row == "mode"].sort_values("reported_ms")
    return float(modes.predicted_ms.is_monotonic_increasing)


def lead(rows: DataFrame) -> float:
    """How much shorter FSDP2's predicted step is than DDP's, ms."""
    predicted = rows[rows.row == "mode"].set_index("mode").predicted_ms
    return float(predicted[DDP] - predicted[FSDP])
