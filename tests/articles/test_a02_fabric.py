"""Article 2 on shaped links: the machine file decides the numbers, and each link model limits what it should."""

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from fivedim.articles import a02_fabric as a02
from fivedim.lab import sandbox

ROOT = Path(__file__).parents[2]
RATE = "gb_per_second: {value: 41.5,"


def emulate(roots: list[Path]) -> list[list[dict]]:
    """On two ranks: bytes on the wire and the plateaus of this project's machine, then times of each project's."""
    os.chdir(roots[0])
    wire = a02.wire_bytes(a02.WireBytesConfig(group_sizes=(2,)))
    models = tuple((budget, False) for budget in ("duplex", "shared", "hairpin"))
    plateaus = a02.plateaus_emulated(
        a02.PlateausConfig(group_sizes=(2,), size=2**18, repeats=3, in_a_row=1, models=models)
    )
    ring = a02.RingTimesConfig(group_sizes=(2,), sizes=(2**19,), small=(2**12,), repeats=3, latency_dilation=4000)
    times = []
    for root in roots:
        os.chdir(root)
        times.append(a02.ring_times(ring))
    return [wire, plateaus, *times]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory) -> list[pd.DataFrame]:
    slow = tmp_path_factory.mktemp("slow")
    shutil.copytree(ROOT / "configs", slow / "configs")
    (slow / "Snakefile").touch()
    machine = slow / "configs/machines/rtx-pro-6000-x8.yaml"
    text = machine.read_text()
    assert text.count(RATE) == 1
    machine.write_text(text.replace(RATE, RATE.replace("41.5", "20.75")))
    return [pd.DataFrame(rows) for rows in sandbox.call(emulate, [ROOT, slow])]


def test_the_kernel_counts_what_comm_counts(emulated):
    wire = emulated[0]
    assert set(wire.collective) == {*a02.BANDWIDTH_OPTIMAL, "reduce", "all_to_all"}
    assert wire[wire.source == "handed"].over.between(0, 0.01).all()
    reduce_scatter = wire[(wire.source == "formula") & (wire.collective == "reduce_scatter")]
    assert reduce_scatter.over.item() > 0.5  # gloo's is an all-reduce: the count is no echo of the formula


def test_each_budget_limits_a_pair_as_it_should(emulated):
    ratios = {budget: a02._pair_ratio(emulated[1], budget) for budget in ("duplex", "shared", "hairpin")}
    assert ratios["duplex"] > 0.7
    assert 0.3 < ratios["shared"] < 0.65
    assert 0.3 < ratios["hairpin"] < 0.65


def test_half_the_rate_in_the_machine_file_is_twice_the_time(emulated):
    fast, slow = (rows[(rows.row == "point") & (rows.latency_s == 0)].median_s.sum() for rows in emulated[2:])
    assert 1.5 < slow / fast < 2.7


def test_a_latency_is_paid_at_every_hop(emulated):
    points = emulated[2][(emulated[2].row == "point") & (emulated[2].latency_s > 0)].set_index("collective")
    hops = points.median_s / points.latency_s
    assert 2 <= hops["all_reduce"] < 4
    assert 1 <= hops["all_gather"] < 2


def test_a_window_is_timed_by_its_last_rank():
    first, second = [(0.0, 1.0), (5.0, 7.0)], [(0.5, 2.5), (4.0, 9.0)]
    assert a02._lengths([first, second], 2) == [1.0, 2.0]
