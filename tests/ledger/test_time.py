"""Times as formulas: the fit finds what made the data, and the reported bus bandwidths are their own times'."""

from pathlib import Path

import pandas as pd
import pytest

from fivedim.ledger import time

SIZES = [4096, 65536, 2**20, 2**24, 2**28]
REPORTED = Path(__file__).parents[2] / "configs/reported"


def test_a_fit_to_exact_data_gives_its_alpha_and_beta_back():
    truth = time.AlphaBeta(alpha=11e-6, beta=21e9)
    model = time.fit_alpha_beta(SIZES, [truth.seconds(size) for size in SIZES])
    assert model == pytest.approx(truth, rel=1e-9)
    assert model.crossover == pytest.approx(11e-6 * 21e9)


def test_the_fit_has_the_smallest_relative_error_of_its_neighbours():
    seconds = [12e-6, 15e-6, 70e-6, 0.9e-3, 12e-3]

    def loss(model):
        return sum(error**2 for error in time.relative_errors(model, SIZES, seconds))

    best = time.fit_alpha_beta(SIZES, seconds)
    for a in (0.97, 1, 1.03):
        for b in (0.97, 1, 1.03):
            if (a, b) != (1, 1):
                assert loss(time.AlphaBeta(best.alpha * a, best.beta * b)) > loss(best)


def test_points_that_cannot_tell_alpha_from_beta_are_refused():
    with pytest.raises(ValueError, match="2 different sizes"):
        time.fit_alpha_beta([4096, 4096], [1e-5, 2e-5])
    with pytest.raises(ValueError, match="no bandwidth"):
        time.fit_alpha_beta([1, 2**20], [2e-5, 1e-5])


@pytest.mark.parametrize("n", [2, 4, 8])
def test_reported_bandwidths_are_those_of_the_reported_times(n):
    """A slip of the pen in any column of the retyped tables breaks the relation between them."""
    table = pd.read_csv(REPORTED / f"collectives_n{n}.csv")
    assert set(table.world_size) == {n}
    for row in table.itertuples():
        slack = 0.0051 + 0.00005 / row.time_ms * row.busbw_GBps  # both columns are rounded
        busbw = time.bus_bandwidth(row.op, n, row.bytes, row.time_ms / 1e3) / 1e9
        assert busbw == pytest.approx(row.busbw_GBps, abs=slack), row
