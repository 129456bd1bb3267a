"""Article 2 on shaped links: what the kernel counts, how long the ring takes, and where bandwidths level off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from statistics import median, quantiles
from typing import TYPE_CHECKING, Literal

from fivedim.lab.machine import MachineConfig

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch.distributed import ProcessGroup

    from fivedim.comm import Algorithm
    from fivedim.lab.fabric import Fabric
    from fivedim.ledger.topology import Topology

FLOAT32 = 4  # bytes
Trial = tuple[int, float]  # bytes of the whole tensor, seconds of a hop's latency
Window = tuple[float, float]  # when it began and ended, by the clock that all processes of a machine share
RING = ("all_reduce", "reduce_scatter", "all_gather")

# What carries a collective out for large tensors, as in ledger.topology.PATTERNS.
BANDWIDTH_OPTIMAL = {
    "broadcast": "chain",
    "scatter": "direct",
    "gather": "direct",
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "all_reduce": "ring",
}


class FabricConfig(MachineConfig):
    """The links of `machine`, every rate divided by `dilation` and every latency multiplied by it.

    `group_sizes` are the numbers of ranks.
    """

    dilation: float = 4000
    group_sizes: tuple[int, ...] = (2, 4, 8)


class WireBytesConfig(FabricConfig):
    """`size` bytes of the whole float32 tensor, which N divides; each collective runs `in_a_row` times."""

    dilation: float = 100
    size: int = 2**22
    in_a_row: int = 1


class WindowsConfig(FabricConfig):
    """Times are of `repeats` windows, each of `in_a_row` calls."""

    repeats: int = 5
    in_a_row: int = 1


class RingTimesConfig(WindowsConfig):
    """Tensors of `sizes` bytes without latency, of `small` bytes with it.

    `latency_us` is a hop's at full speed. Declared: the reported floors over their hops are 5.7, 2.4 and 4.2 us at N =
    2, 4 and 8. It is dilated by `latency_dilation`: what is slept must outweigh a hop's own cost here, some ms on a
    crowded machine.
    """

    sizes: tuple[int, ...] = (2**20, 2**21, 2**22)
    small: tuple[int, ...] = (2**12, 2**14, 2**16)
    latency_us: float = 4.1
    latency_dilation: float = 16000


class PlateausConfig(WindowsConfig):
    """Tensors of `size` bytes under every link model of `models`, (budget, whether the joint is slow).

    A slow joint has `joint` of the links' rate. A root that scatters runs ahead of the last rank, and the more calls a
    window has, the less that counts.
    """

    size: int = 2**19
    joint: float = 0.5
    models: tuple[tuple[Literal["duplex", "shared", "hairpin"], bool], ...] = tuple(
        product(("duplex", "shared", "hairpin"), (False, True))
    )
    repeats: int = 3
    in_a_row: int = 4


def wire_bytes(cfg: WireBytesConfig) -> list[dict]:
    """Bytes that the kernel counts on the links beside those that comm counts: every algorithm, and c10d's own.

    A row is one algorithm at one N, all ranks together and the busiest, in units of S; `over` is the kernel's count
    over comm's, less 1. `source` says whether comm counted what was handed to send or applied a formula to a call that
    c10d carried out. Sends each algorithm's volume, `in_a_row` times.
    """
    from fivedim.lab import fabric
    from fivedim.lab.cost_model import CostModel

    rows = []
    with fabric.build(fabric.dilated(CostModel.of(cfg.machine).topology, cfg.dilation)) as fab:
        for n in cfg.group_sizes:
            of_ranks = fab.run(_count, n, cfg.size // FLOAT32, cfg.in_a_row)
            rows += [_wire_row(found, cfg) for found in zip(*of_ranks, strict=True)]
    return rows


def _count(elements: int, in_a_row: int) -> list[tuple]:
    """This rank's (collective, algorithm, source, counted bytes, bytes on the wire) of every algorithm."""
    import torch.distributed as dist

    from fivedim import comm
    from fivedim.lab import fabric

    group, found = dist.group.WORLD, []
    for collective, algorithm, source, call in _every_call(elements, group):
        call()  # connections are made
        comm.barrier(group)
        before = fabric.sent()
        with comm.count() as traffic:
            for _ in range(in_a_row):
                call()
        comm.barrier(group)  # all has arrived, so all has been sent
        found.append((collective, algorithm, source, traffic.bytes(), fabric.sent() - before))
    return found


def _every_call(elements: int, group: ProcessGroup) -> Iterator[tuple[str, str, str, Callable]]:
    from functools import partial

    from fivedim import comm

    for algorithm in comm.ALGORITHMS:
        yield algorithm.collective, algorithm.name, "handed", _prepared(algorithm, elements, group)
    for collective in sorted({algorithm.collective for algorithm in comm.ALGORITHMS}):
        x = _argument(collective, elements, group)
        yield collective, "c10d", "formula", partial(getattr(comm, collective), x, group)


