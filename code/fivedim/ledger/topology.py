"""Where a collective's bytes cross the links, and the bandwidth that the most loaded link leaves. Rates in one unit.

A route between two GPUs of a PCIe tree is the only one, so the largest flow that a pattern of messages can sustain
(maximum concurrent flow) is set by one link: the one whose load takes longest to carry.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fivedim.ledger.time import BUS_FACTORS

Budget = Literal["duplex", "shared", "hairpin"]
Messages = dict[tuple[int, int], float]  # (source, target): bytes, as a share of the whole tensor


@dataclass(frozen=True)
class Topology:
    """GPUs, and what limits the rate between them.

    `budget` says what one link's `rate` pays for: "duplex", sending and receiving each at the full rate; "shared", the
    two together; "hairpin", duplex links, but every message climbs its switch's one uplink and comes back down, even
    between the two GPUs of a pair. `joint` is the rate, each way, of the link between `sockets`; None: no limit.
    """

    budget: Budget
    switches: tuple[tuple[int, ...], ...]
    sockets: tuple[tuple[int, ...], ...]
    rate: float = 1.0
    joint: float | None = None

    def route(self, source: int, target: int) -> Iterator[tuple[Hashable, float]]:
        """The links that a message crosses, each with its rate."""
        directions = ("", "") if self.budget == "shared" else ("out", "in")
        for gpu, direction in zip((source, target), directions, strict=True):
            yield ("gpu", gpu, direction), self.rate
            if self.budget == "hairpin":
                yield ("uplink", _place(gpu, self.switches), direction), self.rate
        here, there = _place(source, self.sockets), _place(target, self.sockets)
        if self.joint is not None and here != there:
            yield ("joint", here, there), self.joint

    def seconds(self, messages: Messages) -> float:
        """Time to carry `messages` all at once: the largest load of any link over its rate."""
        load: Counter[tuple[Hashable, float]] = Counter()
        for (source, target), size in messages.items():
            for link in self.route(source, target):
                load[link] += size
        return max((size / rate for (_, rate), size in load.items()), default=0.0)

    def busbw(self, collective: str, gpus: Sequence[int]) -> float:
        """The bus bandwidth on which `collective` levels off for large tensors, in the unit of the rates."""
        return BUS_FACTORS[collective](len(gpus)) / self.seconds(PATTERNS[collective](gpus))


def _place(gpu: int, groups: tuple[tuple[int, ...], ...]) -> int:
    return next(place for place, group in enumerate(groups) if gpu in group)


def ring(gpus: Sequence[int], rounds: int) -> Messages:
    """Every GPU to the next, S/N a round."""
    n = len(gpus)
    return {(gpus[i], gpus[(i + 1) % n]): rounds / n for i in range(n)}


def chain(gpus: Sequence[int]) -> Messages:
    """The root's S handed from each GPU to the next, in chunks so small that all links work at once."""
    return dict.fromkeys(zip(gpus[:-1], gpus[1:], strict=True), 1.0)


def direct(gpus: Sequence[int]) -> Messages:
    """From the root to each of the others its S/N."""
    return {(gpus[0], gpu): 1 / len(gpus) for gpu in gpus[1:]}


def reverse(messages: Messages) -> Messages:
    """The same messages the other way."""
    return {(target, source): size for (source, target), size in messages.items()}


# Which algorithm carries a collective out for large tensors; the first GPU is the root.
PATTERNS = {
    "broadcast": chain,
    "reduce": lambda gpus: reverse(chain(gpus)),
    "scatter": direct,
    "gather": lambda gpus: reverse(direct(gpus)),
    "all_gather": lambda gpus: ring(gpus, len(gpus) - 1),
    "reduce_scatter": lambda gpus: ring(gpus, len(gpus) - 1),
    "all_reduce": lambda gpus: ring(gpus, 2 * (len(gpus) - 1)),
}


@dataclass(frozen=True)
class Plateau:
    """One reported bus bandwidth at a size so large that latency does not count."""

    collective: str
    n: int
    busbw: float


def log_errors(topology: Topology, plateaus: Sequence[Plateau]) -> list[float]:
    """log(predicted / reported) of every plateau; the group is the first N GPUs."""
    return [math.log(topology.busbw(each.collective, range(each.n)) / each.busbw) for each in plateaus]


def rms(errors: Sequence[float]) -> float:
    """Root of the mean square."""
    return math.sqrt(sum(error**2 for error in errors) / len(errors))


def fit_rate(topology: Topology, plateaus: Sequence[Plateau]) -> Topology:
    """The topology with the rate of least rms log error; its joint keeps its ratio to the rate."""
    errors = log_errors(topology, plateaus)
    factor = math.exp(-sum(errors) / len(errors))
    return replace(topology, rate=topology.rate * factor, joint=topology.joint and topology.joint * factor)


def fit_joint(topology: Topology, plateaus: Sequence[Plateau], ratios: Sequence[float]) -> Topology:
    """The topology with the joint, as one of `ratios` to the rate, and the rate that fit best together."""
    fits = [fit_rate(replace(topology, joint=ratio * topology.rate), plateaus) for ratio in ratios]
    return min(fits, key=lambda fit: rms(log_errors(fit, plateaus)))
