"Pictures in exported HTML, in a browser without a kernel and without a network: values, zoom, legend, both themes, and no script."
import base64, re
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbconvert import HTMLExporter

from trainer_nb.display.panels import Heatmap, Histogram, LineSeries, Marker, Panel
from trainer_nb.display.pictures import MAX_PICTURE_CHARS, packed_script, picture_html

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror='window.hacked=1'>"
STEPS = np.arange(50, 2001, 50)


def loss_panel(): return Panel("Loss", [LineSeries(STEPS, 1 + STEPS / 2e4, "smoothed"), LineSeries(STEPS[1::2], 0.01 - STEPS[1::2] / 1e6, "eval_loss", 1), Marker(1050, "lr = 0.001")])
def rate_panel(): return Panel("Learning rate", [LineSeries(STEPS, 2.5e-3 - STEPS * 0, "learning_rate")])


def exported(theme="light", *bundles):
    "A notebook with these outputs as a web page."
    cells = [nbformat.v4.new_code_cell("x", outputs=[nbformat.v4.new_output("display_data", bundle)]) for bundle in bundles]
    return HTMLExporter(theme=theme).from_notebook_node(nbformat.v4.new_notebook(cells=cells))[0]


class Reader:
    "A page that was exported, and its pictures."
    def __init__(self, tab): self.tab = tab
    def plot(self, n=0): return self.tab.locator(".tnb-picture .plot").nth(n)
    def point(self, share, n=0, y=60):
        box = self.plot(n).bounding_box()
        self.tab.mouse.move(box["x"] + box["width"] * share, box["y"] + y)
        return self.tab.locator(".tip:visible").inner_text()
    def ticks(self, n=0): return self.plot(n).locator("text").all_text_contents()
    def drag(self, start, end, n=0):
        ends = [{"x": self.plot(n).bounding_box()["width"] * share, "y": 60} for share in (start, end)]
        self.plot(n).drag_to(self.plot(n), source_position=ends[0], target_position=ends[1])
    def values(self): return self.tab.evaluate("[...document.querySelectorAll('.tnb-picture .plot')].map(o => [...o.querySelectorAll('path[fill=none]')].length)")


@pytest.fixture
def opened(browser, tmp_path):
    "A function that opens HTML without a network; nothing may go wrong in the page."
    contexts, errors = [], []
    def open_page(html, width=1300, scripts=True, ready=True):
        (tmp_path/"page.html").write_text(html, "utf-8")
        context = browser.new_context(viewport={"width": width, "height": 1200}, offline=True, java_script_enabled=scripts)
        contexts.append(context)
        tab = context.new_page()
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(f"file://{tmp_path}/page.html", wait_until="domcontentloaded")
        if ready: tab.wait_for_selector(".tnb-picture svg path", state="attached")
        return Reader(tab)
    yield open_page
    for context in contexts: context.close()
    assert errors == []


def bundle(*panels): return {"text/html": picture_html(panels), "text/plain": "x"}


def test_values_at_the_nearest_step(opened):
    "Written as on the live page, and beside the pointer; the crosshair stands in every panel of steps."
    page = opened(exported("light", bundle(loss_panel(), rate_panel())))
    lines = page.point(0.535).split("\n")
    assert lines[0] == "step 1,050" and lines[1:3] == ["smoothed", "1.05"] and lines[3] == "eval_loss" and lines[4] in ("9e-3 (step 1,000)", "8.9e-3 (step 1,100)")
    assert "lr = 0.001" in lines[-1]
    assert page.tab.locator(".tnb-picture .plot > g > path").count() == 2
    assert page.point(0.5, 1).split("\n")[1:] == ["learning_rate", "2.5e-3"]
    page.tab.mouse.move(3, 3)
    assert page.tab.locator(".tip:visible").count() == 0


def test_zoom_and_back(opened):
    "Dragging zooms all panels of steps, and the values fill the height again; a double click shows everything. The same with keys; and files."
    page = opened(exported("light", bundle(loss_panel(), rate_panel())))
    before = page.ticks(), page.ticks(1)
    page.drag(0.4, 0.6)
    steps = [int(o.replace(",", "")) for o in page.ticks() if re.fullmatch(r"[\d,]+", o)]
    assert steps and all(600 < o < 1400 for o in steps if o > 10) and page.ticks(1) != before[1]
    page.plot().dblclick(position={"x": 300, "y": 60})
    assert (page.ticks(), page.ticks(1)) == before
    page.plot().focus()
    for key, changed in (("+", True), ("Escape", False), ("PageUp", True)):
        page.tab.keyboard.press(key)
        assert (page.ticks() != before[0]) == changed
    page.tab.get_by_role("button", name="see all").click()
    for tool in ("log", "log x", "⤢"):
        page.tab.get_by_role("button", name="Loss: ").get_by_text(tool, exact=True).press("Enter")
        assert page.ticks() != before[0] and page.plot(1).is_visible() == (tool != "⤢")
    for kind, begin in (("PNG", b"\x89PNG"), ("SVG", b"<svg xmlns="), ("CSV", b'"name","step","value"\n"smoothed",50,1.002\n')):
        with page.tab.expect_download() as file: page.tab.get_by_label("save Loss").select_option(kind)
        assert Path(file.value.path()).read_bytes().startswith(begin)


