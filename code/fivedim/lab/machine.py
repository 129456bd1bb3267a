"""A machine as data: what it is made of, its rates, and the tables that were reported from it. No torch here."""

from pathlib import Path

from fivedim.errors import UserError
from fivedim.lab.config import Strict, read


class Card(Strict):
    """One accelerator. GB and MB are 10^9 and 10^6 bytes, rates are a second."""

    memory_gb: float
    memory_gb_per_second: float
    multiprocessors: int
    l2_mb: float
    gemm_tflops: dict[str, float]


class Machine(Strict):
    """One file of configs/machines.

    `switches` and `sockets` list the GPUs that share one; `collectives` names a table of reported times a group size.
    """

    name: str
    description: str
    gpus: int
    switches: list[list[int]]
    sockets: list[list[int]]
    card: Card
    software: dict[str, str]
    collectives: dict[int, Path]


def load(root: Path, name: str) -> Machine:
    """The machine `name` of the project at `root`. Raises UserError for an unknown name and lists the known ones."""
    known = sorted(path.stem for path in (root / "configs/machines").glob("*.yaml"))
    if name not in known:
        raise UserError(f"machine {name}: unknown; use one of {', '.join(known)}")
    return read(root / f"configs/machines/{name}.yaml", Machine)
