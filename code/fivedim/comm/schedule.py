"""Schedules: a communication algorithm as data, and the check that it is right. No torch here.

A tensor is cut into blocks. Rank by rank, a schedule is a list of steps; all messages of a step are in flight together,
and step t of one rank meets step t of every other. A block has the same number on every rank, wherever it is stored.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Message(NamedTuple):
    """A run of blocks, to or from position `peer` of the group.

    `reduce`: added to what the receiver holds, else put in its place.
    """

    peer: int
    blocks: range
    reduce: bool = False


class Step(NamedTuple):
    """What one rank sends and receives at the same time."""

    sends: tuple[Message, ...] = ()
    receives: tuple[Message, ...] = ()


def mirror(steps: Sequence[Step], reduce: bool) -> list[Step]:
    """The same messages backwards in time and direction: a broadcast becomes a reduce, a scatter a gather."""
    return [
        Step(
            tuple(Message(peer, blocks, reduce) for peer, blocks, _ in step.receives),
            tuple(Message(peer, blocks, reduce) for peer, blocks, _ in step.sends),
        )
        for step in reversed(steps)
    ]


def check(schedules: Sequence[Sequence[Step]], has: Sequence[range], wants: Sequence[range]) -> None:
    """Run all ranks' schedules in one process: each must end with what it wants, every contribution to it counted once.

    A block's value is a Counter of the ranks whose contribution is in it. What a block must be follows from `has`
    alone: the sum of all that had it, which is one rank's block for a gather or a broadcast and every rank's for a
    reduction. Raises AssertionError naming the step or the block, KeyError where a rank sends or adds to what it does
    not hold.
    """
    held = simulate(schedules, has)
    wanted = {block for blocks in wants for block in blocks}
    owners = {block: Counter(rank for rank, blocks in enumerate(has) if block in blocks) for block in wanted}
    for rank, blocks in enumerate(wants):
        for block in blocks:
            assert held[rank].get(block) == owners[block], f"rank {rank}, block {block}: {held[rank].get(block)}"


def simulate(schedules: Sequence[Sequence[Step]], has: Sequence[range]) -> list[dict[int, Counter]]:
    """What each rank holds in the end, block by block, as the contributions in it. Raises as `check` does."""
    held = [{block: Counter([rank]) for block in blocks} for rank, blocks in enumerate(has)]
    lengths = {len(steps) for steps in schedules}
    assert len(lengths) == 1, f"ranks disagree on the number of steps: {sorted(lengths)}"
    for time in range(lengths.pop()):
        _meet(time, [steps[time] for steps in schedules], held)
    return held


def _meet(time: int, steps: Sequence[Step], held: list[dict[int, Counter]]) -> None:
    """One step of all ranks: pair the messages, then deliver what was held before the step."""
    sent = [(rank, *message) for rank, step in enumerate(steps) for message in step.sends]
    received = [(message.peer, rank, *message[1:]) for rank, step in enumerate(steps) for message in step.receives]
    assert set(sent) == set(received), f"step {time}: sends and receives do not pair"
    assert len({message[:2] for message in sent}) == len(sent), f"step {time}: two messages between one pair"
    landed = Counter((target, block) for _, target, blocks, _ in sent for block in blocks)
    assert all(times == 1 for times in landed.values()), f"step {time}: a block arrives twice at one rank"
    assert all(source != target for source, target, *_ in sent), f"step {time}: a rank sends to itself"
    arrivals = [
        (target, block, reduce, held[source][block]) for source, target, blocks, reduce in sent for block in blocks
    ]
    for target, block, reduce, value in arrivals:
        held[target][block] = held[target][block] + value if reduce else value
