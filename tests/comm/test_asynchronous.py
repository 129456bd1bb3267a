"""Collectives under way: all-gather and reduce-scatter of any pieces, several at a time, waited for in any order."""

import time

import pytest
import torch
import torch.distributed as dist

from fivedim import comm, mesh
from fivedim.comm.asynchronous import all_gather_, reduce_scatter_
from fivedim.errors import UserError
from fivedim.lab import ranks, rehearsal

SIZES = ((3, 3, 3, 3), (5, 0, 2, 1), (0, 4, 0, 0), (0, 0, 0, 0), (7, 1, 1, 9))
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def value(rank, elements, dtype):
    """Whole numbers, different on every rank, whose sums are exact."""
    return torch.randint(-9, 10, (elements,), generator=torch.Generator().manual_seed(rank)).to(dtype)


def one_case(sizes, dtype, group):
    """Launch both; returns what to wait for and what to compare then."""
    rank, total = group.rank(), sum(sizes)
    whole = torch.full((total,), 99).to(dtype)
    wanted = value(7, total, dtype)
    whole.split(sizes)[rank].copy_(wanted.split(sizes)[rank])
    terms = [value(peer, total, dtype) for peer in range(group.size())]
    mine, out = terms[rank].clone(), torch.full((sizes[rank],), 99.0).to(torch.promote_types(dtype, torch.float32))
    reduced = sum(x.to(out.dtype) for x in terms).split(sizes)[rank]
    yield all_gather_(whole, sizes, group), whole, wanted
    yield reduce_scatter_(out, mine, sizes, group), out, reduced
    other = mine.clone()
    yield reduce_scatter_(other.split(sizes)[rank], other, sizes, group), other.split(sizes)[rank], reduced.to(dtype)


def all_cases(group):
    """All under way at once, waited for in the order of launch, then backwards."""
    for direction in (1, -1):
        with comm.count() as traffic:
            cases = [
                case for sizes in SIZES for dtype in DTYPES for case in one_case(sizes[: group.size()], dtype, group)
            ]
        for pending, _, _ in cases[::direction]:
            pending.wait()
        for _, found, wanted in cases:
            assert found.dtype == wanted.dtype
            assert torch.equal(found, wanted)
    others = group.size() - 1
    pieces = [sizes[group.rank()] for sizes in SIZES]
    rest = [sum(sizes[: group.size()]) - piece for sizes, piece in zip(SIZES, pieces, strict=True)]
    assert traffic.bytes(collective="all_gather", source="handed") == sum(pieces) * others * (8 + 4 + 2)
    assert traffic.bytes(collective="reduce_scatter", source="handed") == sum(rest) * 2 * (8 + 4 + 2)
    assert traffic.calls(algorithm="direct") == len(SIZES) * len(DTYPES) * 3


def rounds_once(group):
    """bf16 terms that bf16 sums lose: 256 and then ones."""
    x = torch.full((group.size(),), 256.0 if group.rank() == 0 else 1.0, dtype=torch.bfloat16)
    out = torch.empty(1)
    reduce_scatter_(out, x, [1] * group.size(), group).wait()
    assert out.item() == 256 + group.size() - 1


def refused(group):
    strided = torch.zeros(4, 2)[:, 0]
    for launch in (
        lambda: all_gather_(strided, [4] + [0] * (group.size() - 1), group),
        lambda: reduce_scatter_(torch.empty(4), strided, [4] + [0] * (group.size() - 1), group),
    ):
        with pytest.raises(UserError, match="copy x first"):
            launch()


def every_group():
    for size in (1, 2, 3, 4):
        group = mesh.subgroups([list(range(size))], "dp")
        if group is not None:
            all_cases(group)
            rounds_once(group)
            refused(group)


def test_pieces_of_any_size_arrive_several_at_a_time():
    ranks.run(every_group, 4)


def silent():
    if dist.get_rank() == 1:
        time.sleep(60)
    all_gather_(torch.ones(6), [2, 2, 2], dist.group.WORLD).wait()


def test_a_silent_rank_is_named_in_time():
    started = time.monotonic()
    with pytest.raises(ranks.RankError, match="direct all_gather on .* got no answer from 1"):
        ranks.run(silent, 3, timeout=3)
    assert time.monotonic() - started < 20


def test_both_rehearse():
    with rehearsal.rehearse(8, 3) as group, comm.count() as traffic:
        x, sizes = torch.zeros(1 << 40, dtype=torch.bfloat16), [1 << 37] * 8
        all_gather_(x, sizes, group).wait()
        reduce_scatter_(torch.empty(1 << 37), x, sizes, group).wait()
    assert traffic.bytes(source="handed") == 2 * 7 * (1 << 38)
