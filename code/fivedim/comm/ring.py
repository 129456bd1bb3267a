"""The ring: every rank sends to the next and receives from the one before, so that all links carry the same.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
"""

from fivedim.comm.algorithm import AllGather, AllReduce, ReduceScatter
from fivedim.comm.schedule import Message, Step


def _turn(rank: int, ranks: int, block: int, reduce: bool) -> Step:
    """Pass `block` on to the next rank, and take the block before it from the rank before."""
    sent, received = block % ranks, (block - 1) % ranks
    return Step(
        (Message((rank + 1) % ranks, range(sent, sent + 1), reduce),),
        (Message((rank - 1) % ranks, range(received, received + 1), reduce),),
    )


@ReduceScatter
def reduce_scatter(rank: int, ranks: int) -> list[Step]:
    """Block b sets out from rank b+1, gathers a contribution at every rank and ends, complete, at rank b.

    Sends (N-1)/N * S in N-1 steps.
    """
    return [_turn(rank, ranks, rank - 1 - time, True) for time in range(ranks - 1)]


@AllGather
def all_gather(rank: int, ranks: int) -> list[Step]:
    """Block b sets out from rank b and leaves a copy at every rank. Sends (N-1)/N * S in N-1 steps."""
    return [_turn(rank, ranks, rank - time, False) for time in range(ranks - 1)]


@AllReduce
def all_reduce(rank: int, ranks: int) -> list[Step]:
    """A reduce-scatter, then an all-gather. Sends 2(N-1)/N * S in 2(N-1) steps: at most 2S for every N."""
    return reduce_scatter.schedule(rank, ranks) + all_gather.schedule(rank, ranks)
