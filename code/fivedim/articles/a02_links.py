"""Article 2, what its table says about the links: which link model explains the plateaus, and what latency costs."""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from typing import TYPE_CHECKING

from fivedim.lab.machine import MachineConfig

if TYPE_CHECKING:
    from pandas import DataFrame

    from fivedim.ledger.topology import Plateau, Topology

GB = 1e9
BUDGETS = ("duplex", "shared", "hairpin")
DECIDING = ((0, 1), (0, 2))  # two GPUs under one switch, and under two


class LinkModelsConfig(MachineConfig):
    """Plateaus are read at `size` bytes; the joint's rate is tried at `joints` hundredths of the link's; at
    the link's own it binds nothing."""

    size: int = 2**30
    joints: tuple[int, ...] = tuple(range(10, 101))


def link_models(cfg: LinkModelsConfig) -> list[dict]:
    """Six link models against every reported bus bandwidth at 1 GiB, one free rate each; with a slow joint, two.

    `row` is model (its fit: rates in GB/s, rms and worst log error, how many plateaus it misses), plateau (one
    bandwidth, reported and under the model), deciding (an all-reduce on two GPUs, which nobody reported) or range (of
    each fitted constant, the other as it is, over which the model stays excluded, or not; a bound at a tenth or ten
    times the constant is where the search ended). A model misses a plateau where it is off by more than the square root
    of 2, nearer to half or double the truth than to the truth: one that misses any is excluded. Sends nothing.
    """
    from fivedim.lab.cost_model import CostModel
    from fivedim.ledger.time import bus_bandwidth
    from fivedim.ledger.topology import Plateau

    model = CostModel.of(cfg.machine)
    plateaus = [
        Plateau(point.collective, point.n, bus_bandwidth(*point) / GB)
        for point in model.times.points
        if point.size == cfg.size
    ]
    return [row for fit in _fits(model.topology, plateaus, cfg) for row in _link_rows(fit, plateaus)]


def _fits(topology: Topology, plateaus: list[Plateau], cfg: LinkModelsConfig) -> Iterator[Topology]:
    from dataclasses import replace

    from fivedim.ledger.topology import fit_joint, fit_rate

    for budget in BUDGETS:
        flat = replace(topology, budget=budget, rate=1.0, joint=None)
        yield fit_rate(flat, plateaus)
        yield fit_joint(flat, plateaus, [joint / 100 for joint in cfg.joints])


def _link_rows(fit: Topology, plateaus: list[Plateau]) -> Iterator[dict]:
    from dataclasses import replace

    from fivedim.ledger.sensitivity import verdict_ranges
    from fivedim.ledger.topology import log_errors, rms

    errors = log_errors(fit, plateaus)
    name = {"budget": fit.budget, "slow_joint": fit.joint is not None}
    constants = {"rate": fit.rate} | ({"joint": fit.joint} if fit.joint else {})
    yield {
        **{"row": "model", **name, "fitted_constants": len(constants)},
        **{f"{constant}_gb_s": value for constant, value in constants.items()},
        **{"rms_log_error": rms(errors), "worst_log_error": max(errors, key=abs)},
        **{"missed": _missed(errors), "excluded": _excluded(errors)},
    }
    found = verdict_ranges(lambda given: log_errors(replace(fit, **given), plateaus), constants, _excluded)
    for constant, (low, high) in found.items():
        yield {"row": "range", **name, "constant": constant, "value": constants[constant], "low": low, "high": high}
    for plateau, error in zip(plateaus, errors, strict=True):
        busbw = fit.busbw(plateau.collective, range(plateau.n))
        where = {"row": "plateau", **name, "collective": plateau.collective, "ranks": plateau.n}
        yield {**where, "reported_gb_s": plateau.busbw, "predicted_gb_s": busbw, "log_error": error}
    for gpus in DECIDING:
        where = {"row": "deciding", **name, "collective": "all_reduce", "ranks": 2, "gpus": "{}, {}".format(*gpus)}
        yield {**where, "predicted_gb_s": fit.busbw("all_reduce", gpus)}


def _missed(errors: list[float]) -> int:
    return sum(abs(error) > log(2) / 2 for error in errors)


def _excluded(errors: list[float]) -> bool:
    return _missed(errors) > 0


def unexplained(rows: DataFrame) -> float:
    """How many of the link models miss a plateau."""
    return float(rows[rows.row == "model"].excluded.astype(bool).sum())


