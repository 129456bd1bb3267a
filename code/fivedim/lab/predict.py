"""`fivedim predict` and `fivedim break-even`: a cost model's rows on the terminal, without a run. No torch here."""

from typing import Annotated, Any

import typer

from fivedim.errors import UserError
from fivedim.lab import config, spec

Machine = Annotated[str, typer.Option(help="A file of configs/machines.")]
DEFAULT = "rtx-pro-6000-x8"


def predict(experiment: str, machine: Machine = DEFAULT) -> None:
    """Print what the cost model predicts for EXPERIMENT on a machine, and what it assumes; nothing is stored."""
    from fivedim.lab.cost_model import CostModel

    known = config.experiments(config.find_root())
    able = [name for name, entry in known.items() if entry.instrument == "cost-model"]
    if experiment not in able:
        raise UserError(f"experiment {experiment}: no cost model predicts it; use one of {', '.join(able)}")
    show(rows(experiment, known[experiment], machine))
    for name, constant in CostModel.of(machine).assumed().items():
        print(f"{constant.source}: {name} = {constant.value:g} ({constant.note})")


def break_even(machine: Machine = DEFAULT) -> None:
    """Print where tensor, context, pipeline parallelism and resharding start to pay on a machine."""
    predict("break_even", machine)


def rows(name: str, entry: config.Experiment, machine: str) -> list[dict[str, Any]]:
    """The experiment's rows on `machine`, computed here and now."""
    module = spec.full_name(entry.module)
    cfg = spec.config_class(module, name)(**entry.params | {"machine": machine})
    return getattr(spec.article(module), name)(cfg)


def show(found: list[dict[str, Any]]) -> None:
    """One table for each kind of row, with the columns that it has."""
    from rich.console import Console

    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        kinds.setdefault(row.get("row", ""), []).append({key: cell for key, cell in row.items() if key != "row"})
    for kind, listed in kinds.items():
        Console().print(table(kind, listed))


def table(kind: str, listed: list[dict[str, Any]]) -> Any:
    """Rows as lines; as columns where there are fewer of them than there are columns, so that it fits a terminal."""
    from rich.table import Table

    columns = list(dict.fromkeys(key for row in listed for key in row))
    lines = [columns, *([text(row.get(column, "")) for column in columns] for row in listed)]
    if len(listed) < len(columns):
        lines = list(zip(*lines, strict=True))
    drawn = Table(*lines[0], title=kind or None)
    drawn.columns[0].no_wrap = True
    for line in lines[1:]:
        drawn.add_row(*line)
    return drawn


def text(cell: Any) -> str:
    """A cell as it is printed: floats with four digits."""
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
