"""Article 2's links: the ranking follows from the table, and another table would give another."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from fivedim.articles import a02_links as links

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows():
    return pd.DataFrame(links.link_models(links.LinkModelsConfig(joints=(20, 40, 60, 80, 100))))


def errors(rows):
    models = rows[(rows.row == "model") & ~rows.slow_joint.astype(bool)]
    return models.set_index("budget").rms_log_error


def test_duplex_links_are_excluded_and_two_models_tie(rows):
    found = errors(rows)
    assert found["shared"] == pytest.approx(found["hairpin"])
    assert found["duplex"] > 3 * found["shared"]
    assert links.unexplained(rows) == 2
    assert links.decides(rows) == pytest.approx(2)
    assert links.ratio_in_a_pair(rows) == pytest.approx(2)


def test_every_model_meets_every_reported_plateau(rows):
    plateaus = rows[rows.row == "plateau"]
    assert len(plateaus) == 6 * 18
    mean = plateaus.groupby(["budget", "slow_joint"]).log_error.mean()
    assert mean[("duplex", False)] == pytest.approx(0)  # the one free rate takes every common factor out


def test_a_table_of_duplex_links_would_rank_them_first(tmp_path, monkeypatch):
    """The ranking can come out otherwise: the same project with every plateau at one bandwidth."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "Snakefile").touch()
    for table in (tmp_path / "configs/reported").glob("collectives_n*.csv"):
        frame = pd.read_csv(table)
        frame.time_ms = frame.time_ms / 25 * frame.busbw_GBps
        frame.to_csv(table, index=False)
    monkeypatch.chdir(tmp_path)
    found = errors(pd.DataFrame(links.link_models(links.LinkModelsConfig(joints=(100,)))))
    assert found["duplex"] < 0.05 < found["shared"]


def test_small_all_reduces_add_up():
    rows = pd.DataFrame(links.small_all_reduces(links.SmallAllReducesConfig()))
    total, tensors = rows[rows.row == "total"].iloc[0], rows[rows.row == "tensor"]
    assert (total.tensors, total.bytes) == (len(tensors), tensors.bytes.sum()) == (148, 4 * 124_439_808)
    assert total.one_by_one_ms == pytest.approx(tensors.ms.sum())
    assert total.latency_bound == (tensors.bytes <= 65536).sum() == 12 * 8 + 2  # all but 4 matrices a layer, 2 tables
    assert set(rows[rows.row == "floor"].ranks) == {2, 4, 8}
