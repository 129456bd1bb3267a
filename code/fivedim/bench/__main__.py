"""`python -m fivedim.bench --scale S`: ours against each peer on this machine, into results/<scale>/bench.csv."""

from typing import Annotated

import typer
from rich import print

from fivedim.bench import collectives, data_parallel
from fivedim.errors import UserError
from fivedim.lab import config, files, ranks, results

RANKS, REPEAT = 8, {"smoke": 20, "laptop": 30, "full": 100}


def main(scale: Annotated[str, typer.Option(help="smoke, laptop or full: how often each pair is repeated")] = "laptop"):
    """Run every comparison, one launch for each file of them, and write one table."""
    root = config.find_root()
    config.scale(root, scale)
    repeat = REPEAT.get(scale, REPEAT["laptop"])
    rows = [row for peer in (collectives, data_parallel) for row in ranks.run(peer.run, RANKS, repeat, timeout=120)[0]]
    path = root / "results" / scale / "bench.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, results.table(rows))
    for row in rows:
        print(f"{row['ratio']:6.2f}x  {row['technique']} / {row['peer']}, {row['work']}")
    print(f"written to {path}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except UserError as error:
        raise SystemExit(f"fivedim: {error}") from None
