"""One fully sharded step as it ran on rank 0: what computes, and what is under way meanwhile, from the trace.

A gather's bar begins with its launch and ends where its parameters are used, a reduction's ends where the shards have
their gradients: how long the messages themselves took is not seen.
"""

import pandas as pd

from fivedim.evidence import style

LANES = ["gather", "compute", "whole", "reduce"]
NAMES = {"whole": "parameters\nwhole"}
COLOURS = {
    "gather": style.ORANGE,
    "forward": style.BLUE,
    "backward": style.SKY,
    "whole": style.PALE,
    "reduce": style.VERMILION,
}
WORDS = {"gather": "all-gather", "whole": "parameters are whole", "reduce": "reduce-scatter"}
HEIGHT = 0.8


def draw(rows: pd.DataFrame):
    """Above: the forward; below: the backward; a bar a unit, time in ms since the step began."""
    events = rows[rows.row == "event"].sort_values("order")
    turn = events[(events.event == "reshard")].seconds.max()
    fig = style.figure("page", height=3.6)
    above, below = fig.subplots(2, 1)
    spans = list(bars(list(zip(events.event, events.unit, 1e3 * events.seconds, strict=True))))
    for axis, title, mine in (
        (above, "forward", [span for span in spans if span[2] < 1e3 * turn]),
        (below, "backward", [span for span in spans if span[2] >= 1e3 * turn]),
    ):
        panel(axis, title, mine)
    below.set_xlabel("time since the step began (ms)")
    handles = [above.barh(0, 0, color=colour, label=WORDS.get(name, name)) for name, colour in COLOURS.items()]
    fig.legend(handles=handles, loc="outside upper center", ncols=len(COLOURS))
    return fig


def bars(events: list[tuple[str, str, float]]):
    """(lane, colour, begin, end, unit) of everything in a trace."""
    root = events[0][1]

    def after(number: int, *wanted: tuple[str, str]) -> float:
        return next((at for event, unit, at in events[number + 1 :] if (event, unit) in wanted), events[-1][2])

    for number, (event, unit, at) in enumerate(events):
        if event == "gather":
            yield "gather", "gather", at, after(number, ("forward", unit), ("backward", unit)), unit
        if event == "forward":
            yield "whole", "whole", at, after(number, ("reshard", unit)), unit
        if event == "backward":
            yield "whole", "whole", at, after(number, ("reduce", unit)), unit
        if event == "reduce":
            yield "reduce", "reduce", at, after(number, ("reduced", unit)), unit
        if event in ("forward", "backward"):
            end = {"forward": "reshard", "backward": "reduce"}[event]
            first = after(number, *((event, other) for _, other, _ in events if other != unit))
            yield "compute", event, at, min(after(number, (end, unit)), first if unit == root else 1e9), unit
        if event in ("reshard", "reduce") and [other for each, other, _ in events[number + 1 :] if each == event][
            :1
        ] == [root]:
            yield "compute", "forward" if event == "reshard" else "backward", at, after(number, (event, root)), root


def panel(axis, title: str, spans: list[tuple]) -> None:
    units = list(dict.fromkeys(unit for *_, unit in spans))
    for lane, colour, begin, end, unit in spans:
        place, height = LANES.index(lane), HEIGHT
        if lane != "compute":  # bars of one lane are side by side, a unit a row of it
            height = HEIGHT / len(units)
            place += height * (units.index(unit) - (len(units) - 1) / 2)
        axis.broken_barh(
            [(begin, end - begin)],
            (place - height / 2, height),
            color=COLOURS[colour],
            edgecolor="white",
            linewidth=0.4,
        )
        if lane == "compute":
            axis.text(
                (begin + end) / 2,
                place,
                unit.removeprefix("blocks."),
                ha="center",
                va="center",
                fontsize=6,
                color="white",
            )
    axis.set_yticks(range(len(LANES)), [NAMES.get(lane, lane) for lane in LANES])
    axis.set(
        ylim=(len(LANES) - 0.5, -0.5),
        title=title,
        xlim=(min(span[2] for span in spans), max(span[3] for span in spans)),
    )
    axis.grid(visible=False, axis="y")


if __name__ == "__main__":
    style.main(__doc__, draw, "fsdp_trace")
