"""paper/paper.pdf: latexmk, with a failure told in one line."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from fivedim.errors import FAILED, USAGE, UserError

PACKAGES = "latexmk texlive-latex-recommended texlive-latex-extra texlive-fonts-recommended texlive-science"

FAULTS = (  # an error first: before it, an early pass has warned of references that a later one would have found
    re.compile(r"^(?:! |\S+\.tex:)(.+)", re.MULTILINE),
    re.compile(r"^(?:LaTeX|Package \S+) Warning: (.*undefined.*)", re.MULTILINE),
)


def build(root: Path) -> None:
    """Run latexmk as paper/latexmkrc says. The same input gives the same bytes: no date reaches the PDF."""
    if not shutil.which("latexmk"):
        raise UserError(f"no LaTeX: figures, tables and numbers are built, the PDF is not: install {PACKAGES}", USAGE)
    folder = root / "paper"
    still = os.environ | {"SOURCE_DATE_EPOCH": "0", "FORCE_SOURCE_DATE": "1", "max_print_line": "1000"}
    done = subprocess.run(
        ["latexmk", "-g", "-Werror"], cwd=folder, env=still, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        raise UserError(
            f"{folder / 'main.tex'}: {reason(folder / 'build/paper.log')}: see paper/build/paper.log", FAILED
        )


def reason(log: Path) -> str:
    """The first error that LaTeX's log names; without one, the first undefined reference."""
    text = log.read_text(errors="replace") if log.is_file() else ""
    found = next(filter(None, (fault.search(text) for fault in FAULTS)), None)
    return found[1] if found else "latexmk failed"