def _prepared(algorithm: Algorithm, elements: int, group: ProcessGroup) -> Callable:
    """A call of an algorithm on a tensor of so many elements."""
    from functools import partial

    from fivedim.articles.a02_correctness import call

    return partial(call, algorithm, _argument(algorithm.collective, elements, group), group, elements)


def _argument(collective: str, elements: int, group: ProcessGroup):
    import torch

    from fivedim.articles.a02_correctness import argument_rows

    return torch.zeros(argument_rows(collective, elements, group.rank(), group.size()))


def _wire_row(of_ranks: Sequence[tuple], cfg: WireBytesConfig) -> dict:
    collective, algorithm, source = of_ranks[0][:3]
    counted, wire = ([found[column] / cfg.in_a_row / cfg.size for found in of_ranks] for column in (3, 4))
    return {
        **{"collective": collective, "algorithm": algorithm, "source": source, "ranks": len(of_ranks)},
        **{"bytes": cfg.size, "dilation": cfg.dilation, "counted": sum(counted), "wire": sum(wire)},
        **{"over": sum(wire) / sum(counted) - 1, "busiest_counted": max(counted), "busiest_wire": max(wire)},
    }


def ring_times(cfg: RingTimesConfig) -> list[dict]:
    """The ring's all-reduce, reduce-scatter and all-gather over duplex links, against hops * (S/(N*B) + latency).

    `row` is point (one collective, N and size: median and deciles of the windows beside the formula) or sum (an
    all-reduce over a reduce-scatter and an all-gather of the same window). The latency is slept by the sends, and only
    where it is what a call costs: while it is slept a token bucket fills, which forgives up to its burst. Seconds are
    dilated, by the row's `dilation`. Sends each collective's volume `1 + in_a_row` times a window.
    """
    from fivedim.lab import fabric, progress
    from fivedim.lab.cost_model import CostModel

    links = replace(fabric.dilated(CostModel.of(cfg.machine).topology, cfg.dilation), budget="duplex", joint=None)
    latency = cfg.latency_us * cfg.latency_dilation / 1e6
    trials = [*((size, latency) for size in cfg.small), *((size, 0.0) for size in cfg.sizes)]
    rows = []
    with fabric.build(links) as fab:
        for done, n in enumerate(cfg.group_sizes):
            progress.step(done, len(cfg.group_sizes), f"N = {n}")
            for (size, latency), seconds in _seconds(fab, n, RING, trials, cfg):
                rows += _ring_rows(seconds, n, size, latency, links.rate, cfg)
    return rows


def _ring_rows(
    seconds: dict[str, list[float]], n: int, size: int, latency: float, rate: float, cfg: RingTimesConfig
) -> Iterator[dict]:
    from fivedim.ledger.collectives import HOPS
    from fivedim.ledger.time import BUS_FACTORS

    dilation = cfg.latency_dilation if latency else cfg.dilation
    where = {"ranks": n, "bytes": size, "latency_s": latency, "dilation": dilation, "windows": cfg.repeats}
    for collective, windows in seconds.items():
        formula = BUS_FACTORS[collective](n) * size / rate + HOPS[collective](n) * latency
        stated = _stated(windows, "s")
        yield {
            **{"row": "point", "collective": collective, **where, **stated},
            **{"formula_s": formula, "over": stated["median_s"] / formula - 1},
        }
    whole, *halves = seconds.values()
    shares = [all_reduce / sum(parts) for all_reduce, *parts in zip(whole, *halves, strict=True)]
    yield {"row": "sum", **where, **_stated(shares, "ratio")}


def plateaus_emulated(cfg: PlateausConfig) -> list[dict]:
    """Bus bandwidth of each collective over the links' rate, under every link model, beside the max-flow prediction.

    A row is one collective, N and model (`budget`, `slow_joint`; only an N that crosses the joint): median and deciles
    over the windows, the prediction, and by how much the median is `over` it. Sends each collective's volume `1 +
    in_a_row` times a window.
    """
    from fivedim.lab import fabric, progress
    from fivedim.lab.cost_model import CostModel

    machine = fabric.dilated(CostModel.of(cfg.machine).topology, cfg.dilation)
    rows = []
    for done, (budget, slow) in enumerate(cfg.models):
        progress.step(done, len(cfg.models), f"{budget}, slow joint" if slow else budget)
        links = replace(machine, budget=budget, joint=cfg.joint * machine.rate if slow else None)
        with fabric.build(links) as fab:
            for n in (n for n in cfg.group_sizes if not slow or n > len(machine.sockets[0])):
                for _, seconds in _seconds(fab, n, BANDWIDTH_OPTIMAL, [(cfg.size, 0.0)], cfg):
                    rows += _plateau_rows(seconds, links, n, cfg)
    return rows


