"""Times of kernels from an accelerator's data sheet and its matrix-product rates. Seconds, bytes, FLOP."""

from dataclasses import dataclass, replace
from math import ceil

TILE = 128  # rows and columns of a product that one multiprocessor computes at a time
REFERENCE = 8192  # the square product whose rate is known

# fp32 AdamW, fused: weight, gradient and two moments are read, weight and moments written
ADAMW_BYTES = (4 + 3) * 4

# The same as torch's `foreach`, its default: a kernel for each operation, and how many tensors that reads and writes
FOREACH_ADAMW = {
    **{"mul_ weight": 2, "lerp_ exp_avg": 3, "mul_ exp_avg_sq": 2, "addcmul_ exp_avg_sq": 3},
    **{"sqrt exp_avg_sq": 2, "div_ root": 2, "add_ root": 2, "addcdiv_ weight": 4},
}
FOREACH_ADAMW_BYTES = 4 * sum(FOREACH_ADAMW.values())


@dataclass(frozen=True)
class Accelerator:
    """Rates: `gemm` in FLOP/s by dtype, of a square product of REFERENCE; `memory` in bytes/s; `launch` in seconds."""

    gemm: dict[str, float]
    memory: float
    multiprocessors: int
    launch: float

    def product(self, m: int, n: int, k: int, dtype: str) -> float:
        """Time of an [m, k] by [k, n] product: whole waves of tiles, a tile a multiprocessor.

        A product that leaves multiprocessors idle in its last wave takes as long as if they worked.
        """
        return 2 * m * n * k / (self.gemm[dtype] * self._filled(m, n) / self._filled(REFERENCE, REFERENCE))

    def _filled(self, m: int, n: int) -> float:
        """The share of the waves' places that an [m, n] result fills."""
        waves = ceil(ceil(m / TILE) * ceil(n / TILE) / self.multiprocessors)
        return m * n / (waves * self.multiprocessors * TILE**2)

    def stream(self, size: float) -> float:
        """Time of a kernel that memory bounds: `size` bytes read and written."""
        return size / self.memory

    def kernel(self, flop: float, size: float, dtype: str) -> float:
        """Time of any kernel by its roofline: `flop` at the rate of products of `dtype`, or `size` bytes moved.

        Williams, Waterman and Patterson 2009. The shape of a product is not looked at, see `product`.
        """
        return max(flop / self.gemm[dtype] if flop else 0.0, self.stream(size))

    def slowed(self, times: float, products: float = 1.0) -> "Accelerator":
        """The card with every rate divided by `times`, and those of products by `products` once more."""
        gemm = {dtype: rate / (times * products) for dtype, rate in self.gemm.items()}
        return replace(self, gemm=gemm, memory=self.memory / times, launch=self.launch * times)

    def adamw(self, parameters: int) -> float:
        """Time of a fused fp32 AdamW step."""
        return self.stream(ADAMW_BYTES * parameters)
