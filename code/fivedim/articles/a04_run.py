"""GPT-2 Large on eight GPUs: what the predictions of articles 4 and 5 share.

They take one number from the articles, the step on one GPU (ONE_GPU_MS, articles 4 and 5): bf16 throughout, updated by
a fused AdamW. Collectives come from article 2's tables. Copies, casts and updates are charged their bytes at the data
sheet's memory bandwidth; how many passes there are is counted from the libraries' sources. Nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from fivedim.articles.a03_ddp import ALL_REDUCE, BROADCAST, LAUNCH, MASK, MEMORY, ONE_GPU
from fivedim.lab.machine import MachineConfig

if TYPE_CHECKING:
    from fivedim.ledger.layers import Operation
    from fivedim.ledger.simulator import Timeline

ONE_GPU_MS = 152.9
BF16_ADAMW_BYTES = (4 + 3) * 2  # fused, all of it in bf16: what the step on one GPU contains
BF16, FP32 = 2, 4  # bytes
ALL_GATHER, REDUCE_SCATTER = "all-gather table, times as fast", "reduce-scatter table, times as fast"
TABLES = {
    "all_reduce": ALL_REDUCE,
    "all_gather": ALL_GATHER,
    "reduce_scatter": REDUCE_SCATTER,
    "broadcast": BROADCAST,
}


class LargeConfig(MachineConfig):
    """The articles' run: `model` on `ranks` GPUs, `sequences` of `length` tokens each."""

    model: str = "774M"
    ranks: int = Field(8, ge=2)
    sequences: int = 4
    length: int = 1024


@dataclass(frozen=True)
class Rates:
    """The run under one set of constants. Seconds: `compute` of forward and backward, `launch` of an action."""

    operations: Sequence[Operation]
    visits: Sequence[Operation]  # the same, merged as far as a sharded step lets them be
    parameters: int
    ranks: int
    compute: float
    launch: float
    collective: Callable[[str, float], float]  # name, bytes of the whole tensor
    stream: Callable[[float], float]  # bytes read and written


class Run:
    """The run under one machine's cost model; `constants` are all that its times depend on."""

    def __init__(self, cfg: LargeConfig):
        from fivedim.lab.cost_model import CostModel
        from fivedim.ledger.layers import operations
        from fivedim.ledger.sharded import merged
        from fivedim.model.config import named

        self.cfg = cfg
        self.model = CostModel.of(cfg.machine)
        self.shape = named(cfg.model)
        self.operations = operations(self.shape, cfg.length, cfg.sequences)
        self.visits = merged(self.operations)
        card = self.model.machine.card
        self.constants = {
            ONE_GPU: ONE_GPU_MS,
            MEMORY: card.memory_gb_per_second.value,
            LAUNCH: card.launch_us.value,
        } | dict.fromkeys(TABLES.values(), 1.0)

    @property
    def mask_bytes(self) -> int:
        """Of the fp32 causal masks that the layers keep as buffers, and fused attention never reads."""
        return MASK * self.shape.layers * self.shape.context**2

    @property
    def activations(self) -> int:
        """Elements of one layer's input, times the layers."""
        return self.cfg.sequences * self.cfg.length * self.shape.width * self.shape.layers

    def reported(self, table: str, key: str) -> dict[str, float]:
        """The reported steps of a table, ms, by its column `key`."""
        from fivedim.lab.cost_model import reported

        rows = reported(self.model.root / f"configs/reported/{table}.csv")
        return {row[key]: float(row["step_ms"]) for row in rows}

    def rates(self, constants: dict[str, float] | None = None) -> Rates:
        """Under the cost model's own constants, but for those given here."""
        from fivedim.ledger.layers import tensors

        given, times, n = self.constants | (constants or {}), self.model.times, self.cfg.ranks
        memory, parameters = given[MEMORY] * 1e9, sum(tensors(self.operations).values())
        return Rates(
            self.operations,
            self.visits,
            parameters,
            n,
            compute=given[ONE_GPU] / 1e3 - BF16_ADAMW_BYTES * parameters / memory,
            launch=given[LAUNCH] / 1e6,
            collective=lambda name, size: times.seconds(name, n, size) / given[TABLES[name]],
            stream=lambda size: size / memory,
        )


def account(timeline: Timeline) -> dict[str, float]:
    """Where a step's ms go: what is computed, updated and sent, less what of it ran at the same time, is the step."""
    from fivedim.ledger.simulator import COMMUNICATION, COMPUTE

    update = timeline.spans["optimizer"].action.seconds
    compute, sent = timeline.busy(0, COMPUTE) - update, timeline.busy(0, COMMUNICATION)
    parts = {"compute": compute, "update": update, "communication": sent}
    parts |= {"hidden": sum(parts.values()) - timeline.makespan}
    return {f"{name}_ms": 1e3 * seconds for name, seconds in parts.items()}
