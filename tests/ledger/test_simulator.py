"""The simulator: timelines worked out by hand, and what must be true of every timeline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fivedim.ledger.simulator import COMMUNICATION, COMPUTE, Action, simulate


def compute(name, seconds, *after, rank=0):
    return Action(name, COMPUTE, (rank,), seconds, after)


def communicate(name, seconds, *after, ranks=(0, 1)):
    return Action(name, COMMUNICATION, ranks, seconds, after)


def starts(timeline):
    return {name: span.start for name, span in timeline.spans.items()}


def test_communication_runs_under_compute_and_what_is_left_is_exposed():
    timeline = simulate(
        [
            compute("a", 3),
            compute("b", 2),
            communicate("A", 4, "a", ranks=(0,)),
            communicate("B", 1, "b", ranks=(0,)),
            compute("end", 1, "A", "B"),
        ]
    )
    assert starts(timeline) == {"a": 0, "b": 3, "A": 3, "B": 7, "end": 8}
    assert (timeline.makespan, timeline.busy(0, COMPUTE), timeline.exposed(0)) == (9, 6, 3)
    assert timeline.uncovered(0) == {"A": 2, "B": 1}  # A is hidden under b for 2 of its 4 seconds


def test_a_collective_starts_when_its_last_rank_is_ready():
    actions = [
        compute("a0", 1),
        compute("a1", 5, rank=1),
        communicate("sum", 2, "a0", "a1"),
        compute("b0", 1, "sum"),
        compute("b1", 1, rank=1),
    ]
    assert starts(simulate(actions)) == {"a0": 0, "a1": 0, "sum": 5, "b0": 7, "b1": 5}


def test_a_lane_keeps_the_order_of_the_list_even_where_the_later_is_ready_first():
    actions = [communicate("A", 1, "slow", ranks=(0,)), communicate("B", 1, ranks=(0,)), compute("slow", 4)]
    assert starts(simulate(actions)) == {"A": 4, "B": 5, "slow": 0}


def test_the_host_launches_one_after_the_other_and_runs_ahead():
    timeline = simulate([compute("a", 0), compute("b", 10), compute("c", 1), communicate("A", 1, ranks=(0,))], launch=2)
    assert starts(timeline) == {"a": 2, "b": 4, "c": 14, "A": 8}


def test_a_collective_waits_for_the_host_that_is_last_to_launch_it():
    busy = [compute("a", 0), compute("b", 0), communicate("sum", 1)]
    assert starts(simulate(busy, launch=2))["sum"] == 6  # third on rank 0, first on rank 1


def test_a_deadlock_is_refused_and_named():
    crossing = [  # rank 0 receives before it sends, and so does rank 1
        Action("0 from 1", COMMUNICATION, (0,), 1, ("1 to 0",)),
        Action("0 to 1", COMMUNICATION, (0,), 1),
        Action("1 from 0", COMMUNICATION, (1,), 1, ("0 to 1",)),
        Action("1 to 0", COMMUNICATION, (1,), 1),
    ]
    with pytest.raises(ValueError, match="deadlock: .* waits for .* waits for"):
        simulate(crossing)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([compute("a", 1), compute("a", 2)], "two actions are named a"),
        ([compute("a", 1, "b")], "a waits for b, which no action is named"),
        ([compute("a", -1)], "a takes -1 s"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(actions, message):
    with pytest.raises(ValueError, match=message):
        simulate(actions)


def test_nothing_to_do_takes_no_time():
    assert simulate([]).makespan == 0


@st.composite
def action_lists(draw):
    """Up to 12 actions of 3 ranks; each waits for earlier ones only, so that there is no deadlock."""
    actions = []
    for index in range(draw(st.integers(1, 12))):
        ranks = tuple(sorted(draw(st.sets(st.integers(0, 2), min_size=1))))
        after = tuple(sorted(draw(st.sets(st.sampled_from(range(index)), max_size=3)))) if index else ()
        lane = draw(st.sampled_from([COMPUTE, COMMUNICATION]))
        actions.append(Action(str(index), lane, ranks, draw(st.integers(0, 9)), tuple(map(str, after))))
    return actions


@given(action_lists(), st.integers(0, 3))
def test_every_timeline_keeps_the_rules(actions, launch):
    timeline = simulate(actions, launch)
    for rank in range(3):
        for lane in (COMPUTE, COMMUNICATION):
            spans = timeline.on(rank, lane)
            assert all(a.end <= b.start for a, b in zip(spans[:-1], spans[1:], strict=True))
            assert timeline.exposed(rank, lane) >= 0
    longest = {}
    for action in actions:
        longest[action.name] = action.seconds + max((longest[name] for name in action.after), default=0)
        assert all(timeline.spans[name].end <= timeline.spans[action.name].start for name in action.after)
        assert timeline.spans[action.name].end >= longest[action.name]
    assert timeline.makespan >= max(longest.values())


@given(action_lists())
def test_nothing_waits_without_a_reason(actions):
    """Each start is 0, the end of what it waits for, or the end of the one before it on a lane."""
    timeline = simulate(actions)
    for action in actions:
        ends = {timeline.spans[name].end for name in action.after}
        ends |= {span.end for rank in action.ranks for span in timeline.on(rank, action.lane)}
        assert timeline.spans[action.name].start in ends | {0}
