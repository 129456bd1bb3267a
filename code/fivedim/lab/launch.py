"""Launch: from an experiment's name to its published result; at most one job for one key, and none left behind.

Take the run's lock; copy a valid result; join a job that is still alive; else submit a new attempt and wait for its
files and its state, with a waiter of our own. No torch here.
"""

import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fivedim.errors import INFRASTRUCTURE, UserError
from fivedim.lab import failures, files, job, local, results, slurm
from fivedim.lab.interrupts import CancelledError, Interrupts
from fivedim.lab.runs import Run, say
from fivedim.lab.spec import resolve
from fivedim.lab.status import Progress

EXECUTORS = {"local": (local.submit, local.LocalJob), "slurm": (slurm.submit, slurm.SlurmJob)}
Job = local.LocalJob | slurm.SlurmJob


def launch(root: Path, name: str, scale: str, executor: str) -> None:
    """Run experiment `name` at `scale`, publish its rows. Raises UserError, or CancelledError once the job is ended."""
    run = Run(root, resolve(root, name, scale))
    with files.one_line_errors(), Interrupts() as interrupts, run.lock(interrupts):
        found = run.result()
        result = found or compute(run, executor, interrupts)
        results.publish(root, scale, result)
    say(f"{name}: {len(result['rows'])} rows, {'found' if found else 'run'}, {result['seconds']:.1f} s")


def compute(run: Run, executor: str, interrupts: Interrupts) -> dict[str, Any]:
    """The result of the run's living job, or of a new attempt; whatever goes wrong, the job ends."""
    if executor == "inline":
        return compute_here(run)
    attempt, running = living(run) or submit(run, executor)
    try:
        return wait(run, attempt, running, interrupts)
    except BaseException as error:
        if isinstance(error, CancelledError):
            say(f"{run.spec.experiment}: ending job {running.job_id}; a second signal leaves at once")
        running.cancel()
        raise


def compute_here(run: Run) -> dict[str, Any]:
    """The result of an attempt in this process, which forks the ranks itself: for tests."""
    order = run.next_attempt("inline")
    try:
        job.execute(order, "inline", 0)
    except UserError as error:
        raise run.explain(order.attempt) or run.failed(order.attempt, str(error)) from None
    return run.result()


def submit(run: Run, executor: str) -> tuple[Path, Job]:
    """Submit a new attempt, and record its job."""
    order = run.next_attempt(executor)
    started = EXECUTORS[executor][0](order)
    record = {"attempt": order.attempt.name, "executor": executor, "job": asdict(started)}
    files.write_json(run.folder / "job.json", record)
    return order.attempt, started


def living(run: Run) -> tuple[Path, Job] | None:
    """The attempt and the job that job.json names, where that job has not ended."""
    path = run.folder / "job.json"
    if not path.exists():
        return None
    record = files.read_json(path)
    found = EXECUTORS[record["executor"]][1](**record["job"])
    if found.state().startswith("ENDED"):
        return None
    say(f"{run.spec.experiment}: job {found.job_id} is still there; joining it")
    return run.folder / "attempts" / record["attempt"], found


def wait(run: Run, attempt: Path, running: Job, interrupts: Interrupts) -> dict[str, Any]:
    """The result, once the job has ended. Raises UserError: the cause of a failure, the time limit, or no result."""
    progress, settled = Progress(run.spec.experiment, attempt), None
    while not (state := running.state()).startswith("ENDED"):
        if running.overdue(run.spec.minutes):
            limit = f"it ran past its limit of {run.spec.minutes:g} min (`minutes` in experiments.yaml)"
            raise run.failed(attempt, limit)
        if settled is None and ((run.folder / "result.json").exists() or failures.cause(attempt)):
            settled = time.monotonic()
        if settled and time.monotonic() - settled > running.grace:
            running.cancel()
        progress.show(state)
        interrupts.pause(running.interval)
    return ended(run, attempt, state, running.lag, interrupts)


def ended(run: Run, attempt: Path, state: str, lag: float, interrupts: Interrupts) -> dict[str, Any]:
    """The result of a job that has ended; a shared file system may show it `lag` seconds late."""
    deadline = time.monotonic() + lag
    while True:
        if error := run.explain(attempt):
            raise error
        if result := run.result():
            return result
        if time.monotonic() >= deadline:
            full = "; the disk is full: free some space" * (shutil.disk_usage(run.folder).free < 2**20)
            raise run.failed(attempt, f"the job left no result and no error ({state}){full}", INFRASTRUCTURE)
        interrupts.pause(0.2)
