"""Rehearsal: run the real step at an article's own size on fake tensors and a fake group, in one process, for any N.

Fake tensors are those of torch's meta device: they have shapes, dtypes and storages but no memory (FakeTensorMode's
also claim to be on a CPU; they take twice as long). The fake group accepts every call and moves nothing. So bytes,
calls and live memory are those of the real code, and no value and no time means anything. What is private to torch
stays in this file.
"""

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextlib.contextmanager
def fake_group(world_size: int, rank: int = 0) -> Iterator[dist.ProcessGroup]:
    """A default group of `world_size` ranks of which this process plays `rank`; it sends nothing.

    An existing default group (an experiment's) steps aside and is back afterwards. Groups made inside end here.
    """
    outer, before = dist.group.WORLD, set(c10d._world.pg_map)
    c10d._update_default_pg(None)
    try:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
        yield dist.group.WORLD
    finally:
        c10d._update_default_pg(outer)
        for group in [group for group in c10d._world.pg_map if group not in before]:
            dist.destroy_process_group(group)


@contextlib.contextmanager
def rehearse(world_size: int = 1, rank: int = 0) -> Iterator[dist.ProcessGroup]:
    """Fake tensors on a fake group: the block is `rank`'s part of a step on `world_size` ranks; it sends nothing."""
    with fake_group(world_size, rank) as group, torch.device("meta"), FusedAttention():
        yield group


class FusedAttention(TorchFunctionMode):
    """Attention is one kernel, as on a CPU: the meta device would take it apart and keep its scores alive."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Any function, attention by the fused kernel."""
        if func is F.scaled_dot_product_attention:
            return fused(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def fused(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, is_causal: bool, enable_gqa: bool) -> Tensor:
    """q [B, H, T, D], k and v [B, K, T, D], to [B, H, T, D]."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout_p, is_causal)[0]
