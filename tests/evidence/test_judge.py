import pytest

from fivedim.errors import UserError
from fivedim.evidence import claims, judge, results
from tests.evidence import project


def judged(tmp_path, *entries, rows=project.ROWS, derive=None):
    root = project.write(tmp_path, list(entries), rows)
    declared = claims.read(root)
    found = results.load_all(root, "smoke", claims.experiments(declared))
    return judge.judge(declared, found, derive or (lambda experiment, name: None))


def headline(tmp_path, more=None, rows=project.ROWS, derive=None, **evidence):
    return judged(tmp_path, project.claim(more, **evidence), rows=rows, derive=derive)[0][0]


BAND = {"abs": 0.1, "shape": {"rel": 0.5}}


@pytest.mark.parametrize(
    ("reported", "verdict"),
    [(1.75, "holds"), (1.85, "holds"), (1.5, "holds in shape"),
     (3.4, "holds in shape"), (3.6, "refuted as stated"), (0.5, "refuted as stated")],
)  # fmt: skip
def test_the_verdict_follows_from_value_and_tolerance(tmp_path, reported, verdict):
    row = headline(tmp_path, {"reported": reported, "tolerance": BAND})
    assert (row["value"], row["verdict"]) == ("1.75", verdict)
    assert "1.75 against" in row["why"]


def test_expected_decides_where_nothing_is_reported(tmp_path):
    assert headline(tmp_path, {"reported": None, "expected": 2})["verdict"] == "refuted as stated"
    assert headline(tmp_path, {"reported": 1.75, "expected": 2})["verdict"] == "holds"


def test_a_missing_instrument_is_not_testable_here_and_says_why(tmp_path):
    row = headline(tmp_path, rows=[{"unavailable": "no user namespaces"}])
    assert (row["value"], row["verdict"]) == ("", "not testable here")
    assert "no user namespaces" in row["why"]
    mixed = [*project.ROWS[1:], {"op": "all_reduce", "ranks": 8, "unavailable": "needs 8 cores"}]
    assert "needs 8 cores" in headline(tmp_path, rows=mixed)["why"]
    assert headline(tmp_path, {"where": {"ranks": 4}, "reported": 1.5}, rows=mixed)["verdict"] == "holds"


@pytest.mark.parametrize(
    ("where", "reduce", "value"),
    [
        ({}, "sum", "3.375"), ({}, "mean", "1.125"), ({}, "median", "1.5"), ({}, "min", "0.125"), ({}, "max", "1.75"),
        ({"ranks": [4, 8], "op": "all_reduce"}, "count", "2"), ({"op": "broadcast"}, "count", "0"),
        ({"equal": True}, "count", "2"), ({"bytes": 1536}, "only", "1.5"), ({}, "max_abs", "1.75"),
    ],
)  # fmt: skip
def test_a_quantity_is_read_off_the_rows(tmp_path, where, reduce, value):
    assert headline(tmp_path, {"where": where, "reduce": reduce})["value"] == value


def test_max_abs_and_all(tmp_path):
    rows = [{"error": -3.0, "equal": True}, {"error": 2.0, "equal": False}]
    assert headline(tmp_path, {"where": {}, "column": "error", "reduce": "max_abs"}, rows)["value"] == "3"
    assert headline(tmp_path, {"where": {}, "column": "equal", "reduce": "all"}, rows)["value"] == "0"
    assert headline(tmp_path, {"where": {"equal": True}, "column": "equal", "reduce": "all"}, rows)["value"] == "1"


def test_derive_calls_the_articles_function_on_the_chosen_rows(tmp_path):
    asked = []

    def derive(experiment, name):
        asked.append((experiment, name))
        return lambda rows: rows["bytes"].sum() / 8

    more = {"column": None, "reduce": None, "derive": "share", "where": {"op": "all_reduce"}}
    assert headline(tmp_path, more, derive=derive)["value"] == "416"
    assert asked == [("volumes", "share")]


