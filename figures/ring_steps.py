"""Ring all-reduce, round by round, drawn from the algorithm's own steps: whose contributions each rank holds."""

import pandas as pd
from matplotlib.patches import FancyArrowPatch, Rectangle

from fivedim.evidence import style

WIDTH, HEIGHT = 0.6, 0.74  # of a cell, in units of the distance between ranks
FRAMES = {"reduce": "-", "copy": (0, (1.2, 0.8))}
PHASES = {"reduce": "reduce-scatter", "copy": "all-gather"}


def draw(rows: pd.DataFrame):
    """One panel a round, reduce-scatter above all-gather: columns are ranks, rows chunks, stripes whose data is in."""
    rows = rows.fillna({"action": ""})
    n, last = rows["rank"].nunique(), rows["round"].max()
    fig = style.figure("page", height=3.5)
    axes = fig.subplots(2, 1 + last // 2)
    panels = {0: axes[0, 0]} | dict(enumerate([*axes[0, 1:], *axes[1, 1:]], start=1))
    for number, state in rows.groupby("round"):
        panels[number].set_title(f"{PHASES[state.action.max()]}, round {number}" if number else "start")
        board(panels[number], n)
        for cell in state.itertuples():
            stripes(panels[number], cell.rank, cell.chunk, [int(r) for r in cell.contributions.split()], n)
            if cell.action:
                frame(panels[number], cell.rank, cell.chunk, cell.action)
                arrow(panels[number], cell.received_from, cell.rank, cell.chunk, n)
    axes[0, 0].set(ylabel="chunk")
    axes[1, 1].set(ylabel="chunk")
    for panel in axes[0, 1:]:
        panel.set(xlabel="")
    key(axes[1, 0], n)
    return fig


def board(panel, n):
    panel.set(xlim=(-0.8, n - 0.2), ylim=(n - 0.55, -0.45), aspect="equal")
    panel.set(xticks=range(n), yticks=range(n), xlabel="rank")
    panel.tick_params(length=0, pad=1)
    panel.grid(False)
    panel.spines[:].set_visible(False)


def stripes(panel, x, y, contributions, n):
    left, top, width = x - WIDTH / 2, y - HEIGHT / 2, WIDTH / n
    panel.add_patch(Rectangle((left, top), WIDTH, HEIGHT, color=style.PALE, linewidth=0))
    for rank in contributions:
        panel.add_patch(Rectangle((left + rank * width, top), width, HEIGHT, color=style.PALETTE[rank], linewidth=0))


def frame(panel, x, y, action):
    corner = (x - WIDTH / 2, y - HEIGHT / 2)
    panel.add_patch(Rectangle(corner, WIDTH, HEIGHT, fill=False, linestyle=FRAMES[action], linewidth=1.1))


def arrow(panel, source, target, y, n):
    """From the sender's cell to the receiver's; what closes the ring leaves on the right and enters on the left."""
    for start, end in [(source, target)] if target > source else [(source, n), (-1, target)]:
        ends = (max(start + WIDTH / 2, -0.75), y), (min(end - WIDTH / 2, n - 0.25), y)
        panel.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=5, linewidth=0.8, shrinkA=0, shrinkB=0))


def key(panel, n):
    board(panel, n)
    panel.set(xticks=[], yticks=[], xlabel="")
    for y, text in enumerate([f"from ranks 0 to {n - 1}", "nothing yet", "received, added", "received, copied"]):
        stripes(panel, 0, y, range(n) if y == 0 else (), n)
        panel.text(0.5, y, text, va="center", fontsize="small")
    frame(panel, 0, 2, "reduce")
    frame(panel, 0, 3, "copy")


if __name__ == "__main__":
    style.main(__doc__, draw, "ring_schedule")
