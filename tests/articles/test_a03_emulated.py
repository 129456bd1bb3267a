"""Article 3, emulated: what is the same in small, what the predictor makes of it, and how the claims are read off."""

import contextlib
import dataclasses

import pandas as pd
import pytest

from fivedim.articles import a03_ddp, a03_emulated, a03_emulation
from fivedim.articles.a03_emulation import Case, Emulated, Emulation, cases, merged, sizes
from fivedim.lab.accelerator import Span, Step
from fivedim.lab.failures import Failure
from fivedim.lab.ranks import RankError
from fivedim.ledger.collectives import Curve

CAPS = (1.0, 10.0, 25.0, 100.0, 250.0, 500.0)


@pytest.fixture(scope="module")
def emulation():
    return Emulation(a03_emulated.BucketSweepEmulatedConfig(shrink=16))


@pytest.fixture(scope="module")
def machine(emulation):
    curve = Curve((4, 4 * 10**9), (0.0, 4.0))  # 1 GB/s
    return Emulated(emulation.accelerator.card, 10.0, curve, 0.0, emulation.buffer_bytes)


def test_a_smaller_model_on_a_slower_card_takes_the_same_time(emulation):
    smaller = Emulation(a03_emulated.BucketSweepEmulatedConfig(shrink=32))
    assert smaller.profiles[0].whole == pytest.approx(emulation.profiles[0].whole, rel=0.02)
    assert smaller.gradient_bytes == pytest.approx(emulation.gradient_bytes / 4, rel=0.02)
    assert emulation.gradient_bytes == pytest.approx(4 * 124.4e6 / 16**2, rel=0.02)
    table = emulation.profiles[0].elements["tokens.weight"]
    assert table / sum(emulation.profiles[0].elements.values()) == pytest.approx(0.31, abs=0.005)


def test_gradients_are_done_from_the_last_layer_to_the_embedding(emulation):
    whole, frozen = emulation.profiles[0], next(p for p in emulation.profiles if "tokens.weight" not in p.elements)
    layers = [whole.ready[f"blocks.{layer}.mlp.up.weight"] for layer in range(12)]
    assert layers == sorted(layers, reverse=True)
    assert whole.forward < layers[-1]
    assert max(whole.ready.values()) == whole.ready["tokens.weight"] <= whole.backward < whole.whole
    assert frozen.backward < whole.backward


def test_caps_cut_the_buckets_that_they_cut_in_the_article(emulation, machine):
    predictor = a03_ddp.Predictor(a03_ddp.DdpConfig())
    for cap in CAPS[2:]:
        (case,) = (case for case in emulation.cases if case.name == f"cap {cap:g}")
        buckets = machine.predict(emulation.profiles[0], case, emulation.cfg.shrink)["buckets"]
        assert buckets == len(predictor.step().bucketed(cap))


def test_the_predictor_adds_up(emulation, machine):
    """Without communication the step is its kernels and data parallelism's; with one bucket nothing hides it."""
    profiled, shrink = emulation.profiles[0], emulation.cfg.shrink
    free = dataclasses.replace(machine, all_reduce=Curve((4, 8), (0.0, 0.0)))
    copies = machine.card.stream(4 * emulation.gradient_bytes + 4 * emulation.buffer_bytes)
    alone = machine.predict(profiled, Case("", None), shrink)["predicted_s"]
    assert alone == 10 * profiled.whole
    assert free.predict(profiled, Case("", 25.0), shrink)["predicted_s"] == pytest.approx(alone + 10 * copies)
    slow = dataclasses.replace(machine, broadcast=0.5)
    one = slow.predict(profiled, Case("", 500.0), shrink)
    assert one["predicted_s"] == pytest.approx(alone + 10 * copies + 0.5 + emulation.gradient_bytes / 1e9, rel=1e-4)
    assert one["predicted_last_bucket_s"] == pytest.approx(emulation.gradient_bytes / 1e9, rel=1e-4)
    assert (one["buckets"], one["predicted_buffers_s"]) == (1, pytest.approx(0.5))


def test_the_card_is_slowed_until_an_all_reduce_is_the_articles_share(emulation):
    article = a03_ddp.Predictor(a03_ddp.DdpConfig())
    slowed = emulation.dilation(0.5) * emulation.profiles[0].whole
    assert slowed / 0.5 == pytest.approx(0.12218 / article.step().all_reduce(497759232), rel=1e-6)


def test_a_step_is_merged_into_few_spans():
    trace = [
        *(Span("mm", "compute", start, start + 1) for start in range(5)),
        Span("allreduce_ 20", "communication", 2.5, 6.0),
        Span("mul", "compute", 6.0, 7.0),
        Span("broadcast_ 8", "communication", -0.5, -0.1),
    ]
    assert [tuple(span.values()) for span in merged(trace, marks=[2, 6.0])] == [
        ("broadcast", "communication", -0.5, -0.1),
        ("forward", "compute", 0, 2),
        ("backward", "compute", 2, 5),
        ("allreduce", "communication", 2.5, 6.0),
        ("optimizer", "compute", 6.0, 7.0),
    ]


