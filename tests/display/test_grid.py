"The grid of a chart without an empty cell, and its legend."
import re

import pytest

from trainer_nb.display.panels import LineSeries, Panel
from trainer_nb.display.svg import PANEL_WIDTH, render_svg


def panels(n): return [Panel(f"panel {i}", [LineSeries([1, 2], [3, 4], "one"), LineSeries([1, 2], [4, 3], "two")]) for i in range(n)]


@pytest.mark.parametrize("count,columns", [(1, 2), (3, 2), (4, 3), (7, 3)])
def test_the_last_panel_fills_its_row(count, columns):
    "The axis of the last panel ends at the right edge."
    svg = render_svg(panels(count), columns)
    assert float(re.search(r'viewBox="0 0 ([\d.]+) ', svg)[1]) == min(columns, count) * (PANEL_WIDTH + 20) - 20
    left = float(re.findall(r'translate\(([\d.]+),', svg)[-1])
    assert left + max(map(float, re.findall(r'x2="([\d.]+)"', svg.split("<g ")[-1]))) == min(columns, count) * (PANEL_WIDTH + 20) - 34


def test_names_in_a_legend_have_a_gap_between_them():
    "Also wide ones: m and w take more room than other letters."
    names = ["slide", "minimum", "wwwwww", "mmmmmm"]
    found = re.findall(r'<text x="([\d.-]+)" y="17.0" text-anchor="end" [^>]*>([^<]+)<', render_svg([Panel("a", [LineSeries([1, 2], [3, 4], name) for name in names])]))
    ends = {name: float(x) for x, name in found}
    # widths in DejaVu Sans, at 11 pixels
    assert ends["minimum"] - 11 * 4.75 - ends["slide"] > 5 and ends["wwwwww"] - 11 * 4.91 - ends["minimum"] > 5 and ends["mmmmmm"] - 11 * 5.85 - ends["wwwwww"] > 5


@pytest.mark.parametrize("count", [2, 5, 9, 24])
def test_the_legend_of_a_picture_stays_in_it(count):
    "Names that do not fit beside the title stand below it; none covers the title or another name."
    names = [f"a rather long name {i}" for i in range(count)]
    panel = Panel("The title", [LineSeries([1, 2], [3, i], name) for i, name in enumerate(names)])
    found = re.findall(r'<text x="([\d.-]+)" y="([\d.]+)" text-anchor="end" [^>]*>(a rather[^<]*)<', render_svg([panel]))
    assert found and [o[2] for o in found if o[1] == "17.0"][::-1] == names[:sum(o[1] == "17.0" for o in found)]
    for line, least in (("17.0", 7 * len("The title")), ("30.0", 0)):
        ends = sorted((float(x) for x, y, _ in found if y == line), reverse=True)
        assert all(a - b >= 6 * len(names[0]) for a, b in zip(ends, ends[1:])) and all(x - 6 * len(names[0]) >= least for x in ends)
