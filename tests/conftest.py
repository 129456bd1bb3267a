"""What every test may use: a project of its own, under a temporary root."""

from pathlib import Path

import pytest
import yaml


class Project:
    """A temporary project root: its own Snakefile, configs, runs and results."""

    def __init__(self, root: Path):
        self.root = root
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


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project under a path with a space, a quote and an umlaut in it (F33: every launch is such a test)."""
    return Project(tmp_path / "it's a tést")
