"""Article 2, The Price of All-Reduce: what the collectives compute, what they send, what the reported times say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Literal, NamedTuple

from fivedim.lab.config import Strict

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from fivedim.comm import Algorithm

Dtype = Literal["float64", "float32", "bfloat16", "float16", "int64"]
Layout = Literal["contiguous", "interleaved", "offset", "transposed", "expanded"]

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
GATHERED = ("all_gather", "gather")  # a rank's argument is its part of the tensor
DEALT = ("reduce_scatter", "scatter")  # a rank's result is its part of the tensor

# What the article says a rank sends, as a share of S: the root of a scatter, each rank but the root of a gather.
ARTICLE = {
    "broadcast": lambda n: 1.0,
    "scatter": lambda n: (n - 1) / n,
    "gather": lambda n: 1 / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_reduce": lambda n: 2 * (n - 1) / n,
}


class CollectivesMatchConfig(Strict):
    """What is varied: `rows` of the whole tensor [rows, 3], its dtype, and how each argument lies in memory.

    Every number of rows meets every dtype; the layouts take turns, so that over the group sizes each meets all of both.
    """

    rows: tuple[int, ...] = (0, 1, 5, 16)
    dtypes: tuple[Dtype, ...] = ("float64", "float32", "bfloat16", "float16", "int64")
    layouts: tuple[Layout, ...] = ("contiguous", "interleaved", "offset", "transposed", "expanded")
    seed: int = 0


class CollectiveVolumesConfig(Strict):
    """`sizes` of the whole tensor in elements: one that every N divides (840, up to 8), one that none does."""

    sizes: tuple[int, ...] = (840, 1009)
    dtype: Dtype = "float32"


class AllreduceBoundConfig(Strict):
    """`group_sizes` that are rehearsed, every rank of each, on a tensor of `size` float32 elements."""

    group_sizes: tuple[int, ...] = tuple(range(1, 65))
    size: int = 2**16


class RingScheduleConfig(Strict):
    """`group_size` is how many ranks the ring has."""

    group_size: int = 4


class AlphaBetaFitConfig(Strict):
    """`machine` is a file of configs/machines whose collectives' reported times are fitted."""

    machine: str = "rtx-pro-6000-x8"


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

    ranks = range(dist.get_world_size())
    found: dict[tuple, list[float]] = {}
    for members in [*(ranks[:n] for n in ranks[1:]), ranks, *(ranks[n:] for n in ranks[1:])]:
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
    ours = _call(algorithm, x, group, case.rows, root)
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

    from fivedim.ledger.traffic import split

    rows = split(case.rows, ranks)[rank] if collective in GATHERED else case.rows
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


def _call(algorithm: Algorithm, x: Tensor, group: ProcessGroup, rows: int, root: int = 0) -> Tensor | None:
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


def collective_volumes(cfg: CollectiveVolumesConfig) -> list[dict]:
    """Bytes that each rank hands to send in one call of every algorithm, for every N up to the number of ranks.

    A row is one algorithm at one N and one size, see `_volume_row`. Sends each algorithm's volume, which is the result.
    """
    import torch
    import torch.distributed as dist

    from fivedim import comm, mesh

    ranks, dtype = range(dist.get_world_size()), getattr(torch, cfg.dtype)
    calls, handed = [], []
    for n in (*ranks[1:], len(ranks)):
        group = mesh.subgroups([list(ranks[:n])], "subgroup")
        for algorithm, size in product(comm.ALGORITHMS, cfg.sizes):
            calls.append((algorithm, n, size))
            handed.append(_handed(algorithm, group, size, dtype) if group else 0)
    world = mesh.subgroups([list(ranks)], "world")
    columns = comm.all_gather(torch.tensor([handed]), world).T.tolist()
    return [
        _volume_row(algorithm, size, dtype.itemsize, sent[:n])
        for (algorithm, n, size), sent in zip(calls, columns, strict=True)
    ]


def _handed(algorithm: Algorithm, group: ProcessGroup, size: int, dtype) -> int:
    """Bytes that this rank hands to send in one call on a tensor of `size` elements."""
    import torch

    from fivedim import comm
    from fivedim.ledger.traffic import split

    own = split(size, group.size())[group.rank()] if algorithm.collective in GATHERED else size
    x = torch.zeros(own, dtype=dtype)
    with comm.count() as traffic:
        _call(algorithm, x, group, size)
    return traffic.bytes(source="handed")


