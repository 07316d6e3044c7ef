"State that user code keeps: what is reported, what is left out, and what a new process calls before it restores."
import json, logging, os, subprocess, sys, warnings
from pathlib import Path

import pytest, torch

from trainer_nb import Learner, TrainerCallback, differences
from trainer_nb.engine.snapshot_tensors import has_same_bytes, is_shared
from trainer_nb.engine.state_holders import LEARNER
from trainer_nb.engine.user_state import capture_user_state, differing, restore_user_state, user_state_bytes

from going_back import AFTER, BEFORE, ITEMS, VERBS, Averages, Noisy, learner, look, straight

HELPERS = Path(__file__).parents[1]


class Helped(TrainerCallback):
    "A callback with a generator function that was started: Python cannot copy it."
    def __init__(self): self.helper = self.count()
    def count(self): yield from range(1000)
    def on_step_end(self, args, state, control, **kwargs): next(self.helper)


def warned(function):
    "The warnings that a call gives, as text."
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(w.message) for w in caught if issubclass(w.category, UserWarning)]


# --- reports -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("verb", [v for v in VERBS if v.__name__ in ("restore", "rewind", "reset", "load_here", "load_in_a_new_learner")],
                         ids=lambda f: f.__name__)
def test_each_verb_reports_by_name_once(verb, tmp_path):
    made = []
    def make():
        made.append(learner(callbacks=[Helped]))
        return made[-1]
    said = warned(lambda: verb(make(), make, tmp_path))
    assert len(said) == 1 and "Helped.helper is an object of generator" in said[0] and 'not_state = (\'helper\',)' in said[0]
    learn = made[-1]
    taken = learn.snapshot()
    learn.step(1)
    assert warned(lambda: learn.restore(taken)) == []   # each name once


def test_names_that_a_class_declares_are_left_alone():
    class Quiet(Helped):
        not_state = ("helper", "seen")
        def __init__(self): super().__init__(); self.seen, self.steps = [], 0
        def on_step_end(self, args, state, control, **kwargs): self.seen.append(state.global_step); self.steps += 1
    learn = learner(callbacks=[Quiet])
    callback = next(c for c in learn.callback_handler.callbacks if isinstance(c, Quiet))
    learn.step(1)
    taken = learn.snapshot()
    learn.step(2)
    assert warned(lambda: learn.restore(taken)) == []
    assert callback.seen == [1, 2, 3] and callback.steps == 1


def test_a_declared_name_that_is_made_later_is_no_difference():
    class Lazy(TrainerCallback):
        not_state = "count"
    learn = learner(callbacks=[Lazy])
    learn.step(1)
    taken = learn.snapshot()
    next(c for c in learn.callback_handler.callbacks if isinstance(c, Lazy)).count = 3
    assert differences(taken, learn.snapshot()) == []


def test_resources_are_no_state(tmp_path):
    class Writes(TrainerCallback):
        def __init__(self):
            self.file, self.log, self.function, self.kind, self.module = open(tmp_path/"log", "w"), logging.getLogger("a"), print, dict, json
        def on_train_begin(self, args, state, control, model=None, optimizer=None, learner=None, **kwargs):
            self.model, self.layer, self.weight, self.optimizer, self.learner, self.args = model, model.inner, model.inner.weight, optimizer, learner, args
        def on_step_end(self, args, state, control, **kwargs): self.file.write(f"{state.global_step} ")
    learn = learner(callbacks=[Writes])
    learn.step(1)
    taken = learn.snapshot()
    learn.step(1)
    assert warned(lambda: learn.restore(taken)) == []
    learn.step(1)
    assert sum(t.nbytes for n, t in taken.tensors.items() if n.startswith("user/")) < 300   # the model is not copied a second time


def test_an_attribute_above_the_limit_is_reported():
    class Caches(TrainerCallback):
        state_limit = 1000
        def on_step_end(self, args, state, control, **kwargs): self.cache, self.n = torch.zeros(1000), state.global_step
    learn = learner(callbacks=[Caches])
    learn.step(1)
    taken = learn.snapshot()
    learn.step(1)
    said = warned(lambda: learn.restore(taken))
    assert len(said) == 1 and "Caches.cache takes 0.004 MB, more than the limit of 0.001 MB" in said[0]
    assert next(c for c in learn.callback_handler.callbacks if isinstance(c, Caches)).n == 1


def test_averaged_weights_count_as_memory():
    plain, averaged = learner(), ITEMS["averaged_weights_of_a_subclass"]()
    sizes = []
    for learn in (plain, averaged):
        learn.step(1)
        sizes.append(learn.snapshot().nbytes)
    assert sizes[1] - sizes[0] >= sum(p.nbytes for p in plain.model.parameters())


