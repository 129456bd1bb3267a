"""The figures: the look's own promises."""

import pytest

from fivedim.evidence import style


def draw(out, values):
    fig = style.figure("column", height=1.5)
    axes = fig.subplots()
    axes.plot(values, label="$2(N-1)/N$")
    axes.legend()
    style.save(fig, out)
    return out.read_bytes(), out.with_suffix(".png").read_bytes()


def test_the_same_data_give_the_same_bytes_and_other_data_do_not(tmp_path):
    first = draw(tmp_path / "a.pdf", [1, 2, 3])
    assert draw(tmp_path / "again/a.pdf", [1, 2, 3]) == first
    other = draw(tmp_path / "b.pdf", [1, 2, 4])
    assert other[0] != first[0]
    assert other[1] != first[1]


def test_fonts_are_embedded_as_truetype(tmp_path):
    pdf, _ = draw(tmp_path / "a.pdf", [1, 2])
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


def test_a_width_that_the_paper_does_not_have_is_refused():
    with pytest.raises(KeyError, match="poster"):
        style.figure("poster")
