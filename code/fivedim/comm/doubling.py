"""Recursive doubling: whole tensors exchanged at distance 1, 2, 4, ...; the fewest steps, for small tensors.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

from fivedim.comm.algorithm import AllReduce, whole
from fivedim.comm.fold import folded
from fivedim.comm.schedule import Message, Step


@AllReduce.of(whole)
def all_reduce(rank: int, ranks: int) -> list[Step]:
    """Sends log2(N) * S.

    Where N is no power of two, the ranks beyond one send S to be folded in, and are sent the sum.
    """
    return folded(rank, ranks, range(1), _core)


def _core(rank: int, ranks: int) -> list[Step]:
    """For a power of two."""
    swaps = [(Message(rank ^ (1 << level), range(1), True),) for level in range(ranks.bit_length() - 1)]
    return [Step(swap, swap) for swap in swaps]
