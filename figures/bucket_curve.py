"""DDP's step time against the bucket cap, reported, predicted, emulated; and what of the predicted one waits."""

import pandas as pd

from fivedim.evidence import style

WAITS = {"last_bucket_ms": "last bucket", "tail_ms": "earlier buckets", "buffers_ms": "buffers"}
COLOURS = (style.ORANGE, style.SKY, style.PURPLE)


def draw(predicted: pd.DataFrame, emulated: pd.DataFrame):
    """Left: the steps over one GPU's. Right: the predicted exposed time, stacked, beside the reported."""
    points = predicted[predicted.row == "point"].sort_values("cap_mib")
    fig = style.figure("page", height=2.3)
    curve, parts = fig.subplots(1, 2)
    curves(curve, points)
    if "unavailable" not in emulated:
        marks(curve, emulated[(emulated.row == "case") & emulated.reported_ratio.notna()])
    curve.legend(loc="upper center")
    stack(parts, points)
    return fig


def marks(axis, cases):
    """The emulated steps over the emulated one-GPU step, since the emulator's seconds are not the article's."""
    one_gpu = (cases.seconds / cases.ratio).iloc[0]
    bars = [(cases.seconds - cases.low_s) / one_gpu, (cases.high_s - cases.seconds) / one_gpu]
    axis.errorbar(cases.cap_mib, cases.ratio, bars, color=style.BLUE, marker="^", label="emulated")


def curves(axis, points):
    one_gpu = (points.reported_ms - points.reported_exposed_ms).iloc[0]
    axis.axhline(1, color=style.GREY, linestyle=":", linewidth=1)
    axis.annotate("one GPU", (1, 1), (0, 3), textcoords="offset points", color=style.GREY, fontsize="small")
    axis.plot(points.cap_mib, points.reported_ms / one_gpu, color=style.BLACK, marker="o", label="reported")
    axis.plot(points.cap_mib, points.predicted_ms / one_gpu, color=style.VERMILION, marker="s", label="predicted")
    axis.set(xscale="log", xlabel="bucket cap (MiB; the emulator's are shrunk with its model)", ylabel="step / one GPU")
    axis.set_xticks(points.cap_mib, [f"{cap:g}" for cap in points.cap_mib])


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
    style.main(__doc__, draw, "bucket_sweep_predicted", "bucket_sweep_emulated")