class Distilled(Learner):
    "A learner with a teacher."
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.teacher = torch.nn.Linear(128, 128).requires_grad_(False)

class Reference(TrainerCallback):
    "A callback with a frozen model, of which step 3 changes one number through .data."
    def __init__(self): self.model = torch.nn.Linear(128, 128).requires_grad_(False)
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3: self.model.weight.data[5, 7] += 1


def distilled(**settings): return learner(cls=Distilled, callbacks=[Reference], **settings)


def reference(learn): return next(c for c in learn.callback_handler.callbacks if isinstance(c, Reference)).model.weight


HELD = ("user/Distilled.teacher.weight", "user/Reference.model.weight")


def test_snapshots_share_frozen_models_of_user_code():
    "One copy, and not counted as memory of its own; a model that has changed gets another one."
    learn = distilled()
    learn.step(1)
    one = learn.snapshot()
    learn.step(1)
    two = learn.snapshot()
    assert all(one.tensors[n] is two.tensors[n] is learn.run_state.first.snapshot.tensors[n] for n in HELD)
    assert one.nbytes == two.nbytes < sum(one.tensors[n].nbytes for n in HELD)
    learn.step(1)
    three = learn.snapshot()
    assert [one.tensors[n] is three.tensors[n] for n in HELD] == [True, False]
    learn.teacher.weight.data[0, 0] = 0.0
    zero = learn.snapshot()
    learn.teacher.weight.data[0, 0] = -0.0   # equal, with other bytes
    minus = learn.snapshot()
    assert not zero.tensors[HELD[0]].view(torch.int32)[0, 0] and minus.tensors[HELD[0]].view(torch.int32)[0, 0]


def test_a_model_of_user_code_that_changes_again_and_again_counts_as_memory():
    "Its copies are shared between two changes, but one after the other they take memory."
    learn = distilled()
    learn.step(1)
    learn.snapshot()
    shared = user_state_bytes(learn.run_state)
    size = learn.teacher.weight.nbytes
    assert shared < size
    learn.teacher.weight.data.mul_(2)
    taken = [learn.snapshot() for _ in range(3)]
    assert is_shared(taken[-1].tensors[HELD[0]])
    assert size <= user_state_bytes(learn.run_state) < 2 * size   # the callback's model, which has not changed, does not count


def test_a_frozen_model_that_changes_is_restored_exactly():
    "In the middle of a run, in both directions, and through the snapshots of a rewind and their spare memory."
    learn = distilled(rewind_every=1)
    learn.step(2)
    taken = {2: learn.snapshot()}
    values = {2: (learn.teacher.weight.clone(), reference(learn).clone())}
    for step in (3, 4, 5):
        if step == 4:
            with torch.no_grad(): learn.teacher.weight.mul_(2)
        learn.step(1)
        taken[step] = learn.snapshot()
        values[step] = learn.teacher.weight.clone(), reference(learn).clone()
    assert not torch.equal(values[2][1], values[3][1]) and not torch.equal(values[3][0], values[4][0])
    for step in (2, 5, 3, 4, 2, 4):
        learn.restore(taken[step])
        assert torch.equal(learn.teacher.weight, values[step][0]) and torch.equal(reference(learn), values[step][1])
        assert differences(learn.snapshot(), taken[step]) == []
    learn.restore(taken[2])
    learn.step(3)
    assert not learn.rewind(3).different and torch.equal(reference(learn), values[2][1])
    learn.step(2)
    assert torch.equal(reference(learn), values[3][1])
    assert all(torch.equal(taken[step].tensors[HELD[1]], values[step][1]) for step in taken)


VIEWS = {"strided": lambda t: t[::2], "expanded": lambda t: t[:1].expand(5000), "conjugate": lambda t: torch.complex(t, t).conj(),
         "negative": lambda t: torch.complex(t, t).conj().imag, "odd": lambda t: t[1:].to(torch.uint8), "flags": lambda t: t > 0,
         "nan": lambda t: t / t, "empty": lambda t: t[:0], "offset": lambda t: t[1:5000]}

@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_bytes_of_any_tensor_are_compared(view):
    t = view(torch.arange(5001.0))
    assert has_same_bytes(t, t.clone()) and has_same_bytes(t.clone(), t) and not has_same_bytes(t, t.to(torch.complex128))
    other = t.clone()
    if len(t): other[-1] = 0 if t[-1] else 1
    assert has_same_bytes(t, other) == (not len(t))


