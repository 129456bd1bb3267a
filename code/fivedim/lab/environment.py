"""The environment that a job starts from: ours without what an outer job or launcher left in it."""

import contextlib
import os
from collections.abc import Iterator

PREFIXES = ("SLURM_", "SUBMITIT_", "PMI_", "PMIX_", "TORCHELASTIC_", "TORCHINDUCTOR_", "TRITON_", "PET_", "FIVEDIM_")
NAMES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
KEPT = {"SLURM_CONF"}


@contextlib.contextmanager
def scrubbed() -> Iterator[None]:
    """Within, os.environ holds no rank, binding or cache of another job; SLURM_CONF stays."""
    removed = {name: os.environ.pop(name) for name in list(os.environ) if stale(name)}
    try:
        yield
    finally:
        os.environ.update(removed)


def stale(name: str) -> bool:
    """Whether a variable speaks of another job."""
    return name not in KEPT and (name.startswith(PREFIXES) or name in NAMES)
