"""Doctor: which instruments work on this machine, why the others do not, and what would help. No torch at the top."""

import os
import shutil
import subprocess
from typing import NamedTuple

import psutil

from fivedim.errors import UserError
from fivedim.lab import fabric, sandbox

GIB = 2**30


class Finding(NamedTuple):
    """One line: what was looked at, whether it works, what was found, and what would help where it does not."""

    what: str
    works: bool
    found: str
    helps: str = ""


def examine() -> list[Finding]:
    """Every finding, of what all instruments need first."""
    return [look() for look in (cores, memory, namespaces, links, slurm, latex, gpus)]


def cores() -> Finding:
    usable = len(os.sched_getaffinity(0))
    return Finding("cores", usable > 1, f"{usable}", "times of eight ranks want two cores at least")


def memory() -> Finding:
    free = psutil.virtual_memory().available / GIB
    return Finding("memory", free > 4, f"{free:.0f} GiB free", "eight ranks and the rehearsals want about 4 GiB")


def namespaces() -> Finding:
    what = "network namespaces (fabric)"
    try:
        return Finding(what, True, " ".join(sandbox.way()))
    except UserError as error:
        return Finding(what, False, str(error), sandbox.HELP)


def links() -> Finding:
    missing = fabric.unavailable()
    needs = "a Linux kernel with veth, bridge, ifb, sch_tbf, cls_u32 and act_mirred; namespaces; pip install pyroute2"
    return Finding("shaped links (fabric)", not missing, missing or "veth, bridge, ifb, tbf, u32, mirred", needs)


def slurm() -> Finding:
    needs = "Slurm's tools and a cluster; without, --executor local; `make cluster-test` brings a cluster of its own"
    return _tool("Slurm (--executor slurm)", "sbatch", needs)


def latex() -> Finding:
    return _tool("LaTeX (paper)", "latexmk", "install latexmk and texlive; without, figures and tables are built")


def gpus() -> Finding:
    listed = _said("nvidia-smi", "--list-gpus")[0].splitlines()
    return Finding("GPUs (measured 9.7)", bool(listed), f"{len(listed)}", "an NVIDIA GPU and its driver")


def _tool(what: str, command: str, needs: str) -> Finding:
    version, fault = _said(command, "--version")
    return Finding(what, not fault, fault or version.strip().splitlines()[0], needs)


def _said(*command: str) -> tuple[str, str]:
    """What a tool prints, and its last words or where it is missing, if it does not work."""
    if not shutil.which(command[0]):
        return "", f"{command[0]} is not on PATH"
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode or not ended.stdout.strip():
        return "", (ended.stderr.strip().splitlines() or [f"{command[0]} says nothing"])[-1]
    return ended.stdout, ""


def doctor() -> None:
    """Say which instruments work on this machine, and why the others do not."""
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "works", "found", "what would help")
    for finding in examine():
        table.add_row(
            finding.what, "yes" if finding.works else "no", finding.found, "" if finding.works else finding.helps
        )
    Console().print(table)
