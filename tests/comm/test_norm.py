"""B21: the global norm of gradients in parts is the whole model's in one process, and clipping to it scales alike."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fivedim import comm, mesh
from fivedim.lab import ranks

ORDERS = (2.0, 1.0, math.inf)
SHAPES = {"matrix": (5, 3), "short": (1, 4), "norm": (7,), "without": (2,)}  # `short` is empty on some ranks
WHOLE = {"norm"}  # every rank has it whole


def whole(dtype):
    """All gradients, on every rank the same; one parameter has none."""
    stream = torch.Generator().manual_seed(1)
    gradients = {name: torch.randn(shape, generator=stream).to(dtype) for name, shape in SHAPES.items()}
    return gradients | {"without": None}


def parts_of(gradients, group):
    """This rank's parts: rows dealt out over the group."""
    mine = {name: g for name, g in gradients.items() if g is not None}
    dealt = [g.tensor_split(group.size())[group.rank()].clone() for name, g in mine.items() if name not in WHOLE]
    return {group: dealt, None: [mine[name].clone() for name in WHOLE]}


def reference(gradients, max_norm, order):
    """torch's on one process: the norm, and the clipped gradients."""
    parameters = []
    for name, g in gradients.items():
        parameters.append(nn.Parameter(torch.zeros(SHAPES[name], dtype=gradients["norm"].dtype)))
        parameters[-1].grad = None if g is None else g.clone()
    norm = nn.utils.clip_grad_norm_(parameters, max_norm, order)
    return norm, dict(zip(gradients, (p.grad for p in parameters), strict=True))


def clip_as_torch(group, dtype, tolerance):
    for order in ORDERS:
        for max_norm in (0.1, 1e9):
            gradients = whole(dtype)
            parts, before = parts_of(gradients, group), parts_of(gradients, group)
            with comm.count() as traffic:
                norm = comm.norm.clip_(parts, max_norm, order)
            wanted, clipped = reference(gradients, max_norm, order)
            assert abs(norm.item() / wanted.item() - 1) <= tolerance, (order, max_norm)
            assert traffic.calls() == 1
            assert traffic.bytes() <= 2 * 8 * (2 if math.isinf(order) else 1)
            for found, right, old in zip(*map(listed, (parts, parts_of(clipped, group), before)), strict=True):
                assert torch.equal(found, old) == (max_norm == 1e9 or not found.numel())
                assert ((found - right).abs() <= tolerance * right.abs()).all(), (order, max_norm)


def listed(parts):
    return [gradient for gradients in parts.values() for gradient in gradients]


def not_finite(group):
    """Whichever rank has the NaN or inf, every rank's norm is not finite."""
    for order in ORDERS:
        for value in (math.nan, math.inf):
            for rank in range(group.size()):
                parts = {group: [torch.full((2,), value if group.rank() == rank else 1.0)]}
                norm = comm.norm.global_norm(parts, order)
                assert norm.isnan() if math.isnan(value) else norm.isinf()


def nothing(group):
    """A rank that owns nothing, and a model without gradients."""
    mine = [torch.full((3,), 2.0)] if group.rank() == 0 else []
    for order, norm in zip(ORDERS, (12**0.5, 6, 2), strict=True):
        assert comm.norm.global_norm({group: mine}, order).item() == pytest.approx(norm)
        assert comm.norm.clip_({group: [], None: []}, 1.0, order).item() == 0
        assert comm.norm.global_norm({None: [torch.ones(2), torch.ones(1)]}, 1.0).item() == 3


def all_layouts():
    for size in (1, 2, 3, 4):
        if group := mesh.subgroups([list(range(size))], "dp"):
            clip_as_torch(group, torch.float64, 1e-12)
            not_finite(group)
            nothing(group)
    rows_shard = mesh.build(dp=2, tp=2).group("tp")  # the columns replicate: same parts, not to be added
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)):
        clip_as_torch(rows_shard, dtype, tolerance)
    return dist.get_rank()


def test_the_norm_is_the_whole_models_in_every_layout():
    assert ranks.run(all_layouts, 4) == [0, 1, 2, 3]
