"""Times of collectives from a table of reported ones: what the cost model charges for communication. Seconds, bytes."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from fivedim.ledger.time import BUS_FACTORS, AlphaBeta, fit_alpha_beta, relative_errors

# Messages that wait for one another in the ring, chain or direct algorithm: how often the latency is paid.
HOPS = {name: lambda n: n - 1 for name in BUS_FACTORS} | {"all_reduce": lambda n: 2 * (n - 1)}


class Point(NamedTuple):
    """One reported time: `n` ranks ran `collective` on a whole tensor of `size` bytes."""

    collective: str
    n: int
    size: int
    seconds: float


@dataclass(frozen=True)
class Curve:
    """Time against size for one collective and group, between the reported points piecewise T(S) = alpha + S/beta.

    Straight lines in (S, T): whatever has a latency and a rate is such a line, so that an exact alpha-beta curve is
    reproduced exactly. Interpolating the logarithms would draw a power law and overcharge the bend between latency and
    rate. Below the first point the time is the first point's (latency); beyond the last it grows at the last rate.
    """

    sizes: tuple[float, ...]
    times: tuple[float, ...]

    def seconds(self, size: float) -> float:
        """The time of one operation on `size` bytes."""
        if size <= self.sizes[0]:
            return self.times[0]
        right = min(bisect_right(self.sizes, size), len(self.sizes) - 1)
        (s0, s1), (t0, t1) = self.sizes[right - 1 : right + 1], self.times[right - 1 : right + 1]
        return t0 + (t1 - t0) * (size - s0) / (s1 - s0)


@dataclass(frozen=True)
class Fallback:
    """T = hops(N) * alpha + factor(N) * S / B, fitted over every reported N of a collective; `error` is its rms."""

    collective: str
    link: AlphaBeta
    error: float

    def seconds(self, n: int, size: float) -> float:
        """The time of one operation of `n` ranks on `size` bytes."""
        hops = HOPS[self.collective](n)
        return hops * self.link.seconds(BUS_FACTORS[self.collective](n) * size / hops)


class CollectiveTimes:
    """What a collective takes, by name, ranks and size: from the table where it has that group, else from the fit."""

    def __init__(self, points: Iterable[Point]):
        self.points = sorted(points)
        self.curves = {
            name: Curve(*zip(*((point.size, point.seconds) for point in mine), strict=True))
            for name, mine in groupby(self.points, key=lambda point: point[:2])
        }

    def seconds(self, collective: str, n: int, size: float) -> float:
        """Time of one `collective` of `n` ranks on a whole tensor of `size` bytes; a group of one takes none.

        Raises ValueError for a collective that was never reported. For an N that was not, the fallback answers, whose
        fit error says how far to trust it.
        """
        if n == 1 or size == 0:
            return 0.0
        if curve := self.curves.get((collective, n)):
            return curve.seconds(size)
        return self.fallback(collective).seconds(n, size)

    def fallback(self, collective: str) -> Fallback:
        """The alpha-beta model of one collective over all reported N. Raises ValueError where nothing was reported."""
        if collective not in self._fallbacks:
            raise ValueError(f"{collective}: no reported times; there are {', '.join(self._fallbacks)}")
        return self._fallbacks[collective]

    @cached_property
    def _fallbacks(self) -> dict[str, Fallback]:
        by_collective = groupby(self.points, key=lambda point: point.collective)
        return {collective: fit(collective, list(points)) for collective, points in by_collective}


def fit(collective: str, points: list[Point]) -> Fallback:
    """The alpha-beta model of `collective` over all N: the least squares of the relative errors."""
    hops = [HOPS[collective](point.n) for point in points]
    sizes = [BUS_FACTORS[collective](point.n) * point.size / steps for point, steps in zip(points, hops, strict=True)]
    seconds = [point.seconds / steps for point, steps in zip(points, hops, strict=True)]
    link = fit_alpha_beta(sizes, seconds)
    errors = relative_errors(link, sizes, seconds)
    return Fallback(collective, link, (sum(error**2 for error in errors) / len(errors)) ** 0.5)
