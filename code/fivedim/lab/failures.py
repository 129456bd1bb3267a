"""Failures: every rank leaves a record of its own, and the cause is told from its consequences. No torch here.

When one rank fails the others lose their connection to it, and often report that first. So the cause is the earliest
record that is neither a lost connection nor a timeout.
"""

import re
import time
import traceback
from pathlib import Path

from pydantic import ValidationError

from fivedim.lab import files
from fivedim.lab.config import Strict

LOST = re.compile(
    r"connection|broken pipe|peer|timed? ?out|remote process exited|store.*(failed|closed)", re.IGNORECASE
)


class Failure(Strict):
    """How one process failed. `who`: `rank 3` or `node 0`; `consequence`: it only lost another, or waited too long."""

    who: str
    kind: str
    message: str = ""
    traceback: str = ""
    time_ns: int
    consequence: bool = False

    def __str__(self) -> str:
        return ": ".join(part for part in (self.who, self.kind, " ".join(self.message.split())) if part)

    def write(self, folder: Path) -> None:
        """Leave the record in an attempt's folder, as error.rank3.json."""
        files.write_json(path(folder, self.who), self.model_dump())


def path(folder: Path, who: str) -> Path:
    """Where the failure of `who` is recorded."""
    return folder / f"error.{who.replace(' ', '')}.json"


def of_exception(who: str, error: BaseException) -> Failure:
    """The failure that an exception is. An exit before the end is one too, whatever its status."""
    if isinstance(error, SystemExit):
        return Failure(who=who, kind=f"exited early (status {error.code or 0})", time_ns=time.time_ns())
    return Failure(
        who=who,
        kind=type(error).__name__,
        message=str(error),
        traceback="".join(traceback.format_exception(error)),
        time_ns=time.time_ns(),
        consequence=isinstance(error, (RuntimeError, OSError)) and bool(LOST.search(str(error))),
    )


def cause(folder: Path) -> Failure | None:
    """The failure that explains the attempt in `folder`, or None where nothing has failed."""
    found = [failure for file in folder.glob("error.*.json") if (failure := read(file))]
    return min(found, key=lambda failure: (failure.consequence, failure.time_ns), default=None)


def read(file: Path) -> Failure:
    """One record. A file that is no record (a full disk leaves such) is itself a failure, of the process it names."""
    try:
        return Failure(**files.read_json(file))
    except (files.UserError, ValidationError):
        who = re.sub(r"(\d+)$", r" \1", file.name.split(".")[1])
        return Failure(who=who, kind="failed", message="its record is unreadable", time_ns=time.time_ns())
