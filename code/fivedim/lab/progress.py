"""Progress: a running experiment says which step it is at. No torch here."""

import os
import time
from pathlib import Path

from fivedim.lab import files

VARIABLE, PERIOD = "FIVEDIM_ATTEMPT", 0.5
_started, _written = time.time(), 0.0


def step(k: int, n: int, text: str = "") -> None:
    """Say that `k` of `n` steps are done; in rank 0 of a launched run; elsewhere it does nothing."""
    global _written
    folder, now = os.environ.get(VARIABLE), time.monotonic()
    if folder and (k == n or now - _written > PERIOD):
        _written = now
        files.write_json(
            Path(folder) / "heartbeat.json",
            {"step": k, "total": n, "text": text, "started": _started, "time": time.time()},
        )
