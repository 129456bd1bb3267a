"""The paper's pipeline as Slurm jobs: `snakemake --workflow-profile slurm` on the box ends as a local run does."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fivedim.lab import config
from tests.slurm.conftest import ROOT

TOOLS = Path(sys.executable).parent
# Experiments that become jobs: of every instrument one, one over two nodes, one in a sandbox. What the local run has
# finished of the others is taken over, as finished runs are: their jobs would say nothing more about Slurm, and two
# runs of a clock on a crowded machine may fall on two sides of a tolerance. CLUSTER_ALL=1 makes a job of every
# experiment but the clocks, and goes on from the verdicts to the PDF.
ALL = bool(os.environ.get("CLUSTER_ALL"))
JOBS = ("model_state", "collective_volumes", "allreduce_bound", "ring_schedule", "link_models", "wire_bytes")


def taken(name: str) -> bool:
    """Whether the local run of this experiment is taken over."""
    clock = config.experiments(ROOT)[name].timing
    return name not in JOBS and (clock or not ALL)


pytestmark = pytest.mark.timeout(1200)


def snakemake(root: Path, *arguments: str, **variables: str) -> None:
    """Run the pipeline of `root` at smoke scale, with the package that lies there. Raises where it fails."""
    path = f"{TOOLS}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(root / "code"), **variables}
    command = [TOOLS / "snakemake", "--config", "scale=smoke", *arguments]
    subprocess.run(command, cwd=root, env=environment, check=True)


def copy_of_the_project(root: Path) -> Path:
    """The project without anything that was built: no run but those that are taken over is there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, root / name)
    for name in filter(taken, config.experiments(ROOT)):
        for run in (ROOT / "runs").glob(f"{name}-*"):
            shutil.copytree(run, root / "runs" / run.name)
    return root


def verdicts(root: Path) -> dict[tuple[str, str], str]:
    """Every claim's verdict, by claim and evidence."""
    with open(root / "results/smoke/claims.csv", newline="") as file:
        return {(row["claim"], row["evidence"]): row["verdict"] for row in csv.DictReader(file)}


def provenance(root: Path) -> list[dict]:
    """What every experiment's result says of its run."""
    found = [json.loads(path.read_text()) for path in sorted((root / "results/smoke").glob("*.json"))]
    return [each for each in found if "experiment" in each]


def test_the_pipeline_as_slurm_jobs_ends_with_the_local_verdicts(slurm, tmp_path):
    snakemake(ROOT)
    remote = copy_of_the_project(tmp_path / "a project")
    few = ("--resources", "slurm_jobs=3", "machine=100")  # the box has 32 cores in name, this machine may have two
    wanted = () if ALL else ("--", "results/smoke/claims.csv")
    snakemake(remote, "--workflow-profile", "slurm", *few, *wanted, SLURM_CONF=slurm("printenv", "SLURM_CONF"))
    assert not ALL or (remote / "paper/paper.pdf").read_bytes().startswith(b"%PDF")
    assert verdicts(remote) == verdicts(ROOT) != {}
    runs = provenance(remote)
    assert {run["experiment"] for run in runs} == {run["experiment"] for run in provenance(ROOT)}
    runs = [run for run in runs if not taken(run["experiment"])]
    assert {run["executor"] for run in runs} == {"slurm"}
    assert "wire_bytes" in {run["experiment"] for run in runs}  # a fabric, in a Slurm job
    lines = slurm("sacct", "-X", "-n", "-P", "-S", "now-1hour", "-o", "JobID,NNodes,State").splitlines()
    assert sorted(lines) == sorted(f"{run['job_id']}|{run['nodes']}|COMPLETED" for run in runs)
    assert max(run["nodes"] for run in runs) == 2