def test_the_run_that_is_pointed_at(opened):
    "Its values stand beside the pointer as they are given, and the others step back; a pattern tells runs of one colour apart."
    lines = [LineSeries(x, [0, 1], name, color, words=[("lr", name), ("acc", "0.9")]) for x, name, color in (([0.0, 0.0], "a", 2), ([1.0, 1.0], "b", 24))]
    page = opened(exported("light", bundle(Panel("p", [*lines, Marker(0.0, "1e-3", 0), Marker(1.0, "0.1", 0)], x="", rows=["lr", "acc"], x_span=(0.0, 1.0)), Panel("s", lines, x="per_device_train_batch_size"))))
    looks = lambda: page.tab.evaluate("[...document.querySelectorAll('[data-of]')].map(o => [o.dataset.of, o.style.opacity, o.getAttribute('stroke-dasharray')])")
    assert looks()[:2] == [["a", "", "none"], ["b", "", "7 3"]] and page.plot().locator("text").all_text_contents() == ["lr", "acc", "1e-3", "0.1"] and page.ticks(1)[-2:] == ["1.0", "per_device_train_batch_size"]
    assert page.point(0.965, y=100).split("\n") == ["b", "lr", "b", "acc", "0.9"] and [o[1] for o in looks()][:2] == ["0.12", ""]


def test_no_line_crosses_the_label_of_another_moment(opened):
    "A moment under a label begins below it, and labels do not overlap."
    words = ["set learning_rate=0.01", "rewind 40 steps back", "set lr=0.1", "stop: the run ended here", "set lr=0.2"]
    marks = [Marker(x, word) for x, word in zip((0, 8, 10, 100, 97), words)]
    page = opened(exported("light", bundle(Panel("Loss", [LineSeries(np.arange(101), np.arange(101.0)), *marks]))), width=700)
    texts, lines = page.tab.evaluate("""words => [[...document.querySelectorAll('.tnb-picture svg text')].filter(o => words.includes(o.textContent)),
        [...document.querySelectorAll('.tnb-picture path[stroke-dasharray="2 3"]')]].map(all => all.map(o => { const { left, right, top, bottom } = o.getBoundingClientRect(); return [left, right, top, bottom]; }))""", words)
    assert len(texts) == len(lines) == 5
    for left, right, top, bottom in texts:
        assert not [o for o in lines if left < o[0] < right and o[2] < bottom - 4]
        assert sum(left < o[1] and o[0] < right and top < o[3] - 4 and o[2] + 4 < bottom for o in texts) == 1   # itself


def test_the_legend_switches_lines(opened):
    page = opened(exported("light", bundle(loss_panel(), rate_panel())))
    button = page.tab.get_by_role("button", name="smoothed")
    drawn, high = page.values(), page.ticks()
    button.click()
    assert button.get_attribute("aria-pressed") == "false" and page.values()[0] == drawn[0] - 1 and page.ticks() != high
    assert "smoothed" not in page.point(0.53)
    button.click()
    assert page.values() == drawn and page.ticks() == high


def test_the_legend_names_what_has_to_be_told_apart(opened):
    "A curve alone in its panel has the panel's name; its discarded steps are named."
    def gone(): return LineSeries(STEPS[20:], 3e-3 - STEPS[20:] * 0, "discarded", None, "dashed")
    page = opened(exported("light", bundle(loss_panel(), Panel("Learning rate", [*rate_panel().things, gone()])), bundle(Panel("Learning rate", [*rate_panel().things, gone()]), loss_panel())))
    names = [[o.inner_text() for o in legend.get_by_role("button").all()] for legend in page.tab.locator(".tnb-picture .legend").all()]
    assert names == [["smoothed", "eval_loss", "discarded"], ["discarded", "smoothed", "eval_loss"]]


def test_pictures_of_one_page_are_apart(opened):
    "Two pictures: a zoom of the first leaves the second, and each is drawn once."
    page = opened(exported("light", bundle(loss_panel()), bundle(loss_panel())))
    assert page.tab.locator(".tnb-picture").count() == 2 and page.tab.locator("img[data-trainer-nb-image]").count() == 0
    before = page.ticks(1)
    page.drag(0.4, 0.6)
    assert page.ticks(0) != before and page.ticks(1) == before


