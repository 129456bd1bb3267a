"""The one look of every figure: size, fonts, colours, and a writer whose bytes depend on the data alone."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

WIDTHS = {"column": 3.4, "page": 7.0}  # inches: one column and the text width of a two-column letter page

# Okabe & Ito, "Color Universal Design" (2008): told apart under every common colour blindness.
# Yellow, too faint for a line, is last.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK, YELLOW = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#F0E442",
)  # fmt: skip
PALETTE = [BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK, YELLOW]
GREY, PALE = "#6E6E6E", "#E6E6E6"

RC = {
    "font.family": "STIXGeneral",  # Times-like, and shipped with matplotlib: the same on every machine
    "mathtext.fontset": "stix",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.prop_cycle": matplotlib.cycler(color=PALETTE),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # TrueType outlines: text stays text, and no publisher refuses the file
    "svg.hashsalt": "fivedim",
}


def figure(width: Literal["column", "page"] = "column", height: float = 2.2) -> Figure:
    """An empty figure of the paper's look: `width` names a width of the paper, `height` is in inches.

    It belongs to no window and no global list of figures, so that it draws anywhere and is freed with its script.
    """
    matplotlib.rcdefaults()  # a reader's own matplotlibrc must not change the paper
    matplotlib.rcParams.update(RC)
    return Figure(figsize=(WIDTHS[width], height))


def untestable(why: str) -> Figure:
    """A figure's place where its instrument is not there: it says what that lacks."""
    fig = figure("page", height=0.6)
    fig.text(0.5, 0.5, f"not testable here: {why}", ha="center", va="center", wrap=True)
    return fig


def save(fig: Figure, out: Path | str) -> None:
    """Write `fig` as PDF to `out` and as PNG beside it; the same data give the same bytes (no date inside)."""
    out = Path(out).with_suffix(".pdf")
    out.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(out, metadata={"CreationDate": None})
    fig.savefig(out.with_suffix(".png"), metadata={"Software": None})


def main(description: str, draw: Callable[..., Figure], *experiments: str) -> None:
    """The command line of a figure's script: draw the rows of `experiments` in the folder --results, save to --out."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--results", type=Path, required=True, help="results/<scale>")
    parser.add_argument("--out", type=Path, required=True, help="the PDF; a PNG is written beside it")
    args = parser.parse_args()
    save(draw(*(pd.read_csv(args.results / f"{name}.csv") for name in experiments)), args.out)
