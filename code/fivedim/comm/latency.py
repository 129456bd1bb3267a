"""Latency: seconds that every send sleeps before it leaves, where an emulated link has a rate but no delay."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_seconds = 0.0


@contextmanager
def latency(seconds: float) -> Iterator[None]:
    """While the block runs, whatever this rank sends at once leaves `seconds` later. What c10d carries out does not."""
    global _seconds
    before, _seconds = _seconds, seconds
    try:
        yield
    finally:
        _seconds = before


def pay() -> None:
    """Sleep the latency of one launch."""
    if _seconds:
        time.sleep(_seconds)
