"""Traffic: what one rank hands to send in one collective, as pure functions.

Every function takes `(rank, ranks, size)` (rooted ones also `root`) and returns how much `rank` sends, in the unit of
`size`: the extent of the whole logical tensor, in elements or in rows. Multiply by the bytes of one. Sizes that do not
divide are cut by `split`, so a rank's share depends on its chunk while the total over the ranks does not: 2(N-1)S for
an all-reduce, (N-1)S for most others.
"""


def split(size: int, parts: int) -> list[int]:
    """Cut `size` into `parts` chunks as even as can be: the first `size % parts` are one longer, as in tensor_split."""
    quotient, rest = divmod(size, parts)
    return [quotient + (part < rest) for part in range(parts)]


def ring_reduce_scatter(rank: int, ranks: int, size: int) -> int:
    """(N-1)/N * S: every chunk but the one that stays here. Source: Patarasuk and Yuan, 2009."""
    return size - split(size, ranks)[rank]


def ring_all_gather(rank: int, ranks: int, size: int) -> int:
    """(N-1)/N * S: every chunk but the one that the next rank starts with. Source: Patarasuk and Yuan, 2009."""
    return size - split(size, ranks)[(rank + 1) % ranks]


def ring_all_reduce(rank: int, ranks: int, size: int) -> int:
    """2(N-1)/N * S: a reduce-scatter and an all-gather. Bounded by 2S for every N. Source: Patarasuk and Yuan, 2009."""
    return ring_reduce_scatter(rank, ranks, size) + ring_all_gather(rank, ranks, size)


def rooted_all_reduce(rank: int, ranks: int, size: int) -> int:
    """(N-1) * S at rank 0, S at every other rank: all tensors go to rank 0 and the sum comes back to each."""
    return (ranks - 1) * size if rank == 0 else size


def doubling_all_reduce(rank: int, ranks: int, size: int) -> int:
    """log2(P) * S for the P ranks of the largest power of two; the others hand their tensor over and get the sum back.

    Source: Thakur, Rabenseifner and Gropp, 2005.
    """
    core = 1 << (ranks.bit_length() - 1)
    if rank >= core:
        return size
    return (core.bit_length() - 1) * size + _unfolded(rank, ranks, core, size)


def halving_all_reduce(rank: int, ranks: int, size: int) -> int:
    """2(P-1)/P * S for the P ranks of the largest power of two; the others hand their tensor over and get the sum back.

    Halving sends every chunk but the rank's own; doubling sends the rank's own 1, 2, 4, ... chunks. Source:
    Rabenseifner, 2004.
    """
    core = 1 << (ranks.bit_length() - 1)
    if rank >= core:
        return size
    chunks = split(size, core)
    widths = [1 << level for level in range(core.bit_length() - 1)]
    doubled = sum(sum(chunks[rank // width * width :][:width]) for width in widths)
    return size - chunks[rank] + doubled + _unfolded(rank, ranks, core, size)


def _unfolded(rank: int, ranks: int, core: int, size: int) -> int:
    """The sum, sent back to the rank outside the power of two that was folded into this one, if there is one."""
    return size if rank < ranks - core else 0


def tree_broadcast(rank: int, ranks: int, size: int, root: int = 0) -> int:
    """S for each child in the binomial tree: ceil(log2 N) * S at the root, nothing at a leaf."""
    place = (rank - root) % ranks
    first = place.bit_length()
    return size * sum(place + (1 << level) < ranks for level in range(first, ranks.bit_length()))


def tree_reduce(rank: int, ranks: int, size: int, root: int = 0) -> int:
    """S, once, at every rank but the root."""
    return 0 if rank == root else size


def chain_broadcast(rank: int, ranks: int, size: int, root: int = 0) -> int:
    """S at every rank but the last of the chain."""
    return 0 if (rank - root) % ranks == ranks - 1 else size


def chain_reduce(rank: int, ranks: int, size: int, root: int = 0) -> int:
    """S at every rank but the root, where the chain ends."""
    return tree_reduce(rank, ranks, size, root)


def direct_scatter(rank: int, ranks: int, size: int, root: int = 0) -> int:
    """(N-1)/N * S at the root: every chunk but its own."""
    return size - split(size, ranks)[root] if rank == root else 0


def direct_gather(rank: int, ranks: int, size: int, root: int = 0) -> int:
    """S/N, its own chunk, at every rank but the root."""
    return 0 if rank == root else split(size, ranks)[rank]


def pairwise_all_to_all(rank: int, ranks: int, size: int) -> int:
    """(N-1)/N * S of the rank's own S: every chunk but the one for itself."""
    return size - split(size, ranks)[rank]


# What is counted where c10d carries a collective out: the bandwidth-optimal algorithm's volume, whatever the backend
# really does.
OPTIMAL = {
    "broadcast": chain_broadcast,
    "reduce": chain_reduce,
    "scatter": direct_scatter,
    "gather": direct_gather,
    "all_gather": ring_all_gather,
    "reduce_scatter": ring_reduce_scatter,
    "all_reduce": ring_all_reduce,
    "all_to_all": pairwise_all_to_all,
}
