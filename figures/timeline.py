"""One emulated step as it ran: the compute and the communication lane of some ranks, from their traces.

A collective's bar begins with its launch, or where those launched before it end.
"""

import pandas as pd

from fivedim.evidence import style

COLOURS = {
    "forward": style.BLUE, "backward": style.SKY, "optimizer": style.GREEN,
    "allreduce": style.VERMILION, "broadcast": style.PURPLE,
}  # fmt: skip
LABELS = {"allreduce": "all-reduce of a bucket", "broadcast": "broadcast of the buffers"}
HEIGHT = 0.8


def draw(rows: pd.DataFrame):
    """A band a lane, time in steps of one GPU."""
    if "unavailable" in rows:
        return style.untestable(rows.unavailable.iloc[0])
    one = rows[(rows.row == "case") & (rows["name"] == "one GPU")].seconds.iloc[0]
    spans = rows[rows.row == "span"]
    fig = style.figure("page", height=1.7)
    axis = fig.subplots()
    lanes = [(rank, lane) for rank in spans["rank"].unique() for lane in ("compute", "communication")]
    for place, (rank, lane) in enumerate(lanes):
        band(axis, spans[(spans["rank"] == rank) & (spans.lane == lane)], place, one)
    axis.axvline(1, color=style.GREY, linestyle=":", linewidth=1)
    axis.annotate("one GPU", (1, -0.55), (3, 0), textcoords="offset points", color=style.GREY, fontsize="small")
    axis.set(xlabel="time (steps of one GPU)", xlim=(0, None), ylim=(len(lanes) - 0.5, -0.7))
    axis.set_yticks(range(len(lanes)), [f"rank {rank:.0f}, {lane}" for rank, lane in lanes])
    axis.grid(visible=False, axis="y")
    handles = [axis.barh(0, 0, color=colour, label=LABELS.get(name, name)) for name, colour in COLOURS.items()]
    axis.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(COLOURS))
    return fig


def band(axis, spans, place: int, one: float):
    begin = spans.start.combine(spans.end.cummax().shift(fill_value=0), max)
    for name, mine in spans.assign(start=begin).groupby("name"):
        bars = list(zip(mine.start / one, (mine.end - mine.start).clip(lower=0) / one, strict=True))
        axis.broken_barh(bars, (place - HEIGHT / 2, HEIGHT), color=COLOURS[name], edgecolor="white", linewidth=0.4)


if __name__ == "__main__":
    style.main(__doc__, draw, "bucket_sweep_emulated")
