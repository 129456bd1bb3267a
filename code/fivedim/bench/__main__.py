"""`python -m fivedim.bench --scale S`: ours against each peer on this machine, into results/<scale>/bench.csv."""

from typing import Annotated

import typer
from rich import print

from fivedim.bench import collectives, data_parallel, zero
from fivedim.errors import UserError
from fivedim.lab import config, files, ranks, results

PEERS = {collectives: (8,), data_parallel: (8,), zero: (4, 8)}  # at how many ranks each is compared
REPEAT = {"smoke": 20, "laptop": 30, "full": 100}


def main(scale: Annotated[str, typer.Option(help="smoke, laptop or full: how often each pair is repeated")] = "laptop"):
    """Run every comparison, one launch for each file of them and number of ranks, and write one table."""
    root = config.find_root()
    config.scale(root, scale)
    repeat = REPEAT.get(scale, REPEAT["laptop"])
    launches = [(peer, number) for peer, numbers in PEERS.items() for number in numbers]
    rows = [row for peer, number in launches for row in ranks.run(peer.run, number, repeat, timeout=120)[0]]
    path = root / "results" / scale / "bench.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, results.table(rows))
    for row in rows:
        print(f"{row['ratio']:6.2f}x  {row['technique']} / {row['peer']}, {row['work']}, N = {row['ranks']}")
    print(f"written to {path}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except UserError as error:
        raise SystemExit(f"fivedim: {error}") from None
