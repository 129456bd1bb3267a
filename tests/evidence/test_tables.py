import csv
import io

import pytest
from rich.console import Console

from fivedim.evidence import claims, judge, latex, results, tables
from tests.evidence import project

SIZES = [
    {"room": "lab", "technique": "", "lines": 500, "budget": "", "smallest": "", "large": ""},
    {"room": "mesh", "technique": "device mesh", "lines": 50, "budget": "60", "smallest": "47",
     "smallest_source": "picotron", "large": "2199", "large_source": "PyTorch"},
]  # fmt: skip
PART = project.HEADLINE | {"name": "gather_root", "where": {"op": "gather"}, "reported": None, "expected": 1 / 3}


@pytest.fixture
def rows(tmp_path):
    entries = [
        project.claim(parts=[PART]) | {"statement": "50% of S_total & <more> | #1", "conditions": "N = 8"},
        project.claim({"reported": 1.0}) | {"id": "10.1", "article": 10},
    ]
    entries[1]["evidence"]["measured"] = entries[1]["evidence"]["exact"]
    root = project.write(tmp_path, entries)
    declared = claims.read(root)
    found = results.load_all(root, "smoke", ["volumes"])
    computed = judge.judge(declared, found, None)
    written = [
        tables.to_csv(*pair) for pair in zip(computed, (judge.HEADLINE_COLUMNS, judge.PART_COLUMNS), strict=True)
    ]
    return declared, *(list(csv.DictReader(io.StringIO(text))) for text in written), [found["volumes"].provenance]


def test_the_documents_are_deterministic_and_one_an_article(rows):
    declared, headlines, parts, provenance = rows
    files = latex.documents(declared, headlines, parts, "smoke", provenance, SIZES)
    assert {"claims_a02.tex", "claims_a10.tex", "numbers.tex", "parts.tex", "summary.tex", "provenance.tex"} <= set(
        files
    )
    assert files == latex.documents(declared, headlines, parts, "smoke", provenance, SIZES)


def test_the_claims_table_escapes_rounds_and_names_a_claim_once(rows):
    files = latex.documents(*rows[:3], "smoke", rows[3], SIZES)
    assert r"2.2 & 50\% of S\_total \& \textless{}more\textgreater{} \textbar{} \#1 & " in files["claims_a02.tex"]
    assert (
        r" & all-reduce at N=8 [S] & \textit{exact} & \num{1.75} & \num{1.75} & \num{1.75}" in files["claims_a02.tex"]
    )
    assert r"2.2 & N = 8 & " in files["parts.tex"]
    assert files["claims_a10.tex"].count("10.1 &") == 1
    assert files["claims_a10.tex"].count("refuted as stated") == 2
    why = r" & \textit{all-reduce at N=8: 1.75 against 1 reported, outside abs 0} &  &  &  &  &  &  \\"
    assert files["claims_a10.tex"].count(why) == 2
    told = r"gather\_root [S] & \textit{exact} & -- & \num{0.3333} & \num{0.125} & \num{0} & refuted as stated"
    assert told in files["parts.tex"]


def test_every_number_has_a_key_and_only_what_is_given(rows):
    text = latex.documents(*rows[:3], "smoke", rows[3], SIZES)["numbers.tex"]
    assert r"\fivedim@number{2.2/exact/value}{\num{1.75}}" in text
    assert r"\fivedim@number{2.2/exact/gather_root/expected}{\num{0.3333}}" in text
    assert "2.2/exact/gather_root/reported" not in text
    assert r"\fivedim@number{10.1/measured/verdict}{refuted as stated}" in text


def test_the_summary_counts_verdicts_by_evidence(rows):
    text = latex.documents(*rows[:3], "smoke", rows[3], SIZES)["summary.tex"]
    assert r"exact & 0 & 0 & 0 & 2 & 2 \\" in text
    assert r"all & 0 & 0 & 0 & 3 & 3 \\" in text


def test_the_provenance_has_no_seconds_and_lists_what_differs(rows):
    other = rows[3][0] | {"seconds": 99, "executor": "slurm"}
    text = latex.documents(*rows[:3], "smoke", [rows[3][0], other], SIZES)["provenance.tex"]
    assert r"executor & local, slurm \\" in text
    assert r"cpu & a\_cpu \\" in text
    assert r"memory & 16 GiB \\" in text
    assert "99" not in text


def test_the_sizes_of_techniques_stand_beside_the_published_ones(rows):
    text = latex.documents(*rows[:3], "smoke", rows[3], SIZES)["loc.tex"]
    mesh = r"mesh, device mesh & \num{50} & \num{60} & \num{47} (picotron) & \num{2199} (PyTorch) \\"
    assert text.index(mesh) < text.index(r"lab & \num{500} & -- & -- & -- \\")


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("1238630400", "1238630400"),
        ("-3", "-3"),
        ("1.23456", "1.235"),
        ("4.2e+22", "4.2e+22"),
        ("1e-05", "1e-05"),
        ("186745.3", "186745"),
        ("", ""),
    ],
)
def test_numbers_are_rounded_for_the_reader(cell, shown):
    assert tables.rounded(cell) == shown


@pytest.mark.parametrize(
    ("tolerance", "set_as"),
    [
        ("", ""),
        ("abs 0", r"\num{0}"),
        ("rel 0.1; shape rel 0.25", r"\qty{10}{\percent} (\qty{25}{\percent})"),
        ("abs 2 + rel 0.005", r"\num{2} + \qty{0.5}{\percent}"),
    ],
)
def test_a_tolerance_is_set_as_share_or_number(tolerance, set_as):
    assert latex.band(tolerance) == set_as


def test_symbols_and_units_are_set_as_mathematics():
    assert latex.prose("6*Psi*D & more") == r"6$\cdot$$\Psi$$\cdot$D \& more"
    assert latex.with_unit("floor", "us") == r"floor [\textmu{}s]"


def test_markdown_and_terminal_show_every_row(rows):
    lines = tables.markdown(rows[1]).splitlines()
    assert len(lines) == 2 + len(rows[1])
    assert r"\| #1" in lines[2]
    console = Console(file=io.StringIO(), width=160)
    console.print(tables.render(rows[1], "Claims"))
    assert console.file.getvalue().count("refuted as stated") == 3
