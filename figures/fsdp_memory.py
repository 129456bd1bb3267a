"""What one of eight GPUs holds of GPT-2 Large between steps and at the peak: reported, ours by kind, and torch's."""

import pandas as pd
from matplotlib.patches import Patch

from fivedim.evidence import style

CASES = {"DDP": "DDP", "reshard": "FSDP,\nreshard", "no reshard": "FSDP,\nno reshard"}
KINDS = {
    "parameters": ("parameters", style.BLUE),
    "gradients": ("gradients", style.ORANGE),
    "moments": ("two moments", style.GREEN),
    "buffers": ("masks", style.PURPLE),
    "gathered": ("gathered parameters", style.VERMILION),
    "activations": ("activations and the rest", style.SKY),
}
WIDTH = 0.27


def draw(ours: pd.DataFrame, torchs: pd.DataFrame):
    """Left: between steps; right: at the peak; GiB."""
    fig = style.figure("page", height=2.7)
    for axis, when, title in zip(
        fig.subplots(1, 2), ("resident", "peak"), ("between steps", "at the peak"), strict=True
    ):
        panel(axis, ours[ours.row == "memory"], torchs, when)
        axis.set(title=title, ylabel="GiB on one of eight GPUs")
    handles = [Patch(color=colour, label=name) for name, colour in KINDS.values()]
    handles += [
        Patch(color=style.GREY, label="reported"),
        Patch(facecolor="white", edgecolor=style.BLACK, label="torch's"),
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=4)
    return fig


def panel(axis, ours: pd.DataFrame, torchs: pd.DataFrame, when: str) -> None:
    for place, case in enumerate(CASES):
        mine = ours[ours.case == case].set_index("kind")
        bar(axis, place - WIDTH, mine[f"reported_{when}_gib"]["everything"], color=style.GREY)
        sizes = mine[f"{when}_gib"]
        sizes = (
            sizes.rename({"exp_avg": "moments", "exp_avg_sq": "moments"}).groupby(level=0).sum().reindex(list(KINDS))
        )
        axis.bar(place, sizes, WIDTH, sizes.cumsum() - sizes, color=[colour for _, colour in KINDS.values()])
        label(axis, place, sizes.sum())
        other = torchs[(torchs["when"] == when) & (torchs.reshard == (case == "reshard"))]
        if case != "DDP":
            bar(axis, place + WIDTH, other.bytes.sum() / 2**30, facecolor="white", edgecolor=style.BLACK)
    axis.set_xticks(range(len(CASES)), list(CASES.values()))
    axis.grid(visible=False, axis="x")


def bar(axis, place: float, height: float, **look) -> None:
    axis.bar(place, height, WIDTH, linewidth=0.6, **look)
    label(axis, place, height)


def label(axis, place: float, height: float) -> None:
    axis.annotate(f"{height:.2f}", (place, height), (0, 1), textcoords="offset points", ha="center", fontsize=5.5)


if __name__ == "__main__":
    style.main(__doc__, draw, "fsdp_memory_rehearsed", "fsdp_torch_rehearsed")
