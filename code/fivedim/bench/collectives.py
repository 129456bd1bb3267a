"""From-scratch collectives against gloo's own, both in place or into buffers made beforehand."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist

from fivedim import comm
from fivedim.bench.harness import Comparison, compare

MIB = 1 << 20


def run(repeat: int) -> list[dict]:
    """Every comparison in float32, a row each, on every rank. Sends what the collectives say, and the peers as much."""
    group = dist.group.WORLD
    comparisons = [*all_reduces(group), *all_gathers(group), *others(group)]
    return [compare(comparison, group, repeat) for comparison in comparisons]


def floats(mebibytes: int) -> torch.Tensor:
    return torch.zeros(mebibytes * MIB // 4)


def all_reduces(group: dist.ProcessGroup) -> Iterator[Comparison]:
    for size in (4, 16):
        x = floats(size)
        yield Comparison(
            "ring all-reduce", "gloo all_reduce", f"{size} MiB",
            partial(comm.ring.all_reduce, x, group, out=x), partial(dist.all_reduce, x, group=group),
        )  # fmt: skip


def all_gathers(group: dist.ProcessGroup) -> Iterator[Comparison]:
    for size in (4, 16):
        x, out = floats(size), floats(size * group.size())
        yield Comparison(
            "ring all-gather", "gloo all_gather_single", f"{size} MiB a rank",
            partial(comm.ring.all_gather, x, group, out=out), partial(dist.all_gather_single, out, x, group=group),
        )  # fmt: skip


def others(group: dist.ProcessGroup) -> Iterator[Comparison]:
    x, out = floats(16), floats(16)
    part = out[: out.numel() // group.size()]
    yield Comparison(
        "ring reduce-scatter", "gloo reduce_scatter_single", "16 MiB",
        partial(comm.ring.reduce_scatter, x, group, out=part),
        partial(dist.reduce_scatter_single, part, x, group=group),
    )  # fmt: skip
    for name, algorithm in (("tree", comm.tree), ("chain", comm.chain)):
        yield Comparison(
            f"{name} broadcast", "gloo broadcast", "16 MiB",
            partial(algorithm.broadcast, x, group, out=x), partial(dist.broadcast, x, group=group, group_src=0),
        )  # fmt: skip
    yield Comparison(
        "pairwise all-to-all", "gloo all_to_all_single", "16 MiB",
        partial(comm.pairwise.all_to_all, x, group, out=out), partial(dist.all_to_all_single, out, x, group=group),
    )  # fmt: skip