def ratio_in_a_pair(rows: DataFrame) -> float:
    """Predicted broadcast over all-reduce on two GPUs under one switch, by the model of least rms log error."""
    models = rows[rows.row == "model"]
    best = models.loc[models.rms_log_error.idxmin()]
    pair = rows[(rows.row == "plateau") & (rows.ranks == 2) & (rows.budget == best.budget)]
    busbw = pair[pair.slow_joint == best.slow_joint].set_index("collective").predicted_gb_s
    return float(busbw["broadcast"] / busbw["all_reduce"])


def decides(rows: DataFrame) -> float:
    """Predicted all-reduce on GPUs 0 and 2: the largest over the smallest of the models that miss no plateau."""
    models = rows[(rows.row == "model") & (rows.missed == 0)][["budget", "slow_joint"]]
    across = rows[(rows.row == "deciding") & (rows.gpus == "0, 2")].merge(models)
    return float(across.predicted_gb_s.max() / across.predicted_gb_s.min())


class SmallAllReducesConfig(MachineConfig):
    """The gradients of `model`, of `width` bytes an element, are reduced one by one and at once by `ranks`.

    `said_ms` is what the article says that 148 latencies cost, `within` how near is near, for the table's range.
    """

    model: str = "124M"
    ranks: int = 8
    width: int = 4
    latency_bytes: int = 2**16
    said_ms: float = 10.0
    within: float = 0.15


def small_all_reduces(cfg: SmallAllReducesConfig) -> list[dict]:
    """Latency in the reported table, and one all-reduce a gradient against one for all of them.

    `row` is floor (per N: the time at the smallest size, and where transfer takes as long as latency), tensor (one
    gradient), total (all of them: one by one, at once, and how many are no larger than `latency_bytes`) or range (how
    many times as fast the table may be for the difference to stay within `within` of `said_ms`). Sends nothing.
    """
    from fivedim.lab.cost_model import CostModel
    from fivedim.ledger.sensitivity import verdict_range

    times = CostModel.of(cfg.machine).times
    ranks = [n for collective, n in times.curves if collective == "all_reduce"]
    *tensors, total = _one_by_one(times, cfg)
    low, high = verdict_range(
        lambda speed: total["extra_ms"] / speed, 1.0, lambda extra: abs(extra / cfg.said_ms - 1) <= cfg.within, reach=10
    )
    speed = {"row": "range", "constant": "all-reduce table, times as fast", "value": 1.0, "low": low, "high": high}
    return [*(_floor(times.curves["all_reduce", n], n) for n in ranks), *tensors, total, speed]


def _floor(curve, n: int) -> dict:
    """The latency is the first reported time; the rate that of the last two points."""
    (s0, s1), (t0, t1) = curve.sizes[-2:], curve.times[-2:]
    rate = (s1 - s0) / (t1 - t0)
    small = curve.seconds(2**16)
    return {
        **{"row": "floor", "ranks": n, "floor_us": curve.times[0] * 1e6, "at_64_kib_us": small * 1e6},
        **{"growth_to_64_kib": small / curve.times[0], "crossover_bytes": curve.times[0] * rate},
    }


def _one_by_one(times, cfg: SmallAllReducesConfig) -> Iterator[dict]:
    from fivedim.ledger.layers import operations, tensors
    from fivedim.model.config import named

    elements = tensors(operations(named(cfg.model), 1, 1))
    sizes = {name: cfg.width * count for name, count in elements.items()}
    alone = {name: times.seconds("all_reduce", cfg.ranks, size) for name, size in sizes.items()}
    for name, size in sizes.items():
        bound = size <= cfg.latency_bytes
        yield {"row": "tensor", "tensor": name, "bytes": size, "ms": 1e3 * alone[name], "latency_bound": bound}
    together = times.seconds("all_reduce", cfg.ranks, sum(sizes.values()))
    bound = [name for name, size in sizes.items() if size <= cfg.latency_bytes]
    yield {
        **{"row": "total", "tensors": len(sizes), "bytes": sum(sizes.values()), "latency_bound": len(bound)},
        **{"one_by_one_ms": 1e3 * sum(alone.values()), "at_once_ms": 1e3 * together},
        **{"extra_ms": 1e3 * (sum(alone.values()) - together)},
        "latency_bound_ms": 1e3 * sum(alone[name] for name in bound),
    }
