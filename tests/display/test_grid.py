"The grid of a chart without an empty cell, in a picture and in plotly's figure."
import re, subprocess, sys

import pytest

from trainer_nb.display.charts import plotly_figure
from trainer_nb.display.panels import Heatmap, Histogram, LineSeries, Marker, Panel
from trainer_nb.display.svg import PANEL_WIDTH, render_svg


def panels(n): return [Panel(f"panel {i}", [LineSeries([1, 2], [3, 4], "one"), LineSeries([1, 2], [4, 3], "two")]) for i in range(n)]


@pytest.mark.parametrize("count,columns,width", [(1, 2, 1), (2, 2, 1), (3, 2, 2), (4, 2, 1), (4, 3, 3), (5, 3, 2), (7, 3, 3)])
def test_the_last_panel_fills_its_row(count, columns, width):
    layout = plotly_figure(panels(count), columns).to_plotly_json()["layout"]
    axes = [layout["xaxis" + (str(i + 1) if i else "")]["domain"] for i in range(count)]
    assert len([k for k in layout if k.startswith("xaxis")]) == count
    assert axes[-1][1] == pytest.approx(1.0)
    shown = min(columns, count)
    assert axes[-1][0] == axes[(count - 1) % shown][0]
    assert axes[-1][1] - axes[-1][0] >= width * (axes[0][1] - axes[0][0]) - 1e-9
    # the same in the picture: the axis of the last panel ends at the right edge
    svg = render_svg(panels(count), columns)
    assert float(re.search(r'viewBox="0 0 ([\d.]+) ', svg)[1]) == shown * (PANEL_WIDTH + 20) - 20


def test_a_figure_has_every_element():
    "Lines, points, bars, heat maps, moments, named rows and ranges, on linear and on logarithmic axes; and it can be written."
    first = Panel("a", [LineSeries([1, 2, 3], [1, 10, 100], "one"), LineSeries([2], [5], "two", 1, "points"), Marker(2, "now"),
                        Marker(3, "top", 100)], ylog=True, xlog=True, x_span=(1, 10), note="a note")
    second = Panel("b", [Histogram([0, 1, 2], [3, 4], "counts"), LineSeries([0, 2], [3, 4], "one", 0, "dashed")], y_span=(0, 5))
    heat = Panel("c", [Heatmap([1, 2], ["r", "r"], [[1, 10], [100, 1000]], log=True)])
    rows = Panel("d", [LineSeries([1, 2], [0, 1], style="points")], rows=["x", "y"])
    figure = plotly_figure([first, second, heat, rows])
    assert [o.type for o in figure.data] == ["scatter"] * 4 + ["heatmap", "scatter"] and list(figure.data[4].y) == ["0 r", "1 r"]
    assert [o.showlegend for o in figure.data[:4]] == [True, True, True, False]   # one entry for "one" in two panels
    assert figure.layout.xaxis.type == "log" and list(figure.layout.xaxis.range) == [0, 1] and list(figure.layout.yaxis2.range) == [0, 5]
    texts = [o.text for o in figure.layout.annotations]
    assert {"a: a note", "b", "c", "d", "now", "top"} == set(texts) and list(figure.layout.yaxis4.ticktext) == ["x", "y"]
    assert len(figure.layout.shapes) == 1 and figure.layout.paper_bgcolor == "rgba(0,0,0,0)" and figure.to_json()


def test_the_import_needs_no_plotly():
    code = "import sys, trainer_nb, trainer_nb.display.charts; print('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_names_in_a_legend_have_a_gap_between_them():
    "Also wide ones: m and w take more room than other letters."
    names = ["slide", "minimum", "wwwwww", "mmmmmm"]
    found = re.findall(r'<text x="([\d.-]+)" y="17.0" text-anchor="end" [^>]*>([^<]+)<', render_svg([Panel("a", [LineSeries([1, 2], [3, 4], name) for name in names])]))
    ends = {name: float(x) for x, name in found}
    # widths in DejaVu Sans, at 11 pixels
    assert ends["minimum"] - 11 * 4.75 - ends["slide"] > 5 and ends["wwwwww"] - 11 * 4.91 - ends["minimum"] > 5 and ends["mmmmmm"] - 11 * 5.85 - ends["wwwwww"] > 5


@pytest.mark.parametrize("count", [2, 5, 9, 30])
def test_the_legend_of_a_picture_stays_in_it(count):
    "Names that do not fit beside the title stand below it; none covers the title or another name."
    names = [f"a rather long name {i}" for i in range(count)]
    panel = Panel("The title", [LineSeries([1, 2], [3, i], name) for i, name in enumerate(names)])
    found = re.findall(r'<text x="([\d.-]+)" y="([\d.]+)" text-anchor="end" [^>]*>(a rather[^<]*)<', render_svg([panel]))
    assert found and [o[2] for o in found if o[1] == "17.0"][::-1] == names[:sum(o[1] == "17.0" for o in found)]
    for line, least in (("17.0", 7 * len("The title")), ("30.0", 0)):
        ends = sorted((float(x) for x, y, _ in found if y == line), reverse=True)
        assert all(a - b >= 6 * len(names[0]) for a, b in zip(ends, ends[1:])) and all(x - 6 * len(names[0]) >= least for x in ends)
