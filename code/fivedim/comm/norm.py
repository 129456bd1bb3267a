"""The global norm of gradients that lie in parts on many ranks, and clipping to it: only scalars travel.

A gradient is counted once wherever its elements are: `parts` says by group over which ranks the gradients' elements
are dealt out, under None are those that every rank has whole. On a mesh whose rows shard and whose columns replicate,
the group is the row's: the columns hold copies, which must not be added. Every rank of a group names the same groups
in one order; its own list may be empty, as where a rank owns nothing. A parameter without gradient is in no list, a
tied one is there once.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from fivedim.comm.collectives import all_reduce, all_reduce_max

Parts = Mapping[ProcessGroup | None, Sequence[Tensor]]
MARGIN = 1e-6  # torch's: a norm of zero divides nothing


def global_norm(parts: Parts, order: float = 2.0) -> Tensor:
    """The `order`-norm (at least 1, or inf) of all gradients' elements, a float64 scalar, the same on every rank.

    Each tensor's own norm is taken in at least float32. NaN and inf anywhere are in the result everywhere. Sends an
    all-reduce of one float64 a group, for inf of two.
    """
    totals = []
    for group, gradients in parts.items():
        mine = _norm([_norm_of(gradient, order) for gradient in gradients], order, parts)
        totals.append(mine if group is None else _over(group, mine, order))
    return _norm(totals, order, parts)


@torch.no_grad()
def clip_(parts: Parts, max_norm: float, order: float = 2.0) -> Tensor:
    """Scale all gradients by max_norm / norm where the norm is larger, and return the norm as it was.

    Where it is not larger no bit changes. As torch.nn.utils.clip_grad_norm_, its margin included. Sends what
    `global_norm` sends.
    """
    norm = global_norm(parts, order)
    factor = (max_norm / (norm + MARGIN)).clamp(max=1.0)
    for gradients in parts.values():
        for gradient in gradients:
            gradient.mul_(factor)
    return norm


def _norm_of(gradient: Tensor, order: float) -> Tensor:
    dtype = torch.promote_types(gradient.dtype, torch.float32)
    if not gradient.numel():
        return gradient.new_zeros((), dtype=torch.float64)
    return torch.linalg.vector_norm(gradient, order, dtype=dtype).double()


def _norm(norms: list[Tensor], order: float, parts: Parts) -> Tensor:
    """The norm of norms: the norm of everything that they are the norms of."""
    if norms:
        return torch.linalg.vector_norm(torch.stack(norms), order)
    device = next((x.device for gradients in parts.values() for x in gradients), "cpu")
    return torch.zeros((), dtype=torch.float64, device=device)


def _over(group: ProcessGroup, norm: Tensor, order: float) -> Tensor:
    """The norm of what all ranks of the group hold."""
    if math.isinf(order):
        return all_reduce_max(norm, group)
    return all_reduce(norm**order, group) ** (1 / order)
