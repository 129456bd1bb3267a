"""Local: a run's nodes as processes of this machine, through submitit's local executor but not its waiter."""

import contextlib
import time
from dataclasses import dataclass

import psutil

from fivedim.lab.environment import scrubbed
from fivedim.lab.job import Order, task


@dataclass(frozen=True)
class LocalJob:
    """A job by submitit's controller: its process id and start time (ids are reused, the pair is not).

    `grace`: the seconds that it may take to end after its result or its first failure.
    """

    job_id: str
    start_time: float
    interval: float = 0.1
    lag: float = 0.0
    grace: float = 5.0

    def state(self) -> str:
        """RUNNING or ENDED."""
        return "RUNNING" if self._controller() else "ENDED"

    def overdue(self, minutes: float) -> bool:
        """Whether it has run for longer than its limit."""
        return time.time() - self.start_time > 60 * minutes

    def cancel(self) -> None:
        """End the controller and every process below it: SIGTERM, and after two seconds SIGKILL."""
        controller = self._controller()
        if controller is None:
            return
        tree = [controller, *controller.children(recursive=True)]
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in psutil.wait_procs(tree, timeout=2)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _controller(self) -> psutil.Process | None:
        try:
            process = psutil.Process(int(self.job_id))
            alive = process.create_time() == self.start_time and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return process if alive else None


def submit(order: Order) -> LocalJob:
    """Start the job: one submitit task a node, all on this machine, with a limit a minute past the launcher's."""
    from submitit.local.local import LocalExecutor

    executor = LocalExecutor(order.attempt)
    executor.update_parameters(
        timeout_min=order.spec.minutes + 1, signal_delay_s=30, tasks_per_node=order.spec.nodes, stderr_to_stdout=True
    )
    with scrubbed():
        job = executor.submit(task, order)
    return LocalJob(job.job_id, psutil.Process(int(job.job_id)).create_time())