def test_generators_in_data_workers_need_no_report():
    "They are seeded for each batch."
    learn = ITEMS["data_set"]()
    learn.args.dataloader_num_workers = 1
    learn.step(1)
    taken = learn.snapshot()
    assert warned(lambda: learn.restore(taken)) == []


def test_framework_attributes_are_known():
    "What every learner has is no state of a subclass."
    learn = learner()
    learn.step(1)
    learn.evaluate(learn.train_dataset)
    assert set(vars(learn)) <= LEARNER


def test_what_has_changed_is_named():
    "For a rollback: the names of what has changed, and only these are put back."
    learn = ITEMS["generators"]()
    learn.step(1)
    run = learn.run_state
    before = capture_user_state(run)
    assert differing(before, capture_user_state(run)) == []
    torch.rand(1, generator=learn.g)
    learn.r.random()
    learn.late = 3
    assert sorted(differing(before, capture_user_state(run))) == ["Scaled.g", "Scaled.late", "Scaled.r"]
    assert restore_user_state(run, before, only={"Scaled.g"}) == {}
    assert sorted(differing(before, capture_user_state(run))) == ["Scaled.late", "Scaled.r"]
    assert restore_user_state(run, before) == {} and differing(before, capture_user_state(run)) == [] and not hasattr(learn, "late")


# --- a new process -----------------------------------------------------------------------------------------------------

class Begins(TrainerCallback):
    "Makes what it needs when the run and the epoch begin."
    not_state = ("heard", "weights")
    def __init__(self): self.heard, self.weights = [], None
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.heard.append(("train", state.global_step))
        self.weights = model.inner.weight.detach().clone()
        self.total = 0
        state.global_step, control.should_training_stop = 100, True   # the snapshot is restored over this
        with torch.no_grad(): model.inner.weight.zero_()
    def on_epoch_begin(self, args, state, control, **kwargs): self.heard.append(("epoch", self.total))
    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.total += 1
        with torch.no_grad(): model.outer.bias.add_(self.total)


class BeginsGently(Begins):
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step: return super().on_train_begin(args, state, control, model=model, **kwargs)
        self.heard.append(("train", 0))
        self.total = 0


def callback_of(learn, kind): return next(c for c in learn.callback_handler.callbacks if isinstance(c, kind))


def test_events_of_a_resumed_run(tmp_path):
    "on_train_begin and on_epoch_begin once, with the checkpoint's step and weights; then the whole snapshot."
    learn = learner(callbacks=[BeginsGently])
    learn.step(BEFORE)
    path = learn.save_checkpoint(tmp_path/"checkpoint-3")
    weights = learn.model.inner.weight.detach().clone()
    learn.step(AFTER)
    new = learner(callbacks=[BeginsGently])
    new.load_checkpoint(path)
    callback = callback_of(new, Begins)
    assert callback.heard == [("train", BEFORE), ("epoch", 0)] and torch.equal(callback.weights, weights)
    assert (new.state.global_step, new.control.should_training_stop, callback.total) == (BEFORE, False, BEFORE)
    new.step(1)
    new.load_checkpoint(path)   # within the process: not again
    new.step(AFTER)
    assert callback.heard[2:] == [("epoch", 5)] and look(new) == look(learn)   # the second epoch
    new.rewind(1)
    assert [h for h in callback.heard if h[0] == "train"] == [("train", BEFORE)]


def test_at_the_end_of_an_epoch_only_the_run_begins(tmp_path):
    learn = learner(callbacks=[Begins])
    learn.args.max_steps = 12
    callback_of(learn, Begins).__class__ = BeginsGently
    learn.run(epochs=1)
    path = learn.save_checkpoint(tmp_path/"checkpoint-5")
    new = learner(callbacks=[BeginsGently])
    new.load_checkpoint(path)
    assert callback_of(new, Begins).heard == [("train", 5)]
    new.step(1)
    assert callback_of(new, Begins).heard == [("train", 5), ("epoch", 5)]


