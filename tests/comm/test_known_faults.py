"""Faults that public systems have had, as scenarios on real ranks."""

import re
import time

import pytest
import torch
import torch.distributed as dist

from fivedim import comm
from fivedim.comm import differentiable
from fivedim.lab import ranks
from tests.comm import cases

STRIDED = {
    "column": lambda base: base[:, 0],
    "columns": lambda base: base[:, 1:],
    "transpose": lambda base: base.t(),
    "expanded": lambda base: base[:1, :1].expand(4, 4),
}


def base(rank):
    return torch.arange(8.0).reshape(2, 4) + 100 * rank


def strided_arguments():
    """Raw storage must never be what is sent: each view gives what its contiguous copy gives."""
    group = dist.group.WORLD
    rank, size = group.rank(), group.size()
    for name, view in STRIDED.items():
        views = [view(base(peer)) for peer in range(size)]
        total = sum(x.contiguous() for x in views)
        mine = view(base(rank))
        assert torch.equal(comm.all_reduce(mine, group), total), name
        assert torch.equal(comm.all_reduce_max(mine, group), views[-1]), name
        assert torch.equal(comm.broadcast(mine, group, src=1), views[1]), name
        assert cases.same(comm.reduce(mine, group, dst=1), total if rank == 1 else None), name
        assert torch.equal(comm.all_gather(mine, group), torch.cat(views)), name
        assert torch.equal(mine, views[rank]), name


def strided_in_place():
    """What ends in _ changes the caller's elements, and no others of the storage."""
    group = dist.group.WORLD
    rank, size = group.rank(), group.size()
    for name, view in list(STRIDED.items())[:3]:
        for run, wanted in (
            (comm.all_reduce_, sum(view(base(peer)) for peer in range(size))),
            (comm.broadcast_, view(base(0))),
        ):
            storage, right = base(rank), base(rank)
            view(right).copy_(wanted)
            assert run(view(storage), group).data_ptr() == view(storage).data_ptr(), name
            assert torch.equal(storage, right), name
    with pytest.raises(RuntimeError, match="single memory location"):
        comm.all_reduce_(torch.ones(1).expand(4), group)


def strided():
    strided_arguments()
    strided_in_place()


@pytest.mark.parametrize("count", [2, 3])
def test_B01_a_strided_tensor_is_right_and_in_place_means_in_place(count):
    ranks.run(strided, count)


DIFFERENTIABLE = {
    "copy_to": lambda x, group: differentiable.copy_to(x, group),
    "reduce_from": lambda x, group: differentiable.reduce_from(x, group),
    "all_gather": lambda x, group: differentiable.all_gather(x, group, dim=1),
    "reduce_scatter": lambda x, group: differentiable.reduce_scatter(x, group, dim=1),
    "split": lambda x, group: differentiable.split(x, group, dim=1),
    "gather": lambda x, group: differentiable.gather(x, group, dim=1),
    "all_to_all": lambda x, group: differentiable.all_to_all(x, group, 0, 1),
}


def expanded_gradients():
    """loss.sum() hands an expanded gradient, stride 0, to the backward: as good as the same numbers in full."""
    group = dist.group.WORLD
    for name, run in DIFFERENTIABLE.items():
        gradients = []
        for loss in (
            lambda y: y.sum(),
            lambda y: y.transpose(0, 1).sum(1).sum(),
            lambda y: (y * torch.ones_like(y).contiguous()).sum(),
        ):
            x = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
            loss(run(x, group)).backward()
            gradients.append(x.grad)
        assert torch.equal(gradients[0], gradients[2]), name
        assert torch.equal(gradients[1], gradients[2]), name
        assert gradients[0].abs().min() >= (0 if name in ("split", "gather") else 1), name


@pytest.mark.parametrize("count", [2, 3])
def test_B03_an_expanded_gradient_goes_through_every_backward(count):
    ranks.run(expanded_gradients, count)


def rooted_reduce():
    group, rank = dist.group.WORLD, dist.get_rank()
    for reduce in (comm.reduce, comm.tree.reduce, comm.chain.reduce):
        x = torch.full((5,), rank + 1.0)
        found = reduce(x, group, dst=0)
        assert torch.equal(x, torch.full((5,), rank + 1.0)), reduce
        assert cases.same(found, torch.full((5,), 6.0) if rank == 0 else None)


def test_B05_a_reduce_to_the_root_leaves_the_others_as_they_were():
    ranks.run(rooted_reduce, 3)


def maximum():
    group, rank = dist.group.WORLD, dist.get_rank()
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for victim in range(group.size()):
            for bad in (float("nan"), float("inf"), float("-inf")):
                x = torch.tensor([rank, -rank - 1, bad if rank == victim else -5], dtype=dtype)
                wanted = torch.tensor([2, -1, -5 if bad == float("-inf") else bad], dtype=dtype)
                assert cases.same(comm.all_reduce_max(x, group), wanted), (dtype, victim, bad)
    everywhere = torch.full((2,), float("-inf"))
    assert torch.equal(comm.all_reduce_max(everywhere, group), everywhere)
    assert torch.equal(comm.all_reduce_max(torch.tensor([rank, -rank]), group), torch.tensor([2, 0]))


def test_B07_a_maximum_keeps_a_nan_of_any_rank():
    ranks.run(maximum, 3)


def silent(culprit, algorithm_number):
    if dist.get_rank() == culprit:
        time.sleep(60)
    comm.ALGORITHMS[algorithm_number](torch.ones(12), dist.group.WORLD)


@pytest.mark.parametrize("name", ["ring", "tree"])
def test_a_rank_that_never_sends_is_named_in_time(name):
    number = next(index for index, found in enumerate(comm.ALGORITHMS) if found.name == name)
    started = time.monotonic()
    with pytest.raises(ranks.RankError) as caught:
        ranks.run(silent, 3, 0, number, timeout=3)
    assert time.monotonic() - started < 20
    assert re.search("position 1 of 3 got no answer from 0|position 2 of 3 got no answer from [01]", str(caught.value))
