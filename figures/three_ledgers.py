"""Bytes of state a parameter that a rank keeps against N, by ZeRO stage: counted points on the ledger's lines."""

import pandas as pd
from matplotlib.ticker import FixedFormatter, FixedLocator

from fivedim.evidence import style
from fivedim.ledger import memory

LOOKS = {
    0: ("data parallelism", style.BLACK, "X"),
    1: ("stage 1", style.BLUE, "s"),
    2: ("stage 2", style.GREEN, "^"),
    3: ("stage 3", style.VERMILION, "o"),
}
RANKS = [2 ** (step / 8) for step in range(8 * 6 + 1)]


def draw(rows: pd.DataFrame):
    """A line a stage from the formula, and a point for each N at which live bytes were counted."""
    fig = style.figure("column", height=2.3)
    axis = fig.subplots()
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    state = rows[rows.row == "state"]
    for stage, (name, colour, marker) in LOOKS.items():
        each = [sum(memory.zero(1, stage, ranks).values()) for ranks in RANKS]
        axis.plot(RANKS, each, color=colour, linewidth=0.9, zorder=1)
        counted = state[state.stage == stage].groupby("ranks").per_parameter.sum()
        axis.plot(counted.index, counted, marker, color=colour, label=name, clip_on=False)
        axis.text(RANKS[-1] * 1.1, each[-1], f"{each[-1]:.3g}", color=colour, va="center", fontsize="small")
    for which, ticks in ((axis.xaxis, [1, 2, 4, 8, 16, 32, 64]), (axis.yaxis, [0.25, 0.5, 1, 2, 4, 8, 16])):
        which.set_major_locator(FixedLocator(ticks))
        which.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    axis.set(xlabel="ranks N", ylabel="bytes / parameter", xlim=(0.9, 64))
    fig.legend(loc="outside lower center", ncols=4, columnspacing=1.0, handletextpad=0.2)
    return fig


if __name__ == "__main__":
    style.main(__doc__, draw, "zero_ledger")
