"""The steps of ZeRO's stages, DDP and FSDP2: reported, and predicted by what is computed, updated and waited for."""

import pandas as pd

from fivedim.evidence import style

PARTS = {"compute_ms": "compute", "update_ms": "update", "exposed_ms": "communication, not hidden"}
COLOURS = (style.SKY, style.GREEN, style.ORANGE)
MODES = {"ddp": "DDP", "fsdp2": "FSDP2", "fsdp2-noreshard": "not resharded"}


def draw(zero: pd.DataFrame, fsdp: pd.DataFrame):
    """A stacked bar a step, on it the reported one."""
    stages, modes = zero[zero.row == "stage"], fsdp[fsdp.row == "mode"]
    labels = [f"ZeRO {stage:.0f}" for stage in stages.stage] + [MODES[mode] for mode in modes["mode"]]
    steps = pd.concat([stages, modes]).assign(exposed_ms=lambda rows: rows.communication_ms - rows.hidden_ms)
    fig = style.figure("column", height=2.4)
    axis = fig.subplots()
    places, base = range(len(steps)), 0
    for (column, label), colour in zip(PARTS.items(), COLOURS, strict=True):
        axis.bar(places, steps[column], bottom=base, color=colour, width=0.7, label=label)
        base = base + steps[column]
    axis.plot(places, steps.reported_ms, "o", color=style.BLACK, label="reported")
    axis.axvline(len(stages) - 0.5, ymax=0.78, color=style.GREY, linestyle=":", linewidth=1)
    axis.set(ylabel="step (ms)", ylim=(0, 1.3 * steps.reported_ms.max()))
    axis.set_xticks(places, labels, rotation=35, ha="right", rotation_mode="anchor")
    axis.grid(visible=False, axis="x")
    axis.legend(loc="upper left", ncols=2, columnspacing=1)
    return fig


if __name__ == "__main__":
    style.main(__doc__, draw, "zero_times_predicted", "fsdp_times_predicted")
