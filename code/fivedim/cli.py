"""The command line. Nothing heavy is imported here: every command imports what it needs."""

import sys
from typing import Annotated, Literal

import typer

from fivedim.errors import USAGE, UserError
from fivedim.evidence import commands
from fivedim.lab import doctor, predict
from fivedim.lab.config import find_root
from fivedim.lab.interrupts import CancelledError

app = typer.Typer(
    help="Reproduce the claims of ten articles on 5D parallelism.", add_completion=False, no_args_is_help=True
)
Scale = Annotated[str, typer.Option(help="A file of configs/scales.")]


@app.command()
def run(
    experiment: str,
    scale: Scale = "laptop",
    executor: Annotated[Literal["local", "slurm", "inline"], typer.Option(help="Where the ranks run.")] = "local",
) -> None:
    """Run one experiment, and publish results/SCALE/EXPERIMENT.csv and .json."""
    from fivedim.lab.launch import launch

    launch(find_root(), experiment, scale, executor)


@app.command()
def status() -> None:
    """List the runs: state, ranks, step, seconds."""
    from rich.console import Console
    from rich.table import Table

    from fivedim.lab.status import COLUMNS, status

    table = Table(*COLUMNS)
    for line in status(find_root()):
        table.add_row(*(str(line[column]) for column in COLUMNS))
    Console().print(table)


for command in (
    commands.claims, commands.audit, commands.verify,
    commands.judge, commands.tables, commands.paper, commands.manifest,
    predict.predict, predict.break_even, doctor.doctor,
):  # fmt: skip
    app.command()(command)


def main() -> None:
    """Run a command; an error is one line on stderr and an exit status (see fivedim.errors)."""
    sys.exit(status_of(sys.argv[1:]))


def status_of(arguments: list[str]) -> int:
    """The exit status of a command line."""
    try:
        return app(arguments, standalone_mode=False) or 0
    except typer.TyperException as error:
        return complain(str(error), USAGE)
    except UserError as error:
        return complain(str(error), error.code)
    except CancelledError as error:
        return complain(str(error), error.code)


def complain(message: str, code: int) -> int:
    """Print the one-line error, and hand back the exit status."""
    print(f"fivedim: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
