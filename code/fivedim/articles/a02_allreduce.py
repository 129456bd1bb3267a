"""Article 2, The Price of All-Reduce: what the collectives send, and what the reported times say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

from fivedim.lab.config import Strict

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch.distributed import ProcessGroup

    from fivedim.comm import Algorithm

FLOAT32 = 4  # bytes

# What the article says a rank sends, as a share of S: the root of a scatter, each rank but the root of a gather.
ARTICLE = {
    "broadcast": lambda n: 1.0,
    "scatter": lambda n: (n - 1) / n,
    "gather": lambda n: 1 / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_reduce": lambda n: 2 * (n - 1) / n,
}


class CollectiveVolumesConfig(Strict):
    """`sizes` of the whole float32 tensor in elements: one that every N divides (840, up to 8), one that none does."""

    sizes: tuple[int, ...] = (840, 1009)


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


def collective_volumes(cfg: CollectiveVolumesConfig) -> list[dict]:
    """Bytes that each rank hands to send in one call of every algorithm, for every N up to the number of ranks.

    A row is one algorithm at one N and one size, see `_volume_row`. Sends each algorithm's volume, which is the result.
    """
    import torch
    import torch.distributed as dist

    from fivedim import comm, mesh

    ranks = range(dist.get_world_size())
    calls, handed = [], []
    for n in (*ranks[1:], len(ranks)):
        group = mesh.subgroups([list(ranks[:n])], "subgroup")
        for algorithm, size in product(comm.ALGORITHMS, cfg.sizes):
            calls.append((algorithm, n, size))
            handed.append(_handed(algorithm, group, size) if group else 0)
    world = mesh.subgroups([list(ranks)], "world")
    columns = comm.all_gather(torch.tensor([handed]), world).T.tolist()
    return [_volume_row(algorithm, size, sent[:n]) for (algorithm, n, size), sent in zip(calls, columns, strict=True)]


def _handed(algorithm: Algorithm, group: ProcessGroup, size: int) -> int:
    """Bytes that this rank hands to send in one call on a tensor of `size` float32 elements."""
    import torch

    from fivedim import comm
    from fivedim.articles.a02_correctness import argument_rows, call

    x = torch.zeros(argument_rows(algorithm.collective, size, group.rank(), group.size()))
    with comm.count() as traffic:
        call(algorithm, x, group, size)
    return traffic.bytes(source="handed")


def _volume_row(algorithm: Algorithm, size: int, sent: Sequence[int]) -> dict:
    """What N ranks sent on `size` float32 elements, in units of S; roots are rank 0.

    `busiest`, `mean` and `least` are over the ranks, `formula` is the ledger's for the busiest, `article` the
    article's; `off_bytes` is the largest difference of any rank from the ledger's formula.
    """
    from fivedim.ledger import traffic

    ranks, whole = len(sent), size * FLOAT32
    formula = getattr(traffic, f"{algorithm.name}_{algorithm.collective}")
    expected = [FLOAT32 * formula(rank, ranks, size) for rank in range(ranks)]
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
    from fivedim import comm
    from fivedim.lab import progress
    from fivedim.lab.rehearsal import fake_group

    algorithms = [algorithm for algorithm in comm.ALGORITHMS if algorithm.collective == "all_reduce"]
    rows = []
    for done, n in enumerate(cfg.group_sizes):
        progress.step(done, len(cfg.group_sizes), f"N = {n}")
        handed = []
        for rank in range(n):
            with fake_group(n, rank) as group:
                handed.append([_handed(algorithm, group, cfg.size) for algorithm in algorithms])
        for algorithm, sent in zip(algorithms, zip(*handed, strict=True), strict=True):
            rows.append(_volume_row(algorithm, cfg.size, sent))
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
