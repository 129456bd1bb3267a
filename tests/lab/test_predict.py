"""Predictions on the terminal, and the machine file they need."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fivedim import cli
from fivedim.errors import UserError
from fivedim.lab import machine

ROOT = Path(__file__).parents[2]
NAME = "rtx-pro-6000-x8"


def test_break_even_prints_a_table_without_torch():
    code = "import sys; from fivedim import cli; print(cli.status_of(['break-even']), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "3840" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 False"


def test_predict_prints_every_kind_of_row(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.status_of(["predict", "small_all_reduces", "--machine", NAME]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("floor", "tensor", "total", "tokens.weight"))
    assert "fitted: links.gb_per_second = 41.5 (" in printed
    assert "declared: card.launch_us = 5 (" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "ring_schedule"], "experiment ring_schedule: no cost model predicts it; use one of link_models"),
        (["predict", "link_models", "--machine", "abacus"], f"machine abacus: unknown; use one of {NAME}"),
    ],
)
def test_what_cannot_be_predicted_is_named(arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.status_of(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"switches": [[0, 1], [2, 3]]}, "switches must hold each of the GPUs 0 to 7 once"),
        ({"links": {"budget": "simplex"}}, "links.budget"),
        ({"speed": 1}, "speed: unknown key; allowed here: name"),
        ({"links": {"budget": "shared", "gb_per_second": {"value": 1, "source": "fitted"}}}, "needs a note"),
        ({"links": {"budget": "shared", "gb_per_second": {"value": 0, "source": "article"}}}, "greater than 0"),
    ],
)
def test_a_machine_that_cannot_be_is_refused_by_name(tmp_path, change, message):
    found = yaml.safe_load((ROOT / f"configs/machines/{NAME}.yaml").read_text())
    (tmp_path / "configs/machines").mkdir(parents=True)
    (tmp_path / "configs/machines/bent.yaml").write_text(yaml.safe_dump(found | change))
    with pytest.raises(UserError) as error:
        machine.load(tmp_path, "bent")
    assert "bent.yaml" in str(error.value)
    assert message in str(error.value)
