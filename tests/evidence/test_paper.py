"""What stopped LaTeX is told, not what an early pass only warned of."""

import pytest

from fivedim.evidence.paper import reason

WARNING = "LaTeX Warning: Reference `fig:ring' on page 3 undefined on input line 7.\n"


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (WARNING + "./main.tex:9: Undefined control sequence.\n", "9: Undefined control sequence."),
        (WARNING + "! There is no result 'x'.\n", "There is no result 'x'."),
        (WARNING, "Reference `fig:ring' on page 3 undefined on input line 7."),
        ("Output written on paper.pdf\n", "latexmk failed"),
    ],
)
def test_an_error_is_told_before_a_warning(tmp_path, log, told):
    (tmp_path / "paper.log").write_text(log)
    assert reason(tmp_path / "paper.log") == told


def test_no_log_is_no_reason(tmp_path):
    assert reason(tmp_path / "paper.log") == "latexmk failed"
