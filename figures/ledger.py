"""The memory ledger: live bytes of model state by kind, counted, on the formula's 2+2+4+4+4 and 2+4+4+4+4."""

import pandas as pd
from matplotlib.lines import Line2D

from fivedim.evidence import style

KINDS = {
    "parameters": ("bf16 weights", style.SKY),
    "gradients": ("gradients", style.ORANGE),
    "master": ("fp32 master weights", style.BLUE),
    "exp_avg": ("first moment", style.GREEN),
    "exp_avg_sq": ("second moment", style.PURPLE),
}
MODELS = ["tiny", "124M", "774M", "7B"]
DTYPES = {"bfloat16": "gradients in bf16", "float32": "gradients summed in fp32"}


def draw(counted: pd.DataFrame, rehearsed: pd.DataFrame, against_card: pd.DataFrame):
    """Left: bytes a parameter at every size, 16 and 18. Right: gigabytes against one card."""
    fig = style.figure("page", height=2.6)
    left, right = fig.subplots(1, 2, width_ratios=[3.4, 1])
    rows = pd.concat([counted.assign(source="counted"), rehearsed.assign(source="rehearsed")])
    rows = rows[rows.kind.isin(KINDS)].drop_duplicates(["model", "gradients", "kind"])
    per_parameter(left, rows)
    gigabytes(right, rows, against_card.card_gib.max())
    legend(fig)
    return fig


def bar_of(rows: pd.DataFrame, model: str, dtype: str) -> pd.DataFrame:
    return rows[(rows.model == model) & (rows.gradients == dtype)].set_index("kind").reindex(list(KINDS)).dropna()


def stack(axis, place: float, counted: pd.Series, lines: pd.Series) -> None:
    axis.bar(place, counted, 0.7, counted.cumsum() - counted, color=[KINDS[kind][1] for kind in counted.index])
    axis.hlines(lines, place - 0.44, place + 0.44, color=style.BLACK, linewidth=0.9)


def per_parameter(axis, rows: pd.DataFrame) -> None:
    ticks, place = {}, 0
    for dtype, name in DTYPES.items():
        bars = [(model, bar) for model in MODELS if len(bar := bar_of(rows, model, dtype))]
        axis.text(place + (len(bars) - 1) / 2, 18.8, name, ha="center")
        for model, bar in bars:
            stack(axis, place, bar.bytes / bar.parameters, (bar.formula / bar.parameters).cumsum())
            ticks[place] = f"{model}\n{bar.source.iloc[0]}"
            place += 1
        place += 0.6
    axis.set_xticks(list(ticks), list(ticks.values()))
    axis.set(ylabel="bytes / parameter", yticks=[0, 2, 4, 8, 12, 16, 18], ylim=(0, 20.5))
    axis.grid(axis="x", visible=False)


def gigabytes(axis, rows: pd.DataFrame, card_gib: int) -> None:
    ticks = []
    for place, model in enumerate(MODELS[2:]):
        bar = bar_of(rows, model, "bfloat16")
        stack(axis, place, bar.bytes / 10**9, pd.Series([bar.formula.sum() / 10**9]))
        ticks.append(f"{model}\n{bar.source.iloc[0]}")
    card = card_gib * 2**30 / 10**9
    axis.axhline(card, color=style.VERMILION, linestyle="--", linewidth=0.9)
    axis.text(0, card - 2, f"one card\n({card_gib} GiB)", color=style.VERMILION, va="top", ha="center")
    axis.set_xticks([0, 1], ticks)
    axis.set(ylabel="state / GB", ylim=(0, 118), xlim=(-0.6, 1.6))
    axis.grid(axis="x", visible=False)


def legend(fig) -> None:
    squares = [Line2D([], [], marker="s", linestyle="none", color=colour) for _, colour in KINDS.values()]
    theory = Line2D([], [], color=style.BLACK, linewidth=0.9)
    names = [name for name, _ in KINDS.values()]
    fig.legend([*squares, theory], [*names, "formula"], loc="outside lower center", ncols=6, columnspacing=1.2)


if __name__ == "__main__":
    style.main(__doc__, draw, "model_state", "model_state_rehearsed", "state_against_checkpoint")
