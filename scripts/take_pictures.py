#!/usr/bin/env python3
"""Take pictures of the dashboard: that of the tutorial `Live`, or one of every state.

    python scripts/take_pictures.py            # runs the tutorial in JupyterLab and writes nbs/tutorials/images/live_training.png
    python scripts/take_pictures.py FOLDER     # every state, in both themes and two widths, to be looked at: FOLDER/STATE_THEME_WIDTH.png
    python scripts/take_pictures.py --live FOLDER   # a transformer in JupyterLab and in Notebook 7, driven: FOLDER/FRONTEND_WHAT_THEME_WIDTH.png

Each takes one to four minutes. Needs what `make test` needs, a Chromium among it, and Pillow. The notebook
itself is left as it is."""
import base64, contextlib, math, sys, tempfile, time, weakref
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT/"tests")]

import nbformat  # noqa: E402
import torch  # noqa: E402
from conftest import find_chromium  # noqa: E402
from lab import Lab, eventually  # noqa: E402
from PIL import Image  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

from trainer_nb import History, Learner, SamplesCallback, TrainerCallback, runs  # noqa: E402
from trainer_nb.live.screens import MachineUse  # noqa: E402

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

    def run(self, begin, to):  # parts of cells
        "Run the cells from the one to the other."
        first, last = (next(i for i, o in enumerate(self.cells) if part in o) for part in (begin, to))
        for i in range(first, last + 1): self.page.run(i)

    def steps(self, n): eventually(lambda: self.page.ask("learn.state.global_step") >= n, f"step {n}", 120)

    def picture(self, name):
        "The dashboard as it is now, in a file."
        board, path = self.page.board(), IMAGES/f"live_{name}.png"
        board.scroll_into_view_if_needed()
        self.page.tab.mouse.move(2, 2)
        board.screenshot(path=path)
        Image.open(path).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB", flush=True)

    def rest(self, seconds=2.5): self.page.tab.wait_for_timeout(int(seconds * 1000))


# The forward pass after a step waits, so that the picture is of just that step, of a run that trains.
HOLD = """import threading
released = threading.Event()
def wait_for_picture(network, inputs):
    if network.training and learn.state.global_step == {step}: released.wait(60)
learn.model.register_forward_pre_hook(wait_for_picture)"""
STEP = 250   # of the picture


def story(browser):
    "The tutorial from its beginning to its end, with its picture."
    lab = Lab(browser)
    try:
        reader = Reader(lab, code())
        reader.run("import tempfile", "learn = Learner(")
        reader.page.ask(f"exec({HOLD.format(step=STEP)!r})")
        reader.run("run = learn.start(", "board = learn.dashboard()")
        reader.steps(STEP)
        reader.rest()
        assert reader.page.ask("(learn.state.global_step, run.training)") == (STEP, True)
        reader.picture("training")
        reader.page.ask("released.set()")
        reader.run("metrics = learn.evaluate()", "run.stop()")
        assert reader.page.errors == [], reader.page.errors
    finally: lab.close()


# ---- every state
WIDTHS = (700, 1300)   # pixels of a page


class Recorder:
    "Takes the place of the widget, and keeps the last message."
    def send(self, content, buffers=None): self.message = content, [base64.b64encode(o).decode() for o in buffers or []]


