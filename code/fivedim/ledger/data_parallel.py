"""A data-parallel step as a list of actions for the simulator: forward, backward, and the all-reduces that it hides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fivedim.ledger import buckets
from fivedim.ledger.layers import Operation, tensors, work
from fivedim.ledger.simulator import COMMUNICATION, COMPUTE, Action, Timeline, simulate

RANKS = (0,)  # all ranks do the same at the same time, so that one stands for all of them


@dataclass(frozen=True)
class Step:
    """What the time of a step depends on. Seconds; gradients of `width` bytes an element.

    `compute` is one microbatch's forward and backward, shared among the operations by their FLOP; `launch` is what the
    host needs to issue one action. `all_reduce` gives the time of one on so many bytes. `buffers` is the broadcast of
    the module's buffers that precedes every forward after a synchronized backward. `frozen` parameters have no gradient
    to reduce. Without `overlap` communication starts after the backward.
    """

    operations: Sequence[Operation]
    compute: float
    optimizer: float
    all_reduce: Callable[[int], float]
    buffers: float = 0.0
    launch: float = 0.0
    width: int = 4
    frozen: frozenset[str] = frozenset()
    overlap: bool = True

    def gradients(self) -> dict[str, int]:
        """Bytes of every gradient by name, in the order in which the backward completes them."""
        elements = tensors(self.operations)
        return {name: self.width * elements[name] for name in reversed(elements) if name not in self.frozen}

    def bucketed(self, cap_mib: float) -> list[list[str]]:
        """The buckets of an explicit cap by their tensors' names, in the order in which they are ready."""
        names, sizes = zip(*self.gradients().items(), strict=True)
        return [[names[i] for i in bucket] for bucket in buckets.assign(sizes, buckets.caps(cap_mib))]


def timeline(step: Step, bucketed: list[list[str]], synchronized: Sequence[bool] = (True,)) -> Timeline:
    """The simulated step, see `actions`."""
    return simulate(actions(step, bucketed, synchronized), step.launch)


def actions(step: Step, bucketed: list[list[str]], synchronized: Sequence[bool] = (True,)) -> list[Action]:
    """The actions of one optimizer step of as many microbatches as `synchronized` says whether they are.

    The step repeats, so that the first forward follows the last backward of the step before. Sends one all-reduce a
    bucket and synchronized microbatch, and the buffers once for each.
    """
    listed: list[Action] = []
    for number, reduces in enumerate(synchronized):
        if step.buffers and synchronized[number - 1]:
            listed.append(Action(f"{number} buffers", COMMUNICATION, RANKS, step.buffers, _last(listed)))
        listed += _compute(step, number, _last(listed))
        if reduces:
            listed += _reduces(step, number, bucketed)
    reduced = tuple(action.name for action in listed if action.lane == COMMUNICATION)
    return [*listed, Action("optimizer", COMPUTE, RANKS, step.optimizer, reduced)]


def _last(listed: list[Action]) -> tuple[str, ...]:
    return tuple(action.name for action in listed[-1:])


def _compute(step: Step, number: int, after: tuple[str, ...]) -> list[Action]:
    rate = work(step.operations) / step.compute
    forward = sum(each.forward for each in step.operations) / rate
    return [Action(f"{number} forward", COMPUTE, RANKS, forward, after)] + [
        Action(f"{number} backward {each.name}", COMPUTE, RANKS, each.backward / rate)
        for each in reversed(step.operations)
    ]


def _reduces(step: Step, number: int, bucketed: list[list[str]]) -> list[Action]:
    owner = {name: each.name for each in step.operations for name in each.tensors}
    sizes, end = step.gradients(), step.operations[0].name
    return [
        Action(
            f"{number} bucket {index}",
            COMMUNICATION,
            RANKS,
            step.all_reduce(sum(sizes[name] for name in names)),
            (f"{number} backward {owner[names[-1]] if step.overlap else end}",),
        )
        for index, names in enumerate(bucketed)
    ]
