"""Our stages of ZeRO against ZeroRedundancyOptimizer and DeepSpeed: the same model, ranks, buckets and batch."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from fivedim.bench.data_parallel import SHAPE
from fivedim.bench.harness import Comparison, Run, compare
from fivedim.model import GPT
from fivedim.zero import Stage1, Stage2

CAP = 1  # MiB: several buckets


def run(repeat: int) -> list[dict]:
    """Forward, backward and step of AdamW, a row a peer, on every rank. Sends what the stages say, and the peers'."""
    group = dist.group.WORLD
    return [compare(comparison, group, repeat) for comparison in comparisons(group)]


def comparisons(group: dist.ProcessGroup) -> Iterator[Comparison]:
    work = f"3.3M parameters, cap {CAP} MiB"
    yield Comparison(
        "ZeRO stage 1", "torch ZeroRedundancyOptimizer", f"{work}, fp32",
        ours(Stage1, GPT(SHAPE), group), torchs(GPT(SHAPE), group),
    )  # fmt: skip
    for stage, make in ((1, Stage1), (2, Stage2)):
        yield Comparison(
            f"ZeRO stage {stage}", f"DeepSpeed stage {stage}", f"{work}, bf16",
            ours(make, GPT(SHAPE).bfloat16(), group), deepspeeds(GPT(SHAPE), stage),
        )  # fmt: skip


def ours(stage: type[Stage1], model: nn.Module, group: dist.ProcessGroup) -> Run:
    optimizer = stage(model, group, torch.optim.AdamW, cap_mib=CAP)
    return lambda: step(model, lambda loss: loss.backward(), optimizer)


def torchs(model: nn.Module, group: dist.ProcessGroup) -> Run:
    replica = DistributedDataParallel(
        model, process_group=group, bucket_cap_mb=CAP, gradient_as_bucket_view=True
    )  # fmt: skip
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, process_group=group)
    return lambda: step(replica, lambda loss: loss.backward(), optimizer)


def deepspeeds(model: nn.Module, stage: int) -> Run:
    os.environ |= {"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)  # of names that it still uses
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled for minutes, and not c10d's
    elements = CAP * 2**20 // 2  # in bf16
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": elements, "allgather_bucket_size": elements},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)
    return partial(step, engine, engine.backward, engine)


def step(model: Callable, backward: Callable, optimizer) -> None:
    """One step on one sequence."""
    optimizer.zero_grad()
    backward(model(torch.zeros(1, 64, dtype=torch.long)).float().square().mean())
    optimizer.step()
