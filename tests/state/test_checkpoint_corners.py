"What a stranger has tried with checkpoints."
import errno, os, shutil, warnings

import pytest
import torch

from toys import Augmented, finish, unequal
from trainer_nb import Learner, get_last_checkpoint
from trainer_nb.state import async_save as saver
from trainer_nb.state.async_save import SaveFailed
from checkpoints import quiet_learner, scripted


class Turned(torch.nn.Module):
    "Weights that do not lie in the order of their numbers, whose state an optimizer goes through beside them."
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.w, self.conv = torch.nn.Parameter(torch.randn(4, 2).t()), torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    def forward(self, x): return self.conv((x @ self.w.t()).reshape(-1, 2, 5, 5).to(memory_format=torch.channels_last)).flatten(1)


@pytest.mark.parametrize("given", [{}, dict(save_format="trainer")])
def test_weights_that_lie_otherwise(tmp_path, given):
    x = torch.randn(60 * 25, 4).reshape(60, 25, 4)
    def learner(folder):
        return Learner(Turned(), train_dataset=torch.utils.data.TensorDataset(x), loss_func=lambda out, labels: out.square().mean(), learning_rate=0.05,
                       output_dir=str(folder), disable_tqdm=True, save_strategy="no", num_train_epochs=3)
    want, learn = finish(learner(tmp_path / "like")), learner(tmp_path / "a")
    learn.step(9)
    learn.set(save_format=given.get("save_format", "safetensors"))
    folder = learn.save_checkpoint()
    other = learner(tmp_path / "b")
    with warnings.catch_warnings(): warnings.simplefilter("ignore"); other.load_checkpoint(folder)
    state, weight = other.optimizer.state[other.model.w]["exp_avg"], other.model.w
    assert state.stride() == weight.stride() == (1, 2) and other.optimizer.state[other.model.conv.weight]["exp_avg"].is_contiguous(memory_format=torch.channels_last)
    assert [n for n in unequal(finish(other), want, ignore=("args",)) if isinstance(n, str) and "/" in n] == []


def test_a_folder_of_the_users_is_not_touched(tmp_path):
    learn = quiet_learner(tmp_path / "out", save_strategy="steps", save_steps=5)
    learn.step(7)
    (tmp_path / "mine").mkdir(); (tmp_path / "mine" / "notes.txt").write_text("x")
    for folder in (tmp_path / "out", tmp_path / "mine", tmp_path):
        with pytest.raises(ValueError, match="name a folder that is not there yet"): learn.save_checkpoint(folder)
    assert (tmp_path / "mine" / "notes.txt").exists() and (tmp_path / "out" / "checkpoint-5").is_dir() and not list(tmp_path.glob("retired*"))
    (tmp_path / "new").mkdir()   # an empty one may be used
    learn.save_checkpoint(tmp_path / "new"); learn.step(1); learn.save_checkpoint(tmp_path / "new")   # its own: written again
    (tmp_path / "new" / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match="name a folder"): learn.save_checkpoint(tmp_path / "new")
    (tmp_path / "out" / "checkpoint-5" / "notes.txt").write_text("x")
    learn.load_checkpoint(tmp_path / "out" / "checkpoint-5"); learn.save_checkpoint()
    assert (tmp_path / "out" / "retired-checkpoint-5" / "notes.txt").exists() and (tmp_path / "out" / "checkpoint-5").is_dir()


@pytest.mark.parametrize("how", ["edited", "set", "epochs"])
def test_a_finished_run_is_prolonged_by_resuming(tmp_path, how):
    first = dict(max_steps=12) if how != "epochs" else dict(num_train_epochs=4)
    more = dict(max_steps=20) if how != "epochs" else dict(num_train_epochs=6)
    learn = quiet_learner(tmp_path, save_strategy="steps", save_steps=100, **first)
    learn.train(); learn.free()
    other = quiet_learner(tmp_path, save_strategy="steps", save_steps=100, **(first if how == "set" else more))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if how == "set": other.load_checkpoint(); other.set(**more); other.train()
        else: other.train(resume_from_checkpoint=True)
    end = 20 if how != "epochs" else 18
    assert other.state.global_step == end and other.history.frame().step.tolist() == [*range(1, end + 1)] and other.run_state.finished


BEST = dict(eval_dataset=Augmented(4), eval_strategy="steps", eval_steps=5, metric_for_best_model="score", load_best_model_at_end=True)


def test_the_best_of_another_run_is_not_taken(tmp_path):
    "A cell that is run again writes under the same names."
    alone = quiet_learner(tmp_path / "alone", compute_metrics=scripted([0.1, 0.9]), **BEST)
    alone.train()
    a = quiet_learner(tmp_path / "a", compute_metrics=scripted([0.1, 0.9]), **BEST)
    a.step(12); a.run_state.parts.saver.wait()
    b = quiet_learner(tmp_path / "a", compute_metrics=scripted([0.1, 0.2, 0.3]), seed=7, **BEST)
    b.step(12); b.run_state.parts.saver.wait()
    a.train()
    assert all(torch.equal(x, y) for x, y in zip(a.model.state_dict().values(), alone.model.state_dict().values()))


