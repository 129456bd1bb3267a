"""The event simulator: a list of actions in, a timeline out. The only simulator of the project. Seconds.

A rank has lanes (its streams): actions of one lane run one after the other, in the order of the list; actions of
different lanes run at the same time unless one waits for the other. An action of several ranks is a collective: it
starts on all of them at once, when the last is ready.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

COMPUTE, COMMUNICATION = "compute", "communication"


@dataclass(frozen=True)
class Action:
    """One piece of work: `seconds` on `lane` of each of `ranks`, once everything named in `after` has ended."""

    name: str
    lane: str
    ranks: tuple[int, ...]
    seconds: float
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Span:
    """When an action ran."""

    action: Action
    start: float

    @property
    def end(self) -> float:
        return self.start + self.action.seconds


@dataclass(frozen=True)
class Timeline:
    """Every action's span, by the action's name, in the order of the list that was simulated."""

    spans: dict[str, Span]

    @property
    def makespan(self) -> float:
        """Seconds from the start to the end of the last action."""
        return max((span.end for span in self.spans.values()), default=0.0)

    def on(self, rank: int, lane: str) -> list[Span]:
        """The spans of one lane of one rank, in order."""
        return [span for span in self.spans.values() if span.action.lane == lane and rank in span.action.ranks]

    def busy(self, rank: int, lane: str) -> float:
        """Seconds that the lane works."""
        return sum(span.action.seconds for span in self.on(rank, lane))

    def exposed(self, rank: int, lane: str = COMPUTE) -> float:
        """Seconds of the makespan in which the lane has nothing to run: what the rest of the step did not hide."""
        return self.makespan - self.busy(rank, lane)

    def uncovered(self, rank: int, lane: str = COMMUNICATION, under: str = COMPUTE) -> dict[str, float]:
        """Of each action on `lane`, the seconds in which nothing ran on the lane `under`, by the action's name."""
        covers = self.on(rank, under)
        return {
            span.action.name: span.action.seconds
            - sum(max(0.0, min(span.end, cover.end) - max(span.start, cover.start)) for cover in covers)
            for span in self.on(rank, lane)
        }


def simulate(actions: Sequence[Action], launch: float = 0.0) -> Timeline:
    """Run `actions`; each rank's host issues them in the order of the list, one every `launch` seconds.

    The host runs ahead of its lanes and never waits for them. Raises ValueError for a name that is used twice or not
    at all, a negative time, and actions that wait for one another in a circle (a deadlock, whose members it names).
    """
    by_name = {action.name: action for action in actions}
    check(actions, by_name)
    waits, issued = predecessors(actions), launches(actions, launch)
    spans: dict[str, Span] = {}
    pending = list(by_name)
    while pending:
        blocked = []
        for name in pending:
            if all(before in spans for before in waits[name]):
                ready = max((spans[before].end for before in waits[name]), default=0.0)
                spans[name] = Span(by_name[name], max(ready, issued[name]))
            else:
                blocked.append(name)
        if len(blocked) == len(pending):
            raise ValueError(f"deadlock: {' waits for '.join(circle(waits, spans, blocked[0]))}")
        pending = blocked
    return Timeline({name: spans[name] for name in by_name})


def check(actions: Sequence[Action], by_name: dict[str, Action]) -> None:
    if len(by_name) < len(actions):
        seen: set[str] = set()
        twice = next(action.name for action in actions if action.name in seen or seen.add(action.name))
        raise ValueError(f"two actions are named {twice}: rename one")
    for action in actions:
        if missing := [name for name in action.after if name not in by_name]:
            raise ValueError(f"{action.name} waits for {min(missing)}, which no action is named")
        if action.seconds < 0:
            raise ValueError(f"{action.name} takes {action.seconds} s: give a time of at least 0")


def predecessors(actions: Iterable[Action]) -> dict[str, tuple[str, ...]]:
    """What each action waits for: what it names, and the action before it on each of its ranks' lanes."""
    last: dict[tuple[int, str], str] = {}
    waits = {}
    for action in actions:
        lanes = [(rank, action.lane) for rank in action.ranks]
        waits[action.name] = (*action.after, *dict.fromkeys(last[lane] for lane in lanes if lane in last))
        last.update(dict.fromkeys(lanes, action.name))
    return waits


def launches(actions: Iterable[Action], launch: float) -> dict[str, float]:
    """When the slowest of an action's hosts has issued it."""
    issued: dict[int, int] = {}
    times = {}
    for action in actions:
        for rank in action.ranks:
            issued[rank] = issued.get(rank, 0) + 1
        times[action.name] = launch * max(issued[rank] for rank in action.ranks)
    return times


def circle(waits: dict[str, tuple[str, ...]], spans: dict[str, Span], name: str) -> list[str]:
    """The actions that wait for one another, from the first that comes twice; `name` is one that is blocked."""
    path = []
    while name not in path:
        path.append(name)
        name = next(before for before in waits[name] if before not in spans)
    return [*path[path.index(name) :], name]
