"""Launching through the command line: what must hold when a run succeeds, fails, is cancelled or is repeated."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fivedim.lab import spec
from tests.conftest import IMPORTS, Project

pytestmark = pytest.mark.timeout(300)  # seconds each on a quiet machine, minutes on a crowded one


def only(project: Project, pattern: str) -> Path:
    """The one file of the project's only run that matches."""
    (found,) = project.root.glob(f"runs/*/{pattern}")
    return found


def only_run(project: Project) -> Path:
    """The folder of the only run that will be."""
    return project.root / "runs" / spec.resolve(project.root, "waits", "smoke").run


def await_file(path: Path, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


def assert_one_line(errors: str, *words: str) -> None:
    """The error is the last line of stderr; a slow run's news (`RUNNING`) may stand before it."""
    *news, last = errors.splitlines()
    assert all(line.endswith(": RUNNING") for line in news), errors
    assert all(word in last for word in words), errors


def assert_failed(project: Project, outcome: tuple[int, str], words: str, code: int = 1) -> None:
    """A last line that says `words`, before it news of the wait at most; no result; no process left."""
    status, errors = outcome
    assert status == code, errors
    assert_one_line(errors, words)
    assert not project.results()
    assert not project.left()


def test_F33_a_run_on_two_nodes_publishes_rows_and_provenance(project: Project):
    project.experiment("sums", ranks=4, nodes=2, params={"sizes": [3, 5]})
    status, errors = project.run("sums")
    assert status == 0, errors
    assert (project.root / "results/smoke/sums.csv").read_text() == "size,ranks,total\n3,4,30.0\n5,4,50.0\n"
    told = json.loads((project.root / "results/smoke/sums.json").read_text())
    assert (told["ranks"], told["nodes"], told["executor"]) == (4, 2, "local")
    assert told["config"] == {"sizes": [3, 5], "seed": 0}
    assert told["seeds"] == {"seed": 0}
    assert 0 < told["ready"] < told["seconds"]
    assert told["hardware"]["cores"] == len(os.sched_getaffinity(0))
    assert not project.left()
    again, errors = project.run("sums")
    assert (again, "found" in errors) == (0, True)
    assert len(list(project.root.glob("runs/*/attempts/*"))) == 1


@pytest.mark.parametrize(
    ("how", "words"),
    [
        pytest.param("kill", "rank 1: killed (signal 9)", id="F02"),
        pytest.param("stop", "rank 1: stopped (signal 19)", id="F03"),
        pytest.param("hard exit", "rank 1: exited early (status 0)", id="F04"),
        pytest.param("exit", "rank 1: exited early (status 0)", id="F04-exit"),
    ],
)
def test_F02_F03_F04_a_rank_that_ends_without_a_word_is_named(project: Project, how: str, words: str):
    project.experiment("faults", ranks=3, params={"how": how}, timeout=3)
    assert_failed(project, project.run_inline("faults"), f"faults: {words}")
    assert f"the cause: {words}" in only(project, "attempts/1/log.txt").read_text()


def test_F01_a_raising_rank_of_the_second_node_is_named(project: Project):
    project.experiment("faults", ranks=4, nodes=2, params={"how": "raise", "culprit": 3}, timeout=60)
    assert_failed(project, project.run("faults"), "rank 3: ValueError: the seventh seal")
    log = only(project, "attempts/1/log.txt").read_text()
    assert "in raise_it" in log[log.index("the cause: rank 3: ValueError") :]


@pytest.mark.parametrize("value", ["nan", "inf", "list"])
def test_F06_a_value_that_is_no_result_names_its_column(project: Project, value: str):
    project.experiment("values", params={"value": value})
    assert_failed(project, project.run_inline("values"), "column bad: ")


def damage(path: Path, how: str) -> None:
    text = path.read_text()
    data = json.loads(text)
    changes = {"other key": {"key": "0" * 16}, "schema": {"schema": 99}, "rows": {"rows": [{"size": 4}]}}
    path.write_text(
        {"truncated": text[:-40], "empty": ""}.get(how) if how not in changes else json.dumps(data | changes[how])
    )


def test_F07_F25_a_damaged_result_is_named_and_runs_again(project: Project):
    project.experiment("sums")
    assert project.run_inline("sums")[0] == 0
    words = {
        "truncated": "truncated",
        "empty": "empty",
        "other key": "key of another run",
        "schema": "schema 99",
        "rows": "checksum",
    }
    for number, (how, said) in enumerate(words.items(), start=2):
        damage(only(project, "result.json"), how)
        only(project, f"attempts/{number - 1}").joinpath("error.rank0.json").write_text("left by an earlier attempt")
        status, errors = project.run_inline("sums")
        assert status == 0, errors
        assert said in errors
        assert "result.json" in errors
        assert only(project, f"attempts/{number}")
    assert (project.root / "results/smoke/sums.csv").read_text() == "size,ranks,total\n3,1,3.0\n"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="F09"),
        pytest.param(signal.SIGTERM, 143, id="F12"),
        pytest.param(signal.SIGHUP, 129, id="F13"),
    ],
)
def test_F09_F12_F13_a_signal_ends_the_job_and_the_next_run_goes_on(project: Project, number: int, code: int):
    project.experiment("waits", ranks=2)
    launcher = project.start("run", "waits", "--scale", "smoke")
    await_file(project.root / "started" if number == signal.SIGTERM else only_run(project) / "job.json")
    launcher.send_signal(number)
    errors = launcher.communicate(timeout=60)[1]
    assert launcher.returncode == code, errors
    assert signal.Signals(number).name in errors
    assert not project.left()
    assert not project.results()


