"""paper/paper.pdf: latexmk, with a failure told in one line."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from fivedim.errors import FAILED, USAGE, UserError

PACKAGES = "latexmk texlive-latex-recommended texlive-latex-extra texlive-fonts-recommended texlive-science"

FAULT = re.compile(
    r"^(?:! (?P<error>.+)|\S+\.tex:(?P<line>\d+: .+)|(?:LaTeX|Package \S+) Warning: (?P<warning>.*undefined.*))",
    re.MULTILINE,
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
    """The first fault that LaTeX's log names."""
    found = FAULT.search(log.read_text(errors="replace")) if log.is_file() else None
    return next(filter(None, found.groups())) if found else "latexmk failed"
