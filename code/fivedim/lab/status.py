"""Status: what a waiting launcher shows, and the table of all runs. No torch here."""

import time
from pathlib import Path
from typing import Any

from fivedim.errors import UserError
from fivedim.lab import failures, files
from fivedim.lab.runs import attempts, say, taken

PERIOD = 10.0
COLUMNS = ("experiment", "state", "ranks", "step", "seconds", "run")


class Progress:
    """Says a waiting run's news: a new state of its job at once, its heartbeat every ten seconds."""

    def __init__(self, experiment: str, attempt: Path):
        self.experiment, self.attempt = experiment, attempt
        self.state, self.said_at = "RUNNING", time.monotonic()

    def show(self, state: str) -> None:
        """Look, and say what is new."""
        if state != self.state:
            self.state = state
            say(f"{self.experiment}: {state}")
        if time.monotonic() - self.said_at > PERIOD:
            self.said_at = time.monotonic()
            say(f"{self.experiment}: {beat(self.attempt) or state}")


def beat(attempt: Path) -> str:
    """An attempt's heartbeat in words: step, seconds so far, seconds left at this pace; empty before the first."""
    path = attempt / "heartbeat.json"
    if not path.exists():
        return ""
    data = files.read_json(path)
    seconds = data["time"] - data["started"]
    left = seconds / data["step"] * (data["total"] - data["step"]) if data["step"] else float("nan")
    return (
        f"step {data['step']}/{data['total']} {data['text']}".rstrip() + f", {seconds:.0f} s, about {left:.0f} s left"
    )


def status(root: Path) -> list[dict[str, Any]]:
    """Every run's experiment, state, ranks, step and seconds, the newest last."""
    folders = sorted(root.glob("runs/*/intent.json"), key=lambda file: file.stat().st_mtime)
    return [describe(file.parent) for file in folders]


def describe(folder: Path) -> dict[str, Any]:
    """One run in a line: done, running (a launcher holds its lock), failed, or stopped."""
    spec, last = files.read_json(folder / "spec.json"), attempts(folder)[-1]
    line = {
        "experiment": spec["experiment"],
        "run": folder.name,
        "ranks": spec["ranks"],
        "step": beat(last),
        "seconds": "",
    }
    with (folder / "lock").open("a") as lock:
        if not taken(lock):
            return line | {"state": "running"}
    if (folder / "result.json").exists():
        return line | {"state": "done"} | seconds(folder / "result.json")
    cause = failures.cause(last)
    return line | {"state": f"failed: {cause}" if cause else "stopped"}


def seconds(path: Path) -> dict[str, Any]:
    """The seconds in a result, or why it cannot be read."""
    try:
        return {"seconds": f"{files.read_json(path)['seconds']:.1f}"}
    except UserError:
        return {"state": "unreadable result"}
