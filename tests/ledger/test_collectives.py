"""Times of collectives: tables give their own points back, exact laws survive interpolation, the outside is defined."""

import math
from pathlib import Path

import pytest

from fivedim.lab.cost_model import CostModel
from fivedim.ledger.collectives import CollectiveTimes, Curve, Point
from fivedim.ledger.time import AlphaBeta, fit_alpha_beta

ROOT = Path(__file__).parents[2]


@pytest.fixture
def times(monkeypatch):
    monkeypatch.chdir(ROOT)
    return CostModel.of("rtx-pro-6000-x8").times


def test_every_reported_point_is_reproduced(times):
    assert len(times.points) == 3 * 6 * 6
    for point in times.points:
        assert times.seconds(point.collective, point.n, point.size) == pytest.approx(point.seconds, rel=1e-12)


def test_an_alpha_beta_law_is_interpolated_and_continued_exactly():
    law = AlphaBeta(20e-6, 17e9)
    sizes = (4096, 65536, 2**20, 2**24)
    curve = Curve(sizes, tuple(law.seconds(size) for size in sizes))
    for size in (4097, 50_000, 3 * 2**20, 2**24, 2**31):
        assert curve.seconds(size) == pytest.approx(law.seconds(size), rel=1e-12)
    assert curve.seconds(1) == curve.seconds(4096)  # below the table: its first latency


def without(curve, i):
    return Curve(*(values[:i] + values[i + 1 :] for values in (curve.sizes, curve.times)))


def test_lines_predict_a_left_out_point_better_than_powers_or_one_fit(times):
    """Why the interpolation is what it is: every inner point of every curve, predicted from the others."""
    errors = {"lines": [], "powers": [], "fit": []}
    for curve in times.curves.values():
        for i in range(1, len(curve.sizes) - 1):
            size, seconds, rest = curve.sizes[i], curve.times[i], without(curve, i)
            logs = Curve(tuple(map(math.log, rest.sizes)), tuple(map(math.log, rest.times)))
            errors["lines"].append(math.log(rest.seconds(size) / seconds))
            errors["powers"].append(logs.seconds(math.log(size)) - math.log(seconds))
            errors["fit"].append(math.log(fit_alpha_beta(rest.sizes, rest.times).seconds(size) / seconds))
    spread = {name: math.hypot(*values) for name, values in errors.items()}
    assert spread["lines"] < spread["fit"] < spread["powers"]


def test_a_group_without_a_table_falls_back_on_the_fit_and_says_its_error():
    link = AlphaBeta(5e-6, 20e9)
    exact = [Point("all_reduce", n, s, 2 * (n - 1) * link.seconds(s / n)) for n in (2, 4) for s in (2**12, 2**20)]
    fallback = CollectiveTimes(exact).fallback("all_reduce")
    assert fallback.error == pytest.approx(0, abs=1e-12)
    assert CollectiveTimes(exact).seconds("all_reduce", 6, 2**18) == pytest.approx(10 * link.seconds(2**18 / 6))
    worse = [point._replace(seconds=point.seconds * (1.3 if point.n == 4 else 1)) for point in exact]
    assert CollectiveTimes(worse).fallback("all_reduce").error > 0.05


def test_the_reported_latency_is_not_the_articles_line(times):
    """11.4 / 14.2 / 58.9 us at N = 2 / 4 / 8 are no multiple of N - 1: the one fit over all N is a fifth off."""
    assert times.fallback("all_reduce").error > 0.15


def test_one_rank_or_nothing_takes_no_time_and_an_unknown_collective_is_named(times):
    assert times.seconds("all_reduce", 1, 2**20) == times.seconds("all_reduce", 8, 0) == 0
    with pytest.raises(ValueError, match="all_to_all: no reported times; there are all_gather, all_reduce"):
        times.seconds("all_to_all", 8, 2**20)
