"""The time of a ring all-reduce against its size, on shaped links: medians and deciles, the formula, and a fit."""

import pandas as pd
from matplotlib.ticker import LogLocator

from fivedim.evidence import style
from fivedim.ledger.collectives import HOPS
from fivedim.ledger.time import BUS_FACTORS

COLOURS = {2: style.BLUE, 4: style.ORANGE, 8: style.VERMILION}


def draw(rows: pd.DataFrame):
    """Left: small tensors, a hop's latency slept. Right: large ones, without. One constant a panel and N is fitted."""
    if "unavailable" in rows:
        return style.untestable(rows.unavailable.iloc[0])
    points = rows[(rows.row == "point") & (rows.collective == "all_reduce")]
    slow, (latency, rate) = points.latency_s > 0, style.figure("page", height=2.3).subplots(1, 2)
    for n, mine in points[slow].groupby("ranks"):
        hops = HOPS["all_reduce"](n)
        fitted = (mine.median_s / hops).median()
        label = f"N = {n}: {1e6 * fitted / mine.dilation.iloc[0]:.1f} $\\mu$s a hop"
        panel(latency, n, mine, label, 0 * mine.bytes + hops * fitted)
    for n, mine in points[~slow].groupby("ranks"):
        share = BUS_FACTORS["all_reduce"](n)
        fitted = (share * mine.bytes / mine.median_s).median()
        label = f"N = {n}: {mine.dilation.iloc[0] * fitted / 1e9:.1f} GB/s"
        panel(rate, n, mine, label, share * mine.bytes / fitted)
    latency.set(ylabel="time on the shaped links (ms)", title="small: a latency at every hop")
    rate.set(title="large: transfer alone")
    return latency.figure


def panel(axis, n, points, label, fit):
    """One N: medians with deciles, the formula (grey), and the fit (dashed)."""
    low, middle, high = (1e3 * points[f"{share}_s"] for share in ("low", "median", "high"))
    formula = None if "formula" in axis.get_legend_handles_labels()[1] else "formula"
    style_of = {"color": COLOURS[n], "linestyle": "none", "marker": "o", "elinewidth": 0.8}
    axis.plot(points.bytes / 1024, 1e3 * points.formula_s, color=style.GREY, linewidth=0.8, label=formula)
    axis.plot(points.bytes / 1024, 1e3 * fit, color=COLOURS[n], linestyle="--", linewidth=0.8)
    axis.errorbar(points.bytes / 1024, middle, (middle - low, high - middle), label=label, **style_of)
    axis.set(xscale="log", yscale="log", xlabel="size (KiB)")
    axis.set_xlim(points.bytes.min() / 1024 / 1.5, points.bytes.max() / 1024 * 1.5)
    axis.set_xticks(points.bytes / 1024, [f"{size / 1024:g}" for size in points.bytes])
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))


if __name__ == "__main__":
    style.main(__doc__, draw, "ring_times")
