"""Ranges over which a verdict holds."""

import pytest

from fivedim.ledger.sensitivity import verdict_range


def test_both_edges_are_found():
    low, high = verdict_range(lambda x: x, 3.0, lambda value: 1.7 <= value <= 12.5)
    assert (low, high) == (pytest.approx(1.7, rel=2e-3), pytest.approx(12.5, rel=2e-3))
    assert low >= 1.7
    assert high <= 12.5  # the verdict holds at the edges themselves


def test_a_verdict_that_fails_here_has_a_range_too():
    assert verdict_range(lambda x: x**2, 1.0, lambda value: value > 16) == (pytest.approx(0.1), pytest.approx(4, 2e-3))


def test_a_constant_that_decides_nothing_holds_as_far_as_was_looked():
    assert verdict_range(lambda x: 0, 5.0, bool, reach=10) == pytest.approx((0.5, 50))


def test_only_positive_constants_have_ratios():
    with pytest.raises(ValueError, match="constant 0"):
        verdict_range(lambda x: x, 0, bool)
