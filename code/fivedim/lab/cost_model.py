"""The instrument that predicts: one machine file turned into what the ledger's formulas and simulator take. No torch.

Nothing is fitted to the articles that are predicted. What the machine file marks as fitted or declared is listed by
`assumed`.
"""

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fivedim.errors import UserError
from fivedim.lab.config import find_root
from fivedim.lab.machine import Constant, Machine, load
from fivedim.ledger.collectives import CollectiveTimes, Point
from fivedim.ledger.kernels import Accelerator
from fivedim.ledger.topology import Topology


@dataclass(frozen=True)
class CostModel:
    """A machine in the units of the ledger: seconds, bytes, FLOP."""

    machine: Machine
    root: Path

    @classmethod
    def of(cls, machine: str) -> "CostModel":
        """The cost model of the machine named so in this project. Raises UserError for an unknown one."""
        root = find_root()
        return cls(load(root, machine), root)

    @cached_property
    def times(self) -> CollectiveTimes:
        """Reported times of the collectives."""
        rows = [row for table in self.machine.collectives.values() for row in reported(self.root / table)]
        return CollectiveTimes(
            Point(row["op"], int(row["world_size"]), int(row["bytes"]), float(row["time_ms"]) / 1e3) for row in rows
        )

    @cached_property
    def accelerator(self) -> Accelerator:
        """Rates of one card."""
        card = self.machine.card
        return Accelerator(
            gemm={dtype: rate.value * 1e12 for dtype, rate in card.gemm_tflops.items()},
            memory=card.memory_gb_per_second.value * 1e9,
            multiprocessors=int(card.multiprocessors.value),
            launch=card.launch_us.value / 1e6,
        )

    @cached_property
    def topology(self) -> Topology:
        """Links and what they join, rates in bytes a second."""
        machine, joint = self.machine, self.machine.links.joint_gb_per_second
        places = [tuple(tuple(group) for group in groups) for groups in (machine.switches, machine.sockets)]
        rate = machine.links.gb_per_second.value * 1e9
        return Topology(machine.links.budget, *places, rate=rate, joint=joint and joint.value * 1e9)

    def assumed(self) -> dict[str, Constant]:
        """Every constant that is fitted or declared, by its place in the machine file."""
        groups = {"links": self.machine.links, "card": self.machine.card}
        named = {f"{group}.{name}": value for group, model in groups.items() for name, value in model}
        return {
            name: value
            for name, value in named.items()
            if isinstance(value, Constant) and value.source in ("fitted", "declared")
        }


def reported(path: Path) -> list[dict[str, str]]:
    """The rows of a reported table. Raises UserError where it cannot be read."""
    try:
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}: put the reported table there") from None
