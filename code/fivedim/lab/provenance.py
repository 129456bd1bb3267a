"""Provenance: on what, and with what, a result was made. No torch here."""

import importlib.metadata
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import psutil

from fivedim.lab.spec import Spec

PACKAGES = ("torch", "submitit", "pandas", "seaborn", "snakemake", "numpy", "pydantic", "deepspeed")


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that a result may depend on, where installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """This node: processor, usable cores, memory in bytes, GPUs by name, kernel."""
    return {
        "cpu": cpu_model(),
        "cores": len(psutil.Process().cpu_affinity()),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return names[0] if names else platform.machine()


def gpus() -> list[str]:
    """The names of this node's GPUs, as the driver's own tool lists them; none where there is no driver."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return re.findall(r"^GPU \d+: (.*?) \(UUID", listed, re.MULTILINE)


def commit(root: Path) -> str | None:
    """The git commit of the project at `root`, with `+` where the tree differs from it; None outside git."""
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + "+" * bool(changes)


def seeds(spec: Spec) -> dict[str, Any]:
    """The parameters that seed a run."""
    return {name: value for name, value in spec.params.items() if "seed" in name}
