"""A step whose parameters are sharded, as a list of actions for the simulator: gather, compute, reduce-scatter, update.

A unit is what is gathered at once: a block, or the root, which owns all that is in no block. FSDP gathers units one
ahead of the compute, in the forward and, where they are resharded in between, again in the backward; ZeRO-3 does the
same with other constants. ZeRO-1 and -2 are a data-parallel step with `published` after it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from fivedim.ledger import buckets
from fivedim.ledger.data_parallel import RANKS
from fivedim.ledger.layers import Operation, tensors, work
from fivedim.ledger.simulator import COMMUNICATION, COMPUTE, Action, Timeline, simulate

ROOT = "root"


class Visit(NamedTuple):
    """A unit's compute in one pass: FLOP, whether it is gathered for it, and whether its gradients are complete then.

    The root is visited before the blocks and after them.
    """

    name: str
    unit: str
    flop: float
    gathers: bool
    completes: bool


@dataclass(frozen=True)
class Step:
    """What the time of a step depends on. Seconds and elements.

    `compute` is forward and backward, shared among the operations by their FLOP; `optimizer` updates the rank's shard.
    `gather` and `scatter` give the times of an all-gather and a reduce-scatter of so many elements; `unpack` and `pack`
    are what the compute lane needs to copy one element that was gathered, or that is to be reduced. Units are gathered
    up to `prefetch` visits ahead, never a backward's in the forward; those `kept` are not resharded between the two.
    Gradients of several units are reduced together while they fit into `bucket`. `launch` is what the host needs to
    issue one action.
    """

    operations: Sequence[Operation]
    compute: float
    optimizer: float
    gather: Callable[[int], float]
    scatter: Callable[[int], float]
    unpack: float = 0.0
    pack: float = 0.0
    prefetch: int = 1
    kept: frozenset[str] = frozenset()
    bucket: int = 0
    launch: float = 0.0

    @cached_property
    def units(self) -> dict[str, int]:
        """Every unit's elements, in the order of first use."""
        sizes: Counter[str] = Counter()
        for each in self.operations:
            sizes[unit(each)] += sum(each.tensors.values())
        return dict(sizes)

    def bucketed(self) -> list[list[str]]:
        """The units whose gradients are reduced together, in the order in which they are complete."""
        names, sizes = zip(*reversed(self.units.items()), strict=True)
        return [[names[i] for i in bucket] for bucket in buckets.fit(sizes, self.bucket)]

    @cached_property
    def visits(self) -> list[Visit]:
        """The compute of one step in its order: consecutive operations of one unit are one visit."""
        groups = [(name, list(each)) for name, each in groupby(self.operations, key=unit)]
        walk: list[Visit] = []
        for phase, ordered in (("forward", groups), ("backward", groups[::-1])):
            left, seen = Counter(name for name, _ in groups), set(self.kept if phase == "backward" else ())
            for name, listed in ordered:
                left[name] -= 1
                label = listed[0].name if name == ROOT else name
                flop = sum(getattr(each, phase) for each in listed)
                completes = phase == "backward" and not left[name]
                walk.append(Visit(f"{phase} {label}", name, flop, name not in seen, completes))
                seen.add(name)
        return walk

    def gathered(self) -> int:
        """Elements that are gathered in a step; those that are reduced are all, once."""
        sizes = self.units
        return sum(sizes[visit.unit] for visit in self.visits if visit.gathers)


def unit(operation: Operation) -> str:
    """The unit that an operation is in."""
    parts = operation.name.split(".")
    return ".".join(parts[:2]) if parts[0] == "blocks" else ROOT


def merged(operations: Sequence[Operation]) -> list[Operation]:
    """The same with one operation a visit: all that a sharded step depends on."""
    groups = [(name, list(each)) for name, each in groupby(operations, key=unit)]
    return [
        Operation(
            listed[0].name if name == ROOT else name,
            sum(each.forward for each in listed),
            sum(each.backward for each in listed),
            tensors(listed),
        )
        for name, listed in groups
    ]


def timeline(step: Step) -> Timeline:
    """The simulated step, see `actions`."""
    return simulate(actions(step), step.launch)


def actions(step: Step) -> list[Action]:
    """The actions of one step, in the order in which the host issues them.

    Sends an all-gather for every unit that a pass must gather, and a reduce-scatter a bucket.
    """
    walk, sizes = step.visits, step.units
    rate, turn = work(step.operations) / step.compute, len(walk) // 2
    buckets_by_last = {bucket[-1]: bucket for bucket in step.bucketed()}
    issued: dict[int, list[Visit]] = {}
    for place, visit in enumerate(walk):
        if visit.gathers:
            issued.setdefault(max(place - step.prefetch, turn * (place >= turn)), []).append(visit)
    listed: list[Action] = []
    for place, visit in enumerate(walk):
        before = tuple(each.name for each in walk[:place][-1:])
        for each in issued.get(place, ()):
            listed.append(Action(_gather(each), COMMUNICATION, RANKS, step.gather(sizes[each.unit]), before))
        copies = sizes[visit.unit] * (step.unpack * visit.gathers + step.pack * visit.completes)
        needs = (_gather(visit),) if visit.gathers else ()
        listed.append(Action(visit.name, COMPUTE, RANKS, visit.flop / rate + copies, needs))
        if visit.completes and (bucket := buckets_by_last.get(visit.unit)):
            seconds = step.scatter(sum(sizes[name] for name in bucket))
            listed.append(Action(f"reduce-scatter to {visit.unit}", COMMUNICATION, RANKS, seconds, (visit.name,)))
    return [*listed, Action("optimizer", COMPUTE, RANKS, step.optimizer, _last_sent(listed))]


def published(listed: Sequence[Action], seconds: float) -> list[Action]:
    """`listed`, and the all-gather of the parameters that the last of them updated: what ZeRO-1 and -2 end with."""
    return [*listed, Action("all-gather", COMMUNICATION, RANKS, seconds, (listed[-1].name,))]


def reused(step: Step, distance: int) -> frozenset[str]:
    """The units whose backward comes within `distance` elements of parameters after their forward: ZeRO-3 keeps these.

    Between the two lie, each twice, the units that follow in the forward. Source: DeepSpeed 0.19.8,
    `stage3_max_reuse_distance`.
    """
    walk, sizes = step.visits, step.units
    forward = [visit.unit for visit in walk[: len(walk) // 2]]
    after = {name: 2 * sum(sizes[each] for each in forward[place + 1 :]) for place, name in enumerate(forward)}
    return frozenset(name for name, between in after.items() if between < distance)


def _gather(visit: Visit) -> str:
    return f"all-gather for {visit.name}"


def _last_sent(listed: Sequence[Action]) -> tuple[str, ...]:
    return tuple(action.name for action in listed if action.lane == COMMUNICATION)[-1:]
