"""Bus bandwidth on which each collective levels off: reported, and under each link model with its best constants."""

import argparse
from pathlib import Path

import pandas as pd

from fivedim.evidence import style

MODELS = {  # (budget, slow joint): label, colour, marker
    ("duplex", False): ("full duplex", style.SKY, "v"),
    ("duplex", True): ("full duplex, slow joint", style.BLUE, "^"),
    ("shared", False): ("one shared budget", style.ORANGE, "s"),
    ("hairpin", False): ("hairpin", style.BLACK, "x"),
}


def draw(rows: pd.DataFrame):
    """One panel a group size, then the measurement that would decide: an all-reduce on two GPUs."""
    points, models = rows[rows.row == "plateau"], rows[rows.row == "model"]
    sizes = sorted(points.ranks.unique())
    fig = style.figure("page", height=2.5)
    axes = fig.subplots(1, len(sizes) + 1, sharey=True, width_ratios=[3] * len(sizes) + [1.6])
    for axis, n in zip(axes, sizes, strict=False):
        mine = points[points.ranks == n]
        bars = mine.drop_duplicates("collective")
        axis.bar(bars.collective, bars.reported_gb_s, color=style.PALE, width=0.75, label="reported")
        marks(axis, mine, "collective")
        axis.set_title(f"N = {n:g}")
        axis.set_xticks(range(len(bars)), bars.collective.str.replace("_", "-"), rotation=50, ha="right")
    marks(axes[-1], rows[rows.row == "deciding"], "gpus")
    axes[-1].set_title("all-reduce on two")
    axes[-1].set(xlabel="GPUs", xlim=(-0.5, 1.5))
    axes[0].set(ylabel="bus bandwidth (GB/s)", ylim=(0, None))
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, [legend(models, label) for label in labels], loc="outside lower center", ncols=5)
    return fig


def marks(axis, points, x):
    for (budget, slow), (label, colour, marker) in MODELS.items():
        mine = points[(points.budget == budget) & (points.slow_joint == slow)]
        axis.plot(mine[x], mine.predicted_gb_s, linestyle="none", color=colour, marker=marker, label=label, zorder=3)
        axis.grid(visible=False, axis="x")


def legend(models, label):
    """The label with the model's rms log error."""
    for (budget, slow), (name, *_) in MODELS.items():
        if name == label:
            error = models[(models.budget == budget) & (models.slow_joint == slow)].rms_log_error.iloc[0]
            return f"{label} ({error:.2f})"
    return label


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    style.save(draw(pd.read_csv(args.results / "link_models.csv")), args.out)
