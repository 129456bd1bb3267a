"""From-scratch collectives against gloo's own, which work in place or into buffers made beforehand."""

from collections.abc import Iterator

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
            lambda x=x: comm.ring.all_reduce(x, group), lambda x=x: dist.all_reduce(x, group=group),
        )  # fmt: skip


def all_gathers(group: dist.ProcessGroup) -> Iterator[Comparison]:
    for size in (4, 16):
        x, out = floats(size), floats(size * group.size())
        yield Comparison(
            "ring all-gather", "gloo all_gather_single", f"{size} MiB a rank",
            lambda x=x: comm.ring.all_gather(x, group),
            lambda x=x, out=out: dist.all_gather_single(out, x, group=group),
        )  # fmt: skip


def others(group: dist.ProcessGroup) -> Iterator[Comparison]:
    x, out = floats(16), floats(16)
    yield Comparison(
        "ring reduce-scatter", "gloo reduce_scatter_single", "16 MiB",
        lambda: comm.ring.reduce_scatter(x, group),
        lambda: dist.reduce_scatter_single(out[: out.numel() // group.size()], x, group=group),
    )  # fmt: skip
    yield Comparison(
        "tree broadcast", "gloo broadcast", "16 MiB",
        lambda: comm.tree.broadcast(x, group), lambda: dist.broadcast(x, group=group, group_src=0),
    )  # fmt: skip
    yield Comparison(
        "chain broadcast", "gloo broadcast", "16 MiB",
        lambda: comm.chain.broadcast(x, group), lambda: dist.broadcast(x, group=group, group_src=0),
    )  # fmt: skip
    yield Comparison(
        "pairwise all-to-all", "gloo all_to_all_single", "16 MiB",
        lambda: comm.pairwise.all_to_all(x, group), lambda: dist.all_to_all_single(out, x, group=group),
    )  # fmt: skip
