"The dashboard in real JupyterLab, driven by Chromium: every control, reloads, what stays without a kernel, two views, errors, hostile names."
import os, re, subprocess, sys

import nbformat
import pytest

from lab import Lab, eventually

pytestmark = pytest.mark.browser

SETUP = '''
import time, torch
from trainer_nb import Learner
torch.manual_seed(0)
x = torch.randn(400, 8); y = (x[:, :3].sum(1) > 0).long()
data, other = torch.utils.data.TensorDataset(x[:320], y[:320]), torch.utils.data.TensorDataset(x[320:], y[320:])
class Net(torch.nn.Sequential):
    not_state = ("nap", "bad")
    nap, bad = 0.02, 0
    def forward(self, x):
        time.sleep(self.nap)
        if self.training and learn.state.global_step + 1 == self.bad: raise ValueError("a <b>bad</b> batch")
        return super().forward(x)
def made(**settings):
    torch.manual_seed(0)
    model = Net(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
    return Learner(model, train_dataset=data, eval_dataset=other, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, per_device_train_batch_size=8,
                   compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
                   num_train_epochs=100, eval_strategy="steps", eval_steps=50, save_strategy="no", output_dir="out", **settings)
learn = made()
'''


@pytest.fixture(scope="module")
def lab(browser):
    lab = Lab(browser)
    yield lab
    lab.close()


@pytest.fixture
def page(lab):
    "A notebook with a learner and its dashboard, and room for two more cells."
    name = f"n{len(lab.pages)}.ipynb"
    page = lab.notebook([SETUP, "view = learn.dashboard()\nview", "run = learn.start()", "run.wait()", "learn.evaluate()"], name)
    page.run(0).run(1).says("Not started")
    yield page
    assert page.errors == []
    page.close()
    lab.pages.remove(page)
    lab.stop_kernels()


def step(page): return page.ask("learn.state.global_step")


def still(page):
    "A run that stands: its step does not change any more."
    page.stands("paused")
    before = step(page)
    page.tab.wait_for_timeout(300)
    assert step(page) == before
    return before


def test_every_control(page):
    page.run(2).stands("training")
    page.press("Pause")
    at = still(page)
    for _ in range(3): page.press("Step")              # three clicks are three steps
    eventually(lambda: step(page) == at + 3, "three steps")
    assert still(page) == at + 3
    page.board().get_by_role("textbox", name="number of steps", exact=True).fill("7")
    page.press("steps")
    eventually(lambda: step(page) == at + 10, "seven steps")
    page.says(f"after step {at + 10}")
    page.press("Evaluate")
    page.says(f"evaluated after step {at + 10}").says("eval_accuracy")
    assert page.ask("learn.history.evaluations()[-1]['step']") == at + 10
    page.press("Checkpoint")
    page.says(f"checkpoint-{at + 10}")
    assert page.ask(f"__import__('os').path.isdir('out/checkpoint-{at + 10}')")
    page.board().get_by_role("textbox", name="name of the snapshot").fill("here")
    page.press("Snapshot")
    page.says("snapshot 'here' taken")
    assert page.ask("list(learn.snapshots)") == ["here"]
    page.board().get_by_role("textbox", name="number of steps to rewind").fill("4")
    page.press("Rewind")
    page.says(f"after step {at + 6}")
    assert step(page) == at + 6
    rate = page.board().get_by_role("textbox", name="Learning rate", exact=True)
    rate.fill("0.0123")
    rate.press("Enter")
    page.says(f"0.0123 from step {at + 7} on")
    assert page.ask("learn.optimizer.param_groups[0]['lr']") == 0.0123
    page.press("Resume")
    page.stands("training")
    page.press("Stop")
    page.stands("stopped")
    assert page.ask("learn.run_state.finished and learn.state.global_step < learn.state.max_steps")
    at = step(page)
    page.press("Step")                                  # a run that was stopped early can go on
    page.stands("paused")
    assert step(page) == at + 1
    page.save(keys=True)                                # the notebook's own shortcut, with the focus in the view