@pytest.mark.parametrize("width", [420, 700, 1300])
def test_every_kind_of_panel(opened, width):
    "Heat maps, histograms, values of rows: drawn inside the page, with their values under the pointer."
    counts, edges = np.histogram(np.random.default_rng(0).normal(size=500), 10)
    panels = [Panel("norm", [Heatmap(STEPS, ["first", "second"], np.outer([1050.0, 0.0025], np.ones(40)), log=True)]), Panel("weights", [Histogram(edges, counts)], x="value"),
              Panel("rows", [LineSeries([0.5, 1050], [0, 1], "weight", 0, "points"), LineSeries([1, 2], [0, 1], "gradient", 1, "points")], x="size", xlog=True, rows=["one", "a.long.name." * 5]),
              Panel("log", [LineSeries(10.0 ** np.arange(-5, 0), [3, 2, 1, 2, np.nan], "loss"), Marker(1e-3, "lowest", 1.0, 1)], x="learning rate", xlog=True, ylog=True, note="a note")]
    page = opened(exported("light", bundle(*panels)), width)
    assert page.tab.locator(".tnb-picture .plot").count() == 4
    assert "first" in (shown := page.point(0.6, 0, 40)) and "1,050" in shown
    assert str(counts.max()) in page.point(0.5, 1) or str(counts[4]) in page.point(0.5, 1)
    assert page.point(0.8, 2, 50).split("\n")[0] == "one" and "0.500" in page.point(0.8, 2, 50)
    assert "learning rate" in page.point(0.5, 3)
    own = page.tab.locator(".tnb-picture").bounding_box()
    assert own["x"] + own["width"] <= width
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= width + 1
    # no words on other words of the same axis
    overlaps = page.tab.evaluate("""[...document.querySelectorAll('.tnb-picture .plot')].flatMap(plot => {
      const boxes = [...plot.querySelectorAll(':scope > text')].map(o => [o.textContent, o.getBoundingClientRect()]);
      return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([, q]) => p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3).map(([b]) => [a, b]));
    })""")
    assert overlaps == []


def test_a_heat_map_begins_where_it_was_measured(opened):
    "What was not measured is blank; a value of zero, which a logarithmic scale cannot show, is named."
    norms = np.array([[0.01, 0.0, 0.0025], [1050.0, 0.5, np.nan]])
    page = opened(exported("light", bundle(Panel("Loss", [LineSeries(STEPS, 1 / STEPS, "loss")]), Panel("gradient norm", [Heatmap([1000, 1200, 1400], ["first", "second"], norms, log=True)]))))
    box, plot = page.plot(1).bounding_box(), page.plot(1)
    left, width = plot.evaluate("o => { const image = o.querySelector('image'); return [+image.getAttribute('x'), +image.getAttribute('width')]; }")
    def shown(step, y): return page.point((left + width * step / 2000) / box["width"], 1, y).split("\n")
    assert shown(1000, 50) == ["step 1,000", "first", "0.0100"]
    assert shown(1200, 50)[1:] == ["first", "no signal (0)"] and shown(1400, 160)[1:] == ["second", "not measured"] and shown(1000, 160)[-1] == "1,050"
    assert shown(300, 50)[-1] == "not measured" and shown(1900, 50)[-1] == "not measured"
    drawn = plot.evaluate("""async o => {
      const image = new Image();
      image.src = o.querySelector('image').getAttribute('href');
      await image.decode();
      const pen = Object.assign(document.createElement('canvas'), { width: image.width, height: image.height }).getContext('2d');
      pen.drawImage(image, 0, 0);
      return [0.1, 0.5, 0.6, 0.9].map(share => pen.getImageData(Math.round(share * image.width), 0, 1, 1).data[3]);
    }""")
    assert drawn == [0, 255, 0, 0]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_colours_of_both_themes(opened, theme):
    "The hues of the live view, decided by what lies behind the picture and not by the system."
    page = opened(exported(theme, bundle(loss_panel())))
    assert page.plot().locator("[data-of=smoothed]").first.get_attribute("stroke") == {"light": "rgb(47, 127, 193)", "dark": "rgb(90, 169, 230)"}[theme]
    color = page.plot().locator("text").first.evaluate("o => getComputedStyle(o).fill")
    lightness = sum(map(float, re.findall(r"[\d.]+", color)[:3])) / 765
    assert lightness < 0.4 if theme == "light" else lightness > 0.6


def test_without_scripts_the_image_stands_there(opened):
    page = opened(exported("light", bundle(loss_panel())), scripts=False, ready=False)
    image = page.tab.locator("img[data-trainer-nb-image]")
    assert image.is_visible() and image.bounding_box()["height"] > 100


def test_names_are_text(opened):
    page = opened(exported("light", bundle(Panel(HOSTILE, [LineSeries(STEPS, STEPS, HOSTILE), LineSeries(STEPS, -STEPS, "b"), Marker(1000, HOSTILE)], note=HOSTILE))))
    assert HOSTILE in page.point(0.5) and page.tab.evaluate("window.hacked") is None


def test_the_picture_is_small():
    noise = np.random.default_rng(0).normal(size=100_000)
    huge = Panel("a", [LineSeries(np.arange(100_000), noise, f"line {i}") for i in range(30)])
    assert len(picture_html([huge])) < MAX_PICTURE_CHARS and len(packed_script()) < 22_000
    rows = [f"layer {i}" for i in range(60)]
    assert len(picture_html([Panel("b", [Heatmap(np.arange(1000), rows, np.abs(noise[:60_000]).reshape(60, 1000), log=True)])])) < MAX_PICTURE_CHARS
    data = re.search(r"base64,([^\"]+)\">", picture_html([loss_panel()]))[1]
    assert base64.b64decode(data).startswith(b"<svg")
