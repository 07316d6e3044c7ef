"What a view is told: bounded for runs of any length, exact at the extremes, only what is new, and text stays text."
import gc, json, math, weakref

import numpy as np
import pytest
import torch

from trainer_nb import InvalidOperation, Learner, ProgressCallback, SamplesCallback, TrainerCallback
from trainer_nb.core import log_file as runlog
from trainer_nb.live.blocks import QUANTITIES, BLOCK_COLUMNS, BlockSeries, abandoned_blocks, calls_in
from trainer_nb.live.curves import plot_histories
from trainer_nb.live.run_view import MAX_HEATMAP_ROWS, MAX_SAMPLES_CHARS, DisplayStatus, evaluation_table, last_status, recent_speed, status_fields
from trainer_nb.live.commands import command_finding, command_step
from trainer_nb.state.branch import copy_history
from trainer_nb.live.follow import LogSource
from trainer_nb.live.view_model import HistorySource, LearnerSource, ViewModel
from trainer_nb.core.history import History
from trainer_nb.live.static_view import still_bundle, view_panels

HOSTILE = "<img src=x onerror=\"alert(1)\">"


class Held:
    "A source that is only a history."
    def __init__(self, history, label="a run"): self.history, self.label = history, label
    def refresh(self): pass
    def settings(self): return []
    def status(self): return status_fields(self.history, DisplayStatus("training", "training"), len(self.history), None)