def test_the_same_bytes_as_without_a_view(page):
    "Paused, stepped and looked at in the page, the run is the run that nobody has looked at."
    page.run(2).stands("training")
    page.press("Pause")
    still(page)
    page.press("Step")
    page.press("Evaluate")
    page.says("evaluated after")
    page.tab.wait_for_timeout(300)
    assert page.ask("__import__('trainer_nb').differences(learn.snapshot(), (lambda n: (setattr(n.model, 'nap', 0), n.step(learn.state.global_step), n.snapshot())[-1])(made()))") == []


def test_a_page_that_is_loaded_anew(page):
    "While it runs, while it is paused, and when it is over."
    page.run(2).stands("training")
    page.reload()
    page.stands("training")
    before = step(page)
    eventually(lambda: step(page) > before, "steps after the reload")
    page.says("of").press("Pause")
    at = still(page)
    assert at > before
    page.says(f"{at}")
    page.reload()
    page.stands("paused")
    page.says(f"after step {at}").press("Step")
    eventually(lambda: step(page) == at + 1, "a step")
    page.press("Stop")
    page.stands("stopped")
    page.reload()
    page.stands("stopped")
    page.says(f"after step {at + 1}")


def subshell(page):
    "Handle a message in a subshell that is deleted then, as JupyterLab does for a page that is loaded anew."
    page.ask("1")                                       # connects the client
    def request(kind, **content):
        sent = page.client.session.send(page.client.control_channel.socket, kind, content)
        return eventually(lambda: next(m["content"] for m in iter(page.client.get_control_msg, None) if m["parent_header"].get("msg_id") == sent["header"]["msg_id"]), kind)
    made = request("create_subshell_request")
    if made["status"] != "ok": pytest.skip("this kernel has no subshells")
    message = page.client.session.msg("comm_info_request", {})
    message["header"]["subshell_id"] = made["subshell_id"]
    page.client.session.send(page.client.shell_channel.socket, message)
    eventually(lambda: page.client.get_shell_msg(timeout=10)["msg_type"] == "comm_info_reply", "a reply from the subshell")
    assert request("delete_subshell_request", subshell_id=made["subshell_id"])["status"] == "ok"


def test_clicks_arrive_although_a_subshell_is_gone(page):
    "What is sent to a page in the background belongs to the view's cell, not to whichever request the kernel has handled last."
    page.run(2).stands("training")
    subshell(page)
    for _ in range(2):                                  # the page is sent to again
        before = page.board().locator(".tnb-fact-value").first.inner_text()
        eventually(lambda: page.board().locator(".tnb-fact-value").first.inner_text() != before, "news of the run")
    page.press("Pause")
    still(page)


def pictures(nb, i): return [o["data"]["text/html"] for o in nb.cells[i].outputs if "trainer_nb still" in str(o.get("data", {}).get("text/html"))]


