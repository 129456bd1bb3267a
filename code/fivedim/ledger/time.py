"""Times of collectives as formulas: bus bandwidth, and the alpha-beta model with its fit. Seconds and bytes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Of S bytes, the share that must cross each rank's link in one direction: it turns S/T into the rate of the link.
# Source: nccl-tests, doc/PERFORMANCE.md. S is the whole logical tensor.
BUS_FACTORS = {
    "broadcast": lambda n: 1,
    "reduce": lambda n: 1,
    "scatter": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "all_reduce": lambda n: 2 * (n - 1) / n,
}


class AlphaBeta(NamedTuple):
    """T(S) = alpha + S/beta: `alpha` in seconds an operation, `beta` in bytes a second of the whole logical tensor."""

    alpha: float
    beta: float

    def seconds(self, size: float) -> float:
        """The time of one operation on `size` bytes."""
        return self.alpha + size / self.beta

    @property
    def crossover(self) -> float:
        """The size in bytes at which latency and transfer cost the same (Hockney's half-performance length)."""
        return self.alpha * self.beta


def bus_bandwidth(collective: str, n: int, size: float, seconds: float) -> float:
    """Bytes a second over each link while `n` ranks run `collective` on a tensor of `size` bytes in `seconds`."""
    return BUS_FACTORS[collective](n) * size / seconds


def fit_alpha_beta(sizes: Sequence[float], seconds: Sequence[float]) -> AlphaBeta:
    """The alpha and beta that make the sum of squared RELATIVE errors of T(S) = alpha + S/beta smallest.

    Sizes in bytes, times in seconds, one entry a point. Relative, because the times of a sweep span four decades: an
    absolute fit would be decided by its largest point alone. Raises ValueError where the points cannot tell the two
    apart.
    """
    size, time = np.asarray(sizes, float), np.asarray(seconds, float)
    if len(np.unique(size)) < 2:
        raise ValueError(f"alpha and beta need at least 2 different sizes, got {sorted(set(sizes))}")
    unit = size.max()
    columns = np.column_stack([1 / time, size / unit / time])
    (alpha, slope), *_ = np.linalg.lstsq(columns, np.ones_like(time), rcond=None)
    if slope <= 0:
        raise ValueError("time does not grow with size: these points have no bandwidth")
    return AlphaBeta(float(alpha), float(unit / slope))


def relative_errors(model: AlphaBeta, sizes: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """(model - reported) / reported at every point."""
    return [model.seconds(size) / time - 1 for size, time in zip(sizes, seconds, strict=True)]
