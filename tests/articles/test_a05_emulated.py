"""Articles 4 and 5, emulated: the small model's clock, the simulator of the same machine, and what claims read."""

import pandas as pd
import pytest

from fivedim.articles import a05_emulated
from fivedim.articles.a05_emulation import COLLECTIVES, DDP, FSDP, KEPT, ZERO, Emulation, Machine
from fivedim.lab.accelerator import Step
from fivedim.ledger.collectives import Curve

FREE = Curve((0.0, 1.0), (0.0, 0.0))


@pytest.fixture(scope="module")
def emulation():
    return Emulation(a05_emulated.ShardedStepsEmulatedConfig(shrink=16, thin=12))


def machine(emulation, **slow):
    """The emulated machine, ten times as slow as its card, with links of so many bytes a second or none to speak of."""
    curves = {name: Curve((0.0, 1.0), (0.0, 1 / slow[name])) if name in slow else FREE for name in COLLECTIVES}
    return Machine(emulation, 10.0, curves)


def test_the_clock_gives_every_visit_its_time_and_its_parameters(emulation):
    visits, found = emulation.narrow.visits, emulation.narrow.profile
    assert [each.name for each in visits] == ["tokens", "blocks.0", "blocks.1", "blocks.2", "norm"]
    assert sum(each.forward for each in visits) == pytest.approx(found.forward)
    assert sum(each.backward for each in visits) == pytest.approx(found.backward - found.forward)
    assert sum(sum(each.tensors.values()) for each in visits) == emulation.elements
    assert emulation.elements == pytest.approx(774_090_240 / 16**2 / 12, rel=0.05)
    middle = [each.backward for each in visits[1:4]]
    assert middle == pytest.approx([middle[0]] * 3)
    assert all(each.forward >= 0 for each in visits)


def test_without_communication_a_step_is_its_kernels(emulation):
    timelines = machine(emulation).timelines()
    whole = 10 * emulation.narrow.profile.backward
    for mode in (FSDP, KEPT, ZERO):
        assert whole < timelines[mode].makespan < 1.3 * whole
    assert timelines[KEPT].makespan < timelines[FSDP].makespan  # less to unpack
    assert timelines[DDP].makespan > timelines[ZERO].makespan  # fp32 moves more, and all of it is updated


def test_slow_gathers_cost_fsdp_twice_what_they_cost_without_resharding(emulation):
    rate = 1e5
    timelines = machine(emulation, all_gather=rate).timelines()
    whole = 2 * emulation.elements / rate
    assert timelines[FSDP].busy(0, "communication") == pytest.approx(2 * whole)
    assert timelines[KEPT].busy(0, "communication") == pytest.approx(whole)
    assert timelines[ZERO].busy(0, "communication") == pytest.approx(whole)
    assert timelines[DDP].busy(0, "communication") == 0
    assert timelines[FSDP].makespan - timelines[KEPT].makespan == pytest.approx(whole, rel=0.1)


def test_gradients_travel_in_fp32_in_fsdp_and_in_bf16_in_zero(emulation):
    rate = 1e5
    timelines = machine(emulation, reduce_scatter=rate).timelines()
    whole = emulation.elements / rate
    assert timelines[FSDP].busy(0, "communication") == pytest.approx(4 * whole)
    assert timelines[ZERO].busy(0, "communication") == pytest.approx(2 * whole)


def test_the_card_is_slowed_until_a_gather_is_the_articles_share(emulation):
    rates = emulation.article.rates()
    slowed = emulation.dilation(0.5) * emulation.narrow.profile.backward
    assert slowed / 0.5 == pytest.approx(rates.compute / rates.collective("all_gather", 2 * rates.parameters))


def test_rows_come_from_the_slowest_rank_and_claims_from_the_rows(emulation):
    table = {1: [0.0, 0.0], 2 * emulation.elements: [0.5, 0.5]}
    seconds = {DDP: 4.0, ZERO: 2.0, FSDP: 3.0, KEPT: 2.6}

    def rank(more):
        steps = {mode: [Step(each + more, 1.0, 0.0)] * 2 for mode, each in seconds.items()}
        return {"tables": dict.fromkeys(COLLECTIVES, table), "dilation": 10.0, "steps": steps}

    found = pd.DataFrame(a05_emulated.rows(emulation, 20.0, [rank(0.0)] * 7 + [rank(0.2)]))
    modes = found[found.row == "mode"].set_index("mode")
    assert list(modes.seconds) == pytest.approx([4.2, 2.2, 3.2, 2.8])
    assert list(modes.disagreement) == pytest.approx(list(modes.predicted_s / modes.seconds - 1))
    assert a05_emulated.saved_over_gather(found) == pytest.approx(0.4 / 0.5)
    assert a05_emulated.fsdp_over_ddp(found) == pytest.approx(3.2 / 4.2) == modes.ratio[FSDP]
    assert a05_emulated.fsdp_over_ddp_simulated(found) == pytest.approx(
        modes.predicted_s[FSDP] / modes.predicted_s[DDP]
    )
    saved = modes.predicted_s[FSDP] - modes.predicted_s[KEPT]
    assert a05_emulated.saved_over_gather_simulated(found) == pytest.approx(saved / 0.5)
    (setup,) = found[found.row == "setup"].to_dict("records")
    assert setup["layers"] == 3
    assert (setup["links_dilation"], setup["card_dilation"], setup["gather_s"]) == (20, 10, 0.5)
