"""Article 3's predictions: what they say, what they follow from, and that they can fail."""

from pathlib import Path

import pandas as pd
import pytest

from fivedim.articles import a03_ddp as ddp
from fivedim.articles import a03_exposed as taken_apart
from fivedim.ledger.data_parallel import timeline
from fivedim.ledger.sensitivity import Range

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def predictor():
    return ddp.Predictor(ddp.DdpConfig())


@pytest.fixture
def no_ranges(monkeypatch):
    """The ranges are a search over the prediction, tested on its own: here only that they are asked for."""
    monkeypatch.setattr(
        "fivedim.ledger.sensitivity.verdict_ranges",
        lambda predict, constants, holds: {name: Range(*[holds(predict(constants))] * 2) for name in constants},
    )


def test_the_sweep_is_within_a_tenth_and_its_right_arm_in_order(no_ranges):
    rows = pd.DataFrame(ddp.bucket_sweep_predicted(ddp.BucketSweepPredictedConfig()))
    points = rows[rows.row == "point"]
    assert list(points.cap_mib) == [1, 10, 25, 100, 250, 500]
    assert points.error.abs().max() < 0.1
    assert ddp.right_arm(rows) == 1
    assert ddp.left_arm(rows) < 0  # the left arm of the U is not predicted
    waits = points.buffers_ms + points.tail_ms + points.last_bucket_ms
    assert list(waits) == pytest.approx(list(points.exposed_ms), abs=0.02)  # but for the launches before the first
    assert rows[rows.row == "range"].low.eq(1).all()


def test_the_article_gives_one_number_and_the_prediction_follows_it(predictor):
    """A one-GPU step that is longer by 10 ms hides no more at the cap of 500, where nothing is hidden."""
    longer = predictor.constants | {ddp.ONE_GPU: predictor.constants[ddp.ONE_GPU] + 10}
    steps = [predictor.step(constants) for constants in (predictor.constants, longer)]
    before, after = (timeline(step, step.bucketed(500)).makespan for step in steps)
    assert after - before == pytest.approx(10e-3)


def test_a_change_of_shape_keeps_the_rate_of_flop(predictor):
    plain, double = predictor.step(), predictor.step(layers=2 * predictor.shape.layers)
    assert 1.5 < double.compute / plain.compute < 2  # the head does not double
    assert double.buffers > 1.9 * plain.buffers


def test_the_equations_are_solved_exactly_and_intervals_cover(predictor):
    rows = {row["name"]: row for row in taken_apart._unknowns(predictor, 0.005)}
    compute, exposed, optimizer = (rows[name]["ms"] for name in taken_apart.UNKNOWNS)
    assert compute + exposed + optimizer == pytest.approx(147.12)
    assert 4 * compute + 4 * exposed + optimizer == pytest.approx(582.75)
    assert 4 * compute + exposed + optimizer == pytest.approx(521.46)
    assert rows["slower compute"]["ms"] == pytest.approx(compute + optimizer - 122.18)
    assert rows["exposed"]["high_ms"] - exposed == pytest.approx(0.005 * (582.75 + 521.46) / 3)
    assert rows["optimizer"]["low_ms"] < 0 < rows["exposed"]["low_ms"]


def test_the_parts_add_up_to_the_reported_step(no_ranges):
    rows = pd.DataFrame(taken_apart.exposed_time_predicted(taken_apart.ExposedTimePredictedConfig()))
    parts = rows[rows.row == "part"].set_index("name").ms
    assert parts.drop("DDP").sum() == pytest.approx(parts["DDP"]) == 147.12
    assert abs(parts["open"]) < 2
    exposed = rows[rows.row == "variant"].set_index("name").exposed_ms
    assert exposed["embedding frozen"] < exposed["as reported"] / 3
    assert exposed["untied"] == pytest.approx(exposed["as reported"])  # the table's gradient is last in any case
    assert exposed["a quarter of the vocabulary"] < exposed["as reported"] < exposed["twice the vocabulary"]


def test_the_naive_way_exposes_everything_and_pays_a_latency_a_tensor(no_ranges):
    rows = pd.DataFrame(ddp.naive_predicted(ddp.NaivePredictedConfig())).set_index("scheme")
    naive, real = rows.loc["a tensor, after"], rows.loc["a bucket, under"]
    assert naive.collectives == 148
    assert naive.exposed_share == pytest.approx(1, abs=1e-3)
    assert 130 < naive.latencies < 165
    assert naive.exposed_ms > 2 * real.exposed_ms
