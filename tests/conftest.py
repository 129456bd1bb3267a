"""What every test may use: a project of its own, under a temporary root."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import hypothesis
import psutil
import pytest
import yaml

from fivedim.errors import UserError
from fivedim.lab.launch import launch

IMPORTS = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "code")]

# The same cases every time, however busy the machine is
hypothesis.settings.register_profile(
    "fivedim",
    derandomize=True,
    deadline=None,
    max_examples=50,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("fivedim")

# Files that take longest, by whole pipelines and launches: two workers that begin with them end together.
LONGEST = ("test_pipeline.py", "test_launch.py", "test_a02_fabric.py", "test_fabric.py", "test_known_faults.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the others in their order."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


class Project:
    """A temporary project root: its own Snakefile, configs, runs and results."""

    def __init__(self, root: Path):
        self.root, self.started = root, []
        (root / "configs/scales").mkdir(parents=True)
        (root / "Snakefile").touch()
        self.write("configs/experiments.yaml", {})
        self.write("configs/scales/smoke.yaml", {"description": "small"})

    def write(self, path: str, data) -> None:
        """Write `data` as YAML to `path` below the root."""
        (self.root / path).write_text(yaml.safe_dump(data, sort_keys=False))

    def experiment(self, name: str, **entry) -> None:
        """Declare an experiment of tests/lab/trials.py and nothing else."""
        common = {"module": "tests.lab.trials", "title": name, "instrument": "meter", "rooms": []}
        self.write("configs/experiments.yaml", {name: common | entry})

    def start(self, *arguments: str, **options) -> subprocess.Popen:
        """Start `fivedim ARGUMENTS` in the root, in a session of its own."""
        process = subprocess.Popen(
            [sys.executable, "-m", "fivedim.cli", *arguments],
            cwd=self.root,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(IMPORTS)} | options,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """End launchers that a failed test left waiting; they end their jobs."""
        for process in self.started:
            with process:
                process.terminate()

    def run(self, name: str, *arguments: str, **options) -> tuple[int, str]:
        """Run `fivedim run NAME --scale smoke ARGUMENTS`: the exit status and stderr."""
        process = self.start("run", name, "--scale", "smoke", *arguments, **options)
        errors = process.communicate(timeout=250)[1]
        return process.returncode, errors

    def run_inline(self, name: str) -> tuple[int, str]:
        """The same with `--executor inline`, in this process: the exit status and what was said."""
        said: list[str] = []
        with contextlib.chdir(self.root), mock.patch("fivedim.lab.runs.say", said.append):
            try:
                launch(self.root, name, "smoke", "inline")
            except UserError as error:
                return error.code, f"{error}\n"
        return 0, "".join(f"{line}\n" for line in said)

    def results(self) -> list[str]:
        """The published files."""
        return sorted(file.name for file in (self.root / "results").rglob("*") if file.is_file())

    def left(self) -> list[str]:
        """The command lines of processes that belong to this project's jobs (a forked rank has its parent's)."""
        found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
        forked = [child.name for child in multiprocessing.active_children()]
        return forked + [" ".join(line) for line in found if any(str(self.root) in word for word in line)]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """An empty project under a path with a space, a quote and an umlaut in it (F33: every launch is such a test)."""
    found = Project(tmp_path / "it's a tést")
    yield found
    found.end()
