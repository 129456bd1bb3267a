"""What the command line offers about evidence. Nothing heavy is imported before a command runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fivedim.errors import FAILED, UserError
from fivedim.lab import config, files, spec

Scale = Annotated[str, typer.Option(help="A file of configs/scales.")]


def derive(experiment: str, name: str) -> Callable:
    """The function that a claim's `derive` names, from the module of its experiment."""
    module = spec.full_name(config.experiments(config.find_root())[experiment].module)
    found = getattr(spec.article(module), name, None)
    if not callable(found):
        raise UserError(f"configs/claims.yaml: derive: {module} has no function {name!r}")
    return found


def judge(scale: Scale = "laptop") -> None:
    """Compute every verdict: results/<scale>/*.csv -> claims.csv and claims_parts.csv."""
    from fivedim.evidence import claims, judge, results, tables

    root = config.find_root()
    declared = claims.read(root)
    found = results.load_all(root, scale, claims.experiments(declared))
    headlines, parts = judge.judge(declared, found, derive)
    folder = results.folder(root, scale)
    files.write(folder / "claims_parts.csv", tables.to_csv(parts, judge.PART_COLUMNS))
    files.write(folder / "claims.csv", tables.to_csv(headlines, judge.HEADLINE_COLUMNS))


def claims(
    scale: Scale = "laptop", markdown: Annotated[bool, typer.Option("--markdown", help="For a README.")] = False
) -> None:
    """Print the claims table."""
    from rich.console import Console

    from fivedim.evidence import results, tables

    rows = tables.read(results.folder(config.find_root(), scale) / "claims.csv")
    if markdown:
        print(tables.markdown(rows))
    else:
        console = Console()
        console.width = max(console.width, 110)  # narrower, a statement is a word a line
        console.print(tables.render(rows, f"Claims at scale {scale}"))


def tables(scale: Scale = "laptop") -> None:
    """Write the paper's tables and numbers: paper/generated/*.tex."""
    from fivedim.evidence import claims, latex, libraries, results, tables
    from fivedim.lab import loc

    root = config.find_root()
    headlines, parts = (tables.read(results.folder(root, scale) / name) for name in ("claims.csv", "claims_parts.csv"))
    declared = claims.read(root)
    found = results.load_all(root, scale, claims.experiments(declared))
    folder = root / "paper/generated"
    folder.mkdir(parents=True, exist_ok=True)
    provenance = [each.provenance for each in found.values()]
    documents = latex.documents(declared, headlines, parts, scale, provenance, loc.sizes(root))
    for name, text in (documents | libraries.documents(found, scale)).items():
        files.write(folder / name, text)


def paper() -> None:
    """Build paper/paper.pdf from the text, the figures and the generated files."""
    from fivedim.evidence import paper

    paper.build(config.find_root())


def manifest(built: list[Path], scale: Scale = "laptop") -> None:
    """Record the hashes of built files in results/<scale>/manifest.json."""
    from fivedim.evidence import manifest

    manifest.write(config.find_root(), scale, built)


def audit(scale: Scale = "laptop") -> None:
    """Compute every row of the claims tables again from the result files, and say what differs."""
    from fivedim.evidence import audit

    report(audit.differences(config.find_root(), scale, derive), f"audit of {scale}")


def verify(scale: Scale = "laptop") -> None:
    """Check every result, table and figure against the hashes of what was built."""
    from fivedim.evidence import manifest

    report(manifest.differences(config.find_root(), scale), f"verify {scale}")


def report(faults: list[str], what: str) -> None:
    for fault in faults:
        print(fault)
    if faults:
        raise UserError(f"{what}: differences found: {len(faults)}, listed above", FAILED)
    print(f"{what}: everything as built")
