"""Break-evens: at the value given, the two sides cost the same."""

import pytest

from fivedim.articles.break_even import BreakEvenConfig, break_even
from fivedim.ledger import break_even as formulas


def test_tensor_and_data_parallel_move_the_same_bytes_at_three_widths():
    width, tokens = 1280, formulas.tensor_against_data_tokens(1280)
    assert 4 * tokens * width == 12 * width**2
    assert formulas.tensor_against_data_seconds(width, 4, lambda size: size / 1e9) == pytest.approx(tokens, rel=1e-5)
    late = formulas.tensor_against_data_seconds(width, 4, lambda size: 1e-3 + size / 1e9)
    assert late < tokens  # four latencies against one


def test_a_ring_hides_its_hops_from_the_length_at_which_they_take_as_long():
    s = formulas.hidden_ring_sequence(n=8, element=2, flops=262e12, hop_rate=19e9)
    assert 4 * (s / 8) ** 2 / 262e12 == pytest.approx(2 * (s / 8) * 2 / 19e9)


def test_a_ring_pays_from_the_length_at_which_it_saves_what_its_hops_take():
    latency = 1e-4  # and nothing else: 4 s^2 h (1 - 1/N) FLOP saved for N - 1 latencies
    length = formulas.ring_sequence(8, 64, 2, 1e12, lambda size: latency)
    assert 4 * length**2 * 64 * 7 / 8 / 1e12 == pytest.approx(7 * latency, rel=1e-5)
    with pytest.raises(ValueError, match="no break-even"):
        formulas.ring_sequence(8, 64, 2, 1e12, lambda size: 1e9)


def test_the_best_number_of_microbatches_is_a_minimum():
    best = formulas.microbatches(4, work=20.0, overhead=0.5)

    def step(m):
        return (m + 3) * (20.0 / m + 0.5)

    assert step(best) < min(step(0.95 * best), step(1.05 * best))


def test_resharding_is_free_when_both_transfers_fit():
    assert formulas.reshard_speedup(compute=2.0, gather=3.0, scatter=5.0) == 4


def test_every_break_even_of_the_machine_is_there_and_positive():
    rows = break_even(BreakEvenConfig())
    assert len({row["name"] for row in rows}) == len(rows) == 9
    assert all(row["value"] > 0 for row in rows)
