"""Bus bandwidth on which each collective levels off: reported, and under each link model, predicted and emulated."""

import pandas as pd
from matplotlib.lines import Line2D

from fivedim.evidence import style

MODELS = {  # (budget, slow joint): label, colour, marker
    ("duplex", False): ("full duplex", style.SKY, "v"),
    ("duplex", True): ("full duplex, slow joint", style.BLUE, "^"),
    ("shared", False): ("one shared budget", style.ORANGE, "s"),
    ("hairpin", False): ("hairpin", style.BLACK, "x"),
}


def draw(rows: pd.DataFrame, emulated: pd.DataFrame):
    """One panel a group size, then the measurement that would decide: an all-reduce on two GPUs.

    What is emulated, a share of its links' rate, is drawn at the rate that suits its model best. Not for a slow joint:
    the joint that suits best is another than the emulated one.
    """
    points, models = rows[rows.row == "plateau"], rows[rows.row == "model"]
    sizes = sorted(points.ranks.unique())
    fig = style.figure("page", height=2.5)
    axes = fig.subplots(1, len(sizes) + 1, sharey=True, width_ratios=[3] * len(sizes) + [1.6])
    for axis, n in zip(axes, sizes, strict=False):
        mine = points[points.ranks == n]
        bars = mine.drop_duplicates("collective")
        axis.bar(bars.collective, bars.reported_gb_s, color=style.PALE, width=0.75, label="reported")
        marks(axis, mine, "collective")
        if "unavailable" not in emulated:
            crosses(axis, emulated[(emulated.ranks == n) & ~emulated.slow_joint], models, list(bars.collective))
        axis.set_title(f"N = {n:g}")
        axis.set_xticks(range(len(bars)), bars.collective.str.replace("_", "-"), rotation=50, ha="right")
    marks(axes[-1], rows[rows.row == "deciding"], "gpus")
    axes[-1].set_title("all-reduce on two")
    axes[-1].set(xlabel="GPUs", xlim=(-0.5, 1.5))
    axes[0].set(ylabel="bus bandwidth (GB/s)", ylim=(0, None))
    handles, labels = axes[0].get_legend_handles_labels()
    handles.append(
        Line2D([], [], linestyle="none", marker="o", color=style.GREY, markerfacecolor="white", markersize=3)
    )
    labels = [*(legend(models, label) for label in labels), "emulated"]
    fig.legend(handles, labels, loc="outside lower center", ncols=6)
    return fig


def marks(axis, points, x):
    for (budget, slow), (label, colour, marker) in MODELS.items():
        mine = points[(points.budget == budget) & (points.slow_joint == slow)]
        axis.plot(mine[x], mine.predicted_gb_s, linestyle="none", color=colour, marker=marker, label=label, zorder=3)
        axis.grid(visible=False, axis="x")


def crosses(axis, emulated, models, order):
    """Medians and deciles, to the right of the prediction."""
    for number, (budget, mine) in enumerate(emulated.groupby("budget", sort=False)):
        rate = models[(models.budget == budget) & ~models.slow_joint].rate_gb_s.iloc[0]
        places = [order.index(collective) + 0.12 * (1 + number) for collective in mine.collective]
        low, middle, high = (rate * mine[f"{share}_busbw"] for share in ("low", "median", "high"))
        _, colour, marker = MODELS[budget, False]
        bars = {"color": colour, "marker": marker, "markerfacecolor": "white", "linestyle": "none", "elinewidth": 0.7}
        axis.errorbar(places, middle, (middle - low, high - middle), markersize=3, **bars)


def legend(models, label):
    """The label with the model's rms log error."""
    for (budget, slow), (name, *_) in MODELS.items():
        if name == label:
            error = models[(models.budget == budget) & (models.slow_joint == slow)].rms_log_error.iloc[0]
            return f"{label} ({error:.2f})"
    return label


if __name__ == "__main__":
    style.main(__doc__, draw, "link_models", "plateaus_emulated")
