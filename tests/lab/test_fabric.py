"""Fabric: links as fast as asked for, as any user, two at once, and nothing left however it ends."""

import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import psutil
import pytest

from fivedim.lab import fabric, ranks, sandbox
from fivedim.ledger.topology import Topology
from tests.conftest import IMPORTS, Project
from tests.lab.test_launch import await_file
from tests.lab.trials import LinksConfig, links, raise_it

NO_RIGHTS = ("setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all")  # root, if it is that, without its powers


def test_two_at_once_each_at_its_own_rate():
    with ThreadPoolExecutor() as pool:
        slow, fast = pool.map(lambda rate: sandbox.call(links, LinksConfig(rate=rate)), [1e6, 4e6])
    for row in slow + fast:
        assert row["right"]
        assert row["counted"] == 2**20
        assert row["counted"] <= row["wire"] < 1.01 * row["counted"]
    # however busy the machine is: no faster than the rate, less what a bucket holds, and slow is slower
    assert slow[0]["seconds"] > (2**20 - 2 * fabric.BURST) / 1e6 > fast[0]["seconds"] > (2**20 - 2 * fabric.BURST) / 4e6


def test_a_user_without_rights_runs_it(project: Project):
    project.experiment("links", instrument="fabric", ranks=2)
    command = [*NO_RIGHTS, sys.executable, "-m", "fivedim.cli", "run", "links", "--scale", "smoke"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(IMPORTS)}
    ended = subprocess.run(command, cwd=project.root, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert pd.read_csv(project.root / "results/smoke/links.csv").right.all()


def test_denied_namespaces_are_a_row_that_says_so(project: Project, tmp_path: Path):
    """An `unshare` that refuses stands in for a system that does."""
    stub = tmp_path / "bin/unshare"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    project.experiment("links", instrument="fabric", ranks=2)
    status, errors = project.run("links", PATH=f"{stub.parent}:{os.environ['PATH']}")
    assert status == 0, errors
    (said,) = pd.read_csv(project.root / "results/smoke/links.csv").unavailable
    assert "Operation not permitted" in said
    assert "allow user namespaces" in said


def test_nothing_is_left_after_sigkill(project: Project):
    project.experiment("links", instrument="fabric", ranks=2, params={"hold": True})
    launcher = project.start("run", "links", "--scale", "smoke")
    told = [project.root / f"place{rank}" for rank in (0, 1)]
    for file in told:
        await_file(file)
    pids, places = zip(*(map(int, file.read_text().split()) for file in told), strict=True)
    agent = psutil.Process(pids[0]).parent()
    assert namespaces() >= set(places)
    agent.send_signal(signal.SIGKILL)
    assert launcher.wait(60) == 1
    assert not project.left()
    assert not namespaces() & set(places)


def namespaces() -> set[int]:
    """The network namespaces that a process is in."""
    found = set()
    for place in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(place.stat().st_ino)
        except OSError:  # it ended in between
            continue
    return found


def test_a_failing_call_is_blamed_as_a_rank_is():
    with pytest.raises(ranks.RankError, match="node 0: ValueError: the seventh seal"):
        sandbox.call(raise_it)


@pytest.mark.parametrize(
    ("budget", "names"),
    [
        ("duplex", [{"out": "gpu0.out", "in": "gpu0.in"}, {"out": "gpu1.out", "in": "gpu1.in"}]),
        ("shared", [{"out": "gpu0", "in": "gpu0"}, {"out": "gpu1", "in": "gpu1"}]),
        ("hairpin", [{"out": "switch0.out", "in": "switch0.in"}] * 2),
    ],
)
def test_what_a_link_pays_for(budget: str, names: list):
    topology = Topology(budget, ((0, 1),), ((0, 1),))
    assert [fabric._buckets(topology, gpu) for gpu in (0, 1)] == names


def test_a_fabric_over_two_nodes_is_refused_before_any_job(project: Project):
    project.experiment("links", instrument="fabric", ranks=2, nodes=2)
    status, errors = project.run_inline("links")
    assert status == 2
    assert "links are inside one machine" in errors
