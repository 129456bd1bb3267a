"""Watch: sees ranks that die or stop without a word, blames the right one, and lets none outlive the failure.

The elastic agent reports one failed process, the first it happens to look at; that is often a rank that only lost its
connection. This thread beside the agent looks at the exit status of every rank, without collecting it.
"""

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from fivedim.lab import failures
from fivedim.lab.failures import Failure

PERIOD, GRACE = 0.02, 1.0


class Watch(threading.Thread):
    """Watches the processes of `ranks`, which this process starts; one that is not done has its pid in pid.rank<k>."""

    def __init__(self, folder: Path, ranks: range):
        super().__init__(daemon=True)
        self.folder, self.ranks = folder, ranks
        self.processes: dict[int, BaseProcess] = {}
        self.dead: dict[int, int] = {}
        self.failed_at: float | None = None
        self.looked_at = time.time_ns()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(PERIOD):
            self.sweep()
            if self.failed_at and time.monotonic() > self.failed_at + GRACE:
                self.end_all()

    def stop(self) -> None:
        """Look a last time, when the agent has returned."""
        self.over.set()
        self.join()
        self.sweep()

    def sweep(self) -> None:
        """Find the ranks that died since the last look, and record those that left no record themselves."""
        if not self.processes:
            self.find()
        now, status = time.time_ns(), {rank: exit_status(process) for rank, process in self.processes.items()}
        news = {rank: code for rank, code in status.items() if code is not None and rank not in self.dead}
        early = {rank: code for rank, code in news.items() if pid_file(self.folder, rank).exists()}
        for rank, code in early.items():
            ended_by_agent = code == -signal.SIGTERM and (self.failed_at or len(early) > 1)
            if not ended_by_agent and not failures.path(self.folder, f"rank {rank}").exists():
                Failure(who=f"rank {rank}", kind=death(code), time_ns=self.looked_at).write(self.folder)
        self.dead |= news
        if early and not self.failed_at:
            self.failed_at = time.monotonic()
            self.name_stopped()
        self.looked_at = now

    def find(self) -> None:
        """Learn which process is which rank, once all have said so (active_children would collect a dead one)."""
        files = {rank: pid_file(self.folder, rank) for rank in self.ranks}
        pids = {int(file.read_text() or 0): rank for rank, file in files.items() if file.exists()}
        if len(pids) == len(self.ranks) and 0 not in pids:
            children = multiprocessing.active_children()
            self.processes = {pids[child.pid]: child for child in children if child.pid in pids}

    def name_stopped(self) -> None:
        """A stopped rank fails only by making others wait: it causes their timeouts."""
        for rank in self.processes.keys() - self.dead.keys():
            if state(self.processes[rank].pid) == psutil.STATUS_STOPPED:
                kind = "stopped (signal 19) while the others waited for it"
                Failure(who=f"rank {rank}", kind=kind, time_ns=time.time_ns()).write(self.folder)

    def end_all(self) -> None:
        """Kill the ranks that outlive the first failure; where all left without an error, end the waiting agent."""
        alive = self.processes.keys() - self.dead.keys()
        for rank in alive:
            self.processes[rank].kill()
            pid_file(self.folder, rank).unlink(missing_ok=True)
        if not alive and not any(self.dead.values()):
            self.over.set()
            os.kill(os.getpid(), signal.SIGTERM)


def pid_file(folder: Path, rank: int) -> Path:
    """Exists from a rank's start until it is done."""
    return folder / f"pid.rank{rank}"


def state(pid: int) -> str:
    """A process' state in psutil's words; `dead` where it is gone."""
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_DEAD


def exit_status(process: BaseProcess) -> int | None:
    """A child's exit status (minus the signal that killed it), None while it runs."""
    try:
        info = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return process.exitcode
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def death(code: int) -> str:
    """An exit status in words."""
    return f"killed (signal {-code})" if code < 0 else f"exited early (status {code})"
