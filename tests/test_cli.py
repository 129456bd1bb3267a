"""The command line: usage errors in one line with status 2, and a launcher that never imports torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fivedim import cli
from fivedim.lab import loc
from tests.conftest import IMPORTS, Project

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "sums"], "scale laptop: unknown; use one of smoke"),
        (["run", "nothing", "--scale", "smoke"], "experiment nothing: unknown; use one of sums"),
        (
            ["run", "sums", "--scale", "smoke", "--executor", "cloud"],
            "'cloud' is not one of 'local', 'slurm', 'inline'",
        ),
        (["run"], "Missing parameter: experiment"),
        (["rum"], "No such command 'rum'"),
        (["run", "sums", "--scales", "smoke"], "No such option: --scales"),
    ],
)
def test_F28_bad_usage_is_one_line_and_status_2(
    project: Project, monkeypatch, capsys, arguments: list[str], words: str
):
    project.experiment("sums")
    monkeypatch.chdir(project.root)
    assert cli.status_of(arguments) == 2
    errors = capsys.readouterr().err
    assert words in errors
    assert errors.startswith("fivedim: ")
    assert errors.count("\n") == 1
    assert not (project.root / "runs").exists()


@pytest.mark.parametrize("entry", [{"ranks": 0}, {"rank": 2}, {"params": {"size": 1}}])
def test_F28_bad_configuration_starts_nothing(project: Project, entry: dict):
    project.experiment("sums", **entry)
    status, errors = project.run_inline("sums")
    assert (status, errors.count("\n")) == (2, 1)
    assert not (project.root / "runs").exists()


def test_outside_a_project_is_one_line(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.status_of(["status"]) == 2
    assert "run inside the folder that holds the Snakefile" in capsys.readouterr().err


def test_slurm_without_its_tools_is_one_line(project: Project):
    project.experiment("sums")
    status, errors = project.run("sums", "--executor", "slurm", PATH=os.path.dirname(sys.executable))
    assert (status, errors.count("\n")) == (2, 1)
    assert "srun is not on PATH" in errors


def test_status_lists_the_runs(project: Project):
    project.experiment("sums", ranks=1)
    assert project.run_inline("sums")[0] == 0
    project.experiment("values", params={"value": "nan"})
    assert project.run_inline("values")[0] == 1
    table = project.start("status", COLUMNS="200").communicate()[0]
    assert [word in table for word in ("sums", "done", "values", "failed: rank 0: UserError: column bad: nan")] == [
        True
    ] * 4


def test_the_launcher_imports_no_torch():
    code = "import sys; from fivedim import cli; from fivedim.lab import launch, loc; sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(IMPORTS)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_sizes_stand_beside_the_published_ones(monkeypatch):
    monkeypatch.setattr(loc, "rooms", lambda: {"comm": 5, "cli": 7})
    comm, cli = loc.sizes(ROOT)
    assert (comm["lines"], comm["smallest"], comm["budget"]) == (5, "81", "160")
    assert (cli["lines"], cli["smallest"], cli["budget"]) == (7, "", "")


def test_sizes_are_printed():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(IMPORTS), "COLUMNS": "200"}
    command = [sys.executable, "-m", "fivedim.lab.loc"]
    printed = subprocess.run(command, check=True, env=environment, cwd=ROOT, capture_output=True, text=True).stdout
    assert " lab " in printed


def test_the_doctor_says_what_works_and_what_would_help(monkeypatch, capsys):
    from fivedim.lab import doctor

    missing = "no network namespaces here"
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(doctor.fabric, "unavailable", lambda: missing)
    assert cli.status_of(["doctor"]) == 0
    lines = {line.split("│")[1].strip(): line for line in capsys.readouterr().out.splitlines() if "│" in line}
    assert missing in lines["shaped links (fabric)"]
    assert "sch_tbf" in lines["shaped links (fabric)"]
    assert "unshare is not on PATH" in lines["network namespaces (fabric)"]
    assert "--executor local" in lines["Slurm (--executor slurm)"]
    assert " yes " in lines["memory"]
