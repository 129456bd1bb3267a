"""Where one way to parallelize starts to pay: closed forms, and roots of the cost model. Tokens, seconds, bytes.

h is the model's width, N the group's size, b bytes an element; rates are bytes/s and FLOP/s.
"""

from collections.abc import Callable
from math import sqrt


def tensor_against_data_tokens(width: int) -> int:
    """Tokens a step at which a layer's tensor parallelism moves as many bytes as its data parallelism: 3h.

    4 all-reduces of tokens * h activations (2 forward, 2 backward) against one of the layer's 12 h^2 gradients, at one
    dtype and one N. Fewer tokens favour tensor parallelism.
    """
    return 3 * width


def tensor_against_data_seconds(width: int, element: int, all_reduce: Callable[[float], float]) -> float:
    """The same in time: tokens at which 4 all-reduces of activations take as long as one of the gradients."""
    data = all_reduce(12 * width**2 * element)
    return root(lambda tokens: 4 * all_reduce(tokens * width * element) - data, 1, 12 * width)


def hidden_ring_sequence(n: int, element: int, flops: float, hop_rate: float) -> float:
    """The sequence from which ring attention hides its hops: a hop of 2 (s/N) h b bytes under 4 (s/N)^2 h FLOP."""
    return n * element * flops / (2 * hop_rate)


def ring_sequence(n: int, width: int, element: int, flops: float, hop: Callable[[float], float]) -> float:
    """The sequence from which ring attention on N ranks, hops after compute, is faster than attention on one.

    4 s^2 h FLOP on one, an N-th of them and N - 1 hops of 2 (s/N) h b bytes on each of N (not causal, forward).
    """

    def gain(length: float) -> float:
        compute = 4 * length**2 * width / flops
        return compute - compute / n - (n - 1) * hop(2 * length / n * width * element)

    return root(gain, 1, 2**24)


def microbatches(stages: int, work: float, overhead: float) -> float:
    """The m of the shortest pipeline step (m + p - 1)(a/m + b): sqrt((p - 1) a/b).

    `work` a is one stage's time for the whole batch, `overhead` b what every microbatch costs a stage on top.
    """
    return sqrt((stages - 1) * work / overhead)


def reshard_speedup(compute: float, gather: float, scatter: float) -> float:
    """How many times as fast the links must be for resharding after the forward to cost no time in a layer's backward.

    The layer gathers its weights again and scatters its gradients while it computes: both must fit under `compute`.
    """
    return (gather + scatter) / compute


def root(f: Callable[[float], float], low: float, high: float, precision: float = 1e-6) -> float:
    """Where an f that rises through 0 between `low` and `high` does so. Raises ValueError where it does not."""
    if f(low) > 0 or f(high) < 0:
        raise ValueError(f"no break-even between {low} and {high}")
    while high / low - 1 > precision:
        middle = sqrt(low * high)
        low, high = (low, middle) if f(middle) > 0 else (middle, high)
    return high
