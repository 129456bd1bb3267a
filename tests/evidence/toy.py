"""A whole project in miniature: this package and Snakefile, two experiments, one claim, one figure, a short paper."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).parents[2]
TOOLS = str(Path(sys.executable).parent)

MODULE = """
from pydantic import BaseModel


class Config(BaseModel, extra="forbid", frozen=True):
    size: int = 4
    fails: bool = False


def volumes(cfg: Config) -> list[dict]:
    return [{"op": "all_reduce", "units": 1.75 * cfg.size / 4}]


def reach(cfg: Config) -> list[dict]:
    if cfg.fails:
        raise RuntimeError("the ring is broken")
    return [{"op": "reach", "hops": 7}]
"""

FIGURE = """
import argparse
import csv
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--results")
parser.add_argument("--out", type=Path)
given = parser.parse_args()
with open(f"{given.results}/volumes.csv") as file:
    drawn = [row["units"] for row in csv.DictReader(file)]
given.out.write_text(f"a drawing of {drawn}")
given.out.with_suffix(".png").write_text(f"a drawing of {drawn}")
"""

MAIN = r"""
\documentclass{article}
\usepackage{array, booktabs, longtable, siunitx, tabularx}
\pdftrailerid{}
\input{generated/numbers}
\begin{document}
A ring sends \result{2.2/exact/value} times $S$.

\input{generated/claims_a02}

\input{generated/provenance}

\input{generated/parts}

\input{generated/summary}

\input{generated/loc}
\end{document}
"""

LATEXMKRC = "$pdf_mode = 1; $jobname = 'paper'; $aux_dir = 'build'; $out_dir = '.'; @default_files = ('main.tex');\n"
LATEXMKRC += "$pdflatex = 'pdflatex -interaction=nonstopmode -halt-on-error -file-line-error %O %S';\n"

EXPERIMENTS = {
    "volumes": {"module": "toys.rings", "title": "Volumes of a toy", "instrument": "meter", "rooms": ["optim"]},
    "reach": {
        "module": "toys.rings",
        "title": "Reach of a toy",
        "instrument": "clock",
        "rooms": ["precision"],
        "timing": True,
    },
}
QUANTITY = {
    "name": "all-reduce",
    "column": "units",
    "reduce": "only",
    "unit": "S",
    "reported": 1.75,
    "tolerance": {"abs": 0},
}
HOPS = {"name": "hops", "column": "units", "reduce": "max", "expected": 1.75, "tolerance": {"abs": 0}}
CLAIM = {
    "id": "2.2", "article": 2, "statement": "A ring & its 2(N-1)/N*S_total",
    "evidence": {"exact": {"experiment": "volumes", "headline": QUANTITY, "parts": [HOPS]}},
}  # fmt: skip


def build(root: Path) -> Path:
    """Lay the project out at `root`."""
    shutil.copytree(HERE / "code/fivedim", root / "code/fivedim", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(HERE / "profiles", root / "profiles")
    shutil.copytree(HERE / "configs/reported", root / "configs/reported")
    shutil.copytree(HERE / "paper/report", root / "paper/report")
    snakefile = (HERE / "Snakefile").read_text()
    toy, found = re.subn(
        r"^FIGURES = \{.*?^\}", 'FIGURES = {"curve": ["volumes"]}', snakefile, flags=re.DOTALL | re.MULTILINE
    )
    assert found == 1
    texts = {
        "Snakefile": toy, "code/toys/rings.py": MODULE, "figures/curve.py": FIGURE,
        "paper/main.tex": MAIN, "paper/latexmkrc": LATEXMKRC,
        "configs/experiments.yaml": yaml.safe_dump(EXPERIMENTS), "configs/claims.yaml": yaml.safe_dump([CLAIM]),
        "configs/scales/laptop.yaml": "description: the default\n", "requirements.lock": "torch==2.13.0\n",
        "configs/scales/smoke.yaml": "description: small\nexperiments: {volumes: {size: 8}}\n",
    }  # fmt: skip
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def run(root: Path, *command: str, path: str | None = None) -> subprocess.CompletedProcess:
    """Run a command in the project, with its own package and this interpreter's tools."""
    env = os.environ | {"PYTHONPATH": str(root / "code"), "PATH": path or f"{TOOLS}:{os.environ['PATH']}"}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=500)
