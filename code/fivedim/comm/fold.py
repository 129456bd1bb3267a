"""Folding: how an all-reduce for a power of two serves any number of ranks."""

from collections.abc import Callable

from fivedim.comm.schedule import Message, Step, mirror


def power_of_two(ranks: int) -> int:
    """The largest power of two that is not above `ranks`."""
    return 1 << (ranks.bit_length() - 1)


def folded(rank: int, ranks: int, blocks: range, core: Callable[[int, int], list[Step]]) -> list[Step]:
    """Run `core` on the first P ranks, a power of two; each beyond gives its tensor to one of them and gets the sum.

    The guests send S, their hosts S more than `core` does.
    """
    inside = power_of_two(ranks)
    if inside == ranks:
        return core(rank, ranks)
    if rank >= inside:
        back = Step(receives=(Message(rank - inside, blocks),))
        middle = [Step()] * len(core(0, inside))
    else:
        back = Step(sends=(Message(rank + inside, blocks),)) if rank + inside < ranks else Step()
        middle = core(rank, inside)
    return [*mirror([back], reduce=True), *middle, back]