def _volume_row(algorithm: Algorithm, size: int, width: int, sent: Sequence[int]) -> dict:
    """What N ranks sent on `size` elements of `width` bytes, in units of S; roots are rank 0.

    `busiest`, `mean` and `least` are over the ranks, `formula` is the ledger's for the busiest, `article` the
    article's; `off_bytes` is the largest difference of any rank from the ledger's formula.
    """
    from fivedim.ledger import traffic

    ranks, whole = len(sent), size * width
    formula = getattr(traffic, f"{algorithm.name}_{algorithm.collective}")
    expected = [width * formula(rank, ranks, size) for rank in range(ranks)]
    row = {
        "collective": algorithm.collective,
        "algorithm": algorithm.name,
        "ranks": ranks,
        "bytes": whole,
        "divides": size % ranks == 0,
        "busiest": max(sent) / whole,
        "busiest_rank": sent.index(max(sent)),
        "mean": sum(sent) / whole / ranks,
        "least": min(sent) / whole,
        "total": sum(sent) / whole,
        "formula": max(expected) / whole,
        "off_bytes": max((a - b for a, b in zip(sent, expected, strict=True)), key=abs),
        "at_most_2s": max(sent) <= 2 * whole,
    }
    if algorithm.collective in ARTICLE:
        row["article"] = ARTICLE[algorithm.collective](ranks)
        row["off_article"] = row["busiest"] - row["article"]
    return row


def allreduce_bound(cfg: AllreduceBoundConfig) -> list[dict]:
    """Bytes that every all-reduce hands to send, for more ranks than a machine runs: the real code, rehearsed.

    Rows are those of `collective_volumes`. Sends nothing: the group is fake, one process plays each rank in turn.
    """
    import torch

    from fivedim import comm
    from fivedim.lab.rehearsal import fake_group

    algorithms = [algorithm for algorithm in comm.ALGORITHMS if algorithm.collective == "all_reduce"]
    rows = []
    for n in cfg.group_sizes:
        handed = []
        for rank in range(n):
            with fake_group(n, rank) as group:
                handed.append([_handed(algorithm, group, cfg.size, torch.float32) for algorithm in algorithms])
        for algorithm, sent in zip(algorithms, zip(*handed, strict=True), strict=True):
            rows.append(_volume_row(algorithm, cfg.size, torch.float32.itemsize, sent))
    return rows


def ring_schedule(cfg: RingScheduleConfig) -> list[dict]:
    """What each rank holds of each chunk after each round of the ring all-reduce, from the algorithm's own steps.

    `contributions` are the ranks whose data is in; `action` says how a chunk that has just arrived was taken (reduce or
    copy) and `received_from` whence. Round 0 is the start. Sends nothing.
    """
    from collections import Counter

    from fivedim.comm import ring
    from fivedim.comm.schedule import simulate

    ranks = range(cfg.group_size)
    schedules = [ring.all_reduce.schedule(rank, len(ranks)) for rank in ranks]
    start = [{chunk: Counter([rank]) for chunk in ring.all_reduce.has(rank, len(ranks))} for rank in ranks]
    rows = []
    for number in range(len(schedules[0]) + 1):
        held = simulate([steps[:number] for steps in schedules], start)
        for rank in ranks:
            messages = schedules[rank][number - 1].receives if number else ()
            arrived = {chunk: message for message in messages for chunk in message.blocks}
            for chunk, contributions in held[rank].items():
                rows.append(_held_row(number, rank, chunk, contributions.elements(), arrived.get(chunk)))
    return rows


def _held_row(number: int, rank: int, chunk: int, contributions, message) -> dict:
    return {
        "round": number,
        "rank": rank,
        "chunk": chunk,
        "action": ("reduce" if message.reduce else "copy") if message else "",
        "received_from": message.peer if message else -1,
        "contributions": " ".join(map(str, sorted(contributions))),
    }


def alpha_beta_fit(cfg: AlphaBetaFitConfig) -> list[dict]:
    """The reported times of every collective and N, and T(S) = alpha + S/beta fitted to each of those curves.

    `row` is point (one reported time beside the model's) or fit (one curve's alpha, beta and errors). Sends nothing.
    """
    import pandas as pd

    from fivedim.lab.config import find_root
    from fivedim.lab.machine import load

    root = find_root()
    reported = pd.concat(pd.read_csv(root / table) for table in load(root, cfg.machine).collectives.values())
    curves = reported.groupby(["op", "world_size"], sort=False)
    return [row for (collective, n), curve in curves for row in _curve_rows(collective, n, curve)]


def _curve_rows(collective: str, n: int, curve: DataFrame) -> Iterator[dict]:
    from fivedim.ledger import time

    sizes, seconds = curve.bytes.tolist(), (curve.time_ms / 1e3).tolist()
    model = time.fit_alpha_beta(sizes, seconds)
    errors = time.relative_errors(model, sizes, seconds)
    name = {"collective": collective, "ranks": n}
    for size, reported, error in zip(sizes, seconds, errors, strict=True):
        busbw = time.bus_bandwidth(collective, n, size, reported) / 1e9
        yield {"row": "point", **name, "bytes": size, "seconds": reported, "busbw_gb_s": busbw, "error": error}
    yield {
        "row": "fit",
        **name,
        "alpha_s": model.alpha,
        "beta_bytes_s": model.beta,
        "busbw_gb_s": time.BUS_FACTORS[collective](n) * model.beta / 1e9,
        "crossover_bytes": model.crossover,
        "error": max(errors, key=abs),
        "rms_error": (sum(error**2 for error in errors) / len(errors)) ** 0.5,
    }
