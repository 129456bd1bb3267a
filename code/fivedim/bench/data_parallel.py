"""Our overlapped data parallelism against torch's: the same model, ranks, buckets and batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fivedim.bench.harness import Comparison, compare
from fivedim.data_parallel import Overlapped
from fivedim.model import GPT, GPTConfig

SHAPE = GPTConfig(vocabulary=512, context=64, layers=4, heads=4, width=256)  # 3.3M parameters
CAPS = (1, 25)  # MiB: several buckets, and one


def run(repeat: int) -> list[dict]:
    """Forward and backward of one sequence a rank, a row a cap, on every rank. Sends what the wrappers say."""
    return [compare(comparison(cap, dist.group.WORLD), dist.group.WORLD, repeat) for cap in CAPS]


def comparison(cap: int, group: dist.ProcessGroup) -> Comparison:
    ours = Overlapped(GPT(SHAPE), group, cap)
    theirs = DistributedDataParallel(
        GPT(SHAPE), process_group=group, bucket_cap_mb=cap, gradient_as_bucket_view=True
    )  # fmt: skip
    return Comparison(
        "data parallelism", "torch DistributedDataParallel", f"3.3M parameters, cap {cap} MiB",
        lambda: step(ours), lambda: step(theirs),
    )  # fmt: skip


def step(replica: nn.Module) -> None:
    """One synchronized forward and backward."""
    replica.zero_grad()
    replica(torch.zeros(1, 64, dtype=torch.long)).square().mean().backward()