def test_a_callback_that_fails_to_begin_leaves_the_learner_as_it_was(tmp_path):
    class Fails(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            if state.global_step: raise RuntimeError("no disk")
    learn = learner(callbacks=[Fails])
    learn.step(BEFORE)
    path = learn.save_checkpoint(tmp_path/"checkpoint-3")
    new = learner(callbacks=[Fails])
    with pytest.raises(RuntimeError, match="no disk"): new.load_checkpoint(path)
    assert new.state.global_step == 0 and all(map(torch.equal, new.model.parameters(), learner().model.parameters()))


PROGRAM = """
import sys
sys.path[:0] = [{here!r}]
from going_back import AFTER, BEFORE, ITEMS, look
for name in sys.argv[3].split():
    learn = ITEMS[name]()
    if sys.argv[1] == "save":
        learn.step(BEFORE)
        learn.save_checkpoint(sys.argv[2] + "/" + name + "/checkpoint-3")
    else:
        learn.load_checkpoint(sys.argv[2] + "/" + name + "/checkpoint-3")
        learn.step(AFTER)
        print("found", name, repr(look(learn)), sep="|")
"""

def test_in_another_process(tmp_path):
    "The same for a real new process."
    names = "averaged_weights_of_a_callback object_with_a_state_dict generators second_optimizer containers modules optimizer_around_another data_set"
    for act in ("save", "resume"):
        done = subprocess.run([sys.executable, "-c", PROGRAM.format(here=str(HELPERS)), act, str(tmp_path), names], capture_output=True, text=True,
                              env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}, timeout=250)
        assert done.returncode == 0, done.stderr[-2000:]
    found = dict(line.split("|", 2)[1:] for line in done.stdout.splitlines() if line.startswith("found|"))
    assert found == {name: repr(straight(name)) for name in names.split()}


@pytest.mark.parametrize("steps", [0, BEFORE])
def test_launch_and_close(steps):
    "One process in place of the kernel gives the same bytes; what callbacks make there comes home."
    learn = learner(callbacks=[Averages, Noisy])
    if steps: learn.step(steps)
    with learn.launch(1, threads=torch.get_num_threads()): learn.step(5 - steps)
    learn.step(BEFORE + AFTER - 5)
    other = learner(callbacks=[Averages, Noisy])
    other.step(BEFORE + AFTER)
    assert look(learn) == look(other)


# --- another data set ----------------------------------------------------------------------------------------------------

class Counted(torch.utils.data.Dataset):
    "Settings that belong to the object, and a counter that belongs to the run."
    def __init__(self, size=24, folder="a"): self.size, self.folder, self.reads = size, folder, 0
    def __len__(self): return self.size
    def __getitem__(self, i):
        self.reads += 1
        return {"x": torch.full((3,), i / 24), "labels": torch.tensor([float(i % 2)])}


def counting(tmp_path=None, **settings):
    torch.manual_seed(0)
    class Net(torch.nn.Module):
        def __init__(self): super().__init__(); self.layer = torch.nn.Linear(3, 1)
        def forward(self, x, labels): return {"loss": (self.layer(x) - labels).pow(2).mean()}
    folder = {} if tmp_path is None else dict(output_dir=str(tmp_path))
    return Learner(Net(), train_dataset=Counted(), **dict(per_device_train_batch_size=8, num_train_epochs=9, use_cpu=True, disable_tqdm=True, **folder) | settings)


def test_restore_leaves_the_settings_of_another_data_set():
    "The counter goes back with the run; the length and the folder belong to the object."
    learn = counting()
    learn.step(3); learn.snapshot("a"); learn.step(2)
    learn.train_dataset = other = Counted(32, "b")
    other.extra = 1
    said = warned(lambda: learn.restore("a"))
    assert (other.size, other.folder, other.reads, other.extra) == (32, "b", 24, 1)
    assert said == []
    learn.step(4)   # the data of the new set, to its end
    assert learn.state.global_step == 7 and len(other) == 32


# --- the Trainer's files -------------------------------------------------------------------------------------------------

class Mean(TrainerCallback):
    def __init__(self): self.steps, self.weights = 0, torch.zeros(3)
    def on_step_end(self, args, state, control, model, **kwargs):
        self.steps += 1
        self.weights += model.layer.weight.detach()[0]


def test_checkpoints_in_the_trainer_s_layout_hold_user_state(tmp_path):
    "In files that the Trainer ignores; without them, a warning names what was not restored."
    learn = counting(tmp_path, save_format="trainer", callbacks=[Mean()])
    learn.step(3)
    folder = learn.save_checkpoint(); learn.free()
    mean = next(c for c in learn.run_state.callbacks.callbacks if isinstance(c, Mean))
    again = counting(tmp_path, save_format="trainer", callbacks=[other := Mean()])
    assert warned(lambda: again.load_checkpoint(folder)) == [] and other.steps == 3 and torch.equal(other.weights, mean.weights)
    again.free()
    for name in ("manifest.json", "rest.json", "rest.safetensors"): (folder / name).unlink(missing_ok=True)
    foreign = counting(tmp_path, save_format="trainer", callbacks=[new := Mean()])
    said = warned(lambda: foreign.load_checkpoint(folder))
    assert new.steps == 0 and sum("Mean.steps, Mean.weights keep their values" in o for o in said) == 1
