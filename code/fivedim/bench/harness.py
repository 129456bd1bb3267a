"""The harness: one of ours and its peer, interleaved in one launch, by their slowest rank."""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed import ProcessGroup

from fivedim import comm

Run = Callable[[], object]


@dataclass(frozen=True)
class Comparison:
    """What is compared: names for the table, and a call of each on this rank."""

    technique: str
    peer: str
    work: str
    ours: Run
    theirs: Run


def compare(comparison: Comparison, group: ProcessGroup, repeat: int = 20, warmup: int = 3) -> dict:
    """One row of the table, the same on every rank.

    `ratio` is the median over the repeats of the peer's time over ours, `low` and `high` its quartiles; ours and the
    peer take turns at being first. `memory_ratio` is the peer's peak memory over ours.
    """
    both = (comparison.ours, comparison.theirs)
    for _ in range(warmup):
        for run in both:
            run()
    pairs = [[0.0, 0.0] for _ in range(repeat)]
    for number, pair in enumerate(pairs):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            pair[side] = seconds(both[side], group)
    slowest = comm.all_reduce_max(torch.tensor(pairs, dtype=torch.float64), group)
    ratios = (slowest[:, 1] / slowest[:, 0]).tolist()
    low, _, high = statistics.quantiles(ratios, n=4)
    ours, theirs = slowest.median(0).values.mul(1000).tolist()
    memory = [statistics.median(peak(run, group) for _ in range(5)) for run in both]
    return {
        "technique": comparison.technique,
        "peer": comparison.peer,
        "ranks": group.size(),
        "work": comparison.work,
        "ratio": round(statistics.median(ratios), 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "memory_ratio": round(memory[1] / memory[0], 3),
        "ours_ms": round(ours, 3),
        "peer_ms": round(theirs, 3),
        "repeat": repeat,
    }


def seconds(run: Run, group: ProcessGroup) -> float:
    """This rank's time for one call that all ranks start together."""
    comm.barrier(group)
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def peak(run: Run, group: ProcessGroup) -> float:
    """By how many bytes resident memory rises in one call, on the rank where it rises most; at least a page.

    The kernel's high-water mark, which also sees what the backend allocates. Freed memory is given back to it first.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmHWM")
    result = run()
    rise = max(_status("VmHWM") - before, 4096)
    del result
    return comm.all_reduce_max(torch.tensor(float(rise), dtype=torch.float64), group).item()


def _status(field: str) -> int:
    """A size of /proc/self/status, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])
