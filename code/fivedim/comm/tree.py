"""The binomial tree: in each step every rank that has the tensor gives it to one that has not: ceil(log2 N) steps.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

from fivedim.comm.algorithm import Broadcast, Reduce, whole
from fivedim.comm.schedule import Message, Step, mirror


@Broadcast.of(whole)
def broadcast(rank: int, ranks: int, root: int = 0) -> list[Step]:
    """Counted from the root, rank v < 2^t sends to v + 2^t in step t.

    Sends S a child: at most ceil(log2 N) * S, at the root.
    """
    place, steps = (rank - root) % ranks, []
    for level in range((ranks - 1).bit_length()):
        reach = 1 << level
        child, parent = place + reach, place - reach
        sends = (Message((child + root) % ranks, range(1)),) if place < reach and child < ranks else ()
        receives = (Message((parent + root) % ranks, range(1)),) if reach <= place < 2 * reach else ()
        steps.append(Step(sends, receives))
    return steps


@Reduce.of(whole)
def reduce(rank: int, ranks: int, root: int = 0) -> list[Step]:
    """The broadcast backwards: every rank adds up its children, then sends S to its parent."""
    return mirror(broadcast.schedule(rank, ranks, root), reduce=True)
