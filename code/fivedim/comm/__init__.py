"""The narrow waist: collectives on a group, counted.

Plain ones are here (`comm.all_reduce(x, group)`, carried out by c10d); from-scratch ones in the module of their
algorithm (`comm.ring.all_reduce(x, group)`, from send and receive alone); differentiable conjugate pairs in
`comm.differentiable`; those that run beside the caller in `comm.asynchronous`; norms of what lies in parts in
`comm.norm`. `with comm.count() as traffic:` counts what is sent.
"""

from fivedim.comm import (
    asynchronous,
    chain,
    differentiable,
    direct,
    doubling,
    halving,
    norm,
    pairwise,
    ring,
    rooted,
    tree,
)
from fivedim.comm.algorithm import ALGORITHMS, Algorithm
from fivedim.comm.collectives import (
    all_gather,
    all_reduce,
    all_reduce_,
    all_reduce_max,
    all_to_all,
    barrier,
    broadcast,
    broadcast_,
    exchange,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from fivedim.comm.counter import Kind, Traffic, count
from fivedim.comm.latency import latency

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Kind",
    "Traffic",
    "all_gather",
    "all_reduce",
    "all_reduce_",
    "all_reduce_max",
    "all_to_all",
    "asynchronous",
    "barrier",
    "broadcast",
    "broadcast_",
    "chain",
    "count",
    "differentiable",
    "direct",
    "doubling",
    "exchange",
    "gather",
    "halving",
    "latency",
    "norm",
    "pairwise",
    "reduce",
    "reduce_scatter",
    "ring",
    "rooted",
    "scatter",
    "tree",
]
