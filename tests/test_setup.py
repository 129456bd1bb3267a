"""Set-up says at once what it lacks; the lock pins everything; a linked environment is left alone."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TOOLS = ["bash", "cat", "cksum", "dirname", "head", "id", "mktemp", "tail", "touch"]
SYSTEM = (
    "latexmk texlive-binaries texlive-science texlive-latex-extra texlive-latex-recommended texlive-fonts-recommended"
)
SYSTEM += " poppler-utils graphviz iproute2"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A checkout, at a path with spaces, on a machine with few programs: those of `bin` beside it."""
    checkout = tmp_path / "a checkout"
    (tmp_path / "bin").mkdir()
    checkout.mkdir()
    for name in ("setup.sh", "requirements.lock", "pyproject.toml"):
        shutil.copy2(ROOT / name, checkout)
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    program(checkout, "python3", "exit 0")
    return checkout


def program(checkout: Path, name: str, script: str) -> None:
    """Put a program in the machine's `bin`."""
    path = checkout.parent / "bin" / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
    path.chmod(0o755)


def set_up(checkout: Path, *arguments: str) -> tuple[int, str]:
    """Run setup.sh: the exit status and stderr. /usr/sbin is looked at, too, so programs there count as found."""
    done = subprocess.run(
        [checkout / "setup.sh", *arguments], env={"PATH": str(checkout.parent / "bin")}, capture_output=True, text=True
    )
    assert not (checkout / ".venv").is_dir() or (checkout / ".venv").is_symlink(), "something long started"
    return done.returncode, done.stderr


def lacking() -> str:
    """The packages of a bare machine, as far as this one keeps nothing of them in sbin."""
    there = {"iproute2"} if any(os.access(f"{folder}/ip", os.X_OK) for folder in ("/usr/sbin", "/sbin")) else set()
    return " ".join(package for package in SYSTEM.split() if package not in there)


def test_an_old_python_is_one_line(machine):
    program(machine, "python3", "case $1 in -V) echo Python 3.10.2 ;; *) exit 1 ;; esac")
    assert set_up(machine, "python") == (
        2,
        "fivedim: no usable Python (python3 is Python 3.10.2): install Python 3.11, 3.12 or 3.13, or name one with "
        "PYTHON=/path/to/python\n",
    )


def test_without_apt_the_missing_packages_are_one_line(machine):
    assert set_up(machine, "paper") == (
        2,
        f"fivedim: needs {lacking()}: install them (these are Debian's names) and run this again\n",
    )


def test_without_privilege_the_command_to_run_is_one_line(machine):
    for name, script in {"id": "echo 1000", "apt-get": "exit 0", "sudo": "exit 1"}.items():
        program(machine, name, script)
    command = f"sudo apt-get install --no-install-recommends {lacking()}"
    assert set_up(machine, "paper") == (2, f"fivedim: needs {lacking()}: run '{command}', then this again\n")


def test_an_unknown_word_is_one_line(machine):
    assert set_up(machine, "papers") == (2, "fivedim: setup.sh papers: say python, paper, cluster or box\n")


def test_a_linked_environment_is_used_as_it_is(machine, tmp_path):
    (tmp_path / "other").mkdir()
    (machine / ".venv").symlink_to(tmp_path / "other")
    assert set_up(machine, "python") == (0, "")
    assert list((tmp_path / "other").iterdir()) == []


def test_the_lock_pins_every_declared_package_without_a_local_version():
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line) for line in lines)
    pins = {normal(line.split("==")[0]): line.split("==")[1] for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for declared in project["dependencies"] + sum(project["optional-dependencies"].values(), []):
        name, _, version = declared.partition("==")
        assert pins[normal(name)].startswith(version), declared


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_citation_and_the_package_tell_the_same_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_every_make_target_that_the_readme_names_exists():
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"paper", "test"} <= named <= targets


def test_the_cluster_profile_differs_from_the_default_one_only_in_where_jobs_run():
    default, cluster = (
        yaml.safe_load((ROOT / path).read_text()) for path in ("profiles/default/config.v9+.yaml", "slurm/profile.yaml")
    )
    differing = {key for key in default.keys() | cluster.keys() if default.get(key) != cluster.get(key)}
    assert differing == {"configfile", "cores", "resources", "default-resources"}