def million(n=1_000_000):
    "A run of many steps with one loss out of the ordinary, written straight into the columns."
    history, noise = History(), np.random.default_rng(0)
    loss = 1 / (1 + np.arange(n) / n * 10) + 0.05 * noise.standard_normal(n)
    loss[n // 3], loss[n // 2] = 77.0, -5.0
    for i in range(0, n, 100_000):
        part = slice(i, min(i + 100_000, n))
        for step, value in zip(range(part.start + 1, part.stop + 1), loss[part].tolist()): history.append(step, step / n, 1e-3, 8, 0.001 * step, value, 1.0)
    return history


@pytest.fixture(scope="module")
def long(): return million()


def size(message): return len(json.dumps(message[0])) + sum(o.nbytes for o in message[1])


def test_a_million_steps(long):
    "A bounded message in which the extremes are seen; then only what is new; and a small still."
    board = ViewModel([Held(long)])
    everything = board.message(full=True)
    blocks = everything[1][0]
    assert size(everything) < 300_000 and blocks.shape[0] <= 4000 and blocks.shape[1] == BLOCK_COLUMNS
    assert blocks[:, 4].max() == 77.0 and blocks[:, 3].min() == -5.0 and blocks[-1, 0] == 1_000_000
    long.append(1_000_001, 1.0, 1e-3, 8, 1000.001, 0.5, 1.0)
    news = board.message()
    assert size(news) < 2000 and news[1][0].shape[0] <= 1
    assert len(still_bundle(board, "1")["text/html"]) < 150_000


def test_blocks_hold_every_extreme_however_they_grow():
    rng = np.random.default_rng(1)
    for most in (2, 8, 64):
        blocks, history, losses = BlockSeries(most), History(), []
        for i in range(1000):
            losses.append(float(rng.standard_normal() * 10.0 ** rng.integers(-3, 3)) if rng.random() > 0.1 else math.nan)
            history.append(i + 1, i / 10, 1e-3, 8, 0.1 * i, losses[-1], None)
            if rng.random() < 0.2: blocks.update(history)
        blocks.update(history)
        known = np.array(losses)
        assert len(blocks.table) <= most and blocks.table[-1, 0] == 1000
        assert np.nanmin(blocks.table[:, 3]) == np.nanmin(known) and np.nanmax(blocks.table[:, 4]) == np.nanmax(known)
        for k in range(blocks.full):   # every block is that of its rows
            part = known[k * blocks.width:(k + 1) * blocks.width]
            part = part[np.isfinite(part)]
            if len(part): assert blocks.table[k, 3] == part.min() and blocks.table[k, 4] == part.max()
            else: assert np.isnan(blocks.table[k, 3])


def test_after_a_rewind_the_page_has_what_counts():
    history = History()
    for i in range(100): history.append(i + 1, i, 1e-3, 8, 0.1 * i, float(i), 1.0)
    board = ViewModel([Held(history)])
    held = board.message(full=True)
    place = history.place()
    for i in range(100, 130): history.append(i + 1, i, 1e-3, 8, 0.1 * i, float(i), 1.0)
    board.message()
    history.abandon(place)
    for i in range(100, 105): history.append(i + 1, i, 1e-3, 8, 0.1 * i, -1.0, 1.0)
    content, buffers = board.message()
    run = content["changed_runs"][0]
    assert run["generation"] != held[0]["runs"][0]["generation"] and run["first"] == 0 and len(buffers[run["buffer"]]) == 105
    assert buffers[run["buffer"]][-1, 5] == -1.0
    assert buffers[run["left_buffer"]][:, 0].tolist() == list(range(101, 131))
    assert len(abandoned_blocks(history)) == 30


def test_steps_that_were_replayed_with_the_same_loss_are_not_drawn_as_discarded():
    "The dashed line of a view begins where the curves separate, as that of learn.plot() does: not at the snapshot."
    history = History()
    for i in range(20): history.append(i + 1, i, 1e-3, 8, 0.1 * i, float(i), 1.0)
    board = ViewModel([Held(history)])
    place = history.place()
    for i in range(20, 50): history.append(i + 1, i, 1e-3, 8, 0.1 * i, float(i), 1.0)
    board.message(full=True)
    def left():
        "The steps that the page draws as discarded, or None where the message leaves them as they are."
        content, buffers = board.message()
        run = content["changed_runs"][0]
        return None if run["left_buffer"] is None else buffers[run["left_buffer"]][:, 0].tolist()
    history.abandon(place)
    assert left() == list(range(21, 51))
    for i in range(20, 30): history.append(i + 1, i, 1e-3, 8, 0.1 * i, float(i), 1.0)   # replayed
    assert left() == list(range(30, 51))   # with the last replayed step, where they separate
    for i in range(30, 60):
        history.append(i + 1, i, 1e-3, 8, 0.1 * i, -1.0, 1.0)   # with other settings
        assert left() is None
    for panel in (plot_histories([history]).panels()[0], view_panels(board)[0]):
        assert next(o for o in panel.named() if o.name == "discarded").x.tolist() == list(range(30, 51))


def test_every_message_is_json_and_text_stays_text():
    "Names of attackers, and numbers that JSON lacks."
    history = History(HOSTILE)
    for i in range(30): history.append(i + 1, i, 1e-3, 8, 0.1 * i, [1.0, math.nan, math.inf][i % 3], math.nan)
    history.note("evaluate", 30, **{"eval_loss": math.nan, HOSTILE: 1.0, "eval_text": HOSTILE})
    history.note("set", 30, **{HOSTILE: HOSTILE})
    history.note("exception", 30, type="ValueError", message=HOSTILE)
    board = ViewModel([Held(history, HOSTILE), HistorySource(million(50), HOSTILE)])
    content, buffers = board.message(full=True)
    json.dumps(content, allow_nan=False)
    made = still_bundle(board, "1")["text/html"]
    assert "<img src=x" not in made and "&lt;img src=x" in made
    assert all(o.dtype == np.float32 for o in buffers)


def test_counts_have_separators():
    "In every text of the kernel; but not in what is typed."
    status = DisplayStatus("paused", "paused after step 1050 of 22000 (epoch 1000.50); learn.rewind(1050)")
    fields = status_fields(History(), status, 1050, 22000, epochs=2500.0)
    assert fields["words"] == "paused after step 1,050 of 22,000 (epoch 1000.50); learn.rewind(1050)" and fields["epochs"] == "2,500"


def test_a_branch_is_drawn_beside_by_itself():
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randint(0, 2, (64,)))
    learn = Learner(torch.nn.Linear(3, 2), train_dataset=data, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True)
    view = learn.dashboard()
    learn.step(5)
    branch = learn.branch(learning_rate=1.0)
    branch.step(3)
    content, _ = view.view_model.message()
    assert content["kind"] == "all" and [o["run"] for o in content["runs"]] == [learn.history.run_id, branch.history.run_id]
    assert content["runs"][1]["label"] == "branch learning_rate=1"
    branch.history.name = "slower"           # with the log, which is opened at the branch's first step
    branch.step()
    content, _ = view.view_model.message()
    assert [(o["run"], o["label"]) for o in content["changed_runs"]] == [(branch.history.run_id, "slower")]


def test_a_learner_that_begins_anew_is_told_anew():
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randint(0, 2, (64,)))
    learn = Learner(torch.nn.Linear(3, 2), train_dataset=data, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True, max_steps=5)
    board = ViewModel([LearnerSource(learn)])
    learn.train()
    assert board.message()[0]["status"]["state"] == "finished"
    learn.train()
    content, buffers = board.message()
    assert content["status"]["state"] == "finished" and buffers[0][:, 0].tolist() == [1, 2, 3, 4, 5]


