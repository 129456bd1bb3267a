"""Article 4's counts: what their rows promise, and that a bent stage shows in them."""

import pandas as pd
import pytest

from fivedim.articles import a04_rehearsed, a04_zero
from fivedim.lab import ranks
from fivedim.ledger import memory
from fivedim.zero.bucket import Bucket


def right_and_bent():
    """The rows of right runs, and of runs whose buckets keep what they were sent or their masters to themselves."""
    match = a04_zero.ZeroMatchConfig(layers=1, steps=2, optimizers=("SGD", "AdamW, clipped"))
    ledger = a04_zero.ZeroLedgerConfig(group_sizes=(1, 2))
    right = a04_zero.zero_match(match), a04_zero.zero_ledger(ledger)
    publish, Bucket.publish = Bucket.publish, lambda self: Nothing()
    stale = a04_zero.zero_match(match)
    Bucket.publish = publish
    forget, Bucket.forget = Bucket.forget, lambda self: hoard.append(self.weights.clone()) or forget(self)
    hoard = []
    return *right, stale, a04_zero.zero_ledger(ledger)


class Nothing:
    def wait(self):
        """Nothing was sent."""


@pytest.fixture(scope="module")
def rows():
    return [pd.DataFrame(found) for found in ranks.run(right_and_bent, 2, timeout=60)[0]]


def test_zero_match_finds_no_difference_and_finds_weights_that_are_not_gathered(rows):
    right, _, stale, _ = rows
    assert len(right) == 2 * 4 * 2
    assert right[["weight_miss", "data_parallel_miss", "norm_miss"]].max().max() < 1e-12
    assert right.same_bits.all()
    assert right.moved.min() > 1e-6
    zero = stale.stage.isin([1, 2]) & (stale.ranks > 1)
    assert (stale[zero].data_parallel_miss > 1e-4).all()
    assert not stale[zero].same_bits.any()
    assert stale[stale.stage.isin([0, 3])].weight_miss.max() < 1e-12


def test_zero_ledger_counts_the_formulas_and_finds_bytes_that_stay(rows):
    _, right, _, hoarding = rows
    state = right[right.row == "state"].groupby(["stage", "ranks"]).per_parameter.sum()
    two = {0: 16, 1: 10, 2: 9, 3: 8}
    assert state.to_dict() == {(stage, n): 16 if n == 1 else two[stage] for stage in two for n in (1, 2)}
    assert (right[right.row == "state"].miss == 0).all()
    apart = right[right.row == "apart"].groupby(["kind", "stage"]).bytes.max()
    assert apart["anything else"].tolist() == [0, 0, 0, 0]
    assert apart["flags"].tolist() == [2 * 16, 0, 0, 0]
    volume = right[(right.row == "volume") & (right.ranks == 2)]
    assert (volume[volume.stage.isin([1, 2])].units == 2).all()
    assert (volume[volume.stage == 3].units == 3).all()
    assert volume.groupby("stage").apart.max().gt(0).tolist() == [False, True, True, False]
    assert ((volume[volume.stage == 0].units - 2).between(0, 1e-3)).all()
    clipping = right[right.row == "clipping"].groupby("order").bytes.agg(["min", "max"])
    assert clipping.T.to_dict() == {
        f"{order}-norm": {"min": n, "max": n} for order, n in (("1", 8), ("2", 8), ("inf", 16))
    }
    others = hoarding[(hoarding.row == "apart") & (hoarding.kind == "anything else")]
    assert (others[others.stage.isin([1, 2])].bytes > 0).all()


@pytest.fixture(scope="module")
def rehearsed():
    cases = [("tiny", stage) for stage in a04_zero.STAGES[:3]]
    return pd.DataFrame(a04_rehearsed.zero_rehearsed(a04_rehearsed.ZeroRehearsedConfig(cases=cases)))


def test_zero_rehearsed_keeps_and_sends_what_real_ranks_do(rehearsed):
    found = rehearsed[rehearsed.row == "memory"].set_index(["stage", "kind"])
    count = int(found.parameters.iloc[0])
    for stage in a04_zero.STAGES[:3]:
        kept = found.resident[stage][list(a04_zero.STATE)].to_dict()
        kept["gradients"] -= 2 * 28 if stage == 0 else 0  # data parallelism's flags
        assert kept == memory.zero(count, stage, 8)
        assert found.resident[stage]["buckets"] == found.resident[stage]["activations"] == 0
    assert a04_rehearsed.saved_as_dealt(rehearsed) == 1
    assert a04_rehearsed.activations_differ(rehearsed) == 0
    large = rehearsed.assign(model="774M")
    assert a04_rehearsed.saved_gib(large) == pytest.approx(12 * 7 / 8 * count / 2**30)
    assert found.peak.groupby("stage").sum().is_monotonic_decreasing
    sent = rehearsed[(rehearsed.row == "volume") & (rehearsed.dtype == "bfloat16")].groupby("stage").units.sum()
    assert sent[[1, 2]].tolist() == [2, 2]
    assert sent[0] == pytest.approx(2, abs=1e-3)
