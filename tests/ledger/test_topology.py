"""Link models: bandwidths worked out by hand, and a flow algorithm that knows nothing of the formula as the oracle."""

import networkx
import pytest

from fivedim.ledger import topology
from fivedim.ledger.topology import Plateau, Topology

SWITCHES, SOCKETS = ((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 1, 2, 3), (4, 5, 6, 7))
RING = ("all_gather", "reduce_scatter", "all_reduce")


def machine(budget, joint=None):
    return Topology(budget, SWITCHES, SOCKETS, rate=1.0, joint=joint)


@pytest.mark.parametrize(
    ("budget", "ring", "broadcast", "rooted"),
    [("duplex", 1, (1, 1, 1), 1), ("shared", 0.5, (1, 0.5, 0.5), 1), ("hairpin", 0.5, (1, 0.5, 0.5), 1)],
)
def test_plateaus_over_the_link_rate_by_hand(budget, ring, broadcast, rooted):
    for place, n in enumerate((2, 4, 8)):
        for collective in RING:
            assert machine(budget).busbw(collective, range(n)) == pytest.approx(ring)
        for collective in ("broadcast", "reduce"):
            assert machine(budget).busbw(collective, range(n)) == pytest.approx(broadcast[place])
        for collective in ("scatter", "gather"):
            assert machine(budget).busbw(collective, range(n)) == pytest.approx(rooted)


def test_a_slow_joint_binds_only_what_crosses_it():
    slow = machine("duplex", joint=0.25)
    assert slow.busbw("all_reduce", range(4)) == pytest.approx(1)
    assert slow.busbw("all_reduce", range(8)) == pytest.approx(0.25)
    assert slow.busbw("scatter", range(8)) == pytest.approx(7 / 16)  # 4 of the 7 chunks cross: 7/8 over (4/8)/0.25


def test_gpus_0_and_2_tell_a_shared_budget_from_a_hairpin():
    """Across two switches a hairpin has an uplink each; in a pair, and under every other collective, the two agree."""
    rates = {budget: machine(budget).busbw("all_reduce", (0, 2)) for budget in ("duplex", "shared", "hairpin")}
    assert rates == pytest.approx({"duplex": 1, "shared": 0.5, "hairpin": 1})


def graph(budget):
    """The links as a flow network: each GPU's way out and way in, and the uplinks if messages hairpin."""
    net = networkx.DiGraph()
    for gpu in range(8):
        switch = gpu // 2 if budget == "hairpin" else "all"
        net.add_edge(gpu, ("up", switch), capacity=1)
        net.add_edge(("down", switch), ("in", gpu), capacity=1)
    for switch in range(4) if budget == "hairpin" else ["all"]:
        width = {"capacity": 1} if budget == "hairpin" else {}
        net.add_edge(("up", switch), "root", **width)
        net.add_edge("root", ("down", switch), **width)
    return net


@pytest.mark.parametrize("budget", ["duplex", "hairpin"])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_scatter_is_the_maximum_flow_from_the_root(budget, n):
    net = graph(budget)
    for gpu in range(1, n):
        net.add_edge(("in", gpu), "sink", capacity=1 / (n - 1))  # equal shares
    assert machine(budget).busbw("scatter", range(n)) == pytest.approx(networkx.maximum_flow_value(net, 0, "sink"))


@pytest.mark.parametrize("budget", ["duplex", "hairpin"])
@pytest.mark.parametrize("gpus", [(0, 1), (0, 2), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5, 6, 7), (0, 2, 4, 6), (0, 1, 4)])
def test_a_ring_is_the_largest_rate_that_fits_every_hop_at_once(budget, gpus):
    """Each rate on trial is a flow problem: may every GPU push it into the tree, and every next one draw it out?"""
    n, rate = len(gpus), machine(budget).busbw("all_reduce", gpus)

    def fits(rate):
        net = graph(budget)
        for gpu in gpus:
            net.add_edge("source", gpu, capacity=rate)
            net.add_edge(("in", gpu), "sink", capacity=rate)
        return networkx.maximum_flow_value(net, "source", "sink") >= n * rate - 1e-9

    assert fits(rate)
    assert not fits(1.01 * rate)


def test_the_fitted_rate_is_the_one_that_made_the_plateaus():
    truth = Topology("shared", SWITCHES, SOCKETS, rate=44.0, joint=15.0)
    plateaus = [Plateau(c, n, truth.busbw(c, range(n))) for c in topology.PATTERNS for n in (2, 4, 8)]
    assert topology.rms(topology.log_errors(truth, plateaus)) == pytest.approx(0)
    fit = topology.fit_joint(machine("shared"), plateaus, [i / 44 for i in range(5, 45)])
    assert (fit.rate, fit.joint) == pytest.approx((44, 15))
    flat = topology.fit_rate(machine("shared"), plateaus)
    assert topology.rms(topology.log_errors(flat, plateaus)) > 0.1
    for factor in (0.98, 1.02):
        other = Topology("shared", SWITCHES, SOCKETS, rate=flat.rate * factor)
        assert topology.rms(topology.log_errors(other, plateaus)) > topology.rms(topology.log_errors(flat, plateaus))
