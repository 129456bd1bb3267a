"""Article 2, The Price of All-Reduce: that the collectives written from scratch compute what the library's compute."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Literal, NamedTuple

from fivedim.lab.config import Strict

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from fivedim.comm import Algorithm

Dtype = Literal["float64", "float32", "bfloat16", "float16", "int64"]
Layout = Literal["contiguous", "interleaved", "offset", "transposed", "expanded"]

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
GATHERED = ("all_gather", "gather")  # a rank's argument is its part of the tensor
DEALT = ("reduce_scatter", "scatter")  # a rank's result is its part of the tensor


class CollectivesMatchConfig(Strict):
    """What is varied: `rows` of the whole tensor [rows, 3], its dtype, and how each argument lies in memory.

    Every number of rows meets every dtype; the layouts take turns, so that over the group sizes each meets all of both.
    """

    rows: tuple[int, ...] = (0, 1, 5, 16)
    dtypes: tuple[Dtype, ...] = ("float64", "float32", "bfloat16", "float16", "int64")
    layouts: tuple[Layout, ...] = ("contiguous", "interleaved", "offset", "transposed", "expanded")
    seed: int = 0


class Case(NamedTuple):
    """One call. `integers` are small, so that their sums are exact in every dtype; otherwise floats are random."""

    rows: int
    dtype: str
    layout: str
    integers: bool
    seed: int


def collectives_match(cfg: CollectivesMatchConfig) -> list[dict]:
    """Every from-scratch algorithm against c10d, in subgroups of every size, with and without rank 0.

    What is only moved, and sums of small integers, must agree to the last bit; sums of random floats within the bound
    that `_deviation` derives. A row is one algorithm at one N; `worst` is the largest deviation of a float sum as a
    share of its bound. Sends each algorithm's volume once a case, and c10d's once or twice for the reference.
    """
    import torch
    import torch.distributed as dist

    from fivedim import comm, mesh
    from fivedim.lab import progress

    ranks = range(dist.get_world_size())
    subgroups = [*(ranks[:n] for n in ranks[1:]), ranks, *(ranks[n:] for n in ranks[1:])]
    found: dict[tuple, list[float]] = {}
    for done, members in enumerate(subgroups):
        progress.step(done, len(subgroups), f"ranks {members[0]} to {members[-1]}")
        group = mesh.subgroups([list(members)], "subgroup")
        for algorithm in comm.ALGORITHMS:
            tried = found.setdefault((algorithm.collective, algorithm.name, len(members)), [])
            for case in _cases(cfg, algorithm.collective, len(members), len(tried)):
                tried.append(_deviation(algorithm, case, group) if group else 0.0)
    world = mesh.subgroups([list(ranks)], "world")
    return [
        _match_row(*key, comm.all_reduce_max(torch.tensor(found[key], dtype=torch.float64), world))
        for key in sorted(found)
    ]


def _cases(cfg: CollectivesMatchConfig, collective: str, ranks: int, number: int) -> Iterator[Case]:
    """The calls for one group, numbered from `number`: a sum of floats is tried on integers too, where it is exact."""
    for (turn, rows), (offset, dtype) in product(enumerate(cfg.rows, ranks), enumerate(cfg.dtypes)):
        layout = cfg.layouts[(turn + offset) % len(cfg.layouts)]
        whole = dtype == "int64"
        for integers in sorted({whole, whole or collective in REDUCTIONS}):
            yield Case(rows, dtype, layout, integers, cfg.seed + number)
            number += 1


def _match_row(collective: str, algorithm: str, ranks: int, deviations: Tensor) -> dict:
    bounded = deviations[deviations.isfinite()]
    return {
        "collective": collective,
        "algorithm": algorithm,
        "ranks": ranks,
        "cases": len(deviations),
        "mismatches": int((~(deviations <= 1)).sum()),  # NaN is one, too
        "worst": float(bounded.max()) if len(bounded) else 0.0,
    }


def _deviation(algorithm: Algorithm, case: Case, group: ProcessGroup) -> float:
    """How far this rank's result is from c10d's: 0 if equal, infinite if not; for sums of floats a share of the bound.

    N numbers x added in any order, each sum rounded by a factor within 1 +- u, miss their sum by at most
    (N-1)u / (1 - (N-1)u) * sum |x| (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2), and two
    such sums differ by at most twice that. N for N-1 pays for the rounding of sum |x| itself, which every rank can
    form, since a case's numbers are drawn from its seed. Changing the argument is an infinite deviation too.
    """
    import torch

    from fivedim.ledger.traffic import split

    collective, root = algorithm.collective, case.seed % group.size()
    x = _argument(case, collective, group.rank(), group.size())
    before = x.clone()
    ours = call(algorithm, x, group, case.rows, root)
    theirs = _reference(collective, x, group, case.rows, root)
    if not _same(x, before) or _shape(ours) != _shape(theirs):
        return float("inf")
    if _same(ours, theirs):
        return 0.0
    if case.integers or collective not in REDUCTIONS:
        return float("inf")
    magnitude = sum(_argument(case, collective, rank, group.size()).double().abs() for rank in range(group.size()))
    if collective in DEALT:
        magnitude = magnitude.split(split(case.rows, group.size()))[group.rank()]
    rounding = group.size() * torch.finfo(x.dtype).eps / 2
    return float(((ours.double() - theirs.double()).abs() / (2 * rounding / (1 - rounding) * magnitude)).max())


def _argument(case: Case, collective: str, rank: int, ranks: int) -> Tensor:
    """This rank's own numbers, [rows, 3] or its part of the rows, laid out as the case says."""
    import torch

    rows = argument_rows(collective, case.rows, rank, ranks)
    generator = torch.Generator().manual_seed(64 * case.seed + rank)
    shape, dtype = (rows, 3), getattr(torch, case.dtype)
    if case.integers:
        x = torch.randint(-9, 10, shape, generator=generator).to(dtype)
    else:
        x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return {
        "contiguous": lambda: x,
        "interleaved": lambda: torch.stack([x, x + 1], -1)[..., 0],
        "offset": lambda: torch.cat([x[:, :1], x], 1)[:, 1:],
        "transposed": lambda: x.t().contiguous().t(),
        "expanded": lambda: x[:1].expand_as(x),
    }[case.layout]()


