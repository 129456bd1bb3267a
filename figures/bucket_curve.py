"""DDP's step time against the bucket cap, reported and predicted, and what of the predicted one waits for what."""

import argparse
from pathlib import Path

import pandas as pd

from fivedim.evidence import style

WAITS = {"last_bucket_ms": "last bucket", "tail_ms": "earlier buckets", "buffers_ms": "buffers"}
COLOURS = (style.ORANGE, style.SKY, style.PURPLE)


def draw(rows: pd.DataFrame):
    """Left: the two curves over one GPU's step. Right: the predicted exposed time, stacked, beside the reported."""
    points = rows[rows.row == "point"].sort_values("cap_mib")
    fig = style.figure("page", height=2.3)
    curve, parts = fig.subplots(1, 2)
    curves(curve, points)
    stack(parts, points)
    return fig


def curves(axis, points):
    one_gpu = (points.reported_ms - points.reported_exposed_ms).iloc[0]
    axis.axhline(one_gpu, color=style.GREY, linestyle=":", linewidth=1)
    axis.annotate("one GPU", (1, one_gpu), (0, 3), textcoords="offset points", color=style.GREY, fontsize="small")
    axis.plot(points.cap_mib, points.reported_ms, color=style.BLACK, marker="o", label="reported")
    axis.plot(points.cap_mib, points.predicted_ms, color=style.VERMILION, marker="s", label="predicted")
    axis.set(xscale="log", xlabel="bucket cap (MiB)", ylabel="step (ms)", ylim=(115, None))
    axis.set_xticks(points.cap_mib, [f"{cap:g}" for cap in points.cap_mib])
    axis.legend(loc="upper left")


def stack(axis, points):
    places, base = range(len(points)), 0
    for (column, label), colour in zip(WAITS.items(), COLOURS, strict=True):
        axis.bar(places, points[column], bottom=base, color=colour, width=0.7, label=label)
        base = base + points[column]
    axis.plot(places, points.reported_exposed_ms, "o", color=style.BLACK, label="reported")
    axis.set(xlabel="bucket cap (MiB)", ylabel="over one GPU (ms)")
    axis.set_xticks(places, [f"{cap:g}" for cap in points.cap_mib])
    axis.grid(visible=False, axis="x")
    axis.legend(loc="upper left")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    style.save(draw(pd.read_csv(args.results / "bucket_sweep_predicted.csv")), args.out)
