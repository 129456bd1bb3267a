"""Which gradients travel together: DDP's buckets as a pure function. Bytes."""

from collections.abc import Hashable, Sequence

MIB = 2**20
DEFAULT_CAP, FIRST_CAP = 25 * MIB, MIB  # torch's: the first bucket is small, so that communication starts early


def caps(cap_mib: float | None) -> tuple[int, ...]:
    """The bytes at which the first bucket and the later ones close. An explicit cap is the first bucket's too."""
    return (FIRST_CAP, DEFAULT_CAP) if cap_mib is None else (int(cap_mib * MIB),)


def assign(sizes: Sequence[int], caps: Sequence[int], kinds: Sequence[Hashable] | None = None) -> list[list[int]]:
    """Cut tensors of `sizes` bytes, in the order in which their gradients are ready, into buckets of indices.

    A bucket closes with the tensor that brings it to its cap or above, so it can be far larger than the cap; the n-th
    bucket has the n-th cap, later ones the last. Tensors of different `kinds` (dtype and device) share no bucket, and
    each kind counts its own caps. What never reached its cap comes last, by its first tensor. Source: torch 2.13,
    compute_bucket_assignment_by_size.
    """
    done: list[list[int]] = []
    filling: dict[Hashable, list[int]] = {}
    held: dict[Hashable, int] = {}
    closed: dict[Hashable, int] = {}
    for index, kind in enumerate(kinds or [None] * len(sizes)):
        filling.setdefault(kind, []).append(index)
        held[kind] = held.get(kind, 0) + sizes[index]
        number = closed.get(kind, 0)
        if held[kind] >= caps[min(number, len(caps) - 1)]:
            done.append(filling.pop(kind))
            held[kind], closed[kind] = 0, number + 1
    return done + sorted(filling.values())


def fit(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """The same cut by the other rule: a bucket closes before the tensor that would bring it above `limit`.

    A tensor larger than that has one of its own. Source: DeepSpeed 0.19.8, `reduce_bucket_size` (in elements).
    """
    done: list[list[int]] = []
    held = 0
    for index, size in enumerate(sizes):
        if not done or held + size > limit:
            done.append([])
            held = 0
        done[-1].append(index)
        held += size
    return done
