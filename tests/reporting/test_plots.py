"""Plots: the same bytes in every process, well-formed whatever the labels hold, and nothing of the machine in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from reporting.plots import MAX_LABEL_CHARS, Bars, Line, Square, Svg, draw_bars, draw_lines, draw_matrix

ROOT = Path(__file__).parents[2]
HOSTILE = '</text><script>alert("1")</script> $\\frac{a}{b}$ _x & \x00\x1b\u202e\ufffe\ud800 中文 😀'


def draw_all(label: str) -> list[Svg]:
    lines = [Line(label, [1, 2, 97], [0.9, 0.5, 0.1], [0.8, 0.4, 0.0], [1.0, 0.6, 0.2]), Line("_b", [1, 97], [1, 1])]
    bars = [Bars(label, [0.1, None], [0.05, None], [0.3, None]), Bars("other", [0.2, 0.3])]
    row = [Square(0, label), Square(1, "B"), None, Square(1, "B")]
    return [
        draw_lines(label, label, "probability", lines, x_scale="log", y_range=(0, 1)),
        draw_bars(label, "rate", [label, "b"], bars, value_range=(0, 1)),
        draw_matrix(label, [label], ["1", "2", "3", "4"], [row], colours="categories"),
        draw_matrix(label, ["a"], ["wide label", "2"], [[Square(0.0, "0"), Square(1.0, "1")]]),
    ]


def texts(svg: Svg) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_two_processes_on_two_machines_settings_draw_the_same_bytes(tmp_path: Path) -> None:
    """The other process has another hash seed, a matplotlib configuration and an empty font cache of its own."""
    (tmp_path / "matplotlibrc").write_text("font.size: 30\nsvg.fonttype: path\naxes.grid: True\n")
    program = (
        "import sys; from tests.reporting.test_plots import draw_all\n"
        "sys.stdout.write('\\0'.join(draw_all('run_to_run')))"
    )
    environment = {"PYTHONHASHSEED": "7", "MPLCONFIGDIR": str(tmp_path), "LC_ALL": "C", "SOURCE_DATE_EPOCH": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("\0") == draw_all("run_to_run")


def test_text_is_laid_out_with_the_font_that_matplotlib_carries() -> None:
    import matplotlib
    from matplotlib import font_manager

    assert Path(font_manager.findfont("DejaVu Sans")).is_relative_to(matplotlib.get_data_path())


@pytest.mark.parametrize("place", range(4))
def test_any_label_stays_text_and_well_formed(place: int) -> None:
    svg = draw_all(HOSTILE)[place]
    root = ElementTree.fromstring(svg)
    assert "<script" not in svg
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text is not None
    assert title.text.startswith('</text><script>alert("1")</script> $\\frac{a}{b}$ _x & <U+0000>')


@pytest.mark.parametrize("place", range(3))
def test_a_label_is_shown_as_it_is(place: int) -> None:
    for label, shown in {
        "$\\frac{a}{b}$ _x &": "$\\frac{a}{b}$ _x &",
        "\x1b\ufffe\ud800中": "<U+001B><U+FFFE><U+D800>中",
    }.items():
        assert shown in texts(draw_all(label)[place])


def test_a_long_label_ends_in_an_ellipsis_and_the_title_stays_whole() -> None:
    svg = draw_all("word " * 40)[1]
    assert ("word " * 40).strip()[: MAX_LABEL_CHARS - 1] + "…" in texts(svg)
    assert f"<title>{('word ' * 40).strip()}</title>" in svg


def test_a_logarithmic_axis_has_plain_numbers_and_an_underscore_does_not_hide_a_line() -> None:
    shown = [text.strip() for text in texts(draw_all("a")[0])]
    assert {"1", "10", "_b"} <= set(shown)


def test_nothing_of_the_day_or_of_the_program_is_inside() -> None:
    for svg in draw_all("a"):
        assert "<metadata" not in svg
        assert "<!DOCTYPE" not in svg
        assert "matplotlib" not in svg


def test_ids_of_two_plots_on_one_page_do_not_collide() -> None:
    page = ElementTree.fromstring(f"<page>{''.join(draw_all('a'))}</page>")
    ids = [element.get("id") for element in page.iter() if element.get("id")]
    assert ids
    assert len(ids) == len(set(ids))


def test_every_reference_inside_a_plot_is_found_there() -> None:
    for svg in draw_all("a"):
        elements = list(ElementTree.fromstring(svg).iter())
        ids = {element.get("id") for element in elements}
        links = [element.get("{http://www.w3.org/1999/xlink}href", "") for element in elements]
        clips = [element.get("clip-path", "") for element in elements]
        used = {link.removeprefix("#") for link in links if link} | {clip[5:-1] for clip in clips if clip}
        assert used <= ids


def test_hundreds_of_equal_squares_stay_a_small_file() -> None:
    squares = [[Square(0)] * 500 + [Square(1)] + [Square(0)] * 499 for _ in range(10)]
    svg = draw_matrix("wide", [str(row) for row in range(10)], [], squares, colours="categories")
    assert len(svg) < 30_000


def test_a_matrix_without_rows_and_bars_without_groups_are_drawn_empty() -> None:
    assert draw_matrix("empty", [], [], []).startswith("<svg")
    assert draw_bars("empty", "rate", [], []).startswith("<svg")
    assert draw_lines("empty", "x", "y", []).startswith("<svg")