def test_the_loss_after_a_nan_is_nan():
    "The newest one, not the last that was finite."
    history = History()
    for i in range(30): history.append(i + 1, i, 1e-3, 8, 0.1 * i, math.nan if i == 29 else 1.0, 1.0)
    assert status_fields(history, DisplayStatus("training", ""), 30, None)["loss"] == "nan"
    learn = made(max_grad_norm=0)
    learn.step(5)
    learn.model.weight.data.fill_(math.nan)
    learn.step(2)
    assert told(learn).sent["status"]["loss"] == "nan" and "has been nan" in told(learn).sent["status"]["verdict"]


def test_pace_is_that_of_the_loop_and_not_of_the_pauses():
    history = History()
    for i in range(50): history.append(i + 1, i, 1e-3, 8, 0.1 * i, 1.0, 1.0)
    assert recent_speed(history) == pytest.approx(10.0) and recent_speed(History()) is None and len(QUANTITIES) == 4


def made(**settings):
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    return Learner(torch.nn.Linear(4, 2), train_dataset=data, eval_dataset=data, loss_func=torch.nn.functional.cross_entropy, use_cpu=True,
                   disable_tqdm=True, max_steps=100, learning_rate=0.1, **settings)


def told(learn):
    board = ViewModel([LearnerSource(learn)])
    board.message()
    return board


def test_after_a_rewind():
    "Marks stand at the step that was gone back to, though nothing was replayed; the loss is that of this step."
    learn = made(rewind_every=1)
    learn.step(20)
    then = learn.history[11].loss
    assert learn.rewind(8).replayed == 0
    learn.set(lr=0.01)
    said = told(learn).sent
    assert [(o["kind"], o["step"], o["action"]) for o in said["marks"]] == [("rewind", 12, ["Undo this rewind", "undo", {}]), ("set", 12, ["Undo this change", "rewind", {"change": 12}])]
    assert float(said["status"]["loss"]) == float(f"{then:.3g}") and then != learn.history.frame(all=True).loss.iloc[-1]
    learn.step(3)
    assert [o["step"] for o in told(learn).sent["marks"]] == [12, 12]
    learn.rewind(15)
    assert told(learn).sent["marks"][-1]["step"] == 0 and told(learn).sent["status"]["loss"] is None


class Failing(torch.nn.Linear):
    "Raises an error in the forward pass of a step."
    bad = 0
    not_state = ("bad",)
    def deep(self, x, n): return self.deeper(x, n - 1) if n else {}[f"step {self.bad}"]
    def deeper(self, x, n): return self.deep(x, n)
    def forward(self, x):
        if self.training and self.learn().state.global_step + 1 == self.bad: return self.deep(torch.zeros(1000), 30)
        return super().forward(x)


def failing(**settings):
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    learn = Learner(Failing(4, 2), train_dataset=data, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True, max_steps=30,
                    rewind_every=1, **settings)
    learn.model.learn = weakref.ref(learn)
    learn.model.bad = 9
    return learn


@pytest.mark.parametrize("background", [False, True])
def test_a_failed_run_says_where_and_why(background, capsys):
    "In a cell as in the background; until it goes on, or back. The traceback is text: it keeps nothing alive."
    learn = failing()
    if background:
        run = learn.start()
        with pytest.raises(KeyError): run.wait()
        gc.collect()
        learn.history                                    # the next verb frees the memory of the error
    else:
        with pytest.raises(KeyError): learn.run(steps=20)
    said = told(learn).sent["status"]
    assert (said["state"], said["where"], said["step"]) == ("failed", "", 8)
    assert said["words"] == "failed after step 8 of 30 (epoch 1.00) with KeyError: 'step 9'"
    lines = said["traceback"].splitlines()
    assert lines[0].startswith("Traceback") and lines[-1] == "KeyError: 'step 9'" and len(lines) <= 40
    assert any("in deep" in line for line in lines) and "run_slice" not in said["traceback"] and "lines omitted" in said["traceback"]
    assert told(learn).sent["marks"][-1]["action"] == ["Try again", "resume", {}] and told(learn).sent["marks"][-1]["kind"] == "exception"
    learn.set(lr=0.01)                                   # it is still there after a change
    assert told(learn).sent["status"]["state"] == "failed"
    learn.model.bad = 0
    learn.step()
    assert told(learn).sent["marks"][0]["action"] is None
    assert (told(learn).sent["status"]["state"], told(learn).sent["status"]["traceback"]) == ("paused", "")