def _plateau_rows(seconds: dict[str, list[float]], links: Topology, n: int, cfg: PlateausConfig) -> Iterator[dict]:
    from fivedim.ledger.time import bus_bandwidth

    for collective, windows in seconds.items():
        found = _stated([bus_bandwidth(collective, n, cfg.size, each) / links.rate for each in windows], "busbw")
        predicted = links.busbw(collective, range(n)) / links.rate
        yield {
            **{"budget": links.budget, "slow_joint": links.joint is not None, "collective": collective, "ranks": n},
            **{"bytes": cfg.size, "dilation": cfg.dilation, "windows": cfg.repeats, **found},
            **{"predicted_busbw": predicted, "over": found["median_busbw"] / predicted - 1},
        }


def _stated(values: Sequence[float], unit: str) -> dict[str, float]:
    low, *_, high = quantiles(values, n=10, method="inclusive")
    return {f"median_{unit}": median(values), f"low_{unit}": low, f"high_{unit}": high}


def _seconds(
    fab: Fabric, n: int, collectives: Iterable[str], trials: Sequence[Trial], cfg: WindowsConfig
) -> Iterator[tuple[Trial, dict[str, list[float]]]]:
    """Of every trial, (bytes, latency), the seconds a call in every window, by collective."""
    names = tuple(collectives)
    for trial, *of_ranks in zip(trials, *fab.run(_windows, n, names, trials, cfg), strict=True):
        by_collective = zip(names, *of_ranks, strict=True)
        yield trial, {name: _lengths(ranks, cfg.in_a_row) for name, *ranks in by_collective}


def _lengths(ranks: Sequence[list[Window]], in_a_row: int) -> list[float]:
    """Seconds a call of windows that every rank saw: from when the last one began it to when the last one ended it."""
    windows = (zip(*window, strict=True) for window in zip(*ranks, strict=True))
    return [(max(ends) - max(starts)) / in_a_row for starts, ends in windows]


def _windows(collectives: Sequence[str], trials: Sequence[Trial], cfg: WindowsConfig) -> list[list[list[Window]]]:
    """This rank's windows: by trial and collective; the collectives take turns."""
    import torch.distributed as dist

    from fivedim import comm

    group, found = dist.group.WORLD, []
    for size, latency in trials:
        calls = [_prepared(_algorithm(name), size // FLOAT32, group) for name in collectives]
        with comm.latency(latency):
            turns = [[_window(call, cfg.in_a_row, group) for call in calls] for _ in range(cfg.repeats)]
        found.append([list(windows) for windows in zip(*turns, strict=True)])
    return found


def _window(call: Callable, in_a_row: int, group: ProcessGroup) -> Window:
    """From the end of a first call, when the pipeline is full and no token bucket has saved up, to that of the last."""
    from time import perf_counter

    from fivedim import comm

    comm.barrier(group)
    call()
    start = perf_counter()
    for _ in range(in_a_row):
        call()
    return start, perf_counter()


def _algorithm(collective: str) -> Algorithm:
    from fivedim import comm

    return getattr(getattr(comm, BANDWIDTH_OPTIMAL[collective]), collective)


def hops(rows: DataFrame) -> float:
    """The time of the smallest all-reduce at the largest N over that at the smallest."""
    small = rows[(rows.row == "point") & (rows.collective == "all_reduce") & (rows.latency_s > 0)]
    times = small[small.bytes == small.bytes.min()].sort_values("ranks").median_s
    return float(times.iloc[-1] / times.iloc[0])


def median_distance(rows: DataFrame) -> float:
    """The median, over every plateau, of the distance from its prediction."""
    return float(rows.over.abs().median())


def pair_ratio_duplex(rows: DataFrame) -> float:
    """All-reduce's bus bandwidth over broadcast's on two GPUs, over duplex links."""
    return _pair_ratio(rows, "duplex")


def pair_ratio_shared(rows: DataFrame) -> float:
    """The same over links of one budget for both directions."""
    return _pair_ratio(rows, "shared")


def pair_ratio_hairpin(rows: DataFrame) -> float:
    """The same where a pair goes through its uplink."""
    return _pair_ratio(rows, "hairpin")


def _pair_ratio(rows: DataFrame, budget: str) -> float:
    pair = rows[(rows.budget == budget) & (rows.ranks == 2)].set_index("collective").median_busbw
    return float(pair["all_reduce"] / pair["broadcast"])
