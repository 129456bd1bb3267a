"""Every schedule, in one process: it does what its collective means, and sends what the ledger says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fivedim.comm import ALGORITHMS
from fivedim.comm.schedule import Message, Step, check
from fivedim.ledger import traffic

NAMES = [f"{algorithm.name}.{algorithm.collective}" for algorithm in ALGORITHMS]
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=NAMES)


def plan(algorithm, ranks, root=0):
    """All ranks' schedules, and what each has and wants."""
    roots = (root,) if algorithm.rooted else ()
    return (
        [algorithm.schedule(rank, ranks, *roots) for rank in range(ranks)],
        [algorithm.has(rank, ranks, root) for rank in range(ranks)],
        [algorithm.wants(rank, ranks, root) for rank in range(ranks)],
    )


def sizes(algorithm, ranks, size):
    """Every block's size where each tensor has `size` elements."""
    if algorithm.collective == "all_to_all":
        return traffic.split(size, ranks) * ranks
    return traffic.split(size, algorithm.blocks(ranks))


def sent(steps, sizes):
    """What a rank's own steps send."""
    return sum(sizes[block] for step in steps for message in step.sends for block in message.blocks)


def test_the_algorithms_are_these():
    assert set(NAMES) == {
        *("chain.broadcast", "chain.reduce", "tree.broadcast", "tree.reduce", "direct.scatter", "direct.gather"),
        *("ring.reduce_scatter", "ring.all_gather", "ring.all_reduce", "pairwise.all_to_all"),
        *("rooted.all_reduce", "doubling.all_reduce", "halving.all_reduce"),
    }


@every_algorithm
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_schedule_is_right_for_any_ranks_and_root(algorithm, data):
    ranks = data.draw(st.integers(1, 64))
    root = data.draw(st.integers(0, ranks - 1)) if algorithm.rooted else 0
    check(*plan(algorithm, ranks, root))


@every_algorithm
def test_schedule_is_right_for_few_ranks_and_every_root(algorithm):
    for ranks in range(1, 10):
        for root in range(ranks if algorithm.rooted else 1):
            check(*plan(algorithm, ranks, root))


@every_algorithm
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_ledger_says_what_the_steps_send(algorithm, data):
    ranks, size = data.draw(st.integers(1, 64)), data.draw(st.integers(0, 300))
    roots = (data.draw(st.integers(0, ranks - 1)),) if algorithm.rooted else ()
    formula = getattr(traffic, f"{algorithm.name}_{algorithm.collective}")
    for rank, steps in enumerate(plan(algorithm, ranks, *roots)[0]):
        assert formula(rank, ranks, size, *roots) == sent(steps, sizes(algorithm, ranks, size))


@every_algorithm
@pytest.mark.parametrize("size", [0, 3, 64, 1000])
def test_totals_over_ranks_need_no_divisibility(algorithm, size):
    for ranks in range(1, 18):
        total = sum(sent(steps, sizes(algorithm, ranks, size)) for steps in plan(algorithm, ranks)[0])
        core = 1 << (ranks.bit_length() - 1)
        if algorithm.name in ("doubling", "halving"):
            inside = core * (core.bit_length() - 1) if algorithm.name == "doubling" else 2 * (core - 1)
            assert total == (inside + 2 * (ranks - core)) * size
        elif algorithm.collective in ("scatter", "gather"):
            assert total == size - traffic.split(size, ranks)[0]
        else:
            assert total == (2 if algorithm.collective == "all_reduce" else 1) * (ranks - 1) * size


def test_ring_stays_below_two_tensors_and_the_root_does_not():
    for ranks in range(2, 65):
        assert max(traffic.ring_all_reduce(rank, ranks, 64 * 1024) for rank in range(ranks)) < 2 * 64 * 1024
        assert traffic.rooted_all_reduce(0, ranks, 1) == ranks - 1


def damage(steps, how):
    """One fault in rank 1's first step that receives something."""
    time = next(time for time, step in enumerate(steps) if step.receives)
    broken = list(steps)
    (peer, blocks, reduce), *others = steps[time].receives
    broken[time] = {
        "lost": Step(steps[time].sends, tuple(others)),
        "wrong partner": Step(steps[time].sends, (Message((peer + 1) % 5, blocks, reduce), *others)),
        "wrong block": Step(
            steps[time].sends, (Message(peer, range(blocks.start + 1, blocks.stop + 1), reduce), *others)
        ),
        "reduced or not": Step(steps[time].sends, (Message(peer, blocks, not reduce), *others)),
    }.get(how)
    return broken if how != "late" else [Step(), *steps]


@every_algorithm
@pytest.mark.parametrize("how", ["lost", "wrong partner", "wrong block", "reduced or not", "late"])
def test_check_finds_one_fault(algorithm, how):
    schedules, has, wants = plan(algorithm, 5)
    victim = next(rank for rank in (1, 0) if any(step.receives for step in schedules[rank]))
    schedules[victim] = damage(schedules[victim], how)
    with pytest.raises((AssertionError, KeyError)):
        check(schedules, has, wants)


def test_check_finds_a_contribution_that_is_added_twice_or_left_out():
    schedules, has, wants = plan(ALGORITHMS[NAMES.index("ring.all_reduce")], 4)
    with pytest.raises(AssertionError, match="block"):
        check([[*steps[:3], *steps[2:]] for steps in schedules], has, wants)
    with pytest.raises(AssertionError, match="block"):
        check([steps[1:] for steps in schedules], has, wants)
