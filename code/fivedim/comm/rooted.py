"""The naive all-reduce around rank 0, whose link carries everything."""

from fivedim.comm.algorithm import AllReduce, whole
from fivedim.comm.schedule import Message, Step


@AllReduce.of(whole)
def all_reduce(rank: int, ranks: int) -> list[Step]:
    """Rank 0 takes and adds one tensor after the other, then sends the sum to each.

    Sends (N-1) * S at rank 0, S elsewhere.
    """
    peers = range(1, ranks)
    if rank == 0:
        taken = [Step(receives=(Message(peer, range(1), True),)) for peer in peers]
        return [*taken, Step(sends=tuple(Message(peer, range(1)) for peer in peers))]
    given = [Step(sends=(Message(0, range(1), True),)) if peer == rank else Step() for peer in peers]
    return [*given, Step(receives=(Message(0, range(1)),))]
