"""paper/generated/libraries.tex: what each library sends in a step and holds after it, beside what the theory says."""

import pandas as pd

from fivedim.evidence.latex import HEADER, escape, line, number, tabular
from fivedim.evidence.pipeline import LIBRARIES
from fivedim.evidence.results import Result

SENT = {  # the table's columns, and c10d's names for the operations that each counts
    "AR": ("allreduce",),
    "AG": ("allgather", "allgather_base", "allgather_into_tensor_coalesced"),
    "RS": ("reduce_scatter", "reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    "BC": ("broadcast",),
    "P2P": ("send",),
}
MORE = ("reduce bucket", "gradients", "persistent parameters")  # kinds that the theory's stage 3 does not keep
NONE = "--"


def documents(found: dict[str, Result], scale: str) -> dict[str, str]:
    """The file by its name; none where nothing was counted."""
    if LIBRARIES not in found:
        return {}
    rows = found[LIBRARIES].rows
    lacking = rows.get("unavailable")
    text = table(rows) if lacking is None else f"not testable here: {escape(lacking.iloc[0])}\n"
    return {f"{LIBRARIES}.tex": HEADER.format(scale=scale) + text}


def table(rows: pd.DataFrame) -> str:
    """A line a library: units of (N-1)/N*S by operation, in all and in theory; bytes a parameter and in theory."""
    head = ("Library", *SENT, "sent", "theory", "in bf16", "held", "theory", "what more is held")
    totals = rows[rows.row == "total"]
    body = "\n".join(_line(total, rows[rows.library == total.library]) for total in totals.itertuples())
    return tabular("tabularx", r"l" + "r" * 10 + r">{\raggedright\arraybackslash}X", head, body, width=r"{\linewidth}")


def _line(total, rows: pd.DataFrame) -> str:
    sent = rows[rows.row == "sent"]
    by_operation = [sent.units[sent.collective.isin(names)].sum() for names in SENT.values()]
    sums = (total.units, total.theory_units, total.bf16_units, total.per_parameter, total.theory_per_parameter)
    more = rows[(rows.row == "held") & rows.kind.isin(MORE) & (total.per_parameter > total.theory_per_parameter + 0.01)]
    named = [f"{each.kind} {each.bytes / each.parameters:.2f}" for each in more.itertuples()]
    return line(escape(total.library), *map(_units, [*by_operation, *sums]), escape(", ".join(named)))


def _units(value: float) -> str:
    return number(f"{value:.2f}") if value >= 0.005 else NONE
