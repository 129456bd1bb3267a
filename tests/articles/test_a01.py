"""Article 1's experiments on small sizes: what they count, and that a fault of the code would show in them."""

import math
from pathlib import Path

import pytest
import torch

from fivedim.articles import a01_map
from fivedim.evidence import claims
from fivedim.model import GPTConfig, config
from fivedim.precision import MixedPrecision

STATE = {"parameters": 2, "gradients": 2, "master": 4, "exp_avg": 4, "exp_avg_sq": 4}
SHORT = {"steps": 2, "microbatches": 2, "sequences": 1, "length": 3}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setitem(config.CONFIGS, "tiny", GPTConfig(vocabulary=17, context=20, layers=2, heads=2, width=12))


def per_parameter(rows, **where):
    found = [row for row in rows if all(row[key] == value for key, value in where.items())]
    return {row["kind"]: row["per_parameter"] for row in found}


def check_rows(rows):
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    assert all(not isinstance(value, float) or math.isfinite(value) for row in rows for value in row.values())


@pytest.mark.parametrize("experiment", [a01_map.model_state, a01_map.model_state_rehearsed])
def test_state_is_16_bytes_and_18(experiment):
    rows = experiment(a01_map.ModelStateConfig(**SHORT))
    check_rows(rows)
    sixteen, eighteen = (per_parameter(rows, gradients=dtype) for dtype in ("bfloat16", "float32"))
    assert {kind: sixteen[kind] for kind in STATE} == STATE
    assert {kind: eighteen[kind] for kind in STATE} == STATE | {"gradients": 4}
    assert (sixteen["activations"], sixteen["buffers"]) == (0, 0)
    assert all(row["miss"] == 0 for row in rows)
    assert {row["bytes"] for row in rows if row["kind"] == "step"} == {4 * 28}


def test_a_state_that_is_kept_twice_is_seen(monkeypatch):
    kept = []
    write = MixedPrecision._write

    def hoard(self, index):
        kept.append(self.master[index].clone())
        write(self, index)

    monkeypatch.setattr(MixedPrecision, "_write", hoard)
    rows = a01_map.model_state(a01_map.ModelStateConfig(cases=[("tiny", "bfloat16")], **SHORT | {"steps": 1}))
    assert per_parameter(rows)["activations"] == 4


def test_state_against_checkpoint():
    cfg = a01_map.StateAgainstCheckpointConfig(rehearsed=["tiny"], nominal=7 * 10**9, **SHORT)
    rows = a01_map.state_against_checkpoint(cfg)
    check_rows(rows)
    counted, rehearsed, nominal = rows
    assert counted | {"source": ""} == rehearsed | {"source": ""}
    assert (counted["fp32_share"], counted["state_over_checkpoint"], counted["exceeds_card"]) == (0.75, 8, False)
    assert (nominal["checkpoint_gb"], nominal["state_gb"], nominal["exceeds_card"]) == (14, 112, True)


def test_an_fp32_checkpoint_is_seen():
    model = torch.nn.Linear(3, 2, bias=False)
    assert a01_map._checkpoint(model, saved=True) == a01_map._checkpoint(model, saved=False) == 24


def test_flop_add_up_to_the_last_one():
    rows = a01_map.training_flop(a01_map.TrainingFlopConfig(counted=[("tiny", 7, 3)], rehearsed=[("tiny", 7, 3)]))
    check_rows(rows)
    each = {row["pass"]: row["value"] for row in rows if row["term"] == "weights"}
    assert each == {"forward": 2, "backward": 4, "both": 6}
    zero = [row["value"] for row in rows if row["term"] in ("unexplained", "largest miss of a formula")]
    assert len(zero) == 2 * 2 * (len(a01_map.VARIANTS) + 1)
    assert not any(zero)
    real, fake = ([row["value"] for row in rows if row["source"] == source and row["variant"] == "plain"]
                  for source in ("counted", "rehearsed"))  # fmt: skip
    assert real == fake[: len(real)]
    years = {row["unit"]: row["value"] for row in rows if row["model"] == "7B nominal"}
    assert round(years["years of 365 days"], 2) == 6.66
    assert round(years["years of 365.25 days"], 2) == 6.65


def test_a_layer_that_computes_twice_is_seen(monkeypatch):
    from fivedim.model.gpt import MLP

    forward = MLP.forward
    monkeypatch.setattr(MLP, "forward", lambda self, x: (forward(self, x) + forward(self, x)) / 2)
    rows = a01_map.training_flop(a01_map.TrainingFlopConfig(counted=[("tiny", 5, 1)], rehearsed=[]))
    assert all(row["value"] > 0 for row in rows if row["term"] == "unexplained")


def test_exact_evidence_reads_no_rehearsed_row():
    sources = {"exact": {"counted", "formula"}, "rehearsed": {"rehearsed"}}
    root = Path(__file__).parents[2]
    evidence = [pair for claim in claims.read(root) for pair in claim.kinds()]
    mixed = [pair for pair in evidence if pair[1].experiment in ("state_against_checkpoint", "training_flop")]
    assert sorted(kind for kind, _ in mixed) == ["exact", "exact", "rehearsed", "rehearsed"]
    for kind, each in mixed:
        assert all(quantity.where["source"] in sources[kind] for quantity in (each.headline, *each.parts))