def test_what_stays(page, lab):
    "Reopened without the kernel, and as a web page: the picture and the table; and nothing alive, nothing large."
    page.run(2).stands("training")
    eventually(lambda: step(page) > 60, "an evaluation")
    page.press("Stop")
    page.stands("stopped")
    at = step(page)
    assert page.tab.locator("[data-trainer-nb-still]").first.is_visible() is False     # out of sight while the view is there
    page.tab.wait_for_timeout(700)
    nb = page.save()
    assert "widgets" not in nb.metadata and f"stopped after step {at}" in pictures(nb, 1)[0] and "eval_accuracy" in pictures(nb, 1)[0]
    assert sum(len(str(o)) for o in nb.cells[1].outputs) < 200_000
    html = subprocess.run([sys.executable, "-m", "nbconvert", "--to", "html", "--stdout", page.name], cwd=lab.root, capture_output=True, text=True).stdout
    assert html.count('alt="trainer_nb still') == 1 and f"stopped after step {at}" in html
    lab.stop_kernels()
    page.reload()
    picture = page.tab.locator("[data-trainer-nb-still] .tnb-picture").first
    eventually(picture.is_visible, "the picture")
    assert f"stopped after step {at}" in page.output(1)
    page.tab.wait_for_function("document.body.textContent.includes('Error displaying widget')")
    assert "Error displaying widget" not in page.output(1)          # it is there, but hidden


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("kernel", ["python3", "a kernel that is not there"])
def test_no_message_about_a_missing_widget(lab, tmp_path, monkeypatch, trusted, kernel):
    "Opened later, trusted or not, with a new kernel or none: the picture alone, interactive where scripts may run."
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(SETUP, names)
    names["learn"].model.nap = 0
    names["learn"].step(4)
    view = {"version_major": 2, "version_minor": 0, "model_id": "gone"}
    outputs = [nbformat.v4.new_output("display_data", {"application/vnd.jupyter.widget-view+json": view, "text/html": "", "text/plain": ""}),
               nbformat.v4.new_output("display_data", names["learn"].dashboard().make_still())]
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("view", outputs=outputs)])
    nb.metadata = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
    path = lab.root/f"gone_{trusted}_{len(kernel)}.ipynb"
    nbformat.write(nb, path)
    if trusted: subprocess.run([sys.executable, "-m", "jupyter", "trust", path], env=lab.env, capture_output=True, check=True)
    tab = lab.browser.new_context(viewport={"width": 1200, "height": 900}).new_page()
    tab.goto(f"http://127.0.0.1:{lab.port}/doc/tree/{path.name}?token=t&reset")
    tab.wait_for_selector(".jp-OutputArea:has-text('paused after step 4')", timeout=60000)
    if kernel != "python3": tab.locator(".jp-Dialog button", has_text="No Kernel").click(timeout=20000)
    if trusted:
        message = "Loading widget" if kernel != "python3" else "Error displaying widget"
        tab.wait_for_function("message => document.querySelector('.jp-OutputArea').textContent.includes(message)", arg=message)
    tab.wait_for_timeout(500)
    shown = tab.locator(".jp-OutputArea").inner_text()
    assert "widget" not in shown and "paused after step 4" in shown
    assert tab.locator(".tnb-picture").count() == int(trusted) and tab.locator("img[alt^='trainer_nb still']").count() == int(not trusted)
    tab.context.close()
    lab.stop_kernels()


def test_what_stays_of_a_page_that_was_loaded_anew(page):
    "Its outputs cannot be reached any more: the picture that stands there says its time, and no other cell gets one."
    page.run(2).stands("training")
    eventually(lambda: step(page) > 5, "some steps")
    page.reload()
    page.stands("training")
    page.press("Stop")
    page.stands("stopped")
    page.run(4)
    nb = page.save()
    assert pictures(nb, 4) == [] and "as of " in pictures(nb, 1)[0]


def test_two_browsers(page, lab):
    "Both show the same, and the buttons of both work."
    page.run(2).stands("training")
    page.save()
    second = lab.open(page.name)
    second.stands("training")
    second.press("Pause")
    page.stands("paused"), second.stands("paused")
    at = still(page)
    page.press("Step"), second.press("Step")
    eventually(lambda: step(page) == at + 2, "two steps")
    page.says(f"after step {at + 2}"), second.says(f"after step {at + 2}")
    second.close()
    lab.pages.remove(second)


def test_nobody_looks_for_the_rest_of_the_run(page, lab):
    "The browser is closed while it trains, and opened when it is over: all of it is there."
    page.run(2).stands("training")
    page.save()
    page.close()
    lab.pages.remove(page)
    page.ask("(setattr(learn.model, 'nap', 0), learn.set(max_steps=700), run.wait(), 1)[-1]")
    second = lab.open(page.name)
    second.stands("finished")
    second.says("700").says("eval_accuracy")
    assert second.ask("learn.run_state.finished and len(view.view_model.curves[0].blocks.table)") == 700
    page.tab, page.client = second.tab, second.client     # the fixture closes them
    lab.pages.append(page)
    lab.pages.remove(second)


