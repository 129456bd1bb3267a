"""The README's example of adding a claim, done exactly as it says, in a copy of the project."""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from fivedim.evidence import claims

ROOT = Path(__file__).parents[1]


def example(language: str, containing: str) -> str:
    """The README's one code block in that language that contains these words."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if containing in block)
    return block


def fivedim(root: Path, *arguments: str) -> None:
    """Run a command with the package of that project."""
    environment = os.environ | {"PYTHONPATH": str(root / "code")}
    subprocess.run([sys.executable, "-m", "fivedim.cli", *arguments], cwd=root, env=environment, check=True)


def test_the_example_of_adding_a_claim_ends_with_its_verdict(tmp_path):
    shutil.copytree(ROOT / "code", tmp_path / "code", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("Snakefile", "requirements.lock"):
        shutil.copy2(ROOT / name, tmp_path)
    (tmp_path / "configs/scales").mkdir(parents=True)
    (tmp_path / "configs/scales/smoke.yaml").write_text("description: small\n")
    (tmp_path / "configs/claims.yaml").write_text(example("yaml", "statement:"))
    (tmp_path / "configs/experiments.yaml").write_text(example("yaml", "rooms:"))
    (tmp_path / "code/fivedim/articles/a02_tree.py").write_text(example("python", "def tree_root"))
    fivedim(tmp_path, "run", "tree_root", "--scale", "smoke")
    fivedim(tmp_path, "judge", "--scale", "smoke")
    with open(tmp_path / "results/smoke/claims.csv", newline="") as file:
        (verdict,) = csv.DictReader(file)
    assert (verdict["claim"], float(verdict["value"]), verdict["verdict"]) == ("2.99", 3, "holds")


def test_the_claims_table_lists_every_claim_with_each_kind_of_evidence():
    table = (ROOT / "README.md").read_text().partition("<!-- claims -->")[2].partition("<!-- /claims -->")[0]
    rows = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in table.strip().splitlines()[2:]]
    shown = {(row[0], row[1].replace("\\", ""), row[-1]) for row in rows}
    assert shown == {(claim.id, claim.statement, kind) for claim in claims.read(ROOT) for kind in claim.evidence}