def test_a_failed_run_that_goes_back_is_paused():
    learn = failing()
    with pytest.raises(KeyError): learn.run(steps=20)
    learn.rewind(2)
    assert told(learn).sent["status"]["state"] == "paused"
    with pytest.raises(KeyError): learn.run(steps=20)
    assert told(learn).sent["status"]["state"] == "failed"
    learn.reset()
    assert told(learn).sent["status"]["state"] in ("paused", "new")


def test_a_traceback_in_the_log(tmp_path):
    "Who follows a run sees why it has failed."
    learn = failing(output_dir=str(tmp_path), save_strategy="no")
    with pytest.raises(KeyError): learn.run(steps=20)
    learn.history.flush()
    view = ViewModel([LogSource(tmp_path)])
    view.message()
    assert view.sent["status"]["state"] == "failed" and view.sent["status"]["traceback"].endswith("KeyError: 'step 9'")


def test_samples_over_time():
    "What was said at each evaluation, with a slider in the view and its picture; a rewind takes it back, and what stays is bounded, as a picture of layers is."
    pictures = torch.utils.data.TensorDataset(torch.randn(40, 1, 8, 8), torch.arange(40) % 3)
    layers = [torch.nn.Identity() for _ in range(98)]
    learn = Learner(torch.nn.Sequential(torch.nn.Flatten(), *layers, torch.nn.Linear(64, 3)), train_dataset=pictures, eval_dataset=pictures, callbacks=[SamplesCallback(4)],
                    loss_func=torch.nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True, eval_strategy="steps", eval_steps=2, max_steps=200, rewind_every=1)
    learn.watch(every=1, what="output")
    learn.step(6)
    board = ViewModel([LearnerSource(learn)])
    board.message(full=True)
    about, _ = board.layers[0]   # of very many layers some, from the first to the last
    assert (about["rows"][0][:2], about["rows"][-1][:2], len(about["rows"])) == ("0 ", "99", MAX_HEATMAP_ROWS) and "40 of 100 layers" in about["label"]
    html = board.sent["samples"]
    assert html in still_bundle(board, "1")["text/html"] and 'type="range" max="2"' in html and html.count("<img") == 4 and "of 40 right" in html
    learn.rewind(to=4)
    board.message()
    assert 'type="range" max="1"' in board.sent["samples"]
    learn.train()
    board.message()
    assert len(board.sent["samples"]) < MAX_SAMPLES_CHARS and "200" in board.sent["samples"]
    learn.history.note("samples", 200, samples=[{"text": HOSTILE, "predicted": "data:image/png;base64,\"" + HOSTILE}])
    board.message()
    learn.eval_dataset = None
    assert HOSTILE not in board.sent["samples"] and learn.evaluate(pictures)["eval_loss"] > 0


