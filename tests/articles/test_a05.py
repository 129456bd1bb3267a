"""Article 5's counts: what their rows promise, and that a bent model shows in them."""

import pandas as pd
import pytest

from fivedim.articles import a05_fsdp as a05
from fivedim.articles import a05_sharding as sharding
from fivedim.fsdp import FullySharded, layout
from fivedim.lab import ranks
from tests.test_figures import figure_of


def test_rows_cut_counts_every_bound_of_the_shards():
    rows = pd.DataFrame(sharding.rows_cut(sharding.RowsCutConfig(model="tiny", ranks=3)))
    whole = rows[rows.parameter == "everything"].set_index("layout")
    assert whole.cut["rows"] == 0
    assert 0 < whole.cut["flat"] <= whole.bounds["flat"] - whole.whole_rows["flat"]
    assert sharding.flat_cuts_rows(rows) == 1
    assert (whole.tensors == 28).all()
    assert whole.bounds["flat"] == 2 * 3  # N - 1 a unit
    for name, mine in rows.groupby("layout"):
        assert mine[mine.parameter != "everything"].elements.sum() == whole.elements[name]


def test_cuts_are_where_the_bounds_are():
    shapes = [(2, 3), (4,), (5, 3)]
    assert layout.rows(shapes, 2) == [[3, 3], [2, 2], [9, 6]]
    assert layout.flat(shapes, 2) == [[6, 0], [4, 0], [3, 12]]
    assert layout.flat(shapes, 3) == [[6, 0, 0], [3, 1, 0], [0, 7, 8]]
    assert [layout.shard_shape((5, 3), cuts, 1) for cuts in ([9, 6], [8, 7], [15, 0])] == [(2, 3), (7,), (0, 3)]


def traces():
    """The rows of a right run, of one that foresees nothing, and of one that forgets nothing."""
    cfg = sharding.FsdpTraceConfig(layers=2, width=16, vocabulary=16, sequences=1, length=4)
    right = sharding.fsdp_trace(cfg)
    late = sharding.fsdp_trace(cfg.model_copy(update={"prefetch": 0}))
    save = FullySharded._save
    FullySharded._save = lambda self, x: x.detach()
    kept = sharding.fsdp_trace(cfg)
    FullySharded._save = save
    return right, late, kept


def test_the_trace_holds_and_bent_ones_do_not(tmp_path):
    right, late, kept = (pd.DataFrame(rows) for rows in ranks.run(traces, 2, timeout=60)[0])
    held = [rows[rows.row == "check"].set_index("name").holds for rows in (right, late)]
    assert held[0].all()
    assert len(held[0]) == 7
    assert [name for name, holds in held[1].items() if not holds] == [
        name for name in held[1].index if "issued" in name
    ]
    assert sharding.units_saved(right) == 1
    volumes = right[(right.row == "volume") & (right.collective == "everything")].set_index(["mixed", "reshard"])
    assert (volumes.units[False, True], volumes.units[False, False], volumes.per_parameter[True, True]) == (3, 2, 8)
    assert sharding.units_saved(kept) == 0
    above, below = figure_of("fsdp_timeline", right, tmp_path / "fsdp_timeline.pdf").axes
    events = right[right.row == "event"].event.value_counts()
    drawn = [len(axis.collections) for axis in (above, below)]
    both = events.forward + events.backward
    assert sum(drawn) == events.gather + events["reduce"] + 2 * both + 2  # what follows the last block is computed, too


@pytest.fixture(scope="module")
def memory():
    cfg = a05.FsdpMemoryConfig(model="774M", layers=2, sequences=4, length=256)
    return pd.DataFrame(a05.fsdp_memory_rehearsed(cfg))


def test_memory_is_16_bytes_and_12_over_8(memory):
    assert a05.state_of_ddp(memory) == pytest.approx(16, abs=1e-5)
    assert a05.state_of_fsdp(memory) == 1.5
    assert a05.state_over_state(memory) == pytest.approx(16 / 1.5)
    assert a05.ddp_over_fsdp(memory) < a05.state_over_state(memory)  # masks are whole on every rank
    everything = memory[(memory.row == "memory") & (memory.kind == "everything")].set_index("case")
    assert everything.reported_peak_gib.tolist() == [30.34, 12.85, 14.17]


def test_reshard_moves_the_peak_and_not_what_is_resident(memory):
    assert a05.resident_saved_gib(memory) == 0
    assert 0.2 * a05.half_model_gib(memory) < a05.peak_saved_gib(memory) < a05.half_model_gib(memory)


def test_the_figure_draws_ours_beside_what_is_reported(memory, tmp_path):
    left, right = figure_of("fsdp_memory", memory, tmp_path / "fsdp_memory.pdf").axes
    everything = memory[(memory.row == "memory") & (memory.kind == "everything")].set_index("case")
    written = [text.get_text() for text in right.texts]
    wanted = [
        each for case in everything.index for each in (everything.reported_peak_gib[case], everything.peak_gib[case])
    ]
    assert written == [f"{each:.2f}" for each in wanted]
    assert left.patches[0].get_height() == 11.76


def test_both_send_the_same_bytes(memory):
    assert a05.volume_ratio(memory) == pytest.approx(1, rel=1e-4)
    sent = memory[memory.row == "volume"].set_index(["case", "collective"]).bytes
    count = memory.parameters.iloc[0]
    assert sent["reshard", "everything"] == 7 / 8 * 8 * count
    assert sent["no reshard", "everything"] == 7 / 8 * 6 * count
    assert sent["DDP", "broadcast"] == 2 * 4 * 256**2
