"""A machine as data: what it is made of, its rates, and the tables that were reported from it. No torch here."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from fivedim.errors import UserError
from fivedim.lab.config import Strict, read


class Constant(Strict):
    """A number and where it comes from. What is fitted or declared says in `note` to what, or why."""

    value: float = Field(gt=0, allow_inf_nan=False)
    source: Literal["article", "data sheet", "measured", "fitted", "declared"]
    note: str = ""

    @model_validator(mode="after")
    def _says_why(self) -> Self:
        if self.source in ("fitted", "declared") and not self.note:
            raise ValueError(f"a {self.source} constant needs a note: to what, or why")
        return self


class Links(Strict):
    """How data moves between GPUs, GB/s of 10^9 bytes.

    `budget` says what a link's rate pays for: sending and receiving each (duplex), the two together (shared), or each,
    but through the one uplink of the GPU's switch (hairpin). The joint is between the sockets; None sets no limit.
    """

    budget: Literal["duplex", "shared", "hairpin"]
    gb_per_second: Constant
    joint_gb_per_second: Constant | None = None


class Card(Strict):
    """One accelerator. GB and MB are 10^9 and 10^6 bytes, rates are a second; `gemm_tflops` is by dtype."""

    memory_gb: Constant
    memory_gb_per_second: Constant
    multiprocessors: Constant
    l2_mb: Constant
    launch_us: Constant
    gemm_tflops: dict[str, Constant]


class Machine(Strict):
    """One file of configs/machines.

    `switches` and `sockets` list the GPUs that share one; `collectives` names a table of reported times a group size.
    """

    name: str
    description: str
    gpus: int = Field(ge=1)
    switches: list[list[int]]
    sockets: list[list[int]]
    links: Links
    card: Card
    software: dict[str, str]
    collectives: dict[int, Path]

    @model_validator(mode="after")
    def _places_every_gpu_once(self) -> Self:
        for name, groups in (("switches", self.switches), ("sockets", self.sockets)):
            if sorted(gpu for group in groups for gpu in group) != list(range(self.gpus)):
                raise ValueError(f"{name} must hold each of the GPUs 0 to {self.gpus - 1} once")
        return self


class MachineConfig(Strict):
    """What every prediction takes: `machine` is a file of configs/machines."""

    machine: str = "rtx-pro-6000-x8"


def load(root: Path, name: str) -> Machine:
    """The machine `name` of the project at `root`. Raises UserError for an unknown name and lists the known ones."""
    known = sorted(path.stem for path in (root / "configs/machines").glob("*.yaml"))
    if name not in known:
        raise UserError(f"machine {name}: unknown; use one of {', '.join(known)}")
    return read(root / f"configs/machines/{name}.yaml", Machine)
