"""Small experiments that succeed or fail on purpose; the launching tests run them."""

import os
import signal
import time
from pathlib import Path

from fivedim.lab.config import Strict


class SumConfig(Strict):
    sizes: list[int] = [3]
    seed: int = 0


def sums(cfg: SumConfig) -> list[dict]:
    """One all-reduce a size: rows of (size, ranks, total)."""
    import torch
    import torch.distributed as dist

    rows = []
    for size in cfg.sizes:
        x = torch.full((size,), dist.get_rank() + 1.0)
        dist.all_reduce(x)
        rows.append({"size": size, "ranks": dist.get_world_size(), "total": x.sum().item()})
    return rows


def raise_it() -> None:
    raise ValueError("the seventh seal")


def leave() -> None:
    raise SystemExit(0)


FAULTS = {
    "raise": raise_it,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "exit": leave,
    "hard exit": lambda: os._exit(0),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


class FaultConfig(Strict):
    how: str
    culprit: int = 1


def faults(cfg: FaultConfig) -> list[dict]:
    """All meet in all-reduces; at the fourth, rank `culprit` does `how`."""
    import torch
    import torch.distributed as dist

    for step in range(200):
        if dist.get_rank() == cfg.culprit and step == 3:
            time.sleep(0.05)
            FAULTS[cfg.how]()
        dist.all_reduce(torch.ones(7))
    return [{"finished": True}]


class ValueConfig(Strict):
    value: str


def values(cfg: ValueConfig) -> list[dict]:
    """A row with a value that may not stand in a result."""
    return [{"good": 1.5}, {"good": 2.5, "bad": {"nan": float("nan"), "inf": float("inf"), "list": []}[cfg.value]}]


class WaitConfig(Strict):
    seconds: float = 60


def waits(cfg: WaitConfig) -> list[dict]:
    """Says so by the file `started` in the project's root, and waits; counts its calls in the file `calls`."""
    import torch.distributed as dist

    from fivedim.lab import progress

    dist.barrier()
    if dist.get_rank() == 0:
        with Path("calls").open("a") as calls:
            calls.write("x")
        progress.step(1, 4, "waiting")
        Path("started").touch()
    time.sleep(cfg.seconds)
    return [{"seconds": cfg.seconds}]


class LinksConfig(Strict):
    rate: float = 20e6
    hold: bool = False


def links(cfg: LinksConfig) -> list[dict]:
    """On two ranks over shaped links: seconds of a ring all-reduce of 1 MiB, and what the kernel and comm counted."""
    from fivedim.lab import fabric
    from fivedim.ledger.topology import Topology

    with fabric.build(Topology("duplex", ((0, 1),), ((0, 1),), rate=cfg.rate)) as fab:
        return fab.run(over_links, 2, cfg.hold)


def over_links(hold: bool) -> dict:
    import torch
    import torch.distributed as dist

    from fivedim import comm

    x, group = torch.full((2**18,), float(dist.get_rank())), dist.group.WORLD
    comm.barrier(group)
    before, start = fabric_sent(), time.monotonic()
    with comm.count() as traffic:
        y = comm.ring.all_reduce(x, group)
    seconds = time.monotonic() - start
    comm.barrier(group)
    if hold:
        place = os.stat("/proc/self/ns/net").st_ino
        Path(f"place{dist.get_rank()}").write_text(f"{os.getpid()} {place}")
        time.sleep(600)
    told = {"right": bool((y == 1).all()), "wire": fabric_sent() - before, "counted": traffic.bytes()}
    return {"rank": dist.get_rank(), "seconds": seconds, **told}


def fabric_sent() -> int:
    from fivedim.lab import fabric

    return fabric.sent()
