"""What the Snakefile asks: experiments, claims and figures, checked together, and the key of every job. No torch here.

A job's key is the hash of everything that its output follows from. It is the name of an empty file, which is an input
of the job: Snakemake runs a job again when its set of inputs has changed, so a fresh clone or a wrong clock causes no
work and hides none, and an interrupted run goes on where it was. (As a parameter it would do the same, at the price of
importing pandas, which Snakemake compares parameters with, for 1.5 s at every start.)
"""

import hashlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fivedim.errors import UserError
from fivedim.evidence import claims
from fivedim.lab import config, spec

EVERY_PAPER = ("loc", "numbers", "parts", "provenance", "summary")
LIBRARIES = "libraries"  # an experiment, and the table that is made of its rows


@dataclass(frozen=True)
class Plan:
    """The experiments' specs by name, and the names of the files that `fivedim tables` will write."""

    root: Path
    scale: str
    specs: dict[str, spec.Spec]
    titles: dict[str, str]
    generated: list[str]

    def run(self, experiment: str) -> str:
        """The key file of an experiment."""
        return self._file(experiment, self.specs[experiment].key)

    def job(self, name: str, experiments: Iterable[str], *files: str) -> str:
        """The key file of job `name`, which reads these experiments' results and these files (globs, from the root)."""
        digest = hashlib.sha256()
        for experiment in sorted(experiments):
            digest.update(f"{experiment} {self.specs[experiment].key}\n".encode())
        for file in self.files(*files):
            digest.update(f"{file} {hashlib.sha256((self.root / file).read_bytes()).hexdigest()}\n".encode())
        return self._file(name, digest.hexdigest()[:16])

    def _file(self, job: str, key: str) -> str:
        """The job's key file, from the root: made where it is not there, and those of its earlier keys removed."""
        folder = self.root / "results/.keys" / self.scale
        folder.mkdir(parents=True, exist_ok=True)
        for other in folder.glob(f"{job}@*"):
            if other.name != f"{job}@{key}":
                other.unlink(missing_ok=True)
        (folder / f"{job}@{key}").touch()
        return (folder / f"{job}@{key}").relative_to(self.root).as_posix()

    def files(self, *patterns: str) -> list[str]:
        """The existing files, from the root, that match any of the patterns."""
        found = {path.relative_to(self.root).as_posix() for each in patterns for path in self.root.glob(each)}
        return sorted(found)


def plan(scale: str, figures: dict[str, list[str]]) -> Plan:
    """Check the whole configuration before any job; a fault ends the process with one line."""
    try:
        return checked(config.find_root(), scale, figures)
    except UserError as error:
        print(f"fivedim: {error}", file=sys.stderr)
        raise SystemExit(error.code) from None


def checked(root: Path, scale: str, figures: dict[str, list[str]]) -> Plan:
    known = config.experiments(root)
    for figure, experiments in figures.items():
        for name in experiments:
            if name not in known:
                raise UserError(f"Snakefile: figure {figure}: no experiment {name!r} in configs/experiments.yaml")
    declared = claims.read(root)
    specs = spec.resolve_all(root, scale)
    tables = [f"claims_a{article:02}" for article in sorted({claim.article for claim in declared})]
    tables += [LIBRARIES] if LIBRARIES in specs else []
    generated = [f"paper/generated/{name}.tex" for name in (*tables, *EVERY_PAPER)]
    return Plan(root, scale, specs, {name: entry.title for name, entry in known.items()}, generated)
