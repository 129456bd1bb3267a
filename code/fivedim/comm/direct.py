"""Directly from the root to each rank, and from each rank to the root: one step, all of it on the root's link."""

from fivedim.comm.algorithm import Gather, Scatter
from fivedim.comm.schedule import Message, Step, mirror


@Scatter
def scatter(rank: int, ranks: int, root: int = 0) -> list[Step]:
    """The root sends each rank its block: (N-1)/N * S; the others send nothing."""
    if rank == root:
        return [Step(sends=tuple(Message(peer, range(peer, peer + 1)) for peer in range(ranks) if peer != root))]
    return [Step(receives=(Message(root, range(rank, rank + 1)),))]


@Gather
def gather(rank: int, ranks: int, root: int = 0) -> list[Step]:
    """The scatter backwards: each rank but the root sends its block, S/N."""
    return mirror(scatter.schedule(rank, ranks, root), reduce=False)
