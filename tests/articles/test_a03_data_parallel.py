"""Article 3's counts: what their rows promise, and that a bent wrapper shows in them."""

import pandas as pd
import pytest

from fivedim.articles import a03_accumulation as accumulation
from fivedim.articles import a03_data_parallel as a03
from fivedim.data_parallel.bucket import Bucket
from fivedim.lab import ranks


def match_right_and_bent():
    """The rows of a right run, and of one whose buckets do not move into `.grad` what other ranks have."""
    cfg = a03.DataParallelMatchConfig(layers=1, steps=2)
    right = a03.data_parallel_match(cfg)
    Bucket.launch = lambda self, group: NoWork()
    return right, a03.data_parallel_match(cfg)


class NoWork:
    def wait(self):
        """Nothing was sent."""


def test_data_parallel_match_finds_no_difference_and_finds_gradients_that_stay_local():
    right, bent = ranks.run(match_right_and_bent, 3, timeout=60)[0]
    assert {(row["ranks"], row["wrapper"]) for row in right} == {
        (n, name) for n in (1, 2, 3) for name in ("Naive", "Bucketed", "Overlapped")
    }
    whole, own = ([row for row in right if row["mean"] == mean] for mean in ("whole batch", "own part"))
    assert max(max(row["weight_miss"], row["gradient_miss"]) for row in whole) < 1e-12
    assert all(row["same_bits"] and row["moved"] > 1e-5 for row in right)
    assert all((row["weight_miss"] > 1e-3) == (row["ranks"] > 1) for row in own)
    assert all((row["weight_miss"] > 1e-3) == (row["ranks"] > 1) for row in bent)
    assert not any(row["same_bits"] for row in bent if row["ranks"] > 1)


@pytest.fixture(scope="module")
def lists():
    cfg = a03.BucketListsConfig(model="tiny", sequences=1, length=4, caps=(None, 0.05, 0.1), observed=(None, 0.05))
    return pd.DataFrame(a03.bucket_lists(cfg))


def test_bucket_lists_are_torchs(lists):
    steps = lists[lists.row == "step"]
    assert steps[steps.step == "later"].same_as_ours.all()
    assert (steps.tensors == 28).all()
    first = steps[steps.step == "first"]
    assert len(first) == 2
    assert (first.buckets == 1).all()
    assert set(steps[steps.source == "torch, its rule"].cap_mib) == {0.1}
    assert steps[(steps.source == "ours")].all_reduces.tolist() == steps[steps.source == "ours"].buckets.tolist()
    assert steps[(steps.source == "ours") & (steps.cap_mib == 0.05)].buckets.item() > 2


def test_bucket_lists_show_another_rule(monkeypatch):
    monkeypatch.setattr("fivedim.ledger.buckets.assign", lambda sizes, caps, kinds: [[i] for i in range(len(sizes))])
    cfg = a03.BucketListsConfig(model="tiny", sequences=1, length=4, caps=(0.05,), observed=(0.05,))
    rows = [row for row in a03.bucket_lists(cfg) if row["row"] == "step"]
    assert [row["same_as_ours"] for row in rows if row["step"] == "later"] == [False]


def test_accumulation_counts_ours_as_torchs():
    rows = pd.DataFrame(ranks.run(accumulate_right_and_bent, 2, timeout=60)[0][0])
    assert accumulation.share_of_collectives(rows) == accumulation.torchs_share_of_collectives(rows) == 0.25
    assert accumulation.share_of_bytes(rows) == 0.25
    assert accumulation.copies_saved(rows) == 1
    assert rows.gradient_miss.max() < 1e-12
    buffers = rows[rows.row == "buffer"]
    assert (buffers.buffer_bytes == 2 * 4 * 16**2).all()
    assert buffers.collectives.tolist() == [1, 4, 1] * 2
    assert (buffers.bytes == buffers.collectives * buffers.buffer_bytes).all()
    kept = rows[rows.row == "kept"].set_index(["implementation", "after"])
    assert kept.copies["torch, views"].tolist() == [2, 1]
    gradients, bytes_kept = kept.gradient_bytes["ours"].iloc[0], kept.bytes["ours"]
    assert bytes_kept.tolist() == [gradients + 4 * 28] * 2  # an element a gradient travels along


def accumulate_right_and_bent():
    return [accumulation.accumulation(accumulation.AccumulationConfig(mask_layers=2, mask_context=16))]
