"""Conjugate pairs against a serial twin in float64: values, gradients, gradients of gradients."""

import pytest
import torch
import torch.distributed as dist

from fivedim import comm
from fivedim.comm import differentiable
from fivedim.errors import UserError
from fivedim.lab import ranks


def inputs(size, shape=(6, 12)):
    """All ranks' tensors, leaves of one graph."""
    return [
        torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(rank)).requires_grad_()
        for rank in range(size)
    ]


def weights(rank, shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(50 + rank))


def twin(name, xs, dims):
    """What every rank gets from all ranks' tensors, in one process."""
    size = len(xs)

    def parts(x):
        return x.chunk(size, dims[0])

    return {
        "copy_to": lambda: xs,
        "reduce_from": lambda: [sum(xs)] * size,
        "all_gather": lambda: [torch.cat(xs, dims[0])] * size,
        "gather": lambda: [torch.cat(xs, dims[0])] * size,
        "reduce_scatter": lambda: list(parts(sum(xs))),
        "split": lambda: [parts(x)[rank] for rank, x in enumerate(xs)],
        "all_to_all": lambda: [torch.cat([parts(x)[rank] for x in xs], dims[1]) for rank in range(size)],
    }[name]()


REPLICATED_IN, REPLICATED_OUT = ("copy_to", "split"), ("reduce_from", "gather")


def derivatives(xs, ys, mine, once_out, once_in):
    """Gradient and gradient of the gradient, for those of the leaves xs in `mine`.

    Every element has its own weight. What is one value on all ranks counts once: outputs if `once_out`, inputs if
    `once_in`.
    """
    losses = [(y.sin() * weights(0 if once_out else rank, y.shape)).sum() for rank, y in ys]
    first = torch.autograd.grad(sum(losses[:1] if once_out else losses), xs, create_graph=True)
    leaves = zip(mine, first, strict=True)
    again = [(gradient * weights(80 if once_in else 80 + rank, gradient.shape)).sum() for rank, gradient in leaves]
    return first, torch.autograd.grad(sum(again[:1] if once_in else again), xs)


def compare(name, dims, group):
    """One operator on this rank against the twin with all ranks in one graph."""
    rank, size = group.rank(), group.size()
    once_in, once_out = name in REPLICATED_IN, name in REPLICATED_OUT
    leaves = inputs(1) if once_in else inputs(size)
    ys = twin(name, leaves * size if once_in else leaves, dims)
    wanted = derivatives(leaves, list(enumerate(ys)), range(len(leaves)), once_out, once_in)
    x = leaves[0 if once_in else rank].detach().clone().requires_grad_()
    y = getattr(differentiable, name)(x, group, *dims)
    found = derivatives([x], [(rank, y)], [rank], once_out, once_in)
    assert torch.allclose(y, ys[rank], rtol=1e-12, atol=1e-13), name
    for order in (0, 1):
        right = wanted[order][0 if once_in else rank]
        assert torch.allclose(found[order][0], right, rtol=1e-12, atol=1e-13), f"{name} {dims}, derivative {order + 1}"


def every_pair():
    group = dist.group.WORLD
    for name in ("copy_to", "reduce_from"):
        compare(name, (), group)
    for name in ("all_gather", "reduce_scatter", "split", "gather"):
        for dim in (0, 1, -1):
            compare(name, (dim,), group)
    for dims in ((0, 1), (1, 0), (-1, 0), (0, 0)):
        compare("all_to_all", dims, group)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_pairs_equal_the_serial_twin_to_second_order(count):
    ranks.run(every_pair, count)


def graphs():
    """An operator after one that saved its output, and a tensor with several uses."""
    group, size = dist.group.WORLD, dist.get_world_size()
    for run in (differentiable.reduce_from, differentiable.copy_to):
        x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        run(x.exp(), group).sum().backward()
        assert torch.equal(x.grad, torch.full_like(x, 1 if run is differentiable.reduce_from else size)), run
    x = torch.full((2,), 3.0, dtype=torch.float64, requires_grad=True)
    y = x.square()
    total = differentiable.reduce_from(y, group)
    (total * y + differentiable.reduce_from(y, group)).sum().backward()
    wanted = 6 * (9 + 9 * size + 1)
    assert torch.equal(y.detach(), torch.full((2,), 9.0, dtype=torch.float64))
    assert torch.equal(x.grad, torch.full_like(x, wanted)), x.grad
    x = torch.ones(2, requires_grad=True)
    assert not comm.all_reduce(x, group).requires_grad
    assert not comm.ring.all_reduce(x, group).requires_grad


@pytest.mark.parametrize("count", [2, 3])
def test_gradients_survive_saved_outputs_and_fan_out(count):
    ranks.run(graphs, count)


def uneven():
    group, x = dist.group.WORLD, torch.ones(4, 5)
    for run in (differentiable.split, differentiable.reduce_scatter):
        with pytest.raises(UserError, match=r"dim 1 of \(4, 5\) does not divide by 2 ranks"):
            run(x, group, 1)
    with pytest.raises(UserError, match="dim 1"):
        differentiable.all_to_all(x, group, 1, 0)


def test_a_dim_that_does_not_divide_is_refused():
    ranks.run(uneven, 2)


def volumes():
    """Forward and backward send what the docstrings say."""
    group, x = dist.group.WORLD, torch.ones(4, 6, requires_grad=True)
    for name, dims, forward, backward in (
        ("copy_to", (), None, "all_reduce"), ("reduce_from", (), "all_reduce", None),
        ("all_gather", (1,), "all_gather", "reduce_scatter"), ("reduce_scatter", (1,), "reduce_scatter", "all_gather"),
        ("split", (1,), None, "all_gather"), ("gather", (1,), "all_gather", None),
        ("all_to_all", (0, 1), "all_to_all", "all_to_all"),
    ):  # fmt: skip
        with comm.count() as first:
            y = getattr(differentiable, name)(x, group, *dims)
        with comm.count() as second:
            y.sum().backward()
        for traffic, collective in ((first, forward), (second, backward)):
            assert [row["collective"] for row in traffic.rows()] == ([collective] if collective else []), name


def test_each_direction_sends_its_own_collective():
    ranks.run(volumes, 2)
