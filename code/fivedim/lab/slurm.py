"""Slurm: a run as one Slurm job, submitted through submitit; asked about with squeue, then sacct."""

import math
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fivedim.errors import INFRASTRUCTURE, UserError
from fivedim.lab.config import Strict, read
from fivedim.lab.environment import scrubbed
from fivedim.lab.job import Order, task

ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}


class Site(Strict):
    """slurm/site.yaml: what a site edits. `setup` is shell lines that a job runs first."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    setup: list[str] = []


@dataclass(frozen=True)
class SlurmJob:
    """A job by its Slurm id. `grace`: the seconds that it may take to end after its result or its first failure."""

    job_id: str
    interval: float = 2.0
    lag: float = 5.0
    grace: float = 60.0  # a busy node takes its time; what is cancelled is no COMPLETED job in the site's accounts

    def state(self) -> str:
        """Slurm's state (with the reason while PENDING), ENDED, or UNREACHABLE where the controller does not answer."""
        queue = ask("squeue", "-h", "-t", "all", "-j", self.job_id, "-o", "%T %r")
        if queue.returncode and "Invalid job id" not in queue.stderr:
            return f"UNREACHABLE: {' '.join(queue.stderr.split())}"
        if state := queue.stdout.split("\n")[0].strip():
            return settled(state)
        history = ask("sacct", "-X", "-n", "-P", "-j", self.job_id, "-o", "State")
        return settled(history.stdout.split("\n")[0].strip() or "LOST")

    def overdue(self, minutes: float) -> bool:
        """Never for us to see: Slurm itself ends a job at its limit."""
        return False

    def cancel(self) -> None:
        """scancel: Slurm ends every process of the job."""
        ask("scancel", self.job_id)


def settled(state: str) -> str:
    """ENDED for a state that is final (PREEMPTED, NODE_FAIL and the like may still be requeued), else the state."""
    word, _, reason = state.partition(" ")
    if word in ENDED or word == "LOST":
        return f"ENDED ({word})"
    return f"{word} ({reason})" if word == "PENDING" else word


def ask(*command: str) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's tools, for at most 30 s. Raises UserError where it is not installed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        raise UserError(f"{command[0]} is not on PATH: run where Slurm's tools are, or use --executor local") from None
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]} did not answer within 30 s")


def submit(order: Order) -> SlurmJob:
    """sbatch the job. Raises UserError with Slurm's own words where it refuses."""
    from submitit.core.utils import FailedJobError
    from submitit.slurm.slurm import SlurmExecutor

    if not SlurmExecutor.affinity() > 0:
        raise UserError("srun is not on PATH: run where Slurm's tools are, or use --executor local")
    executor = SlurmExecutor(order.attempt)
    executor.update_parameters(**parameters(order))
    executor.parameters["wckey"] = None
    try:
        with scrubbed():
            return SlurmJob(executor.submit(task, order).job_id)
    except FailedJobError as error:
        words = " ".join(str(error).split()).split("sbatch: error: ")
        raise UserError(f"Slurm refused the job: {words[-1]}", INFRASTRUCTURE) from None


def parameters(order: Order) -> dict:
    """submitit's parameters: a task a node, a core a rank, a time limit, no silent requeue, the site's own."""
    spec, limit = order.spec, 60 * math.ceil(order.spec.minutes)
    path = Path(order.root) / "slurm/site.yaml"
    site = read(path, Site) if path.is_file() else Site()
    cores = math.ceil(spec.ranks / spec.nodes)
    options = {name: value for name, value in site.model_dump(exclude={"setup"}).items() if value}
    return options | {
        "job_name": order.name,
        "time": math.ceil(spec.minutes),
        "nodes": spec.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": cores,
        "srun_args": ["--cpus-per-task", str(cores)],
        "signal_delay_s": int(min(max(0.2 * limit, 30), 120)),
        "additional_parameters": {"no-requeue": True},
        "exclusive": spec.timing or None,
        "setup": site.setup or None,
        "stderr_to_stdout": True,
    }
