"""Reported time and bus bandwidth of NCCL's collectives against size, with the alpha-beta fit of each curve."""

import numpy as np
import pandas as pd

from fivedim.evidence import style

LOOKS = {
    "broadcast": (style.BLACK, "o"),
    "scatter": (style.SKY, "v"),
    "gather": (style.BLUE, "^"),
    "all_gather": (style.GREEN, "s"),
    "reduce_scatter": (style.ORANGE, "D"),
    "all_reduce": (style.VERMILION, "X"),
}
TICKS = {2**12: "4 KiB", 2**16: "64 KiB", 2**20: "1 MiB", 2**24: "16 MiB", 2**30: "1 GiB"}


def draw(rows: pd.DataFrame):
    """Two rows of panels, time above bandwidth, one column a group size; points are reported, lines are the fit."""
    points, fits = rows[rows.row == "point"], rows[rows.row == "fit"]
    sizes = sorted(rows.ranks.unique())
    fig = style.figure("page", height=3.9)
    axes = fig.subplots(2, len(sizes), sharex=True, sharey="row")
    for column, n in zip(axes.T, sizes, strict=True):
        column[0].set_title(f"N = {n}")
        for collective, look in LOOKS.items():
            mine = points[(points.ranks == n) & (points.collective == collective)]
            fit = fits[(fits.ranks == n) & (fits.collective == collective)].iloc[0]
            curve(*column, mine, fit, look, collective.replace("_", "-"))
    finish(axes)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(LOOKS))
    return fig


def curve(above, below, points, fit, look, label):
    colour, marker = look
    dots = {"color": colour, "marker": marker, "linestyle": "none", "markeredgewidth": 0, "clip_on": False, "zorder": 3}
    above.plot(points.bytes, points.seconds * 1e6, label=label, **dots)
    below.plot(points.bytes, points.busbw_gb_s, **dots)
    size = np.geomspace(points.bytes.min(), points.bytes.max(), 200)
    above.plot(size, (fit.alpha_s + size / fit.beta_bytes_s) * 1e6, color=colour, linewidth=0.8)
    below.plot(size, fit.busbw_gb_s / (1 + fit.crossover_bytes / size), color=colour, linewidth=0.8)


def finish(axes):
    axes[0, 0].set(xscale="log", yscale="log", ylabel="reported time (µs)")
    axes[1, 0].set(ylabel="reported bus bandwidth (GB/s)", ylim=(0, None))
    for axis in axes.flat:
        axis.set(xlabel="size of the whole tensor")
        axis.set_xticks(list(TICKS), TICKS.values())
        axis.minorticks_off()
        axis.label_outer(remove_inner_ticks=True)


if __name__ == "__main__":
    style.main(__doc__, draw, "alpha_beta_fit")
