"""The fake group and fake tensors: any N in one process, and the real group is back afterwards."""

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

from fivedim.lab import meter, ranks, rehearsal


def send_around(group, rank, size):
    tensor = torch.ones(5)
    works = [dist.isend(tensor, group_dst=(rank + 1) % size, group=group)]
    works += [dist.irecv(torch.empty(5), group_src=(rank - 1) % size, group=group)]
    for work in works:
        work.wait()
    dist.all_reduce(tensor, group=group)


@pytest.mark.parametrize("size", [1, 2, 3, 64])
def test_every_rank_of_any_size_can_be_played(size):
    for rank in {0, size // 2, size - 1}:
        with rehearsal.fake_group(size, rank) as group:
            assert (group.rank(), group.size(), dist.get_rank()) == (rank, size, rank)
            send_around(group, rank, size)
            pair = dist.new_group([rank, (rank + 1) % size] if size > 1 else [0], group_desc="tp")
            assert pair.size() == min(size, 2)
        assert not dist.is_initialized()


def test_fake_tensors_need_no_memory():
    with rehearsal.rehearse(3, 2) as group:
        huge = torch.empty(1 << 50, dtype=torch.bfloat16)
        work = dist.all_reduce(huge, group=group, async_op=True)
        work.wait()
        assert huge.untyped_storage().nbytes() == 1 << 51


def test_fused_attention_keeps_no_scores():
    with rehearsal.rehearse(), meter.Live() as live:
        q, k, v = (torch.empty(2, heads, 64, 8, requires_grad=True) for heads in (4, 2, 2))
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True, enable_gqa=True)
        out.sum().backward()
    assert (out.shape, q.grad.shape, k.grad.shape) == (q.shape, q.shape, k.shape)
    assert max(record.nbytes for record in live.records) == 4 * 2 * 4 * 64 * 8


def test_an_exception_leaves_no_group():
    with pytest.raises(KeyError), rehearsal.fake_group(2):
        raise KeyError
    assert not dist.is_initialized()


def rehearse_inside():
    outer = dist.group.WORLD
    for size in (1, 5):
        with rehearsal.fake_group(size, size - 1) as group:
            send_around(group, size - 1, size)
        assert dist.group.WORLD is outer
    total = torch.full((3,), float(dist.get_rank() + 1))
    dist.all_reduce(total)
    dist.new_group([0, 1])
    return total[0].item()


def test_the_real_group_is_back_afterwards():
    assert ranks.run(rehearse_inside, 2) == [3.0, 3.0]
