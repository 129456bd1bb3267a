"""The box is a real cluster: jobs, steps over two nodes, GPUs, accounting, cancelling, submitit."""

import os
import subprocess
import time

import pytest
import submitit

from tests.slurm.conftest import STATE

SECONDS = 30  # until a short job's end must be in the accounts


def accounted(slurm, job: str, ended: str) -> None:
    """Wait until the accounts say that the job ended so (`State|ExitCode`)."""
    patience = time.monotonic() + SECONDS
    while not (state := slurm("sacct", "-X", "-n", "-P", "-j", job, "-o", "State,ExitCode")).startswith(ended):
        assert time.monotonic() < patience, f"job {job} is {state!r}, not {ended!r}"
        time.sleep(0.2)


@pytest.mark.parametrize(("script", "ended"), [("true", "COMPLETED|0:0"), ("exit 7", "FAILED|7:0")])
def test_the_accounts_tell_how_a_batch_job_ended(slurm, script, ended):
    accounted(slurm, slurm("sbatch", "--parsable", "-o", "/dev/null", "--wrap", script), ended)


def test_a_step_runs_on_both_nodes(slurm):
    lines = slurm("srun", "-N2", "-l", "bash", "-c", "echo $SLURMD_NODENAME $SLURM_NNODES").splitlines()
    assert sorted(lines) == ["0: gpu1 2", "1: gpu2 2"]


def test_gpus_are_granted_and_never_two_jobs_the_same(slurm):
    holder = slurm("sbatch", "--parsable", "-w", "gpu1", "--gres=gpu:6", "-o", "/dev/null", "--wrap", "sleep 60")
    accounted(slurm, holder, "RUNNING")
    second = slurm("srun", "-w", "gpu1", "--gres=gpu:2", "bash", "-c", "echo $SLURM_STEP_GPUS $CUDA_VISIBLE_DEVICES")
    assert second == "6,7 6,7"
    with pytest.raises(subprocess.CalledProcessError):
        slurm("srun", "--gres=gpu:9", "true")
    slurm("scancel", holder)


def test_a_cancelled_job_ends_and_is_accounted(slurm):
    job = slurm("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 300")
    accounted(slurm, job, "RUNNING")
    slurm("scancel", job)
    accounted(slurm, job, "CANCELLED")


def node_and_task() -> tuple[str, int, int]:
    environment = submitit.JobEnvironment()
    return os.environ["SLURMD_NODENAME"], environment.node, environment.global_rank


def test_submitit_runs_one_task_on_each_of_two_nodes(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(STATE / "slurm.conf"))
    executor = submitit.SlurmExecutor(folder=tmp_path)
    executor.update_parameters(nodes=2, ntasks_per_node=1, time=5)
    job = executor.submit(node_and_task)
    assert job.results() == [("gpu1", 0, 0), ("gpu2", 1, 1)]
    accounted(slurm, job.job_id, "COMPLETED|0:0")
    assert slurm("sacct", "-X", "-n", "-P", "-j", job.job_id, "-o", "NNodes") == "2"
