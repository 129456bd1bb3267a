"""Article 4, ZeRO: what DeepSpeed's stages are predicted to take, and whether prefetch makes the third the fastest.

The steps are DeepSpeed's as the article configures it (torch's AdamW, `overlap_comm`, its other defaults), which are
not those of the theory: stages 1 and 2 average their buckets with an all-reduce and gather the parameters after the
update, and stage 3 keeps gathered what it will use again soon. See `a04_run` for what is charged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from fivedim.articles.a03_ddp import ALL_REDUCE, LAUNCH, MEMORY, ONE_GPU, ranges
from fivedim.articles.a04_run import ALL_GATHER, BF16, REDUCE_SCATTER, LargeConfig, Rates, Run, account

if TYPE_CHECKING:
    from pandas import DataFrame

    from fivedim.ledger import data_parallel, sharded
    from fivedim.ledger.simulator import Timeline

# Bytes an element of DeepSpeed's passes around its collectives: bf16 gradients and weights, fp32 masters
REDUCED = {"flatten": 4, "divide": 4}  # gradients, with their all-reduce or reduce-scatter
COPIED_BACK = {"copy back": 4}  # stage 0's, after it
INTO_BUCKET = {"into the bucket": 4}  # the other stages', under the backward
GATHERED = {"join": 4}  # stage 3's parameters, after their all-gather
WHOLE = {"overflow": 10, "norm": 10, "to fp32": 6, "unscale": 8, "to bf16": 6}  # stage 0's update, besides AdamW
SHARD = {"norm": 10, "flatten": 4, "to fp32": 6, "to bf16": 6}  # the other stages'
UNITS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}  # what one sends, in (N-1)/N of what it is on
CHARGED = (ONE_GPU, MEMORY, LAUNCH, ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)


class ZeroTimesPredictedConfig(LargeConfig):
    """`within` is how near every predicted step must be, for the ranges of the constants.

    In elements, DeepSpeed's defaults: gradients travel in buckets of `bucket`, stage 3 gathers `ahead`, and keeps what
    it will use again within `reuse`.
    """

    within: float = 0.15
    bucket: int = 500_000_000
    ahead: int = 50_000_000
    reuse: int = 1_000_000_000


@dataclass(frozen=True)
class Stages:
    """The stages' steps under one set of constants."""

    cfg: ZeroTimesPredictedConfig
    rates: Rates

    def passes(self, *passes: dict[str, int], share: float = 1.0) -> float:
        """Seconds to stream these passes' bytes over a share of all elements."""
        return self.rates.stream(sum(sum(each.values()) for each in passes) * self.rates.parameters * share)

    def update(self, passes: dict[str, int], share: float) -> float:
        """Seconds of the passes and of torch's AdamW over a share of all elements."""
        from fivedim.ledger.kernels import FOREACH_ADAMW

        return self.passes(passes, {name: 4 * moved for name, moved in FOREACH_ADAMW.items()}, share=share)

    def replicated(self, reduce: str, copies: float, update: float) -> data_parallel.Step:
        """A step whose parameters are on every rank; `copies` is the seconds of the passes under the backward."""
        from fivedim.ledger.data_parallel import Step

        rates, moved = self.rates, sum(REDUCED.values()) / BF16
        return Step(
            rates.operations,
            compute=rates.compute + copies,
            optimizer=update,
            all_reduce=lambda size: rates.collective(reduce, size) + rates.stream(moved * size),
            launch=rates.launch,
            width=BF16,
        )

    def buckets(self, step: data_parallel.Step) -> list[list[str]]:
        """The gradients that travel together."""
        from fivedim.ledger.buckets import fit

        names, sizes = zip(*step.gradients().items(), strict=True)
        return [[names[i] for i in bucket] for bucket in fit([size // BF16 for size in sizes], self.cfg.bucket)]

    def zeroth(self) -> Timeline:
        """Stage 0: an all-reduce of everything after the backward; every rank updates everything."""
        from fivedim.ledger.data_parallel import timeline

        step = self.replicated("all_reduce", 0.0, self.passes(COPIED_BACK) + self.update(WHOLE, 1.0))
        step = replace(step, overlap=False)
        return timeline(step, self.buckets(step))

    def middle(self, reduce: str = "all_reduce", overlap: bool = True) -> Timeline:
        """Stages 1 and 2, which hold different things and do the same: buckets under the backward, then the gather."""
        from fivedim.ledger.data_parallel import actions
        from fivedim.ledger.sharded import published
        from fivedim.ledger.simulator import simulate

        rates = self.rates
        step = self.replicated(reduce, self.passes(INTO_BUCKET), self.update(SHARD, 1 / rates.ranks))
        step = replace(step, overlap=overlap)
        gather = rates.collective("all_gather", BF16 * rates.parameters)
        return simulate(published(actions(step, self.buckets(step)), gather), step.launch)

    @cached_property
    def third(self) -> sharded.Step:
        """Stage 3."""
        from fivedim.ledger.sharded import Step, reused

        rates, cfg = self.rates, self.cfg
        scattered = sum((INTO_BUCKET | REDUCED).values())
        step = Step(
            rates.visits,
            rates.compute,
            self.update(SHARD, 1 / rates.ranks),
            gather=lambda n: rates.collective("all_gather", BF16 * n) + rates.stream(sum(GATHERED.values()) * n),
            scatter=lambda n: rates.collective("reduce_scatter", BF16 * n) + rates.stream(scattered * n),
            bucket=cfg.bucket,
            launch=rates.launch,
        )
        return replace(step, prefetch=cfg.ahead // step.units["blocks.0"], kept=reused(step, cfg.reuse))

    def timelines(self) -> dict[str, Timeline]:
        """The stages' steps by number."""
        from fivedim.ledger.sharded import timeline

        middle = self.middle()
        return {"0": self.zeroth(), "1": middle, "2": middle, "3": timeline(self.third)}

    def variants(self) -> dict[str, tuple[Timeline, float]]:
        """Steps that differ from a stage's in one thing, and what they send."""
        from fivedim.ledger.sharded import timeline

        third = {
            "stage 3, nothing gathered ahead": replace(self.third, prefetch=0),
            "stage 3, everything gathered twice": replace(self.third, kept=frozenset()),
            "stage 3, both": replace(self.third, prefetch=0, kept=frozenset()),
        }
        return {name: (timeline(step), self.sent(step)) for name, step in third.items()} | {
            "stages 1 and 2, reduce-scatter for all-reduce": (
                self.middle("reduce_scatter"),
                and_gather("reduce_scatter"),
            ),
            "stages 1 and 2, nothing overlapped": (self.middle(overlap=False), and_gather("all_reduce")),
        }

    def sent(self, step: sharded.Step) -> float:
        """Bytes a step of stage 3 sends, in units of (N-1)/N of the bf16 model."""
        return UNITS["reduce_scatter"] + UNITS["all_gather"] * step.gathered() / self.rates.parameters


def and_gather(reduce: str) -> float:
    """The same of stages 1 and 2: one `reduce` of the gradients, and the all-gather of the parameters."""
    return UNITS[reduce] + UNITS["all_gather"]


def zero_times_predicted(cfg: ZeroTimesPredictedConfig) -> list[dict]:
    """The steps of the four stages, predicted beside the reported, and what the third one's lead comes from.

    `row` is stage, variant (one thing changed), lead (of stage 3 over another, and its parts) or range: from `low` to
    `high` of one constant, the others as they are, every step is within `within` and the reported order is kept (a
    bound at a tenth or ten times the constant is where the search ended). Times in ms; `units` is what a rank sends, in
    (N-1)/N of the bf16 model. Sends nothing; charged are the collectives of a step.
    """
    run = Run(cfg)
    reported = run.reported("zero", "stage")

    def predict(constants: dict[str, float]) -> dict[str, float]:
        return {name: 1e3 * each.makespan for name, each in Stages(cfg, run.rates(constants)).timelines().items()}

    def holds(steps: dict[str, float]) -> bool:
        near = all(abs(ms / reported[name] - 1) <= cfg.within for name, ms in steps.items())
        return near and in_order(list(steps.values()), list(reported.values()))

    stages = Stages(cfg, run.rates())
    return [
        *_stages(stages, reported),
        *_variants(stages),
        *(_lead(stages, reported, over) for over in "02"),
        *ranges({name: run.constants[name] for name in CHARGED}, predict, holds),
    ]


def in_order(predicted: list[float], reported: list[float]) -> bool:
    """Whether no two predicted steps are in the opposite order of the reported ones; equal ones are in either."""
    pairs = list(zip(predicted, reported, strict=True))
    return all((p - q) * (r - s) >= 0 for p, r in pairs for q, s in pairs)


def _stages(stages: Stages, reported: dict[str, float]) -> Iterator[dict]:
    sent = {"0": UNITS["all_reduce"], **dict.fromkeys("12", and_gather("all_reduce")), "3": stages.sent(stages.third)}
    for name, timeline in stages.timelines().items():
        predicted, said = 1e3 * timeline.makespan, reported[name]
        yield {
            **{"row": "stage", "stage": int(name), "reported_ms": said, "predicted_ms": predicted},
            **{"error": predicted / said - 1, "units": sent[name]} | account(timeline),
        }


def _variants(stages: Stages) -> Iterator[dict]:
    for name, (timeline, sent) in stages.variants().items():
        row = {"row": "variant", "name": name, "predicted_ms": 1e3 * timeline.makespan, "units": sent}
        yield row | account(timeline)


def _lead(stages: Stages, reported: dict[str, float], over: str) -> dict:
    """What stage 3 is faster than another by: less to compute, update and send, and more of it at the same time."""
    timelines = stages.timelines()
    ours, theirs = account(timelines["3"]), account(timelines[over])
    lead = 1e3 * (timelines[over].makespan - timelines["3"].makespan)
    plain = 1e3 * stages.variants()["stage 3, nothing gathered ahead"][0].makespan
    prefetch = plain - 1e3 * timelines["3"].makespan
    return {
        **{"row": "lead", "over": int(over), "reported_ms": reported[over] - reported["3"], "predicted_ms": lead},
        **{name: (ours[name] - theirs[name]) * (1 if name == "hidden_ms" else -1) for name in ours},
        **{"prefetch_ms": prefetch, "prefetch_share": prefetch / lead},
    }


def order(rows: DataFrame) -> float:
    """1 if the predicted steps are in the reported order, else 0."""
    stages = rows[rows.row == "stage"]
    return float(in_order(list(stages.predicted_ms), list(stages.reported_ms)))
