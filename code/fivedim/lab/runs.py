"""Runs: the folder of one run, runs/<experiment>-<key>, and what is in it. No torch here.

An attempt's own files (error.rank<k>.json, heartbeat.json, log.txt) lie in attempts/<n>: no later one mistakes them.
"""

import contextlib
import errno
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fivedim.errors import FAILED, INFRASTRUCTURE, UserError
from fivedim.lab import failures, files, results
from fivedim.lab.interrupts import Interrupts
from fivedim.lab.job import Order
from fivedim.lab.spec import Spec


def say(text: str) -> None:
    """One line on stderr."""
    print(f"fivedim: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Run:
    """The run of a spec in the project at `root`."""

    root: Path
    spec: Spec

    @property
    def folder(self) -> Path:
        return self.root / "runs" / self.spec.run

    @contextlib.contextmanager
    def lock(self, interrupts: Interrupts) -> Iterator[None]:
        """Hold the run. While another launcher holds it, wait, and say so once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("a") as file:
            told = False
            while not taken(file):
                if not told:
                    say(f"{self.spec.experiment}: another launcher has this run; waiting for it")
                told = True
                interrupts.pause(0.2)
            yield

    def result(self) -> dict[str, Any] | None:
        """The valid result, or None; one that is not valid is named and set aside."""
        path = self.folder / "result.json"
        if not path.exists():
            return None
        try:
            return results.read(path, self.spec)
        except UserError as error:
            say(f"{error}; it is set aside and the experiment runs again")
            path.replace(path.with_name("result.rejected.json"))
            return None

    def next_attempt(self, executor: str) -> Order:
        """A fresh folder for the next attempt; the intent is written down before anything starts."""
        attempt = self.folder / "attempts" / str(len(attempts(self.folder)) + 1)
        attempt.mkdir(parents=True)
        files.write_json(self.folder / "spec.json", self.spec.model_dump())
        (self.folder / "job.json").unlink(missing_ok=True)
        order = Order(self.root, self.folder, attempt, self.spec, executor)
        intent = {"attempt": attempt.name, "executor": executor, "job_name": order.name, "time": time.time()}
        files.write_json(self.folder / "intent.json", intent)
        return order

    def failed(self, attempt: Path, what: str, code: int = FAILED) -> UserError:
        """The one-line error of a failed attempt: the experiment, what happened, the log."""
        log = (attempt / "log.txt").relative_to(self.root)
        return UserError(f"{self.spec.experiment}: {what}; traceback and output: {log}", code)

    def explain(self, attempt: Path) -> UserError | None:
        """The error of an attempt in which a process failed; its traceback goes to the end of the log."""
        cause = failures.cause(attempt)
        if cause is None:
            return None
        with (attempt / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"\nthe cause: {cause}\n{cause.traceback}")
        if os.strerror(errno.ENOSPC) in cause.message:
            return self.failed(attempt, f"the disk is full, free some space: {cause}", INFRASTRUCTURE)
        return self.failed(attempt, str(cause))


def taken(file) -> bool:
    """Whether the lock on an open file could be taken."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def attempts(folder: Path) -> list[Path]:
    """The folders of a run's attempts, oldest first."""
    return sorted((folder / "attempts").glob("[0-9]*"), key=lambda path: int(path.name))
