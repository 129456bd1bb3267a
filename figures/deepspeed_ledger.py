"""Reported residents of DeepSpeed's stages, DDP and FSDP2, over what the libraries were counted to hold, by term."""

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fivedim.evidence import style

TERMS = {
    "parameters": ("weights", style.SKY),
    "gradients": ("gradients", style.ORANGE),
    "master": ("fp32 masters", style.BLUE),
    "exp_avg": ("first moment", style.GREEN),
    "exp_avg_sq": ("second moment", style.PURPLE),
    "reduce bucket": ("reduce bucket", style.VERMILION),
    "buffers": ("unread causal masks", style.YELLOW),
    "unsplit blocks": ("unsplit blocks", style.GREY),
    "workspaces": ("cuBLAS workspaces", style.BLACK),
}
PANELS = [["torch DDP", "DeepSpeed 0"], ["DeepSpeed 1", "DeepSpeed 2", "DeepSpeed 3", "FSDP2"]]


def draw(rows: pd.DataFrame):
    """Left the replicated, right the sharded: a bar's terms, a diamond at the reported GiB, a tick at the ledger's."""
    if "unavailable" in rows:
        return style.untestable(rows.unavailable.iloc[0])
    fig = style.figure("page", height=2.5)
    for axis, libraries in zip(fig.subplots(1, 2), PANELS, strict=True):
        for place, library in enumerate(libraries):
            bar(axis, place, rows[rows.library == library])
        axis.set_yticks(range(len(libraries)), [name.replace("DeepSpeed", "DeepSpeed stage") for name in libraries])
        axis.invert_yaxis()
        axis.set(xlabel="resident / GiB", xlim=(0, None))
        axis.grid(visible=False, axis="y")
    legend(fig)
    return fig


def bar(axis, place: int, rows: pd.DataFrame) -> None:
    terms = rows[rows.row == "term"].assign(term=lambda found: found.term.replace("gradient buckets", "gradients"))
    gib = terms.groupby("term").mib.sum().reindex(list(TERMS)).dropna() / 1024
    axis.barh(place, gib, left=gib.cumsum() - gib, height=0.6, color=[TERMS[term][1] for term in gib.index])
    whole = rows[rows.row == "explained"].iloc[0]
    axis.plot(whole.reported_gib, place, marker="D", markersize=4, color="white", markeredgecolor=style.BLACK)
    axis.vlines(whole.theory_gib, place - 0.4, place + 0.4, color=style.BLACK, linewidth=1)
    text = f"{whole.reported_gib:.2f}, open {whole.open_mib:.0f} MiB".replace("-", "\N{MINUS SIGN}")
    axis.annotate(text, (whole.reported_gib, place), (5, 0), textcoords="offset points", va="center", fontsize="small")


def legend(fig) -> None:
    keys = [Patch(color=colour, label=name) for name, colour in TERMS.values()]
    keys.append(Line2D([], [], color=style.BLACK, linewidth=1, label="the ledger alone"))
    diamond = {"marker": "D", "markersize": 4, "color": "white", "markeredgecolor": style.BLACK, "linestyle": "none"}
    keys.append(Line2D([], [], label="reported", **diamond))
    fig.legend(handles=keys, loc="outside lower center", ncols=6, columnspacing=1.2, handlelength=1)


if __name__ == "__main__":
    style.main(__doc__, draw, "libraries")
