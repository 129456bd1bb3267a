"""Pairwise exchange: in step t every rank sends to the rank t further on and receives from the rank t before."""

from fivedim.comm.algorithm import AllToAll
from fivedim.comm.schedule import Message, Step


@AllToAll
def all_to_all(rank: int, ranks: int) -> list[Step]:
    """Every pair of ranks exchanges once. Sends (N-1)/N * S in N-1 steps."""
    steps = []
    for distance in range(1, ranks):
        target, source = (rank + distance) % ranks, (rank - distance) % ranks
        outgoing, incoming = rank * ranks + target, source * ranks + rank
        steps.append(
            Step((Message(target, range(outgoing, outgoing + 1)),), (Message(source, range(incoming, incoming + 1)),))
        )
    return steps
