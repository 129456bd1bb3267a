"""The chain: the tensor is cut into chunks that follow each other from rank to rank, so that all links are busy.

Source: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice, and experience",
2007.
"""

from fivedim.comm.algorithm import Broadcast, Reduce
from fivedim.comm.schedule import Message, Step, mirror

CHUNKS = (
    16  # the last rank is done after CHUNKS + N - 2 steps of S/CHUNKS: 1.4 S at N = 8, where one chunk would take 7 S
)


def _chunks(ranks: int) -> int:
    return CHUNKS


@Broadcast.of(_chunks)
def broadcast(rank: int, ranks: int, root: int = 0) -> list[Step]:
    """Counted from the root, rank v passes chunk t - v on in step t. Sends S; the last rank sends nothing."""
    place = (rank - root) % ranks
    steps = []
    for time in range(CHUNKS + ranks - 2):
        outgoing, incoming = time - place, time - place + 1
        sends = place < ranks - 1 and 0 <= outgoing < CHUNKS
        receives = place > 0 and 0 <= incoming < CHUNKS
        steps.append(
            Step(
                (Message((rank + 1) % ranks, range(outgoing, outgoing + 1)),) if sends else (),
                (Message((rank - 1) % ranks, range(incoming, incoming + 1)),) if receives else (),
            )
        )
    return steps


@Reduce.of(_chunks)
def reduce(rank: int, ranks: int, root: int = 0) -> list[Step]:
    """The broadcast backwards: sums run down the chain to the root. Sends S; the root sends nothing."""
    return mirror(broadcast.schedule(rank, ranks, root), reduce=True)
