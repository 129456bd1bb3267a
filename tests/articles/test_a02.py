"""Article 2's experiments: what their rows promise, and that a bent algorithm shows in them."""

import pytest

from fivedim.articles import a02_allreduce as a02
from fivedim.articles import a02_correctness as correctness
from fivedim.comm import ring
from fivedim.comm.schedule import Step
from fivedim.lab import ranks


def adding_twice(rank, n):
    """A ring whose second half adds where it should copy."""
    half = ring.reduce_scatter.schedule(rank, n)
    return half + [
        Step(*(tuple(message._replace(reduce=True) for message in side) for side in step))
        for step in ring.all_gather.schedule(rank, n)
    ]


def match_right_and_bent():
    """The rows of a right run and of one with a bent ring, each by (collective, algorithm, N)."""
    cfg = correctness.CollectivesMatchConfig(rows=(0, 5), dtypes=("float32", "bfloat16", "int64"))
    right = correctness.collectives_match(cfg)
    ring.all_reduce.schedule = adding_twice
    bent = correctness.collectives_match(cfg)
    return [{(row["collective"], row["algorithm"], row["ranks"]): row for row in rows} for rows in (right, bent)]


def test_collectives_match_finds_no_difference_and_finds_a_bent_ring():
    right, bent = ranks.run(match_right_and_bent, 3, timeout=60)[0]
    assert {key[2] for key in right} == {1, 2, 3}
    assert len(right) == 3 * 13
    assert not [key for key, row in right.items() if row["mismatches"]]
    assert right["all_reduce", "ring", 2]["cases"] == 2 * 2 * 5  # subgroups, sizes, dtypes with integers and floats
    assert 0 < max(row["worst"] for row in right.values()) <= 1
    assert {key for key, row in bent.items() if row["mismatches"]} == {("all_reduce", "ring", n) for n in (2, 3)}


def volumes():
    return a02.collective_volumes(a02.CollectiveVolumesConfig(sizes=(12, 7, 2)))


def test_collective_volumes_are_those_of_the_article_and_their_totals_are_exact():
    rows = ranks.run(volumes, 4, timeout=60)[0]
    assert len(rows) == 4 * 13 * 3
    assert all(row["off_bytes"] == 0 for row in rows)
    found = {(row["collective"], row["algorithm"], row["ranks"], row["bytes"]): row for row in rows}
    assert found["all_reduce", "ring", 4, 48]["busiest"] == found["all_reduce", "ring", 4, 48]["least"] == 1.5
    assert found["all_reduce", "ring", 3, 28]["total"] == 4
    assert found["all_reduce", "ring", 4, 8]["total"] == 6
    assert found["all_reduce", "rooted", 4, 28]["busiest"] == 3
    assert found["gather", "direct", 4, 48]["busiest"] == 0.25
    assert found["scatter", "direct", 4, 48]["busiest"] == found["scatter", "direct", 4, 48]["total"] == 0.75
    assert found["broadcast", "tree", 4, 28]["busiest"] == 2
    own = [row for row in rows if row["algorithm"] in ("ring", "chain", "direct") and "article" in row]
    assert all(row["off_article"] == 0 for row in own if row["divides"] and row["ranks"] > 1)


def test_allreduce_bound_is_the_formula_s_and_a_ring_that_sends_too_much_shows(monkeypatch):
    cfg = a02.AllreduceBoundConfig(group_sizes=(1, 2, 3, 7, 16), size=3 * 16 * 7)
    rows = {(row["algorithm"], row["ranks"]): row for row in a02.allreduce_bound(cfg)}
    for n in cfg.group_sizes:
        assert rows["ring", n]["busiest"] == rows["ring", n]["least"] == 2 * (n - 1) / n
        assert rows["ring", n]["total"] == rows["rooted", n]["total"] == 2 * (n - 1)
        assert rows["rooted", n]["busiest"] == n - 1
        assert rows["ring", n]["at_most_2s"] is True
    assert rows["rooted", 7]["busiest_rank"] == 0
    once = ring.all_reduce.schedule
    monkeypatch.setattr(ring.all_reduce, "schedule", lambda rank, n: once(rank, n) + ring.all_gather.schedule(rank, n))
    bent = {(row["algorithm"], row["ranks"]): row for row in a02.allreduce_bound(cfg)}
    assert bent["ring", 7]["at_most_2s"] is False
    assert bent["ring", 7]["off_bytes"] == 6 * 4 * cfg.size // 7


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_ring_schedule_adds_every_rank_once_and_ends_complete_everywhere(n):
    rows = a02.ring_schedule(a02.RingScheduleConfig(group_size=n))
    everyone = " ".join(map(str, range(n)))
    assert len(rows) == (2 * (n - 1) + 1) * n * n
    assert all(row["contributions"] == everyone for row in rows if row["round"] == 2 * (n - 1))
    assert all(len(set(row["contributions"].split())) == len(row["contributions"].split()) for row in rows)
    for row in rows:
        assert row["action"] in ({""} if row["round"] == 0 else {"", "reduce"} if row["round"] < n else {"", "copy"})
        assert not row["action"] or row["received_from"] == (row["rank"] - 1) % n


def test_alpha_beta_fit_has_every_reported_point_and_a_fit_for_every_curve():
    rows = a02.alpha_beta_fit(a02.AlphaBetaFitConfig())
    points, fits = ([row for row in rows if row["row"] == kind] for kind in ("point", "fit"))
    assert len(points) == 3 * 6 * 6
    assert len(fits) == 3 * 6
    for fit in fits:
        errors = [abs(p["error"]) for p in points if (p["collective"], p["ranks"]) == (fit["collective"], fit["ranks"])]
        assert abs(fit["error"]) == max(errors) >= fit["rms_error"] > 0
