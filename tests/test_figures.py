"""The figures: the look's own promises, and each script on the rows of its experiment (warnings are errors)."""

import runpy
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.patches import FancyArrowPatch

from fivedim.articles import a02_allreduce as a02
from fivedim.articles import a02_links, a03_ddp, a03_exposed, a04_times, a05_times
from fivedim.evidence import style

ROOT = Path(__file__).parents[1]


def draw(out, values):
    fig = style.figure("column", height=1.5)
    axes = fig.subplots()
    axes.plot(values, label="$2(N-1)/N$")
    axes.legend()
    style.save(fig, out)
    return out.read_bytes(), out.with_suffix(".png").read_bytes()


def test_the_same_data_give_the_same_bytes_and_other_data_do_not(tmp_path):
    first = draw(tmp_path / "a.pdf", [1, 2, 3])
    assert draw(tmp_path / "again/a.pdf", [1, 2, 3]) == first
    other = draw(tmp_path / "b.pdf", [1, 2, 4])
    assert other[0] != first[0]
    assert other[1] != first[1]


def test_fonts_are_embedded_as_truetype(tmp_path):
    pdf, _ = draw(tmp_path / "a.pdf", [1, 2])
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


def test_a_width_that_the_paper_does_not_have_is_refused():
    with pytest.raises(KeyError, match="poster"):
        style.figure("poster")


def figure_of(name, rows, out, *more):
    """Run a figure's own drawing on rows (of one experiment or more); returns the figure, saved to `out`."""
    fig = runpy.run_path(str(ROOT / f"figures/{name}.py"))["draw"](*map(pd.DataFrame, (rows, *more)))
    style.save(fig, out)
    return fig


