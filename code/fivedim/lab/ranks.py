"""Ranks: fork n processes under torch elastic's agent, each with the default gloo group ready."""

import datetime
import os
import uuid
from collections.abc import Callable

from fivedim.errors import FAILED, UserError


class RankError(UserError):
    """A rank failed: which one, how, and where its traceback is."""

    def __init__(self, rank: int, kind: str, message: str, traceback: str = ""):
        super().__init__(f"rank {rank}: {kind}: {message}", FAILED)
        self.rank, self.kind, self.traceback = rank, kind, traceback


def run(fn: Callable, ranks: int, *args, timeout: float = 20) -> list:
    """Call `fn(*args)` on `ranks` processes; return every rank's value, in rank order.

    The first failure ends all ranks and raises RankError. `timeout` (s) is the group's: a collective that waits longer fails.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if ranks < 1:
        raise UserError(f"ranks is {ranks}: ask for at least 1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=ranks, run_id=uuid.uuid4().hex, rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0, monitor_interval=0.05, start_method="fork",
    )  # fmt: skip
    try:
        values = elastic_launch(config, _entry)(fn, args, timeout)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        raise RankError(rank, "failed", str(failure.message)) from None
    return [values[rank] for rank in range(ranks)]


def _entry(fn, args, timeout):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout))
    try:
        return fn(*args)
    finally:
        dist.destroy_process_group()
