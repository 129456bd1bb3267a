"""Bytes handed to send against N, every collective and algorithm: counted points on the ledger's formula."""

import pandas as pd
from matplotlib.lines import Line2D

from fivedim.evidence import style

LOOKS = {
    "rooted": (style.BLACK, "X"),
    "doubling": (style.BLUE, "D"),
    "halving": (style.GREEN, "^"),
    "ring": (style.VERMILION, "o"),
    "chain": (style.VERMILION, "o"),
    "tree": (style.BLUE, "s"),
    "direct": (style.VERMILION, "o"),
    "pairwise": (style.VERMILION, "o"),
}
PANELS = ["broadcast", "reduce", "scatter", "gather", "all_gather", "reduce_scatter", "all_to_all", "all_reduce"]
MEAN = {"marker": "o", "markersize": 2.2, "color": style.GREY, "markerfacecolor": "white", "markeredgewidth": 0.6}


def draw(rows: pd.DataFrame):
    """One panel a collective: what the busiest rank sends, its formula, and what ranks send on average."""
    fig = style.figure("page", height=3.5)
    rows = rows[rows.divides].drop_duplicates(["collective", "algorithm", "ranks"])
    axes = fig.subplots(2, 4, sharex=True)
    for axis, collective in zip(axes.flat, PANELS, strict=True):
        mine = rows[rows.collective == collective]
        axis.set_title(collective.replace("_", "-"))
        axis.set(xticks=range(1, 9), xlim=(0.6, 11.4), ylim=(0, 1.05 * max(1, mine.busiest.max())))
        for algorithm, curve in mine.groupby("algorithm"):
            points(axis, curve, *LOOKS[algorithm])
        for value, end in mine[mine.ranks == mine.ranks.max()].groupby("busiest"):
            names = "\n".join(end.algorithm)
            axis.text(8.5, value, names, va="center", linespacing=1.0, fontsize="small", in_layout=False)
    for axis in axes[1]:
        axis.set(xlabel="ranks N")
    for axis in axes[:, 0]:
        axis.set(ylabel="bytes sent / S")
    legend(fig)
    return fig


def points(axis, curve, colour, marker):
    axis.plot(curve.ranks, curve.formula, color=colour, linewidth=0.8, zorder=1)
    axis.plot(curve.ranks, curve.busiest, marker, color=colour, markeredgewidth=0, clip_on=False)
    apart = curve[curve["mean"] != curve.busiest]
    axis.plot(apart.ranks, apart["mean"], linestyle="none", zorder=3, **MEAN)


def legend(fig):
    busiest = Line2D([], [], marker="o", color=style.VERMILION, linestyle="none")
    line = Line2D([], [], color=style.VERMILION, linewidth=0.8)
    mean = Line2D([], [], linestyle="none", **MEAN)
    names = ["busiest rank, counted", "its formula", "mean over the ranks, counted (where it differs)"]
    fig.legend([busiest, line, mean], names, loc="outside lower center", ncols=3)


if __name__ == "__main__":
    style.main(__doc__, draw, "collective_volumes")