def test_ring_steps_draws_an_arrow_for_every_message(tmp_path):
    rows = a02.ring_schedule(a02.RingScheduleConfig(group_size=4))
    fig = figure_of("ring_steps", rows, tmp_path / "ring_steps.pdf")
    received = [row for row in rows if row["action"]]
    closing = [row for row in received if row["rank"] < row["received_from"]]  # drawn in two halves
    arrows = [patch for axis in fig.axes for patch in axis.patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == len(received) + len(closing) == 24 + 6
    assert [axis.get_title() for axis in fig.axes][:2] == ["start", "reduce-scatter, round 1"]


def test_a_script_reads_the_results_of_a_scale_and_writes_pdf_and_png(tmp_path, monkeypatch):
    rows = a02.ring_schedule(a02.RingScheduleConfig(group_size=3))
    figure_of("ring_steps", rows, tmp_path / "expected.pdf")
    pd.DataFrame(rows).to_csv(tmp_path / "ring_schedule.csv", index=False)
    out = tmp_path / "new/ring_steps.pdf"
    monkeypatch.setattr("sys.argv", ["ring_steps.py", "--results", str(tmp_path), "--out", str(out)])
    runpy.run_path(str(ROOT / "figures/ring_steps.py"), run_name="__main__")
    assert out.read_bytes() == (tmp_path / "expected.pdf").read_bytes()
    assert out.with_suffix(".png").is_file()


def test_reported_curves_draws_every_reported_point(tmp_path):
    rows = a02.alpha_beta_fit(a02.AlphaBetaFitConfig())
    fig = figure_of("reported_curves", rows, tmp_path / "reported_curves.pdf")
    drawn = [line for axis in fig.axes for line in axis.lines if line.get_linestyle() == "None"]
    assert sum(len(line.get_xdata()) for line in drawn) == 2 * 3 * 6 * 6
    assert "reported" in fig.axes[0].get_ylabel()


def test_volumes_draws_what_was_counted_and_not_the_formula(tmp_path):
    rows = a02.allreduce_bound(a02.AllreduceBoundConfig(group_sizes=tuple(range(1, 9)), size=840))
    elsewhere = ("broadcast", "reduce", "scatter", "gather", "all_gather", "reduce_scatter", "all_to_all")
    others = [rows[0] | {"collective": name, "algorithm": "ring"} for name in elsewhere]
    rows[-1] |= {"algorithm": "rooted", "busiest": 5.5}
    fig = figure_of("volumes", rows + others, tmp_path / "volumes.pdf")
    counted = {value for line in fig.axes[-1].lines if line.get_marker() == "X" for value in line.get_ydata()}
    assert 5.5 in counted
    assert 7 not in counted


def test_ledger_draws_what_was_counted_and_marks_the_formula(tmp_path):
    kinds = {"parameters": 2, "gradients": 2, "master": 4, "exp_avg": 4, "exp_avg_sq": 5}  # not the formula's 4
    row = {"gradients": "bfloat16", "dtype": "any", "parameters": 10}
    rows = {
        model: pd.DataFrame(
            row | {"model": model, "kind": kind, "bytes": 10 * size, "formula": 10 * min(size, 4)}
            for kind, size in kinds.items()
        )
        for model in ("tiny", "774M", "7B")
    }
    card = pd.DataFrame([{"card_gib": 96}])
    draw = runpy.run_path(str(ROOT / "figures/ledger.py"))["draw"]
    fig = draw(rows["tiny"], pd.concat([rows["774M"], rows["7B"]]), card)
    style.save(fig, tmp_path / "ledger.pdf")
    left = fig.axes[0]
    assert [bar.get_height() for bar in left.patches] == 3 * list(kinds.values())
    marks = [segment[0][1] for segment in left.collections[0].get_segments()]
    assert marks == [2, 4, 8, 12, 16]
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["tiny\ncounted", "774M\nrehearsed", "7B\nrehearsed"]


def test_three_ledgers_draws_what_was_counted(tmp_path):
    rows = [
        {"row": "state", "stage": stage, "ranks": ranks, "kind": kind, "per_parameter": size}
        for stage in range(4)
        for ranks in (1, 2)
        for kind, size in (("master", 4 + stage), ("gradients", ranks))
    ]
    (axis,) = figure_of("three_ledgers", rows, tmp_path / "three_ledgers.pdf").axes
    points = [list(line.get_ydata()) for line in axis.lines if line.get_marker() != "None"]
    assert points == [[5 + stage, 6 + stage] for stage in range(4)]
    assert [text.get_text() for text in axis.texts] == ["16", "4.19", "2.22", "0.25"]


def test_plateaus_draws_every_reported_bandwidth_and_model(tmp_path):
    rows = a02_links.link_models(a02_links.LinkModelsConfig(joints=(50, 100)))
    share = {"median_busbw": 0.5, "low_busbw": 0.4, "high_busbw": 0.6}
    emulated = [
        {"budget": budget, "slow_joint": False, "collective": collective, "ranks": 8, **share}
        for budget in a02_links.BUDGETS
        for collective in ("all_reduce", "scatter")
    ]
    fig = figure_of("plateaus", rows, tmp_path / "plateaus.pdf", emulated)
    bars = [patch.get_height() for axis in fig.axes for patch in axis.patches]
    assert sorted(bars) == sorted(row["reported_gb_s"] for row in rows if row["row"] == "plateau")[::6]
    marks = [value for axis in fig.axes for line in axis.lines for value in line.get_ydata()]
    assert len(marks) == 4 * (18 + 2) + len(emulated)
    rate = next(row["rate_gb_s"] for row in rows if row["row"] == "model" and row["budget"] == "hairpin")
    assert marks.count(0.5 * rate) >= 2
    fig = figure_of("plateaus", rows, tmp_path / "none.pdf", [{"unavailable": "no namespaces"}])
    assert sum(len(line.get_ydata()) for axis in fig.axes for line in axis.lines) == 4 * (18 + 2)


CASES = [
    ("one GPU", None, 1.0, None),
    ("cap 1", 1.0, 1.25, 1.2),
    ("cap 500", 500.0, 1.5, 1.4),
    ("other", 25.0, 1.1, None),
]
EMULATED = [
    {"row": "case", "name": name, "cap_mib": cap, "ratio": ratio, "reported_ratio": reported}
    | {"seconds": 2 * ratio, "low_s": 2 * ratio - 0.1, "high_s": 2 * ratio + 0.2}
    for name, cap, ratio, reported in CASES
] + [
    {"row": "span", "rank": rank, "lane": lane, "name": name, "start": start, "end": end}
    for rank in (0, 7)
    for lane, name, start, end in [
        ("communication", "broadcast", 0.0, 0.1),
        ("compute", "forward", 0.1, 1.0),
        ("compute", "backward", 1.0, 2.0),
        ("communication", "allreduce", 1.5, 1.8),
        ("communication", "allreduce", 1.6, 2.4),
        ("compute", "optimizer", 2.4, 2.5),
    ]
]


def test_bucket_curve_draws_reported_predicted_and_emulated_and_stacks_what_is_exposed(tmp_path):
    rows = pd.DataFrame(a03_ddp.bucket_sweep_predicted(a03_ddp.BucketSweepPredictedConfig()))
    points = rows[rows.row == "point"]
    curve, parts = figure_of("bucket_curve", rows, tmp_path / "bucket_curve.pdf", EMULATED).axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in curve.lines}
    assert drawn["reported"] == pytest.approx(list(points.reported_ms / 122.18))
    assert drawn["predicted"] == pytest.approx(list(points.predicted_ms / 122.18))
    assert list(curve.containers[0].lines[0].get_ydata()) == [1.25, 1.5]
    none = figure_of("bucket_curve", rows, tmp_path / "none.pdf", [{"unavailable": "no namespaces"}])
    assert not none.axes[0].containers
    assert sum(bar.get_height() for bar in parts.patches) == pytest.approx(points.exposed_ms.sum(), abs=0.1)