def test_the_table_has_the_whole_gradient_and_its_halves():
    found = sizes(7830528)
    assert (found[-1], found[-2], len(found)) == (7830528, 7830528 // 2, a03_emulation.HALVINGS)
    assert all(size % 4 == 0 for size in found)
    assert sizes(4) == [4]


def rows(emulation) -> pd.DataFrame:
    """As if every step took one second, and `more` with buckets; ranks differ by a tenth of what is on top."""
    more = dict(zip([f"cap {cap:g}" for cap in CAPS], [0.26, 0.22, 0.2, 0.25, 0.3, 0.4], strict=True))
    more["embedding frozen"] = 0.1
    listed = [{"name": case.name, "cap_mib": case.cap_mib} for case in emulation.cases]
    for case in listed:
        on_top = more.get(case["name"], 0.0)
        case |= {"row": "case", "seconds": 2 * (1 + on_top), "predicted_s": 2 * (1.05 + on_top), "busy_s": 2.0}
    table = a03_emulated.compared(listed, emulation.article)
    sizes = [{"row": "all_reduce", "bytes": size, "seconds": seconds} for size, seconds in [(4, 0.02), (16, 0.8)]]
    return pd.DataFrame([{"row": "setup", "all_reduce_s": 0.8}, *sizes, *table])


def test_claims_are_read_off_the_cases(emulation):
    found = rows(emulation)
    assert a03_emulated.one_bucket(found) == pytest.approx(0.4)
    assert a03_emulated.hidden_share(found) == pytest.approx(0.5)
    assert a03_emulated.efficiency(found) == pytest.approx(1 / 1.2)
    assert a03_emulated.cost_over_all_reduce(found) == pytest.approx(1)
    assert a03_emulated.left_arm(found) == pytest.approx(0.06)
    assert a03_emulated.embedding_share(found) == pytest.approx(0.5)
    assert a03_emulated.shortest_all_reduce(found) == pytest.approx(0.025)
    assert (a03_emulated.fastest_cap(found), a03_emulated.right_arm(found)) == (25, 1)
    found.loc[found["name"] == "cap 100", "ratio"] = 1.1
    assert (a03_emulated.fastest_cap(found), a03_emulated.right_arm(found)) == (100, 0)
    cap = found[found["name"] == "cap 500"].iloc[0]
    assert cap.error == pytest.approx(1.4 / (171.98 / 122.18) - 1)
    assert cap.disagreement == pytest.approx((2 * 1.45) / (2 * 1.4) - 1)


def test_rows_come_from_all_ranks_and_spans_from_two(emulation):
    whole, span = emulation.gradient_bytes, {"name": "forward", "lane": "compute", "start": 0.0, "end": 1.0}

    def rank(seconds):
        return {
            **{"table": {4: [0.1, 0.1], whole: [seconds, seconds]}, "buffers": [0.2], "dilation": 10.0},
            **{"spans": [span], "steps": [[Step(2 * seconds, 0.9, 0.0)] * 2 for _ in emulation.cases]},
        }

    found = pd.DataFrame(a03_emulated.rows(emulation, 20.0, [rank(0.5)] * 7 + [rank(0.6)]))
    (setup,) = found[found.row == "setup"].to_dict("records")
    assert (setup["links_dilation"], setup["card_dilation"], setup["all_reduce_s"]) == (20, 10, 0.6)
    article = emulation.article.step()
    assert setup["all_reduce_over_table"] == pytest.approx(0.6 / 20 / article.all_reduce(497759232), rel=1e-6)
    assert setup["broadcast_over_table"] == pytest.approx(0.2 / 20 / article.buffers)
    measured = found[found.row == "case"]
    assert list(measured.seconds) == [1.2] * len(emulation.cases)
    assert list(measured.exposed) == pytest.approx([0.25] * len(emulation.cases))
    assert list(found[found.row == "span"]["rank"]) == [0, 7]


def test_the_slowest_rank_counts():
    assert a03_emulated.slowest([[1.0, 5.0], [2.0, 4.0], [0.5, 3.0]]) == [2.0, 5.0]
    assert a03_emulated.quantiles([1.0, 2.0, 3.0]) == pytest.approx({"seconds": 2.0, "low_s": 1.2, "high_s": 2.8})


def test_every_cap_is_a_case_and_one_with_a_frozen_embedding():
    assert [case.cap_mib for case in cases(CAPS)] == [None, *CAPS, 25]


@pytest.mark.parametrize(
    ("kind", "doublings", "tried"), [("TooShortError", 2, [3, 6, 12]), ("UserError", 2, [3]), ("", 2, [3])]
)
def test_the_dilation_is_doubled_while_the_host_cannot_keep_up(kind, doublings, tried):
    seen = []

    def emulate(dilation):
        seen.append(dilation)
        if kind:
            raise RankError(Failure(who="rank 1", kind=kind, time_ns=0))
        return [{"row": "setup"}]

    cfg = a03_emulated.BucketSweepEmulatedConfig(dilation=3, doublings=doublings)
    with pytest.raises(RankError) if kind else contextlib.nullcontext():
        assert a03_emulated.long_enough(emulate, cfg) == [{"row": "setup"}]
    assert seen == tried
