"""A sharded step as actions: worked out by hand, with and without prefetch, resharding and buckets."""

from dataclasses import replace

import pytest

from fivedim.ledger.layers import Operation
from fivedim.ledger.sharded import Step, actions, merged, published, reused, timeline, unit
from fivedim.ledger.simulator import COMMUNICATION, COMPUTE, Action, simulate

# The root owns a table of 4 elements, used first, and a norm of 2 before the head; two blocks of 3 and 5
OPERATIONS = [
    Operation("tokens", 0, 0, {"tokens.weight": 4}),
    Operation("blocks.0.a", 1, 2, {"blocks.0.a.weight": 1}),
    Operation("blocks.0.b", 1, 2, {"blocks.0.b.weight": 2}),
    Operation("blocks.1.a", 2, 4, {"blocks.1.a.weight": 5}),
    Operation("norm", 0, 0, {"norm.weight": 2}),
    Operation("head", 1, 2, {}),
]
# Forward 0, 2, 2, 1 s, backward 2, 4, 4, 0 s; gathers take 6, 3 and 5 s, reduce-scatters twice as long
STEP = Step(OPERATIONS, compute=15.0, optimizer=0.5, gather=lambda n: 1.0 * n, scatter=lambda n: 2.0 * n)


def spans(step):
    return {name: (span.start, span.end) for name, span in timeline(step).spans.items()}


def test_units_are_the_blocks_and_a_root_that_owns_the_rest():
    assert [unit(each) for each in OPERATIONS] == ["root", "blocks.0", "blocks.0", "blocks.1", "root", "root"]
    assert STEP.units == {"root": 6, "blocks.0": 3, "blocks.1": 5}
    assert STEP.bucketed() == [["blocks.1"], ["blocks.0"], ["root"]]
    assert [visit.gathers for visit in STEP.visits] == [True, True, True, False, True, True, True, False]
    assert [visit.completes for visit in STEP.visits] == [False] * 5 + [True, True, True]


def test_one_operation_a_visit_is_enough():
    short = merged(OPERATIONS)
    assert [each.name for each in short] == ["tokens", "blocks.0", "blocks.1", "norm"]
    assert spans(replace(STEP, operations=short)) == spans(STEP)
    assert replace(STEP, operations=short).units == STEP.units


def test_the_next_unit_is_gathered_while_this_one_computes_and_all_again_in_the_backward():
    assert spans(STEP) == {
        **{"all-gather for forward tokens": (0, 6), "all-gather for forward blocks.0": (6, 9)},
        **{"forward tokens": (6, 6), "all-gather for forward blocks.1": (9, 14), "forward blocks.0": (9, 11)},
        **{"forward blocks.1": (14, 16), "forward norm": (16, 17)},
        **{"all-gather for backward norm": (17, 23), "all-gather for backward blocks.1": (23, 28)},
        **{"backward norm": (23, 25), "all-gather for backward blocks.0": (28, 31), "backward blocks.1": (28, 32)},
        **{"reduce-scatter to blocks.1": (32, 42), "backward blocks.0": (32, 36)},
        **{"reduce-scatter to blocks.0": (42, 48), "backward tokens": (36, 36)},
        **{"reduce-scatter to root": (48, 60), "optimizer": (60, 60.5)},
    }


def test_without_prefetch_nothing_is_gathered_while_anything_computes():
    found = timeline(replace(STEP, prefetch=0))
    gathers = {name: left for name, left in found.uncovered(0).items() if name.startswith("all-gather")}
    assert gathers == {name: found.spans[name].action.seconds for name in gathers}
    assert len(gathers) == 6
    assert found.makespan > timeline(STEP).makespan


def test_what_is_kept_is_not_gathered_again_and_the_rest_is_sent_all_the_same():
    kept = replace(STEP, kept=frozenset(STEP.units))
    assert (STEP.gathered(), kept.gathered()) == (28, 14)
    sent = [action for action in actions(kept) if action.lane == COMMUNICATION]
    assert sum(action.seconds for action in sent if action.name.startswith("reduce")) == 2 * 14
    assert replace(STEP, kept=frozenset(["root"])).gathered() == 22


def test_copies_take_the_compute_lane_once_for_what_is_gathered_and_once_for_what_is_reduced():
    plain, copied = timeline(STEP), timeline(replace(STEP, unpack=0.1, pack=0.01))
    assert copied.busy(0, COMPUTE) - plain.busy(0, COMPUTE) == pytest.approx(0.1 * 28 + 0.01 * 14)


def test_gradients_travel_together_while_they_fit():
    assert replace(STEP, bucket=8).bucketed() == [["blocks.1", "blocks.0"], ["root"]]
    found = spans(replace(STEP, bucket=8))
    assert "reduce-scatter to blocks.1" not in found
    assert found["reduce-scatter to blocks.0"] == (36, 52)


def test_a_unit_is_kept_if_its_next_use_is_near():
    """Between the two uses of blocks.0 lie blocks.1 and the root, each twice."""
    assert reused(STEP, 12) == {"root"}
    assert reused(STEP, 13) == {"root", "blocks.1"}
    assert reused(STEP, 23) == {"root", "blocks.1", "blocks.0"}


def test_updated_parameters_are_gathered_after_the_update():
    update = Action("optimizer", COMPUTE, (0,), 2.0)
    assert simulate(published([update], 3.0)).makespan == 5.0
