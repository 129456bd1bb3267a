"""The box comes and goes: one at a time, exit codes pass through, and nothing is left behind, however it ends."""

import os
import signal
import subprocess
import time

from tests.slurm.conftest import BOX, STATE, processes_of_the_box

# A job that is hard to end: its child has left its session and ignores every polite signal.
STUBBORN = """#!/bin/bash
setsid bash -c 'trap "" TERM INT HUP; touch running; while :; do sleep 1; done' & wait
"""


def box(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([BOX, *arguments], capture_output=True, text=True, timeout=100)


def assert_nothing_left() -> None:
    assert not STATE.exists()
    assert not processes_of_the_box()


def wait_for(there) -> None:
    patience = time.monotonic() + 60
    while not there():
        assert time.monotonic() < patience
        time.sleep(0.1)


def test_run_passes_the_exit_code_and_leaves_nothing(tmp_path):
    (tmp_path / "stubborn").write_text(STUBBORN)
    submit = f"cd '{tmp_path}' && sbatch -o /dev/null stubborn && until [ -e running ]; do sleep .1; done; exit 7"
    assert box("run", "bash", "-c", submit).returncode == 7
    assert (tmp_path / "running").exists()
    assert_nothing_left()


def test_a_second_up_is_refused_and_a_terminated_run_cleans_up(tmp_path):
    for moment in (STATE / "supervisor.pid", tmp_path / "running"):  # while it starts; while its command runs
        running = subprocess.Popen([BOX, "run", "bash", "-c", f"touch '{tmp_path}/running'; exec sleep 100"])
        wait_for(moment.exists)
        second = box("up")
        assert second.returncode == 1
        assert second.stderr == f"box: one is up already, in {STATE}: use it, or end it with slurm/box down\n"
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) == 128 + signal.SIGTERM
        assert_nothing_left()


def test_a_killed_supervisor_takes_its_daemons_along_and_the_next_box_starts():
    assert box("up").returncode == 0
    os.kill(int((STATE / "supervisor.pid").read_text()), signal.SIGKILL)
    wait_for(lambda: not processes_of_the_box())
    assert box("run", "sinfo").returncode == 0
    assert_nothing_left()


def test_bad_usage_is_one_line():
    for arguments in ((), ("upp",), ("run",)):
        done = box(*arguments)
        assert (done.returncode, done.stderr) == (1, "box: say slurm/box up, down, or run COMMAND...\n")
