import json

import pytest

from fivedim.evidence import audit, commands, manifest
from fivedim.lab import spec
from tests.evidence import project

COUNT = {
    "name": "equal",
    "where": {"equal": True},
    "column": "units",
    "reduce": "count",
    "expected": 2,
    "tolerance": {"abs": 0},
}
RANKS = {
    "name": "wide",
    "where": {"ranks": [8]},
    "column": "units",
    "reduce": "max",
    "expected": 1.75,
    "tolerance": {"abs": 0},
}


@pytest.fixture
def root(tmp_path, monkeypatch, request):
    """A project whose tables are written; its experiment's key is what its result says. A parameter gives its rows."""
    root = project.write(tmp_path, [project.claim(parts=[COUNT, RANKS])], getattr(request, "param", project.ROWS))
    monkeypatch.chdir(root)
    monkeypatch.setattr(spec, "resolve", lambda *_: type("Spec", (), {"key": "0" * 16}))
    commands.judge("smoke")
    commands.tables("smoke")
    return root


def faults(root):
    return audit.differences(root, "smoke", commands.derive)


@pytest.mark.parametrize("root", [project.ROWS, [{"unavailable": "no user namespaces"}]], indirect=True)
def test_what_was_built_passes_also_where_an_instrument_was_missing(root):
    assert faults(root) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("results/smoke/claims.csv", "holds,", "holds in shape,", "verdict is 'holds in shape'"),
        ("results/smoke/claims.csv", ",1.75,S", ",1.76,S", "value is '1.76'"),
        ("results/smoke/claims_parts.csv", "equal,,2,2", "equal,,2,3", "equal: value is '3'"),
        ("results/smoke/volumes.csv", "1.75", "1.76", "volumes.csv: is not the file"),
        ("results/smoke/volumes.json", '"schema": 1', '"schema": 0', "schema is 0, not 1"),
        ("results/smoke/volumes.json", '"key": "00', '"key": "01', "has key 01"),
        ("paper/generated/numbers.tex", "1.75", "1.76", "numbers.tex: is not what the results give"),
        ("paper/generated/claims_a02.tex", "holds", "fails", "claims_a02.tex: is not what"),
    ],
)
def test_any_edit_is_named(root, name, old, new, words):
    path = root / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    assert any(words in fault for fault in faults(root))


def test_a_row_too_many_or_too_few_is_named(root):
    path = root / "results/smoke/claims.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[-1]]))
    assert "2 rows where the results give 1" in faults(root)[0]


def test_an_edited_result_with_a_forged_checksum_is_caught_by_the_tables(root):
    path = root / "results/smoke/volumes.csv"
    path.write_text(path.read_text().replace("1.75", "1.8"))
    project.described(path)
    assert any("value is '1.75' where the results give '1.8'" in fault for fault in faults(root))


@pytest.mark.parametrize(
    ("number", "printed"),
    [("1.75", "is 1.75 S"), ("1.75", "is 1.75."), ("1238630400", "1,238,630,400 B"),
     ("1238630400", "1\u2009238\u2009630\u2009400 B"),
     ("-3", "gave −3"), ("4.2e+22", "4.2 × 1022"), ("1.5e-05", "1.5 × 10−5")],
)  # fmt: skip
def test_a_printed_number_is_found(number, printed):
    assert audit.re.search(audit.pattern(number), printed)


@pytest.mark.parametrize("printed", ["is 11.75", "is 1.753", "is 1.7", "is 21.75 S"])
def test_another_number_is_not_taken_for_it(printed):
    assert not audit.re.search(audit.pattern("1.75"), printed)


def test_F08_verify_names_an_edited_and_a_missing_file(root):
    built = [root / "results/smoke/volumes.csv", root / "paper/generated/numbers.tex"]
    manifest.write(root, "smoke", built)
    assert manifest.differences(root, "smoke") == []
    assert json.loads((root / "results/smoke/manifest.json").read_text())["scale"] == "smoke"
    built[1].write_text("edited")
    assert manifest.differences(root, "smoke") == [
        "paper/generated/numbers.tex: was changed after it was built: delete it and run snakemake"
    ]
    built[1].unlink()
    assert "is gone" in manifest.differences(root, "smoke")[0]
