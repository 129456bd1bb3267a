"""The counter: what is handed to send, to the byte, told apart and nested."""

from itertools import product

import pytest
import torch
import torch.distributed as dist

from fivedim import comm, mesh
from fivedim.lab import ranks
from fivedim.ledger import traffic


def watch(monkeypatch):
    """Count independently of comm: the bytes of every tensor that reaches the group's own send."""
    seen, send = [0], dist.ProcessGroup.send

    def counting(group, tensors, *where):
        seen[0] += sum(x.numel() * x.element_size() for x in tensors)
        return send(group, tensors, *where)

    monkeypatch.setattr(dist.ProcessGroup, "send", counting)
    return seen


def handed():
    """Rows of (algorithm, size, counted, seen, formula), from one rank."""
    group, rows = dist.group.WORLD, []
    rank, ranks_ = group.rank(), group.size()
    with pytest.MonkeyPatch.context() as monkeypatch:
        seen = watch(monkeypatch)
        for algorithm, size in product(comm.ALGORITHMS, (0, 1, 5, 24)):
            formula = getattr(traffic, f"{algorithm.name}_{algorithm.collective}")
            gathers = algorithm.collective in ("gather", "all_gather")
            x = torch.ones(traffic.split(size, ranks_)[rank] if gathers else size, dtype=torch.bfloat16)
            seen[0] = 0
            with comm.count() as counted:
                algorithm(x, group, **({"rows": size} if gathers else {}))
            assert counted.calls() == counted.calls(source="handed", algorithm=algorithm.name, dtype="bfloat16") == 1
            rows.append((algorithm, size, counted.bytes(), seen[0], 2 * formula(rank, ranks_, size)))
    return [(f"{algorithm.name}.{algorithm.collective}", *numbers) for algorithm, *numbers in rows]


@pytest.mark.parametrize("count", [1, 3, 4])
def test_counts_are_what_is_handed_to_send(count):
    for per_rank in zip(*ranks.run(handed, count), strict=True):
        for _, _, counted, seen, formula in per_rank:
            assert counted == seen == formula
        if per_rank[0][0] == "ring.all_reduce":
            assert sum(row[2] for row in per_rank) == 2 * 2 * (count - 1) * per_rank[0][1]


def axes():
    grid = mesh.build(dp=2, tp=2)
    x = torch.ones(6)
    with comm.count() as outer:
        comm.ring.all_reduce(x, grid.group("dp"))
        with comm.count() as inner:
            comm.all_reduce(x.double(), grid.group("tp"))
            comm.all_gather(x, grid.group("pp"))
        with comm.count() as empty:
            pass
    comm.all_reduce(x, grid.group("tp"))
    assert empty.rows() == []
    assert (outer.bytes(axis="dp"), outer.bytes(axis="tp"), outer.bytes(axis="pp")) == (24, 48, 0)
    assert outer.bytes() == 72
    assert inner.bytes() == inner.bytes(source="formula", algorithm="c10d") == 48
    assert outer.calls() == 3
    assert outer.calls(collective="all_reduce") == 2
    kind = comm.Kind("all_reduce", "c10d", "tp", "float64", "formula")
    assert inner.rows()[0] == {**kind._asdict(), "calls": 1, "bytes": 48}
    with pytest.raises(TypeError, match="no such field: axes"):
        outer.bytes(axes="dp")


def test_axes_are_told_apart_and_counters_nest():
    ranks.run(axes, 4)


def raises_inside():
    with pytest.raises(ValueError, match="stop"), comm.count() as broken:
        raise ValueError("stop")
    comm.all_reduce(torch.ones(2), dist.group.WORLD)
    assert broken.rows() == []


def test_a_counter_closes_when_its_block_raises():
    ranks.run(raises_inside, 1)