def test_a_moved_folder_keeps_its_best(tmp_path):
    a = quiet_learner(tmp_path / "x", compute_metrics=scripted([0.1, 0.9, 0.8, 0.7]), save_total_limit=2, **BEST | dict(save_strategy="steps", save_steps=5))
    a.step(17); a.save_checkpoint(); a.free()
    os.rename(tmp_path / "x", tmp_path / "y")
    b = quiet_learner(tmp_path / "y", compute_metrics=scripted([]), save_total_limit=2, **BEST | dict(save_strategy="steps", save_steps=5))
    with warnings.catch_warnings(): warnings.simplefilter("error"); b.train(resume_from_checkpoint=True)
    assert b.state.best_model_checkpoint == str(tmp_path / "y" / "checkpoint-10") and (tmp_path / "y" / "checkpoint-10").is_dir()


def test_home_and_the_present_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir(); (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    learn = quiet_learner("out", save_strategy="steps", save_steps=5)
    learn.step(6)
    monkeypatch.chdir(tmp_path / "elsewhere")
    learn.step(6); learn.run_state.parts.saver.wait()
    assert sorted(p.name for p in (tmp_path / "out").glob("checkpoint-*")) == ["checkpoint-10", "checkpoint-5"] and os.listdir(tmp_path / "elsewhere") == []
    assert learn.save_checkpoint("~/my") == tmp_path / "home" / "my" and learn.save_model("~/model") == tmp_path / "home" / "model"
    learn.save_checkpoint("~/runs/checkpoint-12")
    assert get_last_checkpoint("~/runs") == str(tmp_path / "home" / "runs" / "checkpoint-12")


def test_a_model_of_another_precision(tmp_path):
    learn = quiet_learner(tmp_path)
    learn.step(2)
    folder = learn.save_checkpoint()
    from toys import hard_model
    other = quiet_learner(tmp_path / "b", model=hard_model().double())
    with pytest.raises(ValueError, match="a model in torch.float32, and this one is in torch.float64"): other.load_checkpoint(folder)
    assert {t.dtype for t in other.model.state_dict().values() if t.is_floating_point()} == {torch.float64}


def test_a_log_that_is_deleted_under_way(tmp_path):
    learn = quiet_learner(tmp_path, save_strategy="steps", save_steps=5)
    learn.step(6); learn.run_state.parts.saver.wait()
    shutil.rmtree(tmp_path / "runs")
    with pytest.warns(UserWarning, match="continues without a log"): learn.step(6), learn.run_state.parts.saver.wait()
    assert (tmp_path / "checkpoint-10" / "history.jsonl").is_file() and learn.step(1)
    other = quiet_learner(tmp_path, save_strategy="steps", save_steps=5)
    other.load_checkpoint()
    assert other.state.global_step == 10 and other.history.frame().step.tolist() == [*range(1, 11)]


def test_a_snapshot_does_not_bring_a_folder_along(tmp_path):
    "A branch that goes back to a snapshot of its parent goes on writing to its own folder."
    learn = quiet_learner(tmp_path, save_strategy="steps", save_steps=5)
    learn.step(12)
    there = learn.snapshot()
    branch = learn.branch(learning_rate=0.001)
    branch.restore(there); branch.step(5); branch.free(); learn.free()
    assert sorted(p.name for p in tmp_path.glob("*checkpoint*")) == ["checkpoint-10", "checkpoint-5"]
    assert [p.name for p in tmp_path.glob("branches/*/checkpoint*")] == ["checkpoint-15"]


@pytest.mark.parametrize("rewind_every", [1, 0])
def test_the_best_of_a_future_left_behind_is_counted(tmp_path, rewind_every):
    "Like any other that is retired: save_total_limit removes it first, also where the replay from the beginning saves checkpoints again."
    scores = {5: 0.5, 10: 0.9, 15: 0.1, 20: 0.9, 25: 0.9, 30: 0.8}
    learn = quiet_learner(tmp_path, rewind_every=rewind_every, save_strategy="steps", save_steps=5, eval_dataset=Augmented(9), eval_strategy="steps", eval_steps=5, metric_for_best_model="score",
                 greater_is_better=False, load_best_model_at_end=True, save_total_limit=2, compute_metrics=lambda p: {"score": scores[learn.state.global_step]})
    learn.step(22); learn.rewind(12)
    names = lambda: {p.name for p in tmp_path.glob("*checkpoint*")}   # noqa: E731
    assert "retired-checkpoint-15" in names() and learn.state.best_metric == 0.5
    learn.step(10); learn.free()
    assert names() == {"checkpoint-15", "checkpoint-20"}


def test_a_best_one_that_could_not_be_written(tmp_path, monkeypatch):
    "The one before stays the best, and stays."
    scores, write, full = iter([0.5, 0.1, 0.9, 0.9, 0.9, 0.9]), saver.write_checkpoint, []
    learn = quiet_learner(tmp_path, save_strategy="steps", save_steps=5, eval_dataset=Augmented(9), eval_strategy="steps", eval_steps=5, metric_for_best_model="score",
                 greater_is_better=False, load_best_model_at_end=True, save_total_limit=1, compute_metrics=lambda p: {"score": next(scores)})
    def sometimes(package, folder):
        if full: raise OSError(errno.ENOSPC, "No space left on device")
        write(package, folder)
    monkeypatch.setattr(saver, "write_checkpoint", sometimes)
    learn.step(6); saver.wait_for_save(learn.run_state); full.append(1)
    with pytest.raises(SaveFailed): learn.step(4); saver.wait_for_save(learn.run_state)
    full.clear()
    assert (learn.state.best_metric, learn.state.best_global_step, learn.state.best_model_checkpoint) == (0.5, 5, str(tmp_path / "checkpoint-5"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.train()   # and it is there to be loaded at the end
    assert (tmp_path / "checkpoint-5").is_dir()


def test_a_checkpoint_saved_before_the_first_step_after_resuming(tmp_path):
    "The log in output_dir lags behind the checkpoint's own copy of the history, which is read instead."
    like = quiet_learner(tmp_path / "like")
    like.train()
    first = quiet_learner(tmp_path / "out")
    first.step(3)
    second = quiet_learner(tmp_path / "out")
    second.load_checkpoint(first.save_checkpoint(tmp_path / "one"))
    third = quiet_learner(tmp_path / "out")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        third.load_checkpoint(second.save_checkpoint(tmp_path / "two"))
        third.step(4)
        fourth = quiet_learner(tmp_path / "out")
        fourth.load_checkpoint(third.save_checkpoint(tmp_path / "three"))
        fourth.train()
    assert fourth.history.column("step").tolist() == [*range(1, 31)]
    assert fourth.history.column("loss").tobytes() == like.history.column("loss").tobytes()


# ---- a checkpoint that cannot be begun

@pytest.mark.parametrize("then", [True, False], ids=["trained", "frozen"])
def test_weights_that_the_checkpoint_freezes_or_unfreezes_are_named(tmp_path, then):
    "The cell that makes the model was edited: what is frozen comes from the checkpoint, and a warning says so."
    def make(trainable):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        model[0].requires_grad_(trainable)
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
        return Learner(model, train_dataset=torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), loss_func=torch.nn.functional.mse_loss,
                       use_cpu=True, disable_tqdm=True, output_dir=str(tmp_path))
    learn = make(then)
    learn.step()
    folder = learn.save_checkpoint()
    learn.free()
    again = make(not then)
    with pytest.warns(UserWarning, match=f"'0.bias' and 1 more are {'trained' if then else 'frozen'} from here on"): again.load_checkpoint(folder)
    assert again.model[0].weight.requires_grad is then
    again.free()
    # where the run itself has frozen them, nothing has been edited
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn = make(then)
        learn.set(num_train_epochs=5)
        learn.step()
        learn.freeze("0") if then else learn.unfreeze("0")
        learn.step()
        folder = learn.save_checkpoint()
        learn.free()
        again = make(then)
        again.set(num_train_epochs=5)
        again.load_checkpoint(folder)
    assert again.model[0].weight.requires_grad is not then


@pytest.mark.parametrize("rewind", [True, False])
def test_a_checkpoint_of_the_restored_step_stays(tmp_path, rewind):
    learn = quiet_learner(tmp_path / "out", save_strategy="no", rewind_every=1)
    learn.step(7)
    learn.snapshot("before")
    folder = learn.save_checkpoint()
    learn.step(3)
    learn.rewind(to=7) if rewind else learn.restore("before")
    assert os.path.isdir(folder) and get_last_checkpoint(tmp_path / "out") == str(folder)
    again = quiet_learner(tmp_path / "out", save_strategy="no", rewind_every=1)
    again.load_checkpoint(folder)
    assert [n for n in unequal(finish(again), finish(learn), ignore=("args",)) if isinstance(n, str) and "/" in n] == []


def test_a_checkpoint_after_a_change_that_is_undone_is_retired(tmp_path):
    learn = quiet_learner(tmp_path / "out", save_strategy="no", rewind_every=1)
    learn.step(7)
    learn.snapshot("before")
    learn.set(learning_rate=0.5)
    learn.save_checkpoint()
    learn.step(3)
    learn.restore("before")
    assert get_last_checkpoint(tmp_path / "out") is None and (tmp_path / "out" / "retired-checkpoint-7").is_dir()
