"""Differentiable collectives in conjugate pairs: the backward of each is the forward of another.

    copy_to      <-> reduce_from       identity            <-> sum over the ranks
    all_gather   <-> reduce_scatter    parts -> whole      <-> whole -> the sum's part
    split        <-> gather            whole -> own part   <-> parts -> whole

`all_to_all` is its own conjugate with the two dims swapped. What all_gather returns may be used differently on each
rank, so its gradients are summed; what gather returns must be used alike on all of them, so each rank keeps its own
part of one gradient. Source of the pairs: Shoeybi et al., "Megatron-LM", 2019 (the first), Korthikanti et al.,
"Reducing activation recomputation", 2022 (the second). Volumes: comm/collectives.py.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from fivedim.comm import collectives
from fivedim.errors import FAILED, UserError

Map = Callable[[Tensor], Tensor]


class _Conjugate(torch.autograd.Function):
    """y = forward(x), dx = backward(dy); the backward is differentiable in turn, by the forward."""

    @staticmethod
    def forward(ctx, x: Tensor, forward: Map, backward: Map) -> Tensor:
        ctx.pair = backward, forward
        return forward(x)

    @staticmethod
    def backward(ctx, dy: Tensor):
        return _Conjugate.apply(dy, *ctx.pair), None, None


def copy_to(x: Tensor, group: ProcessGroup) -> Tensor:
    """x as it is; into a region where each rank uses it its own way. Backward all-reduces: 2(N-1)/N * S."""
    return _Conjugate.apply(x, _same, partial(collectives.all_reduce, group=group))


def reduce_from(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of all x; out of a region where each rank has a partial result.

    Sends 2(N-1)/N * S forward, nothing backward.
    """
    return _Conjugate.apply(x, partial(collectives.all_reduce, group=group), _same)


def all_gather(x: Tensor, group: ProcessGroup, dim: int = 0) -> Tensor:
    """All x joined along `dim`. Sends (N-1)/N * S forward, and as much backward, in a reduce-scatter."""
    return _Conjugate.apply(x, partial(_join, group=group, dim=dim), partial(_reduce_parts, group=group, dim=dim))


def reduce_scatter(x: Tensor, group: ProcessGroup, dim: int = 0) -> Tensor:
    """This rank's part along `dim` of the sum of all x.

    Sends (N-1)/N * S forward, and as much backward, in an all-gather.
    """
    return _Conjugate.apply(x, partial(_reduce_parts, group=group, dim=dim), partial(_join, group=group, dim=dim))


def split(x: Tensor, group: ProcessGroup, dim: int = 0) -> Tensor:
    """This rank's part along `dim` of an x that all ranks have.

    Sends nothing forward, (N-1)/N * S backward, in an all-gather.
    """
    return _Conjugate.apply(x, partial(_own, group=group, dim=dim), partial(_join, group=group, dim=dim))


def gather(x: Tensor, group: ProcessGroup, dim: int = 0) -> Tensor:
    """All x joined along `dim`, to be used alike on all ranks. Sends (N-1)/N * S forward, nothing backward."""
    return _Conjugate.apply(x, partial(_join, group=group, dim=dim), partial(_own, group=group, dim=dim))


def all_to_all(x: Tensor, group: ProcessGroup, split_dim: int, join_dim: int) -> Tensor:
    """x cut along `split_dim`, part j sent to position j, what arrives joined along `join_dim`.

    Sends (N-1)/N * S each way.
    """
    return _Conjugate.apply(
        x,
        partial(_swap, group=group, split_dim=split_dim, join_dim=join_dim),
        partial(_swap, group=group, split_dim=join_dim, join_dim=split_dim),
    )


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)


def _own(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    return x.narrow(dim, group.rank() * _part(x, group, dim), _part(x, group, dim)).clone(
        memory_format=torch.contiguous_format
    )


def _join(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    return collectives.all_gather(x.movedim(dim, 0), group).movedim(0, dim).contiguous()


def _reduce_parts(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    _part(x, group, dim)
    return collectives.reduce_scatter(x.movedim(dim, 0), group).movedim(0, dim).contiguous()


def _swap(x: Tensor, group: ProcessGroup, split_dim: int, join_dim: int) -> Tensor:
    _part(x, group, split_dim)
    parts = torch.stack(x.chunk(group.size(), split_dim))
    return torch.cat(collectives.all_to_all(parts, group).unbind(0), join_dim)


def _part(x: Tensor, group: ProcessGroup, dim: int) -> int:
    """The extent of one part. Raises UserError where N does not divide the dim."""
    if x.shape[dim] % group.size():
        raise UserError(f"dim {dim} of {tuple(x.shape)} does not divide by {group.size()} ranks: pad it", FAILED)
    return x.shape[dim] // group.size()
