"""A data-parallel step as actions: worked out by hand, and the same for one rank as for all of them."""

from dataclasses import replace

import pytest

from fivedim.ledger.buckets import MIB
from fivedim.ledger.data_parallel import Step, actions, timeline
from fivedim.ledger.layers import Operation
from fivedim.ledger.simulator import COMMUNICATION, simulate

# Forward 1 + 1 + 1 s, backward 2 + 2 + 2 s; gradients of 1, 2 and 4 MiB are ready at 5, 7 and 9 s
OPERATIONS = [
    Operation("table", 1, 2, {"table.weight": 4 * MIB // 4}),
    Operation("middle", 1, 2, {"middle.weight": 2 * MIB // 4}),
    Operation("top", 1, 2, {"top.weight": MIB // 4}),
]
STEP = Step(OPERATIONS, compute=9.0, optimizer=0.5, all_reduce=lambda size: 1.5 * size / MIB)


def starts(step, bucketed, synchronized=(True,)):
    return {name: span.start for name, span in timeline(step, bucketed, synchronized).spans.items()}


def test_buckets_go_out_while_the_backward_runs_and_the_last_is_exposed():
    assert STEP.bucketed(1) == [["top.weight"], ["middle.weight"], ["table.weight"]]
    found = starts(STEP, STEP.bucketed(1))
    assert found == {
        **{"0 forward": 0, "0 backward top": 3, "0 backward middle": 5, "0 backward table": 7},
        **{"0 bucket 0": 5, "0 bucket 1": 7, "0 bucket 2": 10, "optimizer": 16},
    }
    assert timeline(STEP, STEP.bucketed(1)).uncovered(0) == {"0 bucket 0": 0, "0 bucket 1": 1, "0 bucket 2": 6}


def test_a_bucket_waits_for_its_last_gradient():
    assert STEP.bucketed(2) == [["top.weight", "middle.weight"], ["table.weight"]]
    assert starts(STEP, STEP.bucketed(2))["0 bucket 0"] == 7


def test_without_overlap_communication_starts_after_the_backward():
    found = starts(replace(STEP, overlap=False), STEP.bucketed(1))
    assert (found["0 bucket 0"], found["optimizer"]) == (9, 9 + 1.5 * 7)


def test_a_frozen_parameter_is_not_reduced():
    frozen = replace(STEP, frozen=frozenset(["table.weight"]))
    assert frozen.bucketed(1) == [["top.weight"], ["middle.weight"]]


def test_buffers_are_sent_before_each_forward_that_follows_a_synchronized_backward():
    """torch's DDP: with no_sync the first forward after a synchronized step sends them, the others do not."""
    step = replace(STEP, buffers=0.25)
    sent = {
        flags: [action.name for action in actions(step, [], flags) if action.lane == COMMUNICATION]
        for flags in [(True,), (True,) * 3, (False, False, True)]
    }
    assert sent[(True,)] == ["0 buffers"]
    assert sent[(True,) * 3] == ["0 buffers", "1 buffers", "2 buffers"]
    assert sent[(False, False, True)] == ["0 buffers"]
    assert starts(step, step.bucketed(1))["0 forward"] == 0.25


def test_accumulated_microbatches_follow_one_another_and_reduce_when_they_are_told():
    found = starts(STEP, STEP.bucketed(100), (False, True))
    assert (found["0 forward"], found["1 forward"], found["1 bucket 0"]) == (0, 9, 18)
    twice = starts(STEP, STEP.bucketed(100), (True, True))
    assert (twice["0 bucket 0"], twice["1 forward"]) == (9, 9 + 1.5 * 7)  # the next forward waits for the gradients


def test_one_rank_stands_for_all():
    """The step on four ranks, their collectives in common, takes what it takes on one."""
    alone = actions(replace(STEP, buffers=0.25), STEP.bucketed(1))
    ranks, together = range(4), []
    for action in alone:
        if action.lane == COMMUNICATION:
            after = tuple(f"{name} @{rank}" for name in action.after for rank in ranks)
            together.append(replace(action, ranks=tuple(ranks), after=after))
        else:
            shared = {each.name for each in alone if each.lane == COMMUNICATION}
            together += [
                replace(
                    action,
                    name=f"{action.name} @{rank}",
                    ranks=(rank,),
                    after=tuple(name if name in shared else f"{name} @{rank}" for name in action.after),
                )
                for rank in ranks
            ]
    assert simulate(together).makespan == pytest.approx(simulate(alone).makespan)
