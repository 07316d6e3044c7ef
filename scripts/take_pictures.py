#!/usr/bin/env python3
"""Take the pictures of the tutorial `Live` again: its cells run in JupyterLab, and its dashboard is looked at.

    python scripts/take_pictures.py            # writes nbs/tutorials/images/live_*.png

Takes about a minute and a half. Needs what `make test` needs, a Chromium among it, and Pillow. The notebook itself is left as it is."""
import sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT/"tests"))

import nbformat  # noqa: E402
from conftest import find_chromium  # noqa: E402
from lab import Lab, eventually  # noqa: E402
from PIL import Image  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

IMAGES = ROOT/"nbs"/"tutorials"/"images"
WIDTH, COLORS = 1000, 128   # pixels of the notebook's page; of a palette, which makes the files small


def code():
    "The tutorial's cells with code."
    nb = nbformat.read(ROOT/"nbs"/"tutorials"/"live.ipynb", 4)
    return [o.source for o in nb.cells if o.cell_type == "code" and "#| hide" not in o.source]


class Reader:
    "Run the cells of the tutorial as a reader does."
    def __init__(self, lab, cells):
        self.cells, self.page = cells, lab.notebook(cells, "live.ipynb", width=WIDTH, height=2400)

    def run(self, begin, to=None, wait=True):  # parts of cells
        "Run the cells from the one to the other."
        first = next(i for i, o in enumerate(self.cells) if begin in o)
        last = first if to is None else next(i for i, o in enumerate(self.cells) if to in o)
        for i in range(first, last + 1): self.page.run(i) if wait else self.page.start(i)

    def steps(self, n): eventually(lambda: self.page.ask("learn.state.global_step") >= n, f"step {n}", 120)

    def picture(self, name, above):  # above: a title on the dashboard
        "The dashboard as it is now, from its top to above a title, in a file."
        board, path = self.page.board(), IMAGES/f"live_{name}.png"
        board.scroll_into_view_if_needed()
        self.page.tab.mouse.move(2, 2)
        top, end = (o.bounding_box()["y"] for o in (board, board.get_by_text(above, exact=True).first))
        board.screenshot(path=path)
        picture = Image.open(path).convert("RGB")
        picture.crop((0, 0, picture.width, int(end - top) - 8)).quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB", flush=True)

    def rest(self, seconds=2.5): self.page.tab.wait_for_timeout(int(seconds * 1000))


def story(browser, dark):
    "The tutorial from its beginning to its end, with the pictures of one theme."
    lab = Lab(browser, dark=dark)
    try:
        reader = Reader(lab, code())
        reader.run("import tempfile", "run = learn.start()")
        reader.steps(20)
        reader.run("learn.watch(")
        reader.steps(300)
        if not dark: reader.picture("training", "output spread")
        reader.run("record.step >= 560", "run.wait()")
        reader.rest()
        if not dark: reader.picture("paused", "Evaluations")
        reader.run("learn.rewind(", "careful = ")
        reader.steps(480)
        if not dark: reader.picture("rewound", "output spread")
        reader.run("record.step >= 600", "run.stop()")
        reader.rest()
        if dark: reader.picture("finished", "output spread")
        assert reader.page.errors == [], reader.page.errors
    finally: lab.close()


def main():
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"])
        for dark in (False, True): story(browser, dark)
        browser.close()


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s")