class Net(torch.nn.Sequential):
    "A model that can fail, and whose loss can become nan."
    not_state = ("bad", "broken")
    bad = broken = 0
    def __init__(self): super().__init__(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
    def forward(self, x):
        step = self.learner().state.global_step + 1 if self.training else None
        if step == self.bad: x = x[:, :5]
        return super().forward(x) * (math.nan if step and self.broken and step >= self.broken else 1)


class At(TrainerCallback):
    "Call a function after a step, while the run trains."
    def __init__(self, step, act): self.step, self.act = step, act
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step: self.act()


def made(steps=4800, **settings):
    "A small run, with an evaluation now and then."
    torch.manual_seed(0)
    x = torch.randn(4000, 8)
    y = (x[:, :3].sum(1) > 0).long()
    data, other = torch.utils.data.TensorDataset(x[:3200], y[:3200]), torch.utils.data.TensorDataset(x[3200:], y[3200:])
    learn = Learner(Net(), train_dataset=data, eval_dataset=other, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True,
                    per_device_train_batch_size=16, max_steps=steps, learning_rate=3e-3, eval_strategy="steps", eval_steps=150, run_name="digits",
                    rewind_every=50, compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}, **settings)
    learn.model.learner = weakref.ref(learn)
    return learn


def seen(learn): return shown(learn.dashboard())


def shown(view):
    "What a page of this view shows: its first message."
    view.connection.widget = recorder = Recorder()
    view.send_all()
    return recorder.message


def while_it_trains(learn, steps, background):
    "What a page shows in the middle of training."
    held = []
    learn.add_callback(At(steps, lambda: held.append(seen(learn))))
    if background: learn.start(steps=steps + 1).wait()
    else: learn.run(steps=steps + 1)
    return held[0]


CHANGE_RATE = """const field = document.querySelector('.tnb-rate .tnb-field');
field.value = '7.81e-4';
field.dispatchEvent(new Event('input'));
field.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter' }));
feed({ kind: 'done', id: sent[sent.length - 1].id, text: 'lr = 7.81e-4 from step 1051 on', action: ['Undo', 'set', { learning_rate: 3e-3 }] });"""


class Layer(torch.nn.Module):
    "A layer of a transformer, with names as long as those of libraries."
    def __init__(self):
        super().__init__()
        self.self_attention_output_projection_with_rotary = torch.nn.Linear(8, 8)
        self.feed_forward_intermediate_activation_layer = torch.nn.Linear(8, 8)
    def forward(self, x): return x + self.feed_forward_intermediate_activation_layer(self.self_attention_output_projection_with_rotary(x)).tanh()


def transformer():
    "A run with 100 layers with long names, 50 metrics, large numbers, samples and the machine over time."
    torch.manual_seed(0)
    x = torch.randn(4000, 1, 2, 4)
    data = torch.utils.data.TensorDataset(x, (x.mean((1, 2, 3)) > 0).long())
    model = torch.nn.Sequential(torch.nn.Flatten(), *(Layer() for _ in range(50)), torch.nn.Linear(8, 2))
    learn = Learner(model, train_dataset=data, eval_dataset=torch.utils.data.Subset(data, range(200)), loss_func=torch.nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True,
                    max_steps=30_000, eval_strategy="steps", eval_steps=20, run_name="a-transformer-with-a-long-name", callbacks=[SamplesCallback(5)], learning_rate=1e-3)
    learn.watch(every=5)
    for step in range(20, 121, 20):
        learn.run(steps=20)
        learn.log({f"group_{k // 7}/metric_{k}": 10.0 ** (k % 9) / step for k in range(50)})
    return learn


