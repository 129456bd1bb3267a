"""From one GPU's step to DDP's: what each part adds, and whether it is reported, solved for, predicted or open."""

import argparse
from pathlib import Path

import pandas as pd
from matplotlib.patches import Patch

from fivedim.evidence import style

COLOURS = {"reported": style.BLACK, "solved": style.BLUE, "predicted": style.VERMILION, "open": style.GREY}


def draw(rows: pd.DataFrame):
    """One horizontal bar a part, each from where the one above it ended; the first and the last stand on zero."""
    parts = rows[rows.row == "part"].sort_values("order")
    fig = style.figure("column", height=2.3)
    axis = fig.subplots()
    start = 0.0
    for place, part in enumerate(parts.itertuples()):
        whole = part.source == "reported"
        left = 0.0 if whole else start
        axis.barh(place, part.ms, left=left, color=COLOURS[part.source], height=0.65)
        text = f"{part.ms:.1f}" if whole else f"{part.ms:+.1f}".replace("-", "\N{MINUS SIGN}")
        right = max(left, left + part.ms)
        axis.annotate(text, (right, place), (3, 0), textcoords="offset points", va="center", fontsize="small")
        start = left + part.ms
    finish(axis, parts)
    return fig


def finish(axis, parts):
    first, last = parts.ms.iloc[0], parts.ms.iloc[-1]
    axis.set(xlim=(first - 4, last + 5), xlabel="step (ms, axis cut)")
    axis.set_yticks(range(len(parts)), parts.name)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    keys = [Patch(color=colour, label=source) for source, colour in COLOURS.items()]
    axis.legend(handles=keys, loc="lower left", bbox_to_anchor=(-0.02, 0.08), handlelength=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    style.save(draw(pd.read_csv(args.results / "exposed_time_predicted.csv")), args.out)