def argument_rows(collective: str, rows: int, rank: int, ranks: int) -> int:
    """How many of a tensor's rows a rank's argument has: all of them, or in a gather its part."""
    from fivedim.ledger.traffic import split

    return split(rows, ranks)[rank] if collective in GATHERED else rows


def call(algorithm: Algorithm, x: Tensor, group: ProcessGroup, rows: int, root: int = 0) -> Tensor | None:
    """Run a from-scratch algorithm on the rank's argument x of a tensor of `rows` rows."""
    roots = (root,) if algorithm.rooted else ()
    return algorithm(x, group, *roots, **({"rows": rows} if algorithm.collective in GATHERED else {}))


def _reference(collective: str, x: Tensor, group: ProcessGroup, rows: int, root: int) -> Tensor | None:
    """The same by c10d, which deals out equal parts only: each part travels padded to the longest, and is trimmed."""
    import torch
    from torch.nn.functional import pad

    from fivedim import comm
    from fivedim.ledger.traffic import split

    parts, plain = split(rows, group.size()), getattr(comm, collective)
    roots = (root,) if collective in ("broadcast", "reduce", "scatter", "gather") else ()
    if collective in ("all_reduce", "broadcast", "reduce"):
        return plain(x, group, *roots)
    pieces = [x] if collective in GATHERED else x.split(parts)
    out = plain(torch.cat([pad(piece, (0, 0, 0, parts[0] - len(piece))) for piece in pieces]), group, *roots)
    if out is None:
        return None
    own = parts[group.rank()]
    kept = parts if collective in GATHERED else [own] if collective in DEALT else [own] * group.size()
    return torch.cat([piece[:length] for piece, length in zip(out.view(len(kept), -1, 3), kept, strict=True)])


def _shape(x: Tensor | None) -> tuple | None:
    return None if x is None else (*x.shape, x.dtype)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    """Equal to the last bit, or both absent."""
    import torch

    if a is None or b is None:
        return a is b
    bits = [x.clone(memory_format=torch.contiguous_format).view(torch.uint8) for x in (a, b)]
    return torch.equal(*bits)
