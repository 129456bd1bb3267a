"""The steps of ZeRO, DDP and FSDP2: reported, and predicted by what takes the time; and those of ours, emulated."""

import pandas as pd

from fivedim.evidence import style

PARTS = {"compute_ms": "compute", "update_ms": "update", "exposed_ms": "communication, not hidden"}
COLOURS = (style.SKY, style.GREEN, style.ORANGE)
MODES = {"ddp": "DDP", "fsdp2": "FSDP2", "fsdp2-noreshard": "not resharded"}
OURS = {"DDP": "ddp", "ZeRO 2": None, "FSDP": "fsdp2", "FSDP, not resharded": "fsdp2-noreshard"}


def draw(zero: pd.DataFrame, fsdp: pd.DataFrame, emulated: pd.DataFrame):
    """Left: a stacked bar a step, on it the reported one. Right: our steps over DDP's, simulated and emulated."""
    stages, modes = zero[zero.row == "stage"], fsdp[fsdp.row == "mode"]
    labels = [f"ZeRO {stage:.0f}" for stage in stages.stage] + [MODES[mode] for mode in modes["mode"]]
    steps = pd.concat([stages, modes]).assign(exposed_ms=lambda rows: rows.communication_ms - rows.hidden_ms)
    there = "unavailable" not in emulated
    fig = style.figure("page", height=2.4)
    axes = fig.subplots(1, 1 + there, width_ratios=[3, 2][: 1 + there], squeeze=False)[0]
    stack(axes[0], steps, labels)
    axes[0].axvline(len(stages) - 0.5, ymax=0.8, color=style.GREY, linestyle=":", linewidth=1)
    if there:
        ours(axes[1], emulated[emulated.row == "mode"], modes.set_index("mode").reported_ms)
    return fig


def stack(axis, steps, labels: list[str]):
    places, base = range(len(steps)), 0
    for (column, label), colour in zip(PARTS.items(), COLOURS, strict=True):
        axis.bar(places, steps[column], bottom=base, color=colour, width=0.7, label=label)
        base = base + steps[column]
    axis.plot(places, steps.reported_ms, "o", color=style.BLACK, label="reported")
    axis.set(ylabel="step (ms)", ylim=(0, 1.3 * steps.reported_ms.max()))
    name(axis, labels)
    axis.legend(loc="upper left", ncols=2, columnspacing=1)


def ours(axis, rows, reported):
    """Over DDP's step of the same kind: the emulator's seconds are not the article's."""
    places, ddp = range(len(rows)), rows.seconds.iloc[0]
    said = {place: reported[OURS[mode]] / reported["ddp"] for place, mode in enumerate(rows["mode"]) if OURS[mode]}
    bars = [(rows.seconds - rows.low_s) / ddp, (rows.high_s - rows.seconds) / ddp]
    axis.plot(list(said), list(said.values()), "o", color=style.BLACK, label="reported")
    axis.plot(places, rows.predicted_s / rows.predicted_s.iloc[0], "s", color=style.VERMILION, label="simulated")
    axis.errorbar(places, rows.seconds / ddp, bars, fmt="^", color=style.BLUE, label="emulated")
    axis.set(ylabel="step / DDP's", ylim=(0, 1.3))
    name(axis, [mode.removeprefix("FSDP, ") for mode in rows["mode"]])
    axis.legend(loc="upper right", ncols=3, columnspacing=1, handletextpad=0.2)


def name(axis, labels: list[str]):
    axis.set_xticks(range(len(labels)), labels, rotation=35, ha="right", rotation_mode="anchor")
    axis.grid(visible=False, axis="x")


if __name__ == "__main__":
    style.main(__doc__, draw, "zero_times_predicted", "fsdp_times_predicted", "sharded_steps_emulated")
