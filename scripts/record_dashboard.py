#!/usr/bin/env python3
"""Record the dashboard for the README: a run that goes wrong, is rewound, and continues with a lower learning rate.

    python scripts/record_dashboard.py [--theme dark]     # writes nbs/images/dashboard.gif (or dashboard_dark.gif)

The run is that of the tutorial `Live`, in a real JupyterLab. Above each picture stands what was typed. Takes one or two minutes; needs
what `make test` needs, a Chromium among it, and Pillow."""
import argparse, io, re, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT/"tests"), str(ROOT/"scripts")]

from conftest import find_chromium  # noqa: E402
from lab import Lab, eventually  # noqa: E402
from PIL import Image, ImageDraw, ImageFont  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402
from take_pictures import code  # noqa: E402

PAGE, WIDTH, HEIGHT = 1300, 900, 606   # pixels: of the page, and of a picture
CAPTION, COLORS = 40, 64     # height of the line above it; colours of the palette, which makes the file small
EVERY = 20                   # steps between two pictures
SETUP = 3                    # cells of the tutorial before the dashboard: imports, data and network, learner
EPOCHS = 60                  # of the run that is shown; the tutorial has more, for its readers end it by hand
COVER = 1000                 # milliseconds of the last picture at the beginning
LIMIT = 2_000_000            # bytes

STORY = [
    ("run = learn.start()", 'run = learn.start(until=lambda record: record.step >= 580)', 580),
    ("learn.rewind(230)            # the loss has jumped: back to step 350, exactly", "learn.rewind(learn.state.global_step - 350)", None),
    ("learn.set(learning_rate=0.1) # the next step uses it, and the journal has it", "learn.set(learning_rate=0.1)", None),
    ("run.resume()", "run = learn.start()", 520),   # in the last picture it still trains
]


class Film:
    "Pictures of the dashboard, each with what was typed above it."
    def __init__(self, page, dark):
        self.page, self.frames, self.times = page, [], []
        self.paper, self.ink = ("#111111", "#e8e8e8") if dark else ("#ffffff", "#202124")
        self.font = ImageFont.load_default(size=17)

    def take(self, typed, milliseconds):
        "Add a picture that is shown for some time."
        board = Image.open(io.BytesIO(self.still_board())).convert("RGB")
        board = board.resize((WIDTH, round(board.height * WIDTH / board.width)), Image.Resampling.LANCZOS)
        frame = Image.new("RGB", (WIDTH, HEIGHT), self.paper)
        frame.paste(board, (0, CAPTION))
        ImageDraw.Draw(frame).text((12, 10), "In [ ]:  " + typed, fill=self.ink, font=self.font)
        self.frames.append(frame)
        self.times.append(milliseconds)

    def still_board(self):
        "A screenshot of the dashboard, taken again where the page has moved meanwhile."
        for _ in range(20):
            before = self.page.board().bounding_box()
            picture = self.page.board().screenshot()
            if self.page.board().bounding_box() == before: return picture
        raise RuntimeError("The page does not come to rest.")

    def write(self, path):
        """Write an animated GIF with one palette for all pictures; raise ValueError if it is too large for a page.

        It begins with its last picture, which is all that is seen where animations are off."""
        whole = Image.new("RGB", (WIDTH, HEIGHT * 3))
        for i, k in enumerate((0, len(self.frames) // 2, -1)): whole.paste(self.frames[k], (0, HEIGHT * i))
        palette = whole.quantize(COLORS, dither=Image.Dither.NONE)
        frames = [f.quantize(palette=palette, dither=Image.Dither.NONE) for f in self.frames]
        path.parent.mkdir(exist_ok=True)
        frames[-1].save(path, save_all=True, append_images=frames, duration=[COVER, *self.times], loop=0, optimize=True)
        size = path.stat().st_size
        if size > LIMIT: raise ValueError(f"{path.name} has {size / 1e6:.1f} MB; increase EVERY, or use fewer COLORS.")
        print(f"{path.relative_to(ROOT)}: {len(self.frames)} pictures, {size / 1000:.0f} kB")


def record(browser, dark):
    "The story, cell by cell."
    setup = [re.sub(r"num_train_epochs=\d+", f"num_train_epochs={EPOCHS}", cell) for cell in code()[:SETUP]]
    cells = [*setup, "learn.dashboard()", *(cell for _, cell, _ in STORY)]
    lab = Lab(browser, dark=dark)
    try:
        page = lab.notebook(cells, "film.ipynb", width=PAGE, height=1800)
        for i in range(SETUP + 1): page.run(i)
        film = Film(page, dark)
        # the widget connects
        page.says("Not started")
        page.tab.wait_for_timeout(1000)
        film.take("learn.dashboard()", 700)
        for i, (typed, cell, last) in enumerate(STORY, SETUP + 1):
            page.run(i)
            if last is None:
                page.tab.wait_for_timeout(1500)
                film.take(typed, 2600)
                continue
            shown = -EVERY
            while shown < last:
                step = eventually(lambda: page.ask("learn.state.global_step"), "an answer", 60)
                if step >= shown + EVERY or step >= last:
                    film.take(typed, 90)
                    shown = step
                else: page.tab.wait_for_timeout(50)
            if "until" not in cell:
                film.times[-1] = 2600
                continue
            page.tab.wait_for_timeout(2500)
            film.take(typed, 2200)
        assert page.errors == [], page.errors
        return film
    finally: lab.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    dark = parser.parse_args().theme == "dark"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        record(browser, dark).write(ROOT/"nbs"/"images"/f"dashboard{'_dark' if dark else ''}.gif")


if __name__ == "__main__": main()
