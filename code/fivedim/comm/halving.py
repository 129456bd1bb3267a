"""Recursive halving and doubling: a reduce-scatter that halves at each step, then the same backwards.

Source: Rabenseifner, "Optimization of collective reduction operations", 2004.
"""

from fivedim.comm.algorithm import AllReduce
from fivedim.comm.fold import folded, power_of_two
from fivedim.comm.schedule import Message, Step, mirror


@AllReduce.of(power_of_two)
def all_reduce(rank: int, ranks: int) -> list[Step]:
    """Sends 2(N-1)/N * S in 2 log2(N) steps.

    Where N is no power of two, the ranks beyond one send S to be folded in, and are sent the sum.
    """
    return folded(rank, ranks, range(power_of_two(ranks)), _core)


def _core(rank: int, ranks: int) -> list[Step]:
    """For a power of two."""
    gather = [_double(rank, 1 << level) for level in range(ranks.bit_length() - 1)]
    return mirror(gather, reduce=True) + gather


def _double(rank: int, width: int) -> Step:
    """Swap the aligned run of `width` blocks that this rank completes for the partner's."""
    partner = rank ^ width
    mine, theirs = rank // width * width, partner // width * width
    return Step(
        (Message(partner, range(mine, mine + width)),),
        (Message(partner, range(theirs, theirs + width)),),
    )