def test_F09_ctrl_c_in_a_terminal_reaches_every_process(project: Project):
    project.experiment("waits", ranks=2)
    launcher = project.start("run", "waits", "--scale", "smoke")
    await_file(project.root / "started")
    os.killpg(launcher.pid, signal.SIGINT)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 130
    assert not project.left()
    assert not project.results()


def test_F14_F30_two_launchers_and_a_killed_one_share_one_job(project: Project):
    project.experiment("waits", ranks=2, params={"seconds": 6})
    first = project.start("run", "waits", "--scale", "smoke")
    await_file(project.root / "started")
    second = project.start("run", "waits", "--scale", "smoke")
    assert "waiting" in second.stderr.readline()
    first.kill()
    errors = second.communicate(timeout=250)[1]
    first.communicate()
    assert second.returncode == 0, errors
    assert "joining" in errors
    assert (project.root / "calls").read_text() == "x"
    assert project.results() == ["waits.csv", "waits.json"]
    assert not project.left()


def test_a_run_past_its_limit_ends(project: Project):
    project.experiment("waits", minutes=0.02)
    assert_failed(project, project.run("waits"), "waits: it ran past its limit of 0.02 min")


def in_namespace(project: Project, mount: str, *options: str) -> tuple[int, str]:
    """`fivedim run sums` where `mount` was run first, in a mount namespace of its own."""
    command = f'{mount} && cd "$ROOT" && exec "$PYTHON" -m fivedim.cli run sums --scale smoke {" ".join(options)}'
    env = {
        "ROOT": str(project.root),
        "PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(IMPORTS),
        "PATH": os.environ["PATH"],
    }
    process = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command], env=env, capture_output=True, text=True, timeout=250
    )
    return process.returncode, process.stderr


@pytest.mark.parametrize(("folder", "size", "executor"), [("results", "16k", "inline"), ("runs", "128k", "local")])
def test_F26_a_full_disk_is_named_and_earlier_results_stay(project: Project, folder: str, size: str, executor: str):
    project.experiment("sums", params={"sizes": [1, 2]})
    assert project.run_inline("sums")[0] == 0
    before = (project.root / "results/smoke/sums.csv").read_text()
    project.experiment("sums", params={"sizes": [3] * 4000})
    mount = (
        f'F="$ROOT/{folder}"; cp -r "$F" "$F.old" && mount -t tmpfs -o size={size} tmpfs "$F" && cp -r "$F.old/." "$F"'
    )
    status, errors = in_namespace(project, mount, "--executor", executor)
    assert status == 75, errors
    assert_one_line(errors, "disk", "full")
    assert (project.root / "results/smoke/sums.csv").read_text() == before
    assert not project.left()


def test_F27_a_read_only_tree_without_home_is_one_line(project: Project):
    project.experiment("sums")
    outcome = in_namespace(project, 'mount --bind "$ROOT" "$ROOT" && mount -o remount,bind,ro "$ROOT"')
    assert_failed(project, outcome, "cannot write", code=2)


def test_F34_a_result_from_the_future_is_found(project: Project):
    project.experiment("sums")
    assert project.run_inline("sums")[0] == 0
    for file in project.root.rglob("*"):
        os.utime(file, (time.time() + 1e6,) * 2)
    shutil.rmtree(project.root / "results")
    status, errors = project.run("sums")
    assert (status, "found" in errors) == (0, True), errors


def test_F40_the_same_configuration_twice_gives_the_same_bytes(project: Project):
    project.experiment("sums", ranks=2, params={"sizes": [3, 7]})
    tables = []
    for _ in range(2):
        shutil.rmtree(project.root / "runs", ignore_errors=True)
        assert project.run_inline("sums")[0] == 0
        tables.append((project.root / "results/smoke/sums.csv").read_bytes())
    assert tables[0] == tables[1]