@pytest.mark.parametrize("recorded", [True, False])
def test_the_machine_over_time(recorded, monkeypatch):
    "As metrics of a section, in the history alone: neither the logs nor the first charts have them; a rewind takes them back."
    monkeypatch.setattr("trainer_nb.live.screens.MachineUse.EVERY", 0.0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    learn = Learner(torch.nn.Linear(4, 1), train_dataset=data, loss_func=torch.nn.functional.mse_loss, use_cpu=True, disable_tqdm=True, max_steps=20, logging_steps=5)
    if not recorded:
        learn.remove_callback(ProgressCallback)
        learn.add_callback(ProgressCallback(machine=False))
    assert "machine" not in repr(learn.step(10))
    found = learn.history.frame().filter(like="machine/").dropna()
    assert list(found) == ["machine/cpu_percent", "machine/memory_gb", "machine/data_wait_percent"] * recorded
    assert not recorded or len(found) == 9 and (found >= 0).all(None) and (found["machine/data_wait_percent"] <= 100).all()
    assert not any("machine" in key for row in learn.state.log_history for key in row) and "machine" not in str([o.title for o in learn.plot().panels()])
    learn.rewind(to=4)
    assert len(learn.history.frame()) == 4


def test_a_finding_has_a_button_for_its_line():
    "A click diagnoses; what that finds has a button, too, and a mark with its sentence. A line that no finding has is refused."
    learn = Learner(torch.nn.Linear(4, 2), train_dataset=[(torch.randn(4), i % 2) for i in range(640)], loss_func=torch.nn.functional.cross_entropy,
                    use_cpu=True, disable_tqdm=True, on_spike="report", optim="sgd", learning_rate=0.01)
    learn.step(40)
    learn.set(lr=1e4, max_grad_norm=0.0)
    with pytest.warns(UserWarning, match="the median of those before"): learn.step(5)
    def newest(): return told(learn).sent["notices"][-1]
    assert newest()["action"][0] == "learn.diagnose()" and "1 of " in command_finding(learn, newest()["action"][2])
    line = newest()["action"][0]
    assert line == "learn.rewind(to=39)" and "the norm of the gradient" in told(learn).sent["marks"][-1]["word"]
    with pytest.raises(InvalidOperation, match="No finding"): command_finding(learn, {"line": "learn.set(lr=1)"})
    assert "after step 39" in command_finding(learn, {"line": line}) and newest()["action"] is None
    assert calls_in("learn.rewind(to=3), then x") == calls_in("normalize") == calls_in("learn.run(steps=3)") == []


def test_a_run_that_was_stopped_can_go_on():
    "It has not finished; the notice of an error from which it recovered is no longer red; its result outlives the learner."
    learn = failing()
    with pytest.raises(KeyError): learn.run(steps=20)
    assert told(learn).sent["notices"][-1]["tone"] == "bad" and told(learn).sent["marks"][-1]["word"] == "KeyError"
    learn.model.bad = 0
    learn.start().pause()
    learn.run_state.parts.background_run.stop()
    board = told(learn)
    at = learn.state.global_step
    assert board.sent["status"]["words"].startswith(f"stopped after step {at} of 30") and board.sent["notices"][-1]["tone"] == "plain"
    assert last_status(learn.run_state.history).state == "stopped"   # as who follows its log sees it
    command_step(learn, {"n": 1})
    learn.run_state.parts.background_run.wait()
    assert learn.state.global_step == at + 1 and told(learn).sent["status"]["state"] == "paused"
    learn.run()
    board.message()
    assert board.sent["status"]["state"] == "finished"
    learn.run_state.history.flush()
    del learn
    gc.collect()
    board.message()
    assert board.sent["status"]["state"] == "finished" and board.sent["status"]["words"].endswith("; its learner was deleted")


def test_a_run_that_a_callback_has_ended_can_go_on():
    class Ends(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): control.should_training_stop = state.global_step == 3
    learn = made()
    learn.add_callback(Ends)
    learn.train()
    board = told(learn)
    assert learn.state.global_step == 3 and board.sent["status"]["state"] == "finished"
    command_step(learn, {"n": 1})
    learn.run_state.parts.background_run.wait()
    assert learn.state.global_step == 4


def test_after_free():
    "What was seen of a run stays when its memory is given back; a run that begins anew is told of."
    learn = made()
    learn.step(20)
    board = told(learn)
    learn.free()
    board.message()
    assert board.sent["status"]["words"] == "freed" and board.sent["status"]["step"] == 20 and len(board.curves[0].history) == 20
    learn.step(2)
    board.message()
    assert board.sent["status"]["step"] == 2 and len(board.curves[0].history) == 2


def test_a_claim_outlives_its_module(tmp_path, monkeypatch):
    "At the end of a process modules lose their names before the last history goes: it lets go of its log all the same, without a word."
    claim = runlog.FileClaim(tmp_path/"log")
    monkeypatch.setattr(runlog, "os", None)
    claim.drop()
    monkeypatch.undo()
    runlog.FileClaim(tmp_path/"log").drop()


def test_an_evaluation_that_was_repeated_is_one_row():
    "At the same step, with the same values; one with other values is another row."
    history = History("a")
    history.append(1, 0.1, 0.1, 8, 0.1, loss=2.0)
    for value in (0.5, 0.5, 0.4): history.note("evaluate", 1, eval_loss=value)
    assert [row[1] for row in evaluation_table(history)["rows"]] == ["0.500", "0.400"]


def test_a_branch_that_is_being_made_is_not_drawn_yet():
    "From which step on it is drawn is decided once."
    learn = made()
    learn.step(4)
    board = told(learn)
    other = copy_history(learn.history)
    board.message()
    assert len(board.curves) == 1
    other.note("branch", 4, run=learn.history.run_id, changes={}, into=other.run_id)
    board.message()
    assert [curve.steps[0] for curve in board.curves] == [0, 4]