def states():
    "Pairs of the name of a state and what the page does there: a message, and a command in JavaScript that follows it."
    learn = made()
    yield "not_started", seen(learn), ""
    training = while_it_trains(learn, 1050, background=True)
    yield "training", training, ""
    content, buffers = training
    yield "evaluation", (content | {"status": content["status"] | {"evaluating": (120, 400)}}, buffers), ""
    yield "disconnected", training, "fire('comm:close')"
    yield "settings", training, "document.querySelector('.tnb-settings-bar .tnb-quiet').click()"
    yield "changed_rate", training, CHANGE_RATE
    yield "training_in_a_cell", while_it_trains(learn, 1100, background=False), ""
    learn.set(lr=1e-3)
    yield "paused", seen(learn), ""
    branch = learn.branch(learning_rate=3e-2)
    branch.run_state.history.name = "higher learning rate"
    branch.run(steps=600)
    learn.run(steps=600)
    yield "branch", seen(learn), ""
    learn.watch()
    learn.run(steps=100)
    step = learn.debug_step()
    step.forward()
    yield "debug_step", seen(learn), ""
    step.abort()
    learn.rewind(120)
    learn.model.bad = learn.state.global_step + 31
    with contextlib.suppress(ValueError): learn.run(steps=100)
    yield "failed", seen(learn), ""
    yield "failed_open", seen(learn), "document.querySelector('.tnb-failure').open = true"
    learn.model.bad = 0
    learn.set(max_steps=learn.state.global_step + 200)
    learn.train()
    yield "finished", seen(learn), ""
    MachineUse.EVERY, every = 0.2, MachineUse.EVERY
    yield "transformer", seen(transformer()), ""
    MachineUse.EVERY = every
    learn = made(400)
    learn.model.broken = 300
    learn.run(steps=320)
    yield "nan", seen(learn), ""
    with tempfile.TemporaryDirectory() as folder:
        table = many_runs(folder)
        yield "runs", shown(table.view), ""
        yield "runs_hovered", shown(table.view), "view.highlight(view.table.rows[3].run)"
        yield "runs_of_seeds", shown(table.group("seeds").view), ""


def many_runs(folder):
    "Twenty runs with 50 metrics, large numbers and long names, of which some have failed."
    for k in range(20):
        rate, history = 10 ** -(2 + k % 4 / 2), History(f"sweep-{k:03d}" + " with a name that somebody has typed in a hurry" * (k % 7 == 0))
        history.setup = {"settings": {"learning_rate": rate, "seed": k % 3, "per_device_train_batch_size": 2 ** (k % 2 + 10)}}
        history.open_log(folder)
        for i in range(300): history.append(i + 1, i / 100, rate, 1024, i / 20, 12_345 * math.exp(-i / 90 - k / 20) + 50 * math.sin(i * k), 1.0)
        for step in range(50, 301, 50):
            history.note("evaluate", step, eval_accuracy=1 - math.exp(-step / 200 - k / 40), **{f"eval_group{j // 7}/metric_{j}": 10.0 ** (j % 7) / (step + k) for j in range(49)})
        history.note("exception", 300, type="RuntimeError", message="CUDA out of memory") if k % 9 == 0 else history.note("log", 300, train_runtime=15.0)
        history.close_log()
    return runs(folder, result="eval_accuracy")


def still(learn):
    "The static picture of a run, as a saved notebook shows it."
    return learn.dashboard().make_still()["text/html"]


def take_states(browser, folder):
    "Every state in both themes and in two widths, and the static picture: as an image, and with its script."
    folder.mkdir(parents=True, exist_ok=True)
    static = ROOT/"trainer_nb"/"static"
    source, style = "\n".join(o.read_text("utf-8") for o in sorted(static.glob("*.js"))), (static/"dashboard.css").read_text("utf-8")
    with contextlib.redirect_stdout(None):               # of the logs of the runs
        learn = made(700)
        learn.run(steps=200)
        learn.set(lr=1e-3)
        learn.watch()
        learn.train()
        hover = "document.querySelector('.tnb-picture .plot').dispatchEvent(new PointerEvent('pointermove', { clientX: innerWidth / 3, clientY: 160 }))"
        every = [*states(), ("static_image", still(learn), None), ("static_picture", still(learn), hover)]
    for name, message, command in every:
        for theme in ("light", "dark"):
            for width in WIDTHS:
                context = browser.new_context(viewport={"width": width, "height": 600})
                tab = context.new_page()
                tab.set_content((ROOT/"tests"/"page.html").read_text("utf-8"))
                tab.evaluate("""light => { document.body.dataset.jpThemeLight = light;
                  document.body.style = "background: var(--jp-layout-color1); color: var(--jp-ui-font-color1); font-family: system-ui, sans-serif" }""", str(theme == "light").lower())
                if command is None: tab.evaluate("html => { document.getElementById('stills').innerHTML = html }", message)   # no script runs
                elif isinstance(message, str):
                    tab.evaluate("html => { document.getElementById('stills').append(document.createRange().createContextualFragment(html)) }", message)
                    tab.wait_for_selector(".tnb-picture svg path", state="attached")
                    tab.evaluate(f"() => {{ {command} }}")
                else:
                    tab.evaluate("([source, style]) => start(source, style)", [source, style])
                    tab.evaluate("([content, buffers]) => feed(content, buffers)", list(message))
                    tab.evaluate("frames_(4)")
                    if command: tab.evaluate(f"() => {{ {command} }}")
                    tab.evaluate("frames_(4)")
                tab.wait_for_timeout(150)
                tab.set_viewport_size({"width": width, "height": min(3000, tab.evaluate("document.documentElement.scrollHeight"))})
                tab.wait_for_timeout(150)   # what comes into sight is drawn
                tab.screenshot(path=folder/f"{name}_{theme}_{width}.png")
                context.close()
        print(name, flush=True)


