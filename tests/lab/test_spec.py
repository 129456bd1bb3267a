"""Specs: what is in the key and what is not, and the one-line errors for bad configuration."""

import subprocess
import sys

import pytest

from fivedim.errors import UserError
from fivedim.lab import fingerprint, spec
from tests.conftest import Project


def resolve(project: Project) -> spec.Spec:
    return spec.resolve(project.root, "sums", "smoke")


def scale(project: Project, **override) -> None:
    project.write("configs/scales/smoke.yaml", {"description": "small", "experiments": {"sums": override}})


def test_params_are_defaults_then_entry_then_scale(project: Project):
    project.experiment("sums", params={"sizes": [4], "seed": 7})
    scale(project, sizes=[5, 6])
    assert resolve(project).params == {"sizes": [5, 6], "seed": 7}


def test_scale_takes_ranks_and_nodes(project: Project):
    project.experiment("sums", ranks=2)
    scale(project, ranks=6, nodes=3)
    assert (resolve(project).ranks, resolve(project).nodes) == (6, 3)


def test_key_ignores_title_limits_and_scale_name(project: Project):
    project.experiment("sums", ranks=2)
    before = resolve(project).key
    project.experiment("sums", ranks=2, title="another", minutes=9, timeout=3)
    (project.root / "configs/scales/smoke.yaml").rename(project.root / "configs/scales/large.yaml")
    assert spec.resolve(project.root, "sums", "large").key == before


@pytest.mark.parametrize("change", [{"ranks": 3}, {"nodes": 2}, {"timing": True}, {"params": {"seed": 1}}])
def test_key_follows_what_the_result_depends_on(project: Project, change: dict):
    project.experiment("sums", ranks=2)
    before = resolve(project).key
    project.experiment("sums", **{"ranks": 2} | change)
    assert resolve(project).key != before


def test_key_follows_declared_sources_only(project: Project, tmp_path, monkeypatch):
    package = tmp_path / "package"
    for room in ("comm", "model", "lab"):
        (package / room).mkdir(parents=True)
        (package / room / "code.py").write_text("1")
    monkeypatch.setattr(fingerprint, "PACKAGE", package)
    (project.root / "table.csv").write_text("a")
    project.experiment("sums", rooms=["comm"], data=["table.csv"])
    keys = [resolve(project).key]
    for file in (
        package / "comm/code.py",
        package / "lab/meter.py",
        project.root / "requirements.lock",
        project.root / "table.csv",
    ):
        file.write_text("2")
        keys.append(resolve(project).key)
    assert len(set(keys)) == len(keys)
    (package / "model/code.py").write_text("2")
    assert resolve(project).key == keys[-1]


BAD = {
    "ranks": ({"ranks": 0}, "experiments.yaml: sums.ranks: input should be greater than or equal to 1, got 0"),
    "key": ({"rank": 2}, "experiments.yaml: sums.rank: unknown key; allowed here: module, title, ranks"),
    "param": ({"params": {"size": 2}}, "sums.params.size: unknown key; allowed here: sizes, seed"),
    "value": ({"params": {"sizes": "x"}}, "sums.params.sizes: input should be a valid list, got 'x'"),
    "room": ({"rooms": ["kitchen"]}, "rooms: kitchen: no such room"),
    "data": ({"data": ["none.csv"]}, "data: none.csv: no such file"),
    "module": ({"module": "a99_none"}, "module fivedim.articles.a99_none: no such module"),
    "module path": ({"module": "tests.nowhere.none"}, "module tests.nowhere.none: no such module"),
    "nodes": ({"ranks": 3, "nodes": 2}, "3 ranks on 2 nodes"),
    "instrument": ({"instrument": "ruler"}, "sums.instrument: input should be 'meter', 'rehearsal'"),
}


@pytest.mark.parametrize(("entry", "words"), BAD.values(), ids=BAD)
def test_F28_bad_experiment_is_one_line(project: Project, entry: dict, words: str):
    project.experiment("sums", **entry)
    with pytest.raises(UserError) as caught:
        resolve(project)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.code == 2


def test_F28_bad_scale_is_one_line(project: Project):
    project.experiment("sums")
    for name, override, words in [
        ("smoke", {"sums": {"ranks": 0}}, "smoke.yaml: experiments.sums.ranks: input should be greater"),
        (
            "smoke",
            {"sums": {"colour": 1}},
            "smoke.yaml: experiments.sums.colour: unknown key; allowed here: sizes, seed",
        ),
        ("smoke", {"sum": {}}, "experiments.sum: no such experiment"),
        ("huge", {}, "scale huge: unknown; use one of smoke"),
    ]:
        project.write("configs/scales/smoke.yaml", {"description": "x", "experiments": override})
        with pytest.raises(UserError, match=words):
            spec.resolve(project.root, "sums", name)


def test_F28_unknown_experiment_and_function(project: Project):
    project.experiment("nothing")
    with pytest.raises(UserError, match="experiment sums: unknown; use one of nothing"):
        resolve(project)
    with pytest.raises(UserError, match="has no function nothing"):
        spec.resolve(project.root, "nothing", "smoke")


def test_resolving_imports_no_torch(project: Project):
    project.experiment("sums")
    code = (
        "import sys, pathlib; from fivedim.lab import spec; spec.resolve(pathlib.Path(sys.argv[1]), 'sums', 'smoke'); "
    )
    code += "sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, str(project.root)], check=True)