def test_following_from_another_notebook(page, lab):
    "The same view without controls, from the log alone, live."
    page.run(2).stands("training")
    other = lab.notebook([f"import trainer_nb\nv = trainer_nb.follow('out')\nv"], "follows.ipynb").run(0)
    other.stands("training")
    at = step(page)
    eventually(lambda: int(other.board().locator(".tnb-fact-value").first.inner_text().split("/")[0].replace(",", "")) > at, "new steps are seen")
    assert other.board().locator(".tnb-button:visible", has_text="Pause").count() == 0
    page.press("Stop")
    page.stands("stopped"), other.stands("stopped")
    other.close()
    lab.pages.remove(other)


def test_an_error_in_the_thread(page):
    "It is shown in the view and in the cell that started the run, and raised in wait(); then the run continues."
    page.ask("setattr(learn.model, 'bad', 20)")
    page.run(2).stands("failed")
    page.says("ValueError: a <b>bad</b> batch").says("after step 19")
    assert "failed after step 19" in page.output(2)
    page.run(3)
    assert "ValueError" in page.output(3)
    page.ask("setattr(learn.model, 'bad', 0)")
    page.press("Resume")
    page.stands("training")
    eventually(lambda: step(page) > 25, "it goes on")


def test_names_are_text(page):
    "Metrics, layers and runs with the names of an attacker."
    page.ask("exec('hostile = \\'<img src=x onerror=\"window.hacked=1\">\\'; learn.compute_metrics = lambda p: {hostile: 1.0}; learn.history.name = hostile')")
    page.run(2).stands("training")
    eventually(lambda: step(page) > 55, "an evaluation")
    page.press("Pause")
    page.stands("paused")
    page.says('<img src=x onerror=')
    page.save()
    assert page.tab.evaluate("window.hacked") is None and page.tab.locator(".tnb img").count() == 0
    page.lab.stop_kernels()
    page.reload()
    assert page.tab.evaluate("window.hacked") is None


IN_ONE_CELL = "from IPython.display import display\ndisplay(learn.dashboard()); learn.run(steps=2000)"


def test_shown_and_trained_in_one_cell(lab):
    "With Run All: live at once, although the kernel never rests; and the buttons act while the cell trains."
    page = lab.notebook([SETUP, IN_ONE_CELL, "learn.state.global_step"], "one.ipynb")
    page.run_all()
    page.stands("training")
    at = page.step()
    eventually(lambda: page.step() > at + 5, "steps are seen")
    eventually(page.board().locator(".tnb-hint").is_hidden, "no hint that clicks wait")
    for name, words in (("Evaluate", "evaluated after step"), ("Checkpoint", "checkpoint-"), ("Snapshot", "taken after step"), ("Rewind", "rewound")):
        page.press(name)
        page.says(words)
        page.stands("training")
    page.press("Step")
    page.says("training in a cell: run()").stands("training")   # rejected, with the reason
    page.press("Pause")
    at = still(page)
    page.says(f"paused after step {at}")
    eventually(lambda: page.output(2).split()[-1] == str(at), "the next cell")
    page.press("Resume")
    page.stands("training")
    page.press("Pause")
    assert still(page) > at
    page.start(1)                                        # the cell again: another view, live as well
    eventually(lambda: page.tab.locator(".tnb").count() == 1 and page.state() == "training" and page.step() > at + 5, "the new view")
    page.press("Stop")
    page.stands("stopped")
    assert page.errors == []
    page.close(), lab.pages.remove(page), lab.stop_kernels()


def test_started_and_shown_in_one_cell(lab):
    "One view: the compact one of start() makes room, and comes back where the handle is shown alone."
    page = lab.notebook([SETUP, "run = learn.start()\nlearn.dashboard()", "run"], "started.ipynb")
    page.run(0).run(1).stands("training")
    assert page.tab.locator(".tnb").count() == 1
    page.save()
    page.reload()
    page.stands("training")
    assert page.tab.locator(".tnb").count() == 1
    page.press("Pause")
    page.stands("paused")
    page.run(2)
    eventually(lambda: page.tab.locator(".tnb").count() == 2, "the compact view")
    assert page.errors == []
    page.close()
    lab.pages.remove(page)
    lab.stop_kernels()