def test_timeline_draws_every_span_once_and_no_collective_before_the_one_before_it_ended(tmp_path):
    (axis,) = figure_of("timeline", EMULATED, tmp_path / "timeline.pdf").axes
    bars = [path.get_extents() for drawn in axis.collections for path in drawn.get_paths()]
    assert len(bars) == 12
    last = max((bar for bar in bars if round(bar.y0 + 0.4) == 1), key=lambda bar: bar.x1)
    assert (last.x0, last.x1) == pytest.approx((1.8 / 2, 2.4 / 2))


def test_waterfall_ends_where_the_reported_step_does(tmp_path):
    rows = pd.DataFrame(a03_exposed.exposed_time_predicted(a03_exposed.ExposedTimePredictedConfig()))
    (axis,) = figure_of("waterfall", rows, tmp_path / "waterfall.pdf").axes
    *_, last, whole = axis.patches
    assert last.get_x() + last.get_width() == pytest.approx(whole.get_width()) == 147.12


def test_step_times_stacks_what_is_predicted_under_what_is_reported(tmp_path, monkeypatch):
    for module in (a04_times, a05_times):
        monkeypatch.setattr(module, "ranges", lambda constants, predict, holds: [])
    zero = pd.DataFrame(a04_times.zero_times_predicted(a04_times.ZeroTimesPredictedConfig()))
    fsdp = pd.DataFrame(a05_times.fsdp_times_predicted(a05_times.FsdpTimesPredictedConfig()))
    (axis,) = figure_of("step_times", zero, tmp_path / "step_times.pdf", fsdp).axes
    tops = [bar.get_y() + bar.get_height() for bar in axis.patches[-7:]]
    predicted = [*zero[zero.row == "stage"].predicted_ms, *fsdp[fsdp.row == "mode"].predicted_ms]
    assert tops == pytest.approx(predicted)
    assert list(axis.lines[0].get_ydata()) == [360.0, 343.5, 342.7, 275.7, 477.1, 337.9, 273.2]


def ring_points():
    where = {"row": "point", "collective": "all_reduce", "dilation": 4000.0}
    for n in (2, 8):
        for latency, size in ((0.016, 4096), (0.0, 2**20), (0.0, 2**21)):
            seconds = 2 * (n - 1) * (size / n / 1e7 + latency)
            stated = {"median_s": 1.05 * seconds, "low_s": seconds, "high_s": 1.2 * seconds, "formula_s": seconds}
            yield {**where, "ranks": n, "bytes": size, "latency_s": latency, **stated}


def test_time_against_size_fits_what_the_points_say(tmp_path):
    fig = figure_of("time_against_size", [*ring_points()], tmp_path / "time_against_size.pdf")
    small, large = ([text.get_text() for text in axis.get_legend().get_texts()] for axis in fig.axes)
    assert large[1:] == ["N = 2: 38.1 GB/s", "N = 8: 38.1 GB/s"]  # 10 MB/s, 4000 times as fast, and 5% short of it
    assert small[2].startswith("N = 8: 4.2")


def test_time_against_size_without_a_fabric_says_why(tmp_path):
    fig = figure_of("time_against_size", [{"unavailable": "no namespaces"}], tmp_path / "none.pdf")
    assert fig.texts[0].get_text() == "not testable here: no namespaces"


def test_deepspeed_ledger_stacks_the_terms_and_marks_what_is_reported(tmp_path):
    libraries = ["torch DDP", "FSDP2", *(f"DeepSpeed {stage}" for stage in range(4))]
    terms = {"parameters": 1024.0, "gradient buckets": 512.0, "buffers": 144.0, "workspaces": 16.0}
    rows = [
        {"row": "term", "library": library, "term": term, "mib": mib}
        for library in libraries
        for term, mib in terms.items()
    ]
    whole = {"reported_gib": 2.5, "theory_gib": 1.5, "open_mib": 864.0}
    rows += [{"row": "explained", "library": library, **whole} for library in libraries]
    fig = figure_of("deepspeed_ledger", rows, tmp_path / "deepspeed_ledger.pdf")
    bars = [bar for axis in fig.axes for bar in axis.patches]
    assert sum(bar.get_width() for bar in bars) == pytest.approx(6 * sum(terms.values()) / 1024)
    ends = [max(bar.get_x() + bar.get_width() for bar in axis.patches) for axis in fig.axes]
    assert ends == pytest.approx([sum(terms.values()) / 1024] * 2)
    assert [list(line.get_xdata()) for axis in fig.axes for line in axis.lines] == [[2.5]] * 6
    none = figure_of("deepspeed_ledger", [{"unavailable": "no DeepSpeed"}], tmp_path / "none.pdf")
    assert none.texts[0].get_text() == "not testable here: no DeepSpeed"
