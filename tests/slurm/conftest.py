"""The Slurm cluster in a box. `make cluster-test` runs these; plain pytest does not."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOX = ROOT / "slurm/box"
STATE = Path(f"/tmp/fivedim-box-{os.getuid()}")


def processes_of_the_box() -> list[str]:
    """Every live process that names the box's folder in its command or its environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if str(STATE).encode() in words:
            found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.fixture(scope="module")
def slurm() -> Iterator[Callable[..., str]]:
    """A function that runs a command on the box and returns what it prints; afterwards nothing may be left."""
    subprocess.run([BOX, "up"], check=True)
    environment = os.environ | {"SLURM_CONF": str(STATE / "slurm.conf")}

    def call(*command: str) -> str:
        return subprocess.run(
            command, env=environment, cwd=STATE, check=True, stdout=subprocess.PIPE, text=True, timeout=60
        ).stdout.strip()

    yield call
    subprocess.run([BOX, "down"], check=True)
    assert not STATE.exists()
    assert not processes_of_the_box()
