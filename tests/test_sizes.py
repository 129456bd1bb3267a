"""Size is a budget: functions at most 60 lines and 10 in the median, files at most 250 code lines."""

import ast
import statistics
from pathlib import Path

import pytest

from fivedim.lab import loc
from fivedim.lab.fingerprint import PACKAGE

FILES = sorted(PACKAGE.rglob("*.py"))


def functions(source: str) -> dict[str, int]:
    """Code lines of every function in a source, by name and line."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    lines = source.splitlines()
    return {f"{node.name}:{node.lineno}": length(lines, node) for node in found}


def length(lines: list[str], node: ast.FunctionDef) -> int:
    block = lines[node.lineno - 1 : node.end_lineno]
    indent = len(block[0]) - len(block[0].lstrip())
    return loc.code_lines("\n".join(line[indent:] if line.strip() else "" for line in block) + "\n")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_files_and_functions_stay_small(file: Path):
    source = file.read_text()
    assert loc.code_lines(source) <= 250
    assert not {name: lines for name, lines in functions(source).items() if lines > 60}


def test_the_median_function_is_at_most_ten_lines():
    assert statistics.median(lines for file in FILES for lines in functions(file.read_text()).values()) <= 10


SOURCE = '''"""A module.

Its docstring.
"""

x = """one
two"""  # two lines of code


def f():
    """Does nothing."""
    # a comment

    return (
        x
    )
'''


def test_code_lines_exclude_blanks_comments_and_docstrings():
    assert loc.code_lines(SOURCE) == 6
    assert functions(SOURCE) == {"f:10": 4}


def test_every_room_with_code_is_in_the_table():
    root = Path(__file__).parents[1]
    table = {row["room"]: row for row in loc.sizes(root)}
    assert table["lab"]["lines"] == sum(loc.code_lines(file.read_text()) for file in FILES if file.parent.name == "lab")