def test_the_worst_deciding_part_decides_and_is_named(tmp_path):
    gather = {"name": "gather", "where": {"op": "gather"}, "column": "units", "reduce": "only", "tolerance": {"abs": 0}}
    wrong = gather | {"reported": 0.25}
    instead = "It is {value} where {reported:.1f} was said"
    heads, parts = judged(tmp_path, project.claim(parts=[wrong], instead=instead))
    assert heads[0]["verdict"] == parts[0]["verdict"] == "refuted as stated"
    assert heads[0]["why"] == "gather: 0.125 against 0.25 reported, outside abs 0. It is 1.75 where 1.8 was said"
    heads, parts = judged(tmp_path, project.claim(parts=[wrong | {"decides": False}]))
    assert (heads[0]["verdict"], parts[0]["verdict"]) == ("holds", "refuted as stated")
    heads, parts = judged(tmp_path, project.claim(parts=[gather | {"decides": False, "tolerance": None}]))
    assert (heads[0]["verdict"], parts[0]["verdict"], parts[0]["value"]) == ("holds", "", "0.125")


def test_the_rows_have_the_contracts_columns(tmp_path):
    heads, parts = judged(tmp_path, project.claim(parts=[project.HEADLINE]))
    assert tuple(heads[0]) == judge.HEADLINE_COLUMNS
    assert tuple(parts[0]) == judge.PART_COLUMNS
    assert heads[0]["seconds"] == "1.5"


@pytest.mark.parametrize(
    ("more", "rows", "words"),
    [
        ({"column": "unit"}, project.ROWS, ["no column 'unit'", "there are op, ranks, units"]),
        ({"where": {"opp": "gather"}}, project.ROWS, ["no column 'opp'"]),
        ({"where": {"op": "broadcast"}}, project.ROWS, ["no row has", "broadcast"]),
        ({"where": {"op": "all_reduce"}}, project.ROWS, ["2 rows where `only` wants one", "'units'"]),
        ({"where": {}, "reduce": "max"}, [{"units": 1.0}, {"other": 2}], ["'units'", "empty or NaN"]),
        ({"where": {}, "reduce": "max"}, [{"units": "nan"}, {"units": 2}], ["'units'", "empty or NaN"]),
        ({"where": {}, "reduce": "max"}, [{"units": "inf"}, {"units": 2}], ["'units'", "inf"]),
        ({"where": {}, "reduce": "max"}, [{"units": "many"}], ["'units'", "'many' is not a number"]),
    ],
)
def test_rows_that_do_not_answer_are_named(tmp_path, more, rows, words):
    with pytest.raises(UserError) as caught:
        headline(tmp_path, more, rows)
    assert all(word in str(caught.value) for word in ["volumes.csv", "claim 2.2", "'all-reduce at N=8'", *words])
    assert "\n" not in str(caught.value)


def test_a_nan_from_derive_is_refused(tmp_path):
    more = {"column": None, "reduce": None, "derive": "share"}
    with pytest.raises(UserError, match=r"share\(\): a cell is empty or NaN"):
        headline(tmp_path, more, derive=lambda experiment, name: lambda rows: float("nan"))


def test_an_edited_result_is_refused(tmp_path):
    root = project.write(tmp_path, [project.claim()])
    path = root / "results/smoke/volumes.csv"
    path.write_text(path.read_text().replace("1.75", "1.8"))
    with pytest.raises(UserError, match=r"volumes\.csv: is not the file that its JSON describes"):
        results.load(root, "smoke", "volumes")
    path.unlink()
    with pytest.raises(UserError, match=r"volumes\.csv: no such result"):
        results.load(root, "smoke", "volumes")


def test_a_value_survives_the_csv_to_the_last_bit(tmp_path):
    value = 0.1 + 0.2
    assert float(headline(tmp_path, {"where": {}}, [{"units": value}])["value"]) == value
    assert headline(tmp_path, {"where": {}}, [{"units": 1238630400}])["value"] == "1238630400"
