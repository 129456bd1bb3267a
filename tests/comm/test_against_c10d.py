"""From-scratch algorithms and plain collectives against torch.distributed and against one process, on real ranks."""

import pytest
import torch
import torch.distributed as dist

from fivedim import comm, mesh
from fivedim.errors import UserError
from fivedim.lab import ranks
from fivedim.ledger import traffic
from fivedim.ledger.traffic import split
from tests.comm import cases

PLAIN = {name: getattr(comm, name) for name in traffic.OPTIMAL}
ROOTED = ("broadcast", "reduce", "scatter", "gather")


RUNS = {
    collective: [
        *(found for found in comm.ALGORITHMS if found.collective == collective),
        PLAIN[collective],
    ]
    for collective in PLAIN
}


def check(collective, group, case, root):
    """One collective by every algorithm: right, as c10d, and the argument as it was."""
    rank, size = group.rank(), group.size()
    dtype, shape, layout = case
    gathers = collective in ("gather", "all_gather")
    shapes = [(split(shape[0], size)[peer], *shape[1:]) if gathers else shape for peer in range(size)]
    inputs = [cases.whole_numbers(peer, shapes[peer], dtype, layout) for peer in range(size)]
    x, before = inputs[rank], inputs[rank].clone()
    wanted = cases.serial(collective, inputs, rank, root)
    assert cases.same(cases.c10d(collective, x, group, root, shape[0]), wanted), f"oracles differ: {collective} {case}"
    for run in RUNS[collective]:
        plain = run is PLAIN[collective]
        if plain and shape[0] % size and collective not in ("broadcast", "reduce", "all_reduce"):
            continue
        extra = {"rows": shape[0]} if gathers and not plain else {}
        found = run(x, group, *((root,) if collective in ROOTED else ()), **extra)
        where = f"{run.__module__} {collective} {case} N={size} root={root} rank={rank}"
        assert cases.same(found, wanted), where
        assert torch.equal(x, before), f"{where}: wrote into its argument"


def all_cases(group):
    for number, case in enumerate(cases.every_case()):
        for collective in PLAIN:
            check(collective, group, case, number % group.size())


def on_the_world():
    all_cases(dist.group.WORLD)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_equals_c10d(count):
    ranks.run(on_the_world, count)


def on_subgroups():
    """Groups without rank 0, of different sizes at the same time; rank 0 is in none."""
    group = mesh.subgroups([[1, 3], [2, 4, 5]], "sub")
    if group is not None:
        all_cases(group)
    return group is not None


def test_equals_c10d_inside_subgroups_without_rank_0():
    assert ranks.run(on_subgroups, 6) == [False, True, True, True, True, True]


OUT = ("all_reduce", "broadcast", "reduce_scatter", "all_gather", "all_to_all")


def given_out():
    """A result lands in `out`, or in x itself where that can be; the same bits as without."""
    group = dist.group.WORLD
    rank, size = group.rank(), group.size()
    for algorithm in comm.ALGORITHMS:
        if algorithm.collective in OUT:
            x = cases.whole_numbers(rank, (3 * size, 2), torch.float32)
            before, wanted = x.clone(), algorithm(x, group)
            out = torch.full_like(wanted, 99)
            assert algorithm(x, group, out=out).data_ptr() == out.data_ptr(), algorithm.name
            assert torch.equal(out, wanted), algorithm.name
            assert torch.equal(x, before), algorithm.name
            if algorithm.collective in OUT[:2]:
                assert torch.equal(algorithm(x, group, out=x), wanted), f"{algorithm.name}: in place"
                assert torch.equal(x, wanted), algorithm.name
            else:
                with pytest.raises(UserError, match="out must be another tensor"):
                    algorithm(x, group, out=x)
            with pytest.raises(UserError, match="out must be another tensor"):
                algorithm(x, group, out=out[1:])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_out_is_written_and_in_place_is_the_same(count):
    ranks.run(given_out, count)


def rounded(group):
    """Random floats: within the rounding of N-1 additions, whatever their order."""
    rank, size = group.rank(), group.size()
    for dtype in cases.DTYPES[:-1]:
        inputs = [torch.randn(37, generator=torch.Generator().manual_seed(peer)).to(dtype) for peer in range(size)]
        exact, magnitude = sum(x.double() for x in inputs), sum(x.double().abs() for x in inputs)
        bound = magnitude * ((1 + torch.finfo(dtype).eps / 2) ** (size - 1) - 1)
        for algorithm in comm.ALGORITHMS:
            if algorithm.collective == "all_reduce":
                found = algorithm(inputs[rank], group)
                assert ((found.double() - exact).abs() <= bound + 1e-300).all(), (algorithm.name, dtype)
                assert torch.equal(found, comm.broadcast(found, group)), f"{algorithm.name}: ranks differ"


def missing(group):
    """A NaN or an infinity on any one rank reaches every rank."""
    rank, size = group.rank(), group.size()
    for dtype in (torch.float32, torch.bfloat16):
        for bad in (float("nan"), float("inf"), float("-inf")):
            for victim in range(size):
                x = torch.full((5,), rank + 1.0, dtype=dtype)
                x[3] += bad if rank == victim else 0
                wanted = torch.full((5,), size * (size + 1) / 2, dtype=dtype)
                wanted[3] += bad
                for algorithm in comm.ALGORITHMS:
                    if algorithm.collective == "all_reduce":
                        assert cases.same(algorithm(x, group), wanted), (algorithm.name, dtype, bad, victim)


def rounded_and_missing():
    rounded(dist.group.WORLD)
    missing(dist.group.WORLD)


@pytest.mark.parametrize("count", [3, 4])
def test_floats_round_and_nan_spreads(count):
    ranks.run(rounded_and_missing, count)


def bad_input():
    group = dist.group.WORLD
    for collective in ("scatter", "reduce_scatter", "all_to_all"):
        with pytest.raises(UserError, match="5 rows do not divide by 2 ranks"):
            PLAIN[collective](torch.ones(5), group)
    for run in (comm.all_gather, comm.gather, comm.ring.all_gather, comm.ring.reduce_scatter, comm.direct.scatter):
        with pytest.raises(UserError, match="a scalar has no rows"):
            run(torch.tensor(1.0), group)
    for run in (comm.ring.all_gather, comm.direct.gather):
        with pytest.raises(UserError, match="has 4 of 5 rows: its part must be"):
            run(torch.ones(4), group, rows=5)


def test_bad_input_is_refused_with_the_sizes():
    ranks.run(bad_input, 2)
