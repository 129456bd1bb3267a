"""What one of eight GPUs holds of GPT-2 Large between steps and at the peak: reported beside ours by kind."""

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
WIDTH = 0.36


def draw(ours: pd.DataFrame):
    """Left: between steps; right: at the peak; GiB."""
    fig = style.figure("page", height=2.7)
    for axis, when, title in zip(
        fig.subplots(1, 2), ("resident", "peak"), ("between steps", "at the peak"), strict=True
    ):
        panel(axis, ours[ours.row == "memory"], when)
        axis.set(title=title, ylabel="GiB on one of eight GPUs")
    handles = [Patch(color=colour, label=name) for name, colour in KINDS.values()]
    handles.append(Patch(color=style.GREY, label="reported"))
    fig.legend(handles=handles, loc="outside lower center", ncols=4)
    return fig


def panel(axis, ours: pd.DataFrame, when: str) -> None:
    for place, case in enumerate(CASES):
        mine = ours[ours.case == case].set_index("kind")
        reported = mine[f"reported_{when}_gib"]["everything"]
        axis.bar(place - WIDTH / 2, reported, WIDTH, color=style.GREY)
        label(axis, place - WIDTH / 2, reported)
        sizes = mine[f"{when}_gib"]
        sizes = (
            sizes.rename({"exp_avg": "moments", "exp_avg_sq": "moments"}).groupby(level=0).sum().reindex(list(KINDS))
        )
        colours = [colour for _, colour in KINDS.values()]
        axis.bar(place + WIDTH / 2, sizes, WIDTH, sizes.cumsum() - sizes, color=colours)
        label(axis, place + WIDTH / 2, sizes.sum())
    axis.set_xticks(range(len(CASES)), list(CASES.values()))
    axis.grid(visible=False, axis="x")


def label(axis, place: float, height: float) -> None:
    axis.annotate(f"{height:.2f}", (place, height), (0, 1), textcoords="offset points", ha="center", fontsize=5.5)


if __name__ == "__main__":
    style.main(__doc__, draw, "fsdp_memory_rehearsed")
