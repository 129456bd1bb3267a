"""Articles 4 and 5, emulated: our DDP, ZeRO and FSDP on eight ranks, over shaped links, between kernels that take time.

As in article 3's emulation, lengths are divided by `shrink`, and links, memory and products are slower in proportion;
of the layers and the vocabulary there is one in `thin`. From the article comes one number, its bf16 step on one GPU:
the card is slowed until that step stands to an all-gather of the bf16 model, as measured on these links, as it does in
the article. No masks are buffers here; the update is a fused AdamW.

The simulator is the ledger's, for the emulated machine: kernels by the virtual clock, collectives by tables that are
measured in the same launch.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from pydantic import Field

from fivedim.articles.a03_emulated import TIMEOUT, long_enough, quantiles, slowest
from fivedim.articles.a04_run import BF16, LargeConfig
from fivedim.articles.a05_emulation import DDP, FSDP, KEPT, Emulation, Machine

if TYPE_CHECKING:
    from pandas import DataFrame


class ShardedStepsEmulatedConfig(LargeConfig):
    """`dilation` is of time; each mode is timed `repeats` times, after one step that is not.

    Where the host cannot keep up the dilation is doubled, up to `doublings` times.
    """

    shrink: int = Field(8, ge=1)
    thin: int = Field(6, ge=1)
    dilation: float = Field(72, gt=0)
    doublings: int = Field(1, ge=0)
    repeats: int = Field(3, ge=1)


def sharded_steps_emulated(cfg: ShardedStepsEmulatedConfig) -> list[dict]:
    """The steps of DDP, ZeRO's second stage and FSDP with and without resharding, emulated beside the simulated.

    `row` is setup, table (a measured collective) or mode. Times are the emulator's, in s; a mode's are the slowest
    rank's, the median of `repeats` steps with the 10th and 90th percentile; `ratio` is over DDP's step. Sends what the
    modes do.
    """
    from fivedim.lab import fabric

    emulation = Emulation(cfg)

    def emulate(dilation: float) -> list[dict]:
        links = fabric.dilated(emulation.article.model.topology, dilation * cfg.shrink**2)
        with fabric.build(links) as built:
            return rows(emulation, dilation, built.run(emulation.on_rank, cfg.ranks, timeout=TIMEOUT))

    return long_enough(emulate, cfg)


def rows(emulation: Emulation, links_dilation: float, found: list[dict]) -> list[dict]:
    """The experiment's rows from what every rank returned."""
    from fivedim.ledger.collectives import Curve

    tables = {
        name: {size: slowest([each["tables"][name][size] for each in found]) for size in table}
        for name, table in found[0]["tables"].items()
    }
    curves = {name: Curve(tuple(table), tuple(map(median, table.values()))) for name, table in tables.items()}
    machine = Machine(emulation, found[0]["dilation"], curves)
    return [
        _setup(emulation, machine, links_dilation),
        *(
            {"row": "table", "collective": name, "bytes": size} | quantiles(seconds)
            for name, table in tables.items()
            for size, seconds in table.items()
        ),
        *_modes(emulation, machine, found),
    ]


def _setup(emulation: Emulation, machine: Machine, links_dilation: float) -> dict:
    """What was built."""
    gather = machine.curves["all_gather"].seconds(BF16 * emulation.elements)
    return {
        **{"row": "setup", "ranks": emulation.cfg.ranks, "shrink": emulation.cfg.shrink, "thin": emulation.cfg.thin},
        **{"links_dilation": links_dilation, "card_dilation": machine.dilation, "repeats": emulation.cfg.repeats},
        **{"layers": len(emulation.narrow.visits) - 2, "parameters": emulation.elements, "gather_s": gather},
    }


def _modes(emulation: Emulation, machine: Machine, found: list[dict]) -> list[dict]:
    listed = []
    for name, timeline in machine.timelines().items():
        steps = [each["steps"][name] for each in found]
        seconds = slowest([[step.seconds for step in mine] for mine in steps])
        late = max(step.late for mine in steps for step in mine)
        row = {"row": "mode", "mode": name, "busy_s": median(step.busy for step in steps[0]), "late_s": late}
        row |= quantiles(seconds) | {"predicted_s": timeline.makespan}
        listed.append(row | {"disagreement": timeline.makespan / row["seconds"] - 1})
    for row in listed:
        row["ratio"] = row["seconds"] / listed[0]["seconds"]
    return listed


def saved_over_gather(rows: DataFrame, column: str = "seconds") -> float:
    """What a step saves without resharding, over an all-gather of the bf16 model."""
    steps = rows[rows.row == "mode"].set_index("mode")[column]
    return float((steps[FSDP] - steps[KEPT]) / rows[rows.row == "setup"].gather_s.iloc[0])


def saved_over_gather_simulated(rows: DataFrame) -> float:
    """The same by the simulator."""
    return saved_over_gather(rows, "predicted_s")


def fsdp_over_ddp(rows: DataFrame, column: str = "seconds") -> float:
    """FSDP's step, with resharding, over DDP's."""
    steps = rows[rows.row == "mode"].set_index("mode")[column]
    return float(steps[FSDP] / steps[DDP])


def fsdp_over_ddp_simulated(rows: DataFrame) -> float:
    """The same by the simulator."""
    return fsdp_over_ddp(rows, "predicted_s")
