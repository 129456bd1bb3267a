"""Over which values of a constant a verdict holds."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

Prediction = TypeVar("Prediction")


class Range(NamedTuple):
    """The verdict is the same from `low` to `high`: where it changes, or as far as was looked."""

    low: float
    high: float


def verdict_range(
    predict: Callable[[float], Prediction],
    constant: float,
    judge: Callable[[Prediction], object],
    reach: float = 10.0,
    steps: int = 8,
) -> Range:
    """The values around `constant`, up to `reach` times it and down to 1/reach, that give the verdict it gives.

    Goes outwards in `steps` equal ratios each way until the verdict changes and bisects the last of them to 1 in 10^3;
    a verdict that changes and returns within one ratio is missed. Raises ValueError for a constant that is not above 0.
    """
    if constant <= 0:
        raise ValueError(f"constant {constant}: ratios need a positive one")
    verdict = judge(predict(constant))

    def edge(ratio: float) -> float:
        inside = constant
        for step in range(1, steps + 1):
            outside = constant * ratio**step
            if judge(predict(outside)) != verdict:
                return bisect(lambda value: judge(predict(value)) == verdict, inside, outside)
            inside = outside
        return inside

    ratio = reach ** (1 / steps)
    return Range(edge(1 / ratio), edge(ratio))


def verdict_ranges(
    predict: Callable[[dict[str, float]], Prediction],
    constants: dict[str, float],
    judge: Callable[[Prediction], object],
    reach: float = 10.0,
) -> dict[str, Range]:
    """The range of each constant, the others as they are, over which the verdict on what `predict` gives holds."""
    return {
        name: verdict_range(lambda changed, name=name: predict(constants | {name: changed}), value, judge, reach)
        for name, value in constants.items()
    }


def bisect(holds: Callable[[float], bool], inside: float, outside: float, precision: float = 1e-3) -> float:
    """The last value from `inside` towards `outside` for which `holds` is true."""
    while abs(outside / inside - 1) > precision:
        middle = (inside * outside) ** 0.5
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside
