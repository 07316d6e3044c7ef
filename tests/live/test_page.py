"The dashboard's page in a browser, with a model that a test plays: what it sends, what it shows, and what it never does."
import base64, math, re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from conftest import ROOT
from trainer_nb.core.history import History
from trainer_nb.live.curves import running_mean
from trainer_nb.live.dashboard import ONE_OF_BOTH
from trainer_nb.live.run_view import samples_html

pytestmark = pytest.mark.browser

STATIC = ROOT/"trainer_nb"/"static"
SOURCE = "\n".join(o.read_text("utf-8") for o in sorted(STATIC.glob("*.js")))
CSS = (STATIC/"dashboard.css").read_text("utf-8")
HOSTILE = "</script><img src=x onerror='window.hacked=1'><b>&amp;"


class Page:
    "A page with the dashboard in it."
    def __init__(self, tab): self.tab = tab
    def js(self, code, given=None): return self.tab.evaluate(code, given)
    def feed(self, content, buffers=()): self.js("([c, b]) => feed(c, b)", [content, [packed(o) for o in buffers]])
    def settle(self): self.js("frames_(4)")
    def sent(self, kind="do"): return [o for o in self.js("sent") if o["kind"] == kind]
    def orders(self): return [(o["verb"], o["with"]) for o in self.sent()]
    def text(self, css): return self.tab.locator(css).first.text_content()
    def answer(self, kind, id, text=None): self.feed({"kind": kind, "id": id, "text": text})
    def field(self, name): return self.tab.get_by_role("textbox", name=name, exact=True)
    def button(self, name): return self.tab.locator(".tnb-button", has=self.tab.locator(f".tnb-label:text-is('{name}')"))


def packed(values): return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode()


def blocks(n, width=1, first=1, loss=None):
    "Blocks that say which they are: the loss of step s is 1 + 1 / s."
    steps = (first - 1) + np.arange(1, n + 1) * width
    mean = 1 + 1 / steps if loss is None else np.full(n, loss)
    three = lambda a, b=0.1: np.stack([a - b, a + b, a], 1)
    where = np.stack([steps, steps / 100, steps / 60], 1)
    return np.concatenate([where, three(mean), three(np.full(n, 1e-3), 0), three(mean * 2), three(np.full(n, 500.0), 5)], 1).astype("<f4")


def a_run(run="r1", buffer=0, **changes):
    return {"run": run, "label": f"run {run}", "generation": 1, "first": 0, "width": 1, "buffer": buffer, "left_buffer": None, **changes}


def status(**changes):
    return {"state": "training", "words": "training in the background", "where": "background", "step": 50, "total": 100, "epoch": 0.5, "epochs": 1, "share": 0.5, "loss": "1.02",
            "rate": "9 steps/s", "left": "5 s", "elapsed": "5 s", "memory": None, "evaluating": None, "tone": "good", "verdict": "The loss is falling", **changes}


def setting(name, value, group="Training", kind="float", help="", **more):
    return {"name": name, "value": value, "text": str(value), "group": group, "kind": kind, "help": help, "effect": "from the next step on", **more}


SETTINGS = [setting("lr", 1e-3, ""), setting("learning_rate", 1e-3), setting("max_steps", 100, kind="int", help="total number of optimizer steps"), setting("bf16", False, kind="bool"),
            setting("eval_strategy", "no", "Evaluation", "choice", choices=["no", "steps"]), setting("run_name", "one", "Logging", "text")]


def everything(**changes):
    return {"kind": "all", "version": 1, "controls": True, "compact": False, "title": "digits", "status": status(), "runs": [a_run()], "metrics": {"r1": {
        "eval_loss": [[25, 0.25, 25 / 60, 1.1], [50, 0.5, 50 / 60, 1.05]], "accuracy": [[25, 0.25, 25 / 60, 0.7], [50, 0.5, 50 / 60, 0.8]]}},
        "marks": [{"kind": "set", "word": "learning rate 0.001", "step": 20, "epoch": 0.2, "minutes": 20 / 60, "gone": False, "action": ["Undo this change", "rewind", {"change": 20}]}], "evaluations": {"columns": ["step", "eval_loss"],
        "rows": [["25", "1.1"], ["50", "1.05"]], "earlier": 0}, "notices": [], "layers": [], "settings": SETTINGS, "still": "s1", "cell_hint": "A cell trains.", **changes}


@pytest.fixture
def page(browser):
    "A page that has said hello and has not been answered; nothing may go wrong in it."
    context = browser.new_context(viewport={"width": 1000, "height": 1400}, offline=True)
    tab, errors = context.new_page(), []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.set_content((Path(__file__).parents[1]/"page.html").read_text("utf-8"))
    tab.evaluate("([source, css]) => start(source, css)", [SOURCE, CSS])
    yield Page(tab)
    context.close()
    assert errors == []


@pytest.fixture
def live(page):
    "A page that shows a run of 50 steps."
    page.feed(everything(), [blocks(50)])
    page.settle()
    return page


@pytest.fixture
def timed(browser):
    "A page whose clock can be moved."
    context = browser.new_context()
    tab = context.new_page()
    tab.clock.install()
    tab.set_content((Path(__file__).parents[1]/"page.html").read_text("utf-8"))
    tab.evaluate("([source, css]) => start(source, css)", [SOURCE, CSS])
    yield Page(tab)
    context.close()


# ---- what it sends

def test_hello_until_somebody_answers(timed):
    "Every two seconds until everything has come; then never again, but for a new view."
    page, tab = timed, timed.tab
    assert "Connecting" in page.text(".tnb-waiting")
    tab.clock.run_for(1100)
    assert "Waiting for the kernel (a cell is running, or the kernel is gone)" in page.text(".tnb-waiting")
    tab.clock.run_for(4000)
    assert page.sent("hello") == [{"kind": "hello"}] * 3
    page.feed({"kind": "news", "status": status()})   # half of what there is to say is no answer
    assert tab.locator(".tnb-body").is_hidden()
    page.feed(everything(), [blocks(50)])
    assert tab.locator(".tnb-body").is_visible() and tab.locator(".tnb-waiting").is_hidden()
    tab.clock.run_for(10_000)
    assert len(page.sent("hello")) == 3
    page.js("cleanup(); open_view()")
    assert len(page.sent("hello")) == 4


def test_each_control_sends_one_command(live):
    wanted = []
    for name, verb, given in [("Pause", "pause", {}), ("Step", "step", {"n": 1}), ("steps", "step", {"n": 10}), ("Stop", "stop", {}), ("Rewind", "rewind", {"n": 10}),
                              ("Evaluate", "evaluate", {}), ("Checkpoint", "checkpoint", {}), ("Snapshot", "snapshot", {"name": ""})]:
        live.button(name).click()
        wanted.append((verb, given))
        assert live.orders() == wanted
    live.field("number of steps").fill("1,234")
    live.field("number of steps").press("Enter")
    live.field("number of steps to rewind").fill("7")
    live.button("Rewind").click()
    live.field("name of the snapshot").fill(" before ")
    live.field("name of the snapshot").press("Enter")
    assert live.orders()[len(wanted):] == [("step", {"n": 1234}), ("rewind", {"n": 7}), ("snapshot", {"name": "before"})]
    live.feed({"kind": "news", "status": status(state="paused")})
    live.button("Resume").click()
    assert live.orders()[-1] == ("resume", {}) and len(live.orders()) == 12


def test_settings_send_one_command_each(live):
    tab = live.tab
    tab.get_by_text("More settings").click()
    live.field("max_steps").fill("200")
    assert live.orders() == []   # not before Enter
    live.field("max_steps").press("Enter")
    live.field("max_steps").press("Tab")
    tab.get_by_label("eval_strategy").select_option("steps")
    tab.get_by_label("bf16").click()
    live.field("run_name").fill("two")
    live.field("run_name").press("Enter")
    live.field("Learning rate").fill("3e-4")
    live.field("Learning rate").press("Enter")
    assert live.orders() == [("set", o) for o in [{"max_steps": 200}, {"eval_strategy": "steps"}, {"bf16": True}, {"run_name": "two"}, {"lr": 3e-4}]]


def test_settings_stand_in_groups_and_are_found(live):
    "By their names, their words and the names of their groups."
    live.tab.get_by_text("More settings").click()
    visible = lambda: [o.split("\n")[0] for o in live.tab.locator(".tnb-setting-group > :visible").all_inner_texts()]
    assert visible() == ["Training", "learning_rate", "max_steps", "bf16", "Evaluation", "eval_strategy", "Logging", "run_name"]
    for words, names in [("optimizer TOTAL", ["Training", "max_steps"]), ("eval", ["Evaluation", "eval_strategy"]), ("nowhere", [])]:
        live.tab.get_by_role("searchbox", name="find a setting").fill(words)
        assert visible() == names and live.field("Learning rate").is_visible()


def test_a_setting_is_called_in_messages_as_on_the_page(live):
    live.field("Learning rate").fill("abc")
    live.field("Learning rate").press("Enter")
    assert live.orders() == [] and live.text(".tnb-notice-text") == 'Learning rate takes a number, not "abc"'
    live.field("Learning rate").fill("2e-4")
    live.field("Learning rate").press("Enter")
    assert live.orders() == [("set", {"lr": 2e-4})] and live.text(".tnb-notice-text").startswith("Learning rate: sent")


def test_the_slider_applies_when_it_is_let_go(live):
    box = live.tab.locator(".tnb-rate .tnb-slider").bounding_box()
    x, y, mouse = box["x"], box["y"] + box["height"] / 2, live.tab.mouse
    mouse.move(x + box["width"] / 2, y)
    mouse.down()
    for share in (0.6, 0.7, 0.8): mouse.move(x + box["width"] * share, y)
    assert live.orders() == []
    live.feed({"kind": "news", "settings": [{**SETTINGS[0], "value": 5e-4, "text": "5e-4"}]})   # the kernel's news do not take it out of the hand
    shown = float(live.field("Learning rate").input_value())
    mouse.up()
    live.tab.wait_for_function("sent.some(o => o.kind == 'do')")
    assert live.orders() == [("set", {"lr": shown})] and 5e-3 < shown < 1
    live.settle()
    assert len(live.orders()) == 1


def test_the_samples_of_an_evaluation_stay_in_sight(live):
    "The slider stays where it was moved to when another evaluation comes, or at the newest."
    history = History()
    def say(step):
        history.append(step, step / 10, 0.1, 8, 0.1, 1.0, 1.0)
        history.note("samples", step, samples=[{"text": HOSTILE, "predicted": f"at {step}"}])
        live.feed({"kind": "news", "samples": samples_html(history)})
    for step in (1, 2, 3): say(step)
    slider = live.tab.locator(".tnb-samples input")
    assert live.tab.get_by_text("at 3").is_visible() and not live.tab.get_by_text("at 2").is_visible() and HOSTILE in live.text(".tnb-samples")
    slider.fill("1")
    say(4)
    assert slider.input_value() == "1" and live.tab.get_by_text("at 2").is_visible() and not live.tab.get_by_text("at 4").is_visible()


def test_what_was_done_is_undone(live):
    "The answer brings the button."
    live.field("Learning rate").fill("2e-3")
    live.field("Learning rate").press("Enter")
    live.feed({"kind": "done", "id": live.sent()[-1]["id"], "text": "", "action": ["Undo", "set", {"learning_rate": 1e-3}]})
    live.tab.get_by_role("button", name="Undo").click()
    assert live.orders()[-1] == ("set", {"learning_rate": 1e-3})


def test_what_is_no_number_is_not_sent(live):
    for label, given in [("number of steps to rewind", "0"), ("number of steps", "ten"), ("Learning rate", "fast")]:
        field = live.field(label)
        field.fill(given)
        field.press("Enter")
        assert field.get_attribute("aria-invalid") == "true" and given in live.text(".tnb-notice")
    assert live.orders() == []


def test_a_field_under_the_hand_keeps_its_text(live):
    live.tab.get_by_text("More settings").click()
    field, other = live.field("max_steps"), live.field("run_name")
    field.fill("30")
    live.feed({"kind": "news", "settings": [{**o, **{"max_steps": {"value": 120, "text": "120"}, "run_name": {"value": "new", "text": "new"}}.get(o["name"], {})} for o in SETTINGS]})
    assert (field.input_value(), other.input_value()) == ("30", "new")
    field.press("Escape")
    assert field.input_value() == "120"
    field.fill("1")
    field.press("Enter")
    live.answer("rejected", live.sent()[-1]["id"], "max_steps is at least 50: step 50 has been made.")
    assert field.input_value() == "120" and "at least 50" in live.text(".tnb-notice")


# ---- how a command stands

def test_three_clicks_are_three_commands(live):
    step = live.button("Step")
    for _ in range(3): step.click()
    ids = [o["id"] for o in live.sent()]
    assert live.orders() == [("step", {"n": 1})] * 3 and len(set(ids)) == 3 and all(o.startswith(live.js("view.id")) for o in ids)
    assert (step.get_attribute("data-phase"), step.get_attribute("aria-busy"), step.locator(".tnb-badge").text_content()) == ("sent", "true", "3")
    for id in ids: live.answer("received", id)
    live.answer("done", ids[0], "made step 51")
    live.answer("done", ids[1], "made step 52")
    assert (step.get_attribute("data-phase"), step.locator(".tnb-badge").text_content()) == ("received", "…")
    live.answer("done", ids[2], "made step 53")
    assert (step.get_attribute("data-phase"), step.get_attribute("aria-busy"), step.locator(".tnb-badge").text_content()) == ("done", None, "✓")
    assert live.text(".tnb-notice") == "made step 53"


def test_sent_received_done_rejected(live):
    evaluate, line = live.button("Evaluate"), live.tab.locator(".tnb-notice")
    assert (line.get_attribute("aria-live"), line.get_attribute("role")) == ("polite", "status")
    evaluate.click()
    id = live.sent()[-1]["id"]
    assert evaluate.get_attribute("data-phase") == "sent" and "sent" in line.text_content()
    live.answer("received", id)
    assert evaluate.get_attribute("data-phase") == "received" and "received" in line.text_content()
    live.answer("rejected", id, "There is no eval_dataset: give Learner one.")
    assert (evaluate.get_attribute("data-phase"), line.get_attribute("data-tone"), line.text_content()) == ("rejected", "bad", "There is no eval_dataset: give Learner one.")
    live.button("Rewind").click()
    live.answer("done", live.sent()[-1]["id"], "rewound to step 40")   # without a word before it
    assert (line.get_attribute("data-tone"), line.text_content()) == ("good", "rewound to step 40")
    live.feed({"kind": "news", "status": status(step=51)})
    assert line.text_content() == "rewound to step 40"
    live.feed({"kind": "news", "status": status(state="finished")})   # it stands no longer as it was done
    assert line.text_content() == ""


def test_answers_to_others_are_passed_over(live):
    live.button("Evaluate").click()
    before = live.text(".tnb-notice")
    for id in ("somebody-1", live.sent()[-1]["id"] + "0", "", None):
        for kind in ("received", "done", "rejected"): live.answer(kind, id, "meant for another page")
    assert live.text(".tnb-notice") == before and live.button("Evaluate").get_attribute("data-phase") == "sent"


def test_a_kernel_that_does_not_hear_is_said_to_be_busy(timed):
    page, tab = timed, timed.tab
    page.feed(everything(status=status(where="cell")), [blocks(50)])
    assert tab.locator(".tnb-hint").is_hidden()          # the kernel may still learn that they do not wait
    tab.clock.run_for(2500)
    page.feed({"kind": "news", "status": status(where="cell", step=51)})
    assert len(page.sent("ping")) == 1                   # asked again, since the first messages of a page may wait in any case
    assert page.text(".tnb-hint") == "A cell trains." and tab.locator(".tnb-hint").is_visible()
    tab.clock.pause_at(tab.evaluate("Date.now()") / 1000 + 1)   # from here on only as far as it is told
    page.button("Evaluate").click()
    tab.clock.run_for(1400)
    assert page.button("Evaluate").get_attribute("data-phase") == "sent"
    tab.clock.run_for(200)
    assert page.button("Evaluate").get_attribute("data-phase") == "busy" and "sent; the kernel is busy with a cell" in page.text(".tnb-notice")
    page.answer("received", page.sent()[-1]["id"])
    page.answer("done", page.sent()[-1]["id"], "evaluated at step 50")
    assert page.text(".tnb-notice") == "evaluated at step 50"
    page.feed({"kind": "news", "status": status()})
    assert tab.locator(".tnb-hint").is_hidden()
    page.feed({"kind": "news", "status": status(where="cell"), "cell_hint": ""})   # clicks do not wait
    asked = len(page.sent("ping"))
    for _ in range(10):
        tab.clock.run_for(2000)
        page.feed({"kind": "pong"})
    assert len(page.sent("ping")) == asked
    assert tab.locator(".tnb-hint").is_hidden() and page.js("view.control.hasAttribute('data-busy')") is False


def test_everything_that_comes_unasked_is_an_answer(timed):
    "And once more what is there already: the zoom, and the text under the hand, stay."
    page, tab = timed, timed.tab
    tab.clock.run_for(1100)
    assert tab.locator(".tnb-waiting").is_visible()
    for _ in range(3):
        page.feed(everything(), [blocks(50)])
        tab.clock.run_for(4000)
        assert tab.locator(".tnb-waiting").is_hidden() and len(page.sent("hello")) == 1
        assert page.js("[view.main().rows, view.charts.size]") == page.js("[50, view.charts.size]")
        if page.js("view.zoom") is None:
            page.js("view.zoomTo([10, 20])")
            page.field("number of steps").fill("123")
    assert page.js("view.zoom") == [10, 20] and page.field("number of steps").input_value() == "123"


@pytest.mark.parametrize("event, words", [("fire('comm:close')", "not connected"), ("kernel_is('starting')", "the kernel was restarted")])
def test_a_kernel_that_is_gone(live, event, words):
    "It says so, keeps the picture, sends nothing; and is there again when the kernel speaks. A kernel that another page has restarted is gone, too."
    for status_of_kernel in ("busy", "idle"): live.js("o => kernel_is(o)", status_of_kernel)
    assert live.tab.locator(".tnb-link").is_hidden()
    live.js(event)
    assert live.text(".tnb-link") == words and live.tab.locator(".tnb-link").is_visible() and live.tab.locator(".tnb-sections").is_visible()
    live.button("Step").click()
    assert live.orders() == [] and "not connected" in live.text(".tnb-notice") and live.button("Step").get_attribute("data-phase") == "rejected"
    live.feed({"kind": "news", "status": status(step=51)})
    assert live.tab.locator(".tnb-link").is_hidden()
    live.button("Step").click()
    assert live.orders() == [("step", {"n": 1})]
    live.js("model.comm_live = false; fire('comm_live_update')")
    assert live.tab.locator(".tnb-link").is_visible()


def test_a_kernel_that_was_killed(timed):
    "It closes nothing: a run that is shown as training is asked for an answer; without one, it is not said to train."
    page, tab = timed, timed.tab
    page.feed(everything(), [blocks(50)])
    pill = tab.locator(".tnb-pill")
    def stands(seconds):
        tab.clock.run_for(1000 * seconds)
        return pill.inner_text(), pill.get_attribute("data-tone"), pill.get_attribute("data-live")
    for _ in range(8):                                   # a busy kernel is heard: its signs of life are no news
        assert stands(4) == ("training", "good", "")
        page.feed({"kind": "pong"})
    assert page.sent("ping") == [] and stands(7) == ("training", "good", "") and len(page.sent("ping")) == 1
    page.feed({"kind": "pong"})                          # the answer
    assert stands(4) == ("training", "good", "") and stands(16) == ("not connected", "plain", None) and len(page.sent("ping")) == 2
    told = page.text(".tnb-words")
    assert told.startswith("last known: training, step 50, at ") and re.search(r"\d\d:\d\d:\d\d$", told)
    page.button("Step").click()
    assert page.orders() == [] and "not connected" in page.text(".tnb-notice")
    hellos = len(page.sent("hello"))
    tab.clock.run_for(40_000)
    assert stands(0)[0] == "not connected" and 3 <= len(page.sent("ping")) - 2 <= 5 and len(page.sent("hello")) == hellos
    page.feed({"kind": "pong"})                          # it is there again: everything is asked for
    assert stands(0)[0] == "training" and len(page.sent("hello")) == hellos + 1
    page.feed(everything(status=status(state="paused", where="", words="paused")), [blocks(50)])
    asked = len(page.sent("ping"))
    tab.mouse.move(0, 0)
    tab.clock.run_for(60_000)                            # a run that is paused may be silent
    assert stands(0) == ("paused", "warn", None) and len(page.sent("ping")) == asked
    page.button("Step").hover()                          # somebody looks: the kernel is asked whether it is there
    assert stands(16)[0] == "paused" and page.text(".tnb-link") == "waiting for the kernel"   # it may be busy with a cell
    page.button("Step").click()
    assert len(page.orders()) == 1
    page.feed({"kind": "pong"})
    assert stands(0)[0] == "paused" and not tab.locator(".tnb-link").is_visible()


def test_a_comm_that_is_closed_leaves_no_green_pill(live):
    live.js("fire('comm:close')")
    pill = live.tab.locator(".tnb-pill")
    assert (pill.inner_text(), pill.get_attribute("data-tone"), pill.get_attribute("data-live")) == ("not connected", "plain", None)
    assert "step 50, at" in live.text(".tnb-words")


def test_a_connection_that_comes_back(timed):
    "Hello could not be sent: it is tried again, and says once what was wrong."
    page, tab, warned = timed, timed.tab, []
    tab.on("console", lambda message: warned.append(message.text) if "not sent" in message.text else None)
    page.js("window.there = model.send; model.send = () => { throw new Error('not now') }; null")
    before = len(page.sent("hello"))
    tab.clock.run_for(6100)
    assert len(page.sent("hello")) == before and len(warned) == 1 and page.text(".tnb-link") == "not connected"
    page.js("model.send = window.there; null")
    tab.clock.run_for(2100)
    assert len(page.sent("hello")) == before + 1
    page.feed(everything(), [blocks(50)])
    assert tab.locator(".tnb-link").is_hidden()


# ---- what it holds

def held(page, run="r1"): return page.js("id => { const o = view.runs.get(id); return o && Array.from({length: o.rows}, (_, i) => [o.get(i, 0), o.get(i, 5)]) }", run)


def test_news_merge_and_generations_replace(live):
    assert [o[0] for o in held(live)] == list(range(1, 51))
    live.feed({"kind": "news", "changed_runs": [a_run(first=49)]}, [blocks(3, first=50, loss=0.5)])
    assert [o[0] for o in held(live)] == list(range(1, 53)) and [o[1] for o in held(live)[48:]] == [pytest.approx(1 + 1 / 49), 0.5, 0.5, 0.5]
    live.feed({"kind": "news", "changed_runs": [a_run(generation=2, width=5, buffer=0)]}, [blocks(10, 5)])
    assert [o[0] for o in held(live)] == list(range(5, 55, 5))
    live.feed({"kind": "news", "changed_runs": [a_run("r2")]}, [blocks(20)])
    assert len(held(live, "r2")) == 20 and len(held(live)) == 10
    live.feed({"kind": "news", "runs": [a_run(generation=2, buffer=None)]})
    assert held(live, "r2") is None and len(held(live)) == 10
    assert live.text(".tnb-legend").count("run r") == 1
    live.feed(everything(), [blocks(50)])   # everything may come at any time
    assert len(held(live)) == 50 and len(live.sent("hello")) == 1


def test_a_hole_in_the_news_asks_for_everything(live):
    live.feed({"kind": "news", "changed_runs": [a_run(first=60)]}, [blocks(3, first=61)])
    assert len(live.sent("hello")) == 2 and len(held(live)) == 50
    live.feed(everything(runs=[a_run()]), [blocks(63)])
    assert len(held(live)) == 63


@pytest.mark.parametrize("log", [False, True])
def test_the_smoothed_curve_is_that_of_pictures(live, log):
    "What is not finite does not count and has no mean; on a logarithmic axis, one large value is not all that is seen."
    rows = blocks(101, 5)
    rows[:, 5] = np.where(np.arange(101) < 90, 1 + np.random.default_rng(0).random(101), 1e35 if log else 5)
    rows[[0, 40, 41], 5] = math.nan
    live.feed(everything(runs=[a_run(width=5)]), [rows])
    y = np.array(live.js("log => [...view.main().curve(5, 0.9, log).y].map(o => Number.isNaN(o) ? null : o)", log), float)
    assert y[10] < 2 and y == pytest.approx(np.where(np.isfinite(rows[:, 5]), running_mean(rows[:, 5], 0.9, 5, log), math.nan), rel=1e-5, nan_ok=True)


def test_what_was_left_behind_goes_on_from_where_it_left(live):
    left = blocks(5, first=31, loss=3.0)
    gap = np.full((1, 15), np.nan, "<f4")
    live.feed(everything(runs=[a_run(left_buffer=1)]), [blocks(50), np.concatenate([left, gap, blocks(3, first=41), gap, blocks(2, first=71)])])
    parts = live.js("view.main().abandonedSegments(0, 5, 0)")
    assert [[o[0] for o in part] for part in parts] == [[30, 31, 32, 33, 34, 35], [40, 41, 42, 43], [71, 72]] and [o[1] for o in parts[0]] == [pytest.approx(1 + 1 / 30)] + [3] * 5
    assert "discarded" in live.text(".tnb-legend")
    live.feed({"kind": "news", "changed_runs": [a_run(first=50)]}, [blocks(1, first=51)])   # news without it: it stays
    assert live.js("view.main().left.length") == 12 * 15
    live.feed(everything(), [blocks(50)])
    assert live.js("view.main().left.length") == 0


# ---- what it shows

def test_texts_are_texts(live):
    "Names from data and users are never markup."
    given = everything(title=HOSTILE, status=status(words=HOSTILE, verdict=HOSTILE, loss=HOSTILE, state=HOSTILE), cell_hint=HOSTILE)
    given["runs"][0]["label"] = HOSTILE
    given["metrics"]["r1"][HOSTILE] = [[25, 0.25, 0.4, 1.0]]
    given["marks"][0].update(word=HOSTILE, kind=HOSTILE)
    given["evaluations"] = {"columns": [HOSTILE], "rows": [[HOSTILE]], "earlier": 2}
    given["notices"] = [{"tone": HOSTILE, "text": HOSTILE, "at": HOSTILE, "action": [HOSTILE, "finding", {"line": HOSTILE}]}]
    given["layers"] = [{"title": HOSTILE, "label": HOSTILE, "rows": [HOSTILE], "columns": 2, "x": [1, 50], "log": False, "buffer": 1}]
    given["settings"] = [setting(HOSTILE, HOSTILE, HOSTILE, "text", HOSTILE), setting("c", HOSTILE, kind="choice", choices=[HOSTILE])]
    live.feed(given, [blocks(50), np.ones((1, 2))])
    live.tab.locator(".tnb-notice .tnb-button").click()
    assert live.orders()[-1] == ("finding", {"line": HOSTILE})
    live.answer("done", live.sent()[-1]["id"], HOSTILE)
    live.tab.get_by_text("More settings").click()
    live.tab.locator(".tnb-big .tnb-plot").hover(position={"x": 265, "y": 60})
    for card in live.tab.locator(".tnb-grid .tnb-plot").all(): card.hover(position={"x": 200, "y": 40})
    live.settle()
    assert live.js("[window.hacked, document.querySelectorAll('.tnb img, .tnb script, .tnb b > *').length]") in ([None, 0],)
    for css in (".tnb-title", ".tnb-verdict", ".tnb-legend", ".tnb-notice", ".tnb-table", ".tnb-notices", ".tnb-settings", ".tnb-words"): assert HOSTILE in live.text(css), css
    assert HOSTILE in live.js("[...document.querySelectorAll('.tnb-card-title')].map(o => o.textContent)")


def test_a_failed_run_shows_its_error_and_goes_on(live):
    "A red pill, the step, the traceback folded, in colours that can be read; and Resume, which works."
    text = "Traceback (most recent call last):\n  File \"<cell>\", line 1, in forward\nValueError: " + HOSTILE
    failed = status(state="failed", where="", words="failed after step 50 of 100 (epoch 0.50) with ValueError: bad", traceback=text)
    trace, pill, resume = live.tab.locator(".tnb-traceback"), live.tab.locator(".tnb-pill"), live.button("Resume")
    assert live.tab.locator(".tnb-failure").is_hidden()
    live.feed({"kind": "news", "status": failed})
    assert (pill.inner_text(), pill.get_attribute("data-tone")) == ("failed", "bad") and "after step 50" in live.text(".tnb-words")
    assert live.tab.locator(".tnb-failure").is_visible() and trace.is_hidden()
    live.tab.locator(".tnb-failure summary").click()
    assert trace.is_visible() and trace.text_content() == text
    live.feed({"kind": "news", "status": {**failed, "elapsed": "6 s"}})
    assert trace.is_visible()                            # news do not fold it
    for light in ("true", "false"):
        live.js("light => { document.body.dataset.jpThemeLight = light }", light)
        live.settle()
        assert contrast(live, ".tnb-traceback") > 7 and contrast(live, ".tnb-pill") > 3 and contrast(live, ".tnb-failure summary") > 4
    assert not resume.evaluate("e => e.classList.contains('tnb-faint') || e.disabled || getComputedStyle(e).opacity < 1")
    resume.click()
    assert live.orders() == [("resume", {})]
    live.feed({"kind": "news", "status": status(traceback="")})
    assert live.tab.locator(".tnb-failure").is_hidden() and pill.inner_text() == "training"


def contrast(page, css):
    "The contrast of an element's text with what is behind it, as the guidelines for accessible pages compute it."
    return page.js("""css => {
      const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
      const behind = [], ink = document.querySelector(css);
      for (let o = ink; o; o = o.parentElement) behind.unshift(getComputedStyle(o).backgroundColor);
      const light = () => { const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map(o => (o /= 255) <= 0.03928 ? o / 12.92 : ((o + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
      const paint = color => { pen.fillStyle = color; pen.fillRect(0, 0, 1, 1) };
      ["white", ...behind].forEach(paint);
      const back = light();
      paint(getComputedStyle(ink).color);
      const front = light();
      return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    }""", css)


def test_after_a_nan_the_loss_is_nan(live):
    "In the header and beside the charts' titles; the curves stay where they were last. A quantity that was never measured is no number."
    value = "name => view.charts.get(name).value.textContent"
    rows = blocks(60)
    rows[55:, 3:6] = rows[55:, 9:12] = math.nan
    live.feed(everything(status=status(loss="nan"), runs=[a_run()]), [rows])
    live.settle()
    assert live.tab.locator(".tnb-fact", has_text="loss").locator(".tnb-fact-value").inner_text() == "nan"
    assert [live.js(value, o) for o in ("loss", "grad_norm", "learning_rate", "samples_per_second")] == ["nan", "nan", "1e-3", "500"]
    assert "now nan" in live.tab.locator(".tnb-big .tnb-plot").get_attribute("aria-label")
    live.feed({"kind": "news", "status": status(loss="0.995"), "changed_runs": [a_run(first=60)]}, [blocks(1, first=61)])
    live.settle()
    assert live.js(value, "loss") == "1.02" and live.tab.locator(".tnb-fact", has_text="loss").locator(".tnb-fact-value").inner_text() == "0.995"


def test_the_state_is_said_once(live):
    live.feed({"kind": "news", "status": status(words="paused after step 1,050 of 4,800 (epoch 0.50)", state="paused")})
    assert live.text(".tnb-words") == "after step 1,050 of 4,800 (epoch 0.50)"


def test_each_loss_says_which_it_is(live):
    """That of the last step; the smoothed one beside the chart's title, unless it is off; under the pointer both.
    The kernel says over how many steps, and which axes are logarithmic, until the user does."""
    live.feed(everything(status=status(loss="0.995"), runs=[a_run()], smoothing=10, log=["grad_norm", "accuracy"]), [blocks(200)])
    live.settle()
    assert "last loss" in [o.inner_text() for o in live.tab.locator(".tnb-fact-name").all()]
    assert [live.js("name => view.charts.get(name).valueNote.textContent", o) for o in ("loss", "learning_rate", "grad_norm")] == ["smoothed", "", "smoothed"]
    assert live.js("view.weight") == 0.9 and live.text(".tnb-smooth-words") == "10 steps"
    assert [live.js("name => view.charts.get(name).log", o) for o in ("loss", "grad_norm", "metric accuracy")] == [False, True, True]
    live.js("view.hover({ card: view.charts.get('loss'), x: 100 })")
    live.settle()
    assert re.search(r"this step \d", live.text(".tnb-tooltip"))
    assert live.js("(view.smooth(1), view.draw(), view.charts.get('loss').valueNote.textContent)") == ""


def test_zoom_hidden_and_log_outlive_news(live):
    plot = live.tab.locator(".tnb-big .tnb-plot")
    plot.drag_to(plot, source_position={"x": 150, "y": 60}, target_position={"x": 300, "y": 60})
    live.tab.get_by_label("Loss: logarithmic axis").click()
    live.tab.locator(".tnb-entry", has_text="evaluations").click()
    live.settle()
    zoom, state = live.js("view.zoom"), "[view.zoom, [...view.charts.values()].map(o => o.x && [o.x.low, o.x.high, o.log]), [...view.hidden]]"
    before = live.js(state)
    assert 0 < zoom[0] < zoom[1] < 50 and [o and o[2] for o in before[1]] == [True, None, False, False, False] and all(o[:2] == zoom for o in before[1] if o) and before[2] == ["kind:evaluations"]
    assert live.tab.locator(".tnb-card[aria-label=accuracy] .tnb-empty").text_content() == "Hidden in the legend"
    live.feed({"kind": "news", "changed_runs": [a_run(first=50)], "metrics": {"r1": {"eval_loss": [[70, 0.7, 70 / 60, 1.0]], "accuracy": [[70, 0.7, 70 / 60, 1.0]]}}}, [blocks(30, first=51)])
    live.feed(everything(runs=[a_run()]), [blocks(80)])
    live.settle()
    assert live.js(state) == before
    live.tab.get_by_label("horizontal axis", exact=True).select_option("Epochs")   # the same part of the run on another axis
    assert live.js("view.zoom") == [pytest.approx(o / 100, abs=0.01) for o in zoom]
    live.tab.locator(".tnb-big .tnb-plot").dblclick(position={"x": 200, "y": 60})
    live.settle()
    assert live.js("[view.zoom, view.charts.get('loss').x.high]") == [None, pytest.approx(0.8)]


def test_the_files_of_a_chart(live):
    for kind, begin in (("PNG", b"\x89PNG"), ("SVG", b"<svg xmlns="), ("CSV", b'"run","name","steps","value"\n"run r1","loss",1,2\n')):
        with live.tab.expect_download() as file: live.tab.get_by_label("save Loss").select_option(kind)
        text = Path(file.value.path()).read_bytes()
        assert text.startswith(begin) and file.value.suggested_filename == f"Loss.{kind.lower()}"
        if kind == "SVG": assert re.findall("<text[^>]*>([^<]*)", text.decode())[0] == "Loss" and len(ElementTree.fromstring(text).findall(".//{*}path")) > 5


@pytest.mark.parametrize("fingers, zoomed, of_the_values", [
    ((150, 60, 300, 66), True, False), ((150, 60, 155, 150), False, True), ((150, 60, 300, 150), True, True), (["+"], True, False), (["PageUp"], False, True)])
def test_one_axis_is_zoomed_or_both(live, fingers, zoomed, of_the_values):
    "A drag along one axis zooms that axis of values of this chart, or of steps of all; then the part moves, and a double click, a key or a button goes back."
    plot, chart = live.tab.locator(".tnb-big .tnb-plot"), "view.charts.get('loss')"
    state = f"[view.zoom, {chart}.zoomY, view.charts.get('grad_norm').zoomY]"
    def drag(x, y, to_x, to_y): plot.drag_to(plot, source_position={"x": x, "y": y}, target_position={"x": to_x, "y": to_y})
    for back in (lambda: plot.dblclick(position={"x": 200, "y": 60}), lambda: plot.press("Escape"), live.tab.get_by_role("button", name="Whole run").click):
        if isinstance(fingers, tuple): drag(*fingers)
        for key in () if isinstance(fingers, tuple) else ("ArrowLeft", "ArrowLeft", *fingers): plot.press(key)
        live.settle()
        before = live.js(state)
        assert [o is not None for o in before] == [zoomed, of_the_values, False] and live.js(f"[{chart}.x.low, {chart}.x.high]") == (before[0] or [0, 50])
        live.tab.keyboard.down("Shift")
        drag(300, 100, 340, 120)
        live.tab.keyboard.up("Shift")
        live.settle()
        for part, other in zip(before, live.js(state)): assert part is None and other is None or other[1] - other[0] == pytest.approx(part[1] - part[0]) and other != part
        back()
        live.settle()
        assert live.js(state) == [None] * 3


def test_a_chart_against_another_column(live):
    "Its points are those of the steps at which both are known; the pointer finds the nearest, in all charts. Both axes may be logarithmic."
    live.tab.get_by_label("horizontal axis", exact=True).select_option("Gradient norm")
    live.tab.get_by_label("logarithmic horizontal axis").click()
    live.tab.get_by_label("Loss: logarithmic axis").click()
    live.settle()
    points = live.js("[...view.charts.values()].map(o => [o.title, o.lines[0].count, o.x.log, o.y.log])")
    assert points[:2] == [["Loss", 50, True, True], ["accuracy", 2, True, False]]
    place = live.js("(o => ({ x: o.x.at(2.5), y: o.y.at(1.25) }))(view.charts.get('loss'))")   # of step 4
    live.tab.locator(".tnb-big .tnb-plot").hover(position=place)
    live.settle()
    assert "step 4" in live.text(".tnb-tooltip") and "Gradient norm 2.50" in live.text(".tnb-tooltip") and live.js("view.charts.get('learning_rate').at !== null")
    live.tab.get_by_label("horizontal axis", exact=True).select_option("Steps")
    live.settle()
    assert live.js("[view.charts.get('loss').x.low, view.charts.get('loss').x.high, view.charts.get('loss').lines.length > 1]") == [1, 50, True]


def test_a_chart_fills_the_view(live):
    for leave in (lambda: live.tab.keyboard.press("Escape"), lambda: live.tab.get_by_label("accuracy: full size, or back").press("Enter")):
        live.tab.get_by_label("accuracy: full size, or back").press("Enter")
        live.settle()
        assert live.tab.locator(".tnb-card:visible").count() == 1 and live.tab.locator(".tnb-plot:visible").bounding_box()["height"] > 900 and live.tab.locator(".tnb-toolbar").is_visible()
        leave()
        live.settle()
        assert live.tab.locator(".tnb-plot:visible").count() == 5


def test_the_crosshair_says_the_values(live):
    live.tab.locator(".tnb-big .tnb-plot").hover(position={"x": 300, "y": 80})
    live.settle()
    step = round(live.js("view.hovered.x"))
    said = live.text(".tnb-tooltip")
    assert f"step {step}" in said and f"{1 + 1 / step:.2f}" in said and "epoch" in said
    mark = live.js("(() => { const o = view.charts.get('loss'); return o.x.at(20) })()")
    live.tab.locator(".tnb-big .tnb-plot").hover(position={"x": mark, "y": 80})
    live.settle()
    assert "learning rate 0.001" in live.text(".tnb-tooltip")
    live.tab.mouse.down()                                   # a click: the place stays, with what can be done there
    live.tab.mouse.up()
    live.tab.mouse.move(0, 0)
    live.settle()
    assert live.tab.locator(".tnb-tooltip").is_visible() and live.orders() == []
    live.field("settings of the branch").fill("lr=0.1")
    live.button("Branch here").click()
    assert live.orders() == [("branch", {"step": 20, "changes": "lr=0.1"})] and live.tab.locator(".tnb-tooltip").is_hidden()
    for name, order in [("Rewind here", ("rewind", {"to": 20})), ("Undo this change", ("rewind", {"change": 20}))]:
        live.tab.locator(".tnb-big .tnb-plot").click(position={"x": mark, "y": 80})
        live.settle()
        live.button(name).click()
        assert live.orders()[-1] == order
    live.tab.mouse.move(2, 2)
    live.settle()
    assert live.tab.locator(".tnb-tooltip").is_hidden()


def test_metrics_stand_in_sections(live):
    "By what stands before the slash, in natural order; found, pinned and folded, also after the page is loaded anew."
    names = [f"{part}/metric_{i}" for part in ("train", "eval") for i in (10, 9, 2, 1, *range(11, 16))]
    content = everything(metrics={"r1": {name: [[10, 0.1, 1, 0.5], [20, 0.2, 2, 0.6]] for name in [*names, "accuracy"]}})
    section = lambda i: live.tab.locator(".tnb-section:visible").nth(i)
    def charts(i): return [o for o in section(i).locator(".tnb-card-title").all_inner_texts() if o]
    def heads(): return [o.split()[0] for o in live.tab.locator(".tnb-section summary:visible").all_inner_texts()]
    live.js("""(kept => Object.defineProperty(window, "localStorage", { value: { getItem: o => kept[o] ?? null, setItem: (o, text) => { kept[o] = text } } }))({})""")
    live.feed(content, [blocks(50)])
    live.settle()
    assert heads() == ["eval", "train"] and charts(0)[:2] == ["Loss", "accuracy"] and charts(1)[:3] == [f"metric_{i}" for i in (1, 2, 9)]
    assert charts(2) == []                                                # more than twelve would be open
    live.tab.get_by_role("searchbox", name="find a metric").fill("rain metric_1")
    assert charts(0)[0] == "metric_1" and heads() == ["train"]
    live.tab.get_by_role("searchbox", name="find a metric").fill("")
    live.tab.get_by_role("button", name="pin eval/metric_9").click()
    live.tab.locator("summary", has_text="train").click()
    live.tab.locator("summary", has_text="eval").click()
    for again in (False, True):
        if again:
            live.js("cleanup(); open_view()")
            live.feed(content, [blocks(50)])
        live.settle()
        assert heads() == ["Pinned", "eval", "train"] and charts(1) == ["eval/metric_9"] and charts(2) == [] and "metric_2" in charts(3)


def test_the_state_is_said_in_words_and_shape(live):
    shapes, colors = set(), set()
    for state, tone in zip(("new", "training", "paused", "finished", "failed", "waiting", "inactive"), ("plain", "good", "warn", "bad") * 2):
        live.feed({"kind": "news", "status": status(state=state, tone=tone)})
        colors.add(live.js("getComputedStyle(document.querySelector('.tnb-verdict')).color"))
        assert live.text(".tnb-pill") == {"new": "Not started"}.get(state, state)
        shapes.add(live.js("document.querySelector('.tnb-pill path').getAttribute('d')"))
    assert (len(shapes), len(colors)) == (7, 4)
    bar = live.tab.locator("[role=progressbar]")
    assert (bar.get_attribute("aria-valuenow"), bar.get_attribute("aria-valuetext")) == ("50", "step 50 of 100")


@pytest.mark.parametrize("changes", [dict(metrics={}, marks=[], evaluations={"columns": [], "rows": [], "earlier": 0}, runs=[a_run(buffer=None)]), dict(runs=[], metrics={}), dict(runs=[a_run()]),
                                     dict(status=status(step=None, total=None, epoch=None, epochs=None, share=None, loss=None, rate=None, left=None, elapsed=None, verdict=None, words=None))])
def test_little_is_shown_as_little(page, changes):
    "Without steps, runs, totals: words in their place, and no error."
    page.feed(everything(**changes), [blocks(1) if changes.get("runs") == [a_run()] else blocks(50)])
    page.settle()
    page.tab.locator(".tnb-big .tnb-plot").hover(position={"x": 100, "y": 50})
    page.settle()
    if page.js("view.main().rows") == 0: assert page.text(".tnb-big .tnb-empty") == "No steps yet" and page.tab.locator(".tnb-big .tnb-empty").is_visible()
    else: assert page.tab.locator(".tnb-big .tnb-empty").is_hidden()
    assert "undefined" not in page.text(".tnb") and "NaN" not in page.text(".tnb") and "null" not in page.text(".tnb")


def test_values_that_are_not_numbers_leave_gaps(live):
    "In a heat map zero has no colour on a logarithmic scale, and neither has what was not measured: the words tell them apart."
    layer, rows = {"title": "gradient norm", "rows": ["first", "second"], "columns": 2, "x": [1, 50], "log": True, "buffer": 1}, blocks(50)
    rows[10:20, 3:6] = rows[:, 9:12] = np.nan
    rows[30, 3:6] = np.inf
    live.feed(everything(runs=[a_run()], layers=[layer]), [rows, np.array([[0.0, 0.5], [np.nan, 1050.0]])])
    live.settle()
    assert live.js("Number.isFinite(view.charts.get('loss').y.high)") and live.js("[...view.charts.keys()]") == ["loss", "metric accuracy", "learning_rate", "samples_per_second"]
    for place, words in (((100, 20), "firstno signal (0)"), ((100, 60), "secondnot measured"), ((700, 60), "second1,050")):
        live.tab.locator(".tnb-wide .tnb-plot").hover(position=dict(zip("xy", place)))
        live.settle()
        assert live.text(".tnb-tooltip-rows") == words


def test_compact_is_the_head_and_the_buttons(live):
    live.feed({"kind": "news", "compact": True})
    assert [live.tab.locator(o).is_visible() for o in (".tnb-header", ".tnb-controls", ".tnb-sections", ".tnb-toolbar", ".tnb-foot", ".tnb-settings-bar")] == [True, True, False, False, False, False]
    live.button("Step").click()
    assert live.orders() == [("step", {"n": 1})]


def test_without_controls_there_are_none(live):
    live.feed(everything(controls=False, status=status(where="cell")), [blocks(50)])
    assert [live.tab.locator(o).is_visible() for o in (".tnb-header", ".tnb-controls", ".tnb-settings-bar", ".tnb-hint", ".tnb-sections")] == [True, False, False, False, True]


@pytest.mark.parametrize("part, shown", [("controls", [".tnb-controls", ".tnb-rate"]), ("charts", [".tnb-toolbar", ".tnb-big"]), ("table", [".tnb-table"]), ("chart:loss", [".tnb-big"])])
def test_a_part_alone(page, part, shown):
    page.js("part => { cleanup(); model.get = name => name === 'part' ? part : undefined; open_view() }", part)
    page.feed(everything(), [blocks(50)])
    page.settle()
    every = [".tnb-header", ".tnb-controls", ".tnb-rate", ".tnb-toolbar", ".tnb-big", ".tnb-table"]
    assert [o for o in every if page.tab.locator(o).is_visible()] == shown


# ---- stills

def test_the_still_is_hidden_while_the_view_lives(page):
    "That of its number alone, also where it is drawn anew; and never the output that has the view."
    style = ONE_OF_BOTH.format(number="s1")
    page.js(f"""document.getElementById('stills').innerHTML = `{style}<div id=a data-trainer-nb-still="s1">a</div>`;
      document.querySelector('.jp-OutputArea').insertAdjacentHTML('beforeend', '<div class=jp-OutputArea-child id=more><div id=b data-trainer-nb-still="s2">b</div></div>')""")
    def shown(): return page.js("['stills', 'a', 'more', 'b', 'el'].filter(o => document.getElementById(o).getClientRects().length).join(' ')")
    assert shown() == "stills a more b el"
    page.feed(everything(), [blocks(50)])
    assert shown() == "more b el"
    page.js("document.getElementById('el').parentNode.append(document.getElementById('a'))")
    assert shown() == "stills more b el"
    page.js("cleanup()")
    assert shown() == "stills a more b el"


# ---- how it behaves

def test_the_theme_is_followed(live):
    greys = """() => {   // how often each grey stands on the canvas: of words and axes
      const found = {}, { data } = view.charts.get('loss').canvas.getContext('2d').getImageData(0, 0, 600, 400);
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 120 && data[i] === data[i + 1] && data[i] === data[i + 2]) found[data[i]] = (found[data[i]] || 0) + 1;
      return found
    }"""
    read = lambda: {int(k): v for k, v in live.js(greys).items()}
    light = read()
    live.js("document.body.dataset.jpThemeLight = 'false'")
    live.settle()
    dark = read()
    assert live.js("view.root.classList.contains('tnb-dark')") and min(light) < 60 and max(dark) > 240 and min(dark) > 20
    live.js("document.body.dataset.jpThemeLight = 'true'")
    live.settle()
    assert read() == light


def test_everything_can_be_reached_by_keys(live):
    tab, seen = live.tab, []
    tab.keyboard.press("Tab")
    for _ in range(60):
        seen.append(live.js("(document.activeElement.getAttribute('aria-label') || document.activeElement.textContent || document.activeElement.type).trim()"))
        if live.js("document.activeElement === document.body"): break
        assert live.js("getComputedStyle(document.activeElement).outlineStyle") != "none", seen[-1]
        tab.keyboard.press("Tab")
    for name in ("Pause", "Step", "number of steps", "steps", "Stop", "Rewind", "Evaluate", "Checkpoint", "Snapshot", "More settings", "run r1", "evaluations", "Loss: logarithmic axis"): assert name in seen, seen
    live.button("Step").focus()
    tab.keyboard.press("Enter")
    tab.keyboard.press("Space")
    assert live.orders() == [("step", {"n": 1})] * 2
    tab.locator(".tnb-big .tnb-plot").focus()
    for key in ("ArrowLeft", "ArrowLeft", "+"): tab.keyboard.press(key)
    live.settle()
    assert tab.locator(".tnb-tooltip").is_visible() and live.js("view.zoom !== null")
    tab.keyboard.press("Escape")
    live.settle()
    assert tab.locator(".tnb-tooltip").is_hidden() and live.js("view.zoom === null")
    tab.get_by_label("horizontal axis", exact=True).focus()
    tab.keyboard.press("ArrowDown")
    assert live.js("view.axis") == "epochs"


def test_a_notebooks_shortcuts_do_not_hear_the_keys(live):
    live.js("window.keys = []; document.addEventListener('keydown', o => keys.push(o.key))")
    live.js("window.marks = []; document.addEventListener('keydown', o => marks.push(view.root.getAttribute('data-lm-suppress-shortcuts')), true)")   # as JupyterLab looks for the mark
    live.button("Step").focus()
    for key in ("a", "Enter", "Control+s", "b"): live.tab.keyboard.press(key)
    assert live.js("keys") == ["Control", "s"] and live.js("marks") == ["true", "true", "true", None, "true"]   # saving is the notebook's, all else is not


def test_a_notebooks_shortcuts_are_suppressed_where_the_focus_is(live):
    "Notebook 7 finds shortcuts for whatever has the focus before it looks for the mark around it. In a field all keys are typed."
    live.js("window.marks = []; document.addEventListener('keydown', o => marks.push(o.target.hasAttribute('data-lm-suppress-shortcuts')), true)")
    live.js("window.keys = []; document.addEventListener('keydown', o => keys.push(o.key))")
    for css in (".tnb-big .tnb-plot", ".tnb-rate .tnb-slider", ".tnb-smooth .tnb-slider", ".tnb-toolbar select", ".tnb-rate .tnb-field", ".tnb-settings-bar .tnb-quiet", ".tnb-scroll"):
        live.tab.locator(css).first.focus()
        for key in ("ArrowUp", "ArrowDown", "ArrowLeft", "a", "Escape"): live.tab.keyboard.press(key)
    assert live.js("marks") == [True] * 35 and live.js("keys") == []
    live.field("Learning rate").focus()
    for key in ("Control+a", "Control+Enter", "Control+s"): live.tab.keyboard.press(key)
    assert live.js("keys") == ["s"] and live.js("marks").count(False) == 1


def test_work_is_bounded(page):
    "Many blocks: a few points for a pixel. Many news in one frame: one drawing. Out of sight: none. Nothing new: nothing written."
    runs = [a_run(o, i, width=250) for i, o in enumerate(("r1", "r2", "r3"))]
    many = everything(runs=runs, metrics={}), [blocks(4000, 250)] * 3
    page.feed(*many)
    page.settle()
    charts = page.js("[...view.charts.values()].map(o => [o.points, o.area.width])")
    assert all(0 < points <= 3 * 7 * (width + 2) for points, width in charts), charts
    before = page.js("view.charts.get('loss').draws")
    page.js("""([c, b]) => { for (let i = 0; i < 10; i++) feed(c, b) }""", [{"kind": "news", "changed_runs": [a_run(first=3999, width=250)]}, [packed(blocks(1, 250, first=999_751))]])
    page.settle()
    assert page.js("view.charts.get('loss').draws") == before + 1
    page.js("window.writes = 0; new MutationObserver(o => writes += o.length).observe(view.root, { childList: true, subtree: true, attributes: true, characterData: true })")
    page.feed(*many)
    page.settle()
    assert page.js("writes") == 0
    page.js("document.body.prepend(Object.assign(document.createElement('div'), { style: 'height: 5000px' }))")
    page.settle()
    before = page.js("view.charts.get('loss').draws")
    page.feed({"kind": "news", "changed_runs": [a_run(first=3999, width=250)]}, [blocks(1, 250, first=999_751)])
    page.settle()
    assert page.js("view.charts.get('loss').draws") == before
    page.tab.locator(".tnb-big").scroll_into_view_if_needed()
    page.settle()
    assert page.js("view.charts.get('loss').draws") == before + 1


def test_it_fits_wherever_it_stands(live):
    for width in (1400, 900, 620, 360):
        live.tab.set_viewport_size({"width": width, "height": 900})
        live.settle()
        assert live.js("document.documentElement.scrollWidth <= innerWidth"), width
        assert live.js("[...view.charts.values()].filter(o => o.visible).every(o => Math.abs(o.canvas.width - o.plot.clientWidth * devicePixelRatio) <= 1)")


def test_cleaning_up_leaves_nothing(live):
    live.js("cleanup()")
    assert live.js("[document.getElementById('el').children.length, Object.values(handlers).flat().length]") == [0, 0]
    live.feed(everything(), [blocks(50)])
    live.js("document.body.dataset.jpThemeLight = 'false'")
    live.settle()
    assert live.js("sent.length") == 1