# ---- in real front ends
CELLS = [
    f"import sys\nsys.path[:0] = [{str(ROOT)!r}, {str(ROOT/'scripts')!r}, {str(ROOT/'tests')!r}]\nfrom take_pictures import made, transformer",
    "learn = transformer()", "learn.dashboard()", "learn.evaluate()", "learn.inspect()", "learn.watched", "learn.plot()", "learn", "learn.rewnd(3)",
    "learn.model[1] = __import__('torch').nn.Linear(9, 9)\nlearn.step()",
]


def drive(page):
    "Press the buttons of the dashboard, and wait for what each says."
    page.press("Step")
    page.says("after step 121")
    page.press("Rewind")
    page.says("rewound")
    page.press("Undo this rewind")
    page.says("the rewind is undone")
    page.press("Evaluate")
    page.says("evaluated after step 121")
    rate = page.board().get_by_role("textbox", name="Learning rate", exact=True)
    rate.fill("2e-4")
    rate.press("Enter")
    page.says("lr = 0.0002 from step 122 on")
    page.press("Resume")
    page.stands("training")
    page.press("Stop")
    page.stands("stopped")
    page.board().get_by_text("More settings").click()
    page.board().get_by_role("searchbox", name="find a setting").fill("norm")


def take_live(browser, folder):
    "The dashboard of a transformer and what cells show of it, in JupyterLab and Notebook 7, in both themes and two widths."
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("lab", "notebook"):
        for theme in ("light", "dark"):
            lab = Lab(browser, dark=theme == "dark", kind=kind)
            try:
                page = lab.notebook(CELLS, width=WIDTHS[0], height=1000)
                for i in range(3): page.run(i, 120)
                page.says("paused")
                drive(page)
                for i in range(3, len(CELLS)): page.run(i)
                for width in WIDTHS:
                    # an output that is higher than the page would be cut
                    page.tab.set_viewport_size({"width": width, "height": 6000})
                    page.tab.wait_for_timeout(800)
                    for i in range(2, len(CELLS)):
                        page.cell(i).scroll_into_view_if_needed()
                        page.tab.wait_for_timeout(400)
                        page.cell(i).locator(".jp-OutputArea").screenshot(path=folder/f"{kind}_cell{i}_{theme}_{width}.png")
                # an error of Notebook's own, before any notebook is open
                assert [o for o in page.errors if "'schema'" not in o] == []
                print(kind, theme, flush=True)
            finally:
                lab.stop_kernels()
                lab.close()


def main():
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"])
        if "--live" in sys.argv: take_live(browser, Path(sys.argv[-1]))
        elif len(sys.argv) > 1: take_states(browser, Path(sys.argv[1]))
        else:
            IMAGES.mkdir(exist_ok=True)
            story(browser)
        browser.close()


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s")
