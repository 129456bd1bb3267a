"""Files that are whole or absent, and the errors of a file system in one line. No torch here."""

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fivedim.errors import INFRASTRUCTURE, UserError

READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
FULL = {errno.ENOSPC, errno.EDQUOT}


def write(path: Path, text: str) -> None:
    """Write `text` under a temporary name and rename it: a reader sees the old file or the whole new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Write `data` as JSON, atomically; NaN and infinity are refused."""
    write(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The data of a JSON file. Raises UserError naming an empty, truncated or unreadable one."""
    text = path.read_bytes()
    if not text:
        raise UserError(f"{path}: empty")
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{path}: not JSON (truncated?): {error}") from None


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn what the file system refuses into a UserError: a full disk is infrastructure, a read-only tree is usage."""
    try:
        yield
    except OSError as error:
        where = error.filename or "the disk"
        if error.errno in FULL:
            raise UserError(f"disk full at {where}: free some space and run again", INFRASTRUCTURE) from None
        if error.errno in READ_ONLY:
            raise UserError(f"cannot write {where}: {error.strerror}; run in a folder that you may write") from None
        raise