def test_a_front_end_whose_clicks_wait_for_the_cell(browser):
    "Live all the same, with a hint at what works; a click that comes too late is not said to have paused anything."
    lab = Lab(browser, comms="disabled")
    try:
        page = lab.notebook([SETUP, "learn.set(max_steps=300)\n" + IN_ONE_CELL.replace("learn.run(steps=2000)", "learn.train()")], "one.ipynb")
        page.run_all()
        page.stands("training")
        page.says("A cell is training").says("learn.start()")
        at = page.step()
        page.press("Pause")
        page.says("the kernel is busy with a cell")
        eventually(lambda: page.step() > at + 20, "the click waits")
        page.stands("finished")
        page.says("finished after step 300")
        page.tab.wait_for_timeout(500)
        assert "paused" not in page.board().inner_text() and page.board().locator(".tnb-hint").is_hidden()
    finally: lab.close()


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_colours_of_the_theme(browser, dark):
    lab = Lab(browser, dark=dark)
    try:
        page = lab.notebook([SETUP, "learn.dashboard()"]).run(0).run(1).says("Not started")
        paper, ink = (page.board().evaluate(f"e => getComputedStyle(e).{o}") for o in ("backgroundColor", "color"))
        bright = lambda color: sum(map(float, re.findall(r"[\d.]+", color)[:3])) / 3
        assert bright(ink) > 150 if dark else bright(ink) < 100, (paper, ink)
    finally: lab.close()


def test_notebook_7(browser):
    lab = Lab(browser, kind="notebook")
    try:
        page = lab.notebook([SETUP, "learn.dashboard()", "run = learn.start()"]).run(0).run(1).says("Not started").run(2)
        page.stands("training")
        page.press("Pause")
        at = still(page)
        page.press("Step")
        eventually(lambda: step(page) == at + 1, "a step")
        here = lambda: page.tab.evaluate("[...document.querySelectorAll('.jp-Notebook .jp-Cell')].map(o => o.classList.contains('jp-mod-active'))")
        before = here()
        for css in (".tnb-big .tnb-plot", ".tnb-rate .tnb-slider", ".tnb-toolbar select", ".tnb-settings-bar .tnb-quiet"):
            page.board().locator(css).first.focus()
            for key in ("ArrowUp", "ArrowDown", "ArrowRight", "a", "j"): page.tab.keyboard.press(key)
            assert here() == before, css                 # no cell was selected or made
    finally: lab.close()


def test_a_kernel_that_is_killed_does_not_train(page):
    "The server starts another kernel; what the page shows as training must not stay green. A cell that only keeps the kernel busy is not that."
    page.run(2).stands("training")
    kernel = page.ask("__import__('os').getpid()")
    page.start(3)                                        # waits for the run
    for _ in range(15):
        page.tab.wait_for_timeout(1000)
        assert page.state() in ("training", "evaluating")
    os.kill(kernel, 9)
    page.stands("the kernel was restarted")
    page.says("last known: training, step")


def test_a_view_in_a_box(lab):
    "Beside other widgets, and in parts: each lives, and the buttons of one move all."
    page = lab.notebook([SETUP, "import ipywidgets\nview = learn.dashboard()\nlabel = ipywidgets.Label('?')\n"
                         "view.observe(lambda change: setattr(label, 'value', f'at {change.new}'), 'step')\n"
                         "ipywidgets.VBox([label, view, ipywidgets.HBox([view.charts, view.controls])])", "run = learn.start()"], "box.ipynb")
    page.run(0).run(1).says("Not started").run(2)
    page.stands("training")
    eventually(lambda: page.board(1).locator(".tnb-big").is_visible() and not page.board(1).locator(".tnb-controls").is_visible(), "the charts alone")
    page.press("Pause", 2)
    at = still(page)
    eventually(lambda: page.tab.locator(".widget-label", has_text=f"at {at}").count(), "the label")
    assert page.tab.locator("[data-trainer-nb-still]").count() == 0
    page.press("Step", 0)
    eventually(lambda: step(page) == at + 1, "a step")
    page.close(), lab.pages.remove(page), lab.stop_kernels()
