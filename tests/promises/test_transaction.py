"A step happens wholly or not at all: raise anywhere, and the run goes on as if nothing had been."
import gc, itertools
import multiprocessing, os, signal, warnings

import pytest
import torch
from torch import nn

from trainer_nb import Learner, Paused, InvalidOperation, TrainerCallback, differences
from toys import (Augmented, Bomb, Boom, Hard, accuracy, every_event, finish, hard_learner, hard_model, outcome, silent, told,
                  unequal)


pytestmark = pytest.mark.usefixtures("one_thread")


# --- raise once, anywhere ----------------------------------------------------------------------------------------------

EVALUATED = dict(eval_strategy="steps", eval_steps=2, eval_on_start=True, metric_for_best_model="accuracy")

BEFORE_COMMIT = ("getitem collate on_step_begin training_step compute_loss forward|end of forward|backward|end of training_step|on_substep_end|"
                 "on_pre_optimizer_step").replace(" ", "|", 5).split("|")
AFTER_COMMIT = ("on_optimizer_step|on_step_end|log|end of log|on_log|evaluate|prediction_step|on_prediction_step|compute_metrics|end of evaluate|"
                "on_evaluate|on_epoch_begin|on_epoch_end|on_train_begin|on_train_end").split("|")
PREPARING = "get_train_dataloader|create_optimizer|create_scheduler".split("|")

# Events that belong to what is done: nobody may hear one of them twice, or not at all.
ONCE = {"on_train_begin", "on_epoch_begin", "on_optimizer_step", "on_step_end", "on_log", "on_evaluate", "on_epoch_end", "on_train_end"}


def hooked(hook):
    "A Learner that passes a hook in each method that a user may override."
    def around(name):
        def method(self, *args, **kwargs):
            hook(name)
            out = getattr(super(cls, self), name)(*args, **kwargs)
            hook(f"end of {name}")
            return out
        return method
    names = "get_train_dataloader create_optimizer create_scheduler training_step prediction_step evaluate log".split()
    cls = type("Hooked", (Learner,), {name: around(name) for name in names})
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        hook("compute_loss")
        return super(cls, self).compute_loss(model, inputs, return_outputs, num_items_in_batch)
    cls.compute_loss = compute_loss
    return cls


def bombed(hook, **given):
    "A learner that passes a hook wherever user code can raise, between two callbacks that write down what they hear."
    def metrics(p):
        hook("compute_metrics")
        return accuracy(p)
    listeners = [told(), every_event(lambda self, event, state: hook(event))(), told()]
    learn = hard_learner(hooked(hook), hook, eval_dataset=Augmented(10), compute_metrics=metrics, callbacks=listeners, **EVALUATED | given)
    return learn, listeners[0], listeners[2]


def once(callback): return [h for h in callback.heard if h[0] in ONCE]


def free_of_gradients(learn): return all(p.grad is None for p in learn.model.parameters())


@pytest.fixture(scope="module")
def calm():
    "The run that nothing disturbs: its outcome, what it told, and how often it passed each place."
    bomb = Bomb()
    learn, first, _ = bombed(bomb)
    return finish(learn), once(first), bomb.counts


def some(times):
    "The first times that a place is passed, the last ones, and two between."
    return sorted({1, 2, 3, times // 2, 2 * times // 3, times - 2, times - 1, times} & set(range(1, times + 1)))


@pytest.mark.parametrize("place", [*PREPARING, *BEFORE_COMMIT, *AFTER_COMMIT])
def test_raise_once(calm, place):
    "Wherever it raises, train() goes on, and ends byte for byte as if it had not; each callback is told once."
    want, heard, counts = calm
    for time in some(counts[place]):
        bomb = Bomb(place, time)
        learn, first, last = bombed(bomb)
        with pytest.raises(Boom): learn.train()
        assert free_of_gradients(learn), time
        assert unequal(finish(learn), want) == [], time
        assert once(first) == once(last) == heard, time
        assert all(bomb.counts[event] == counts[event] for event in ONCE), time   # the one that raised has heard it, too


def test_the_places_are_passed(calm):
    "The matrix above leaves no event out that a run without interruptions tells."
    passed = set(calm[2]) - {f"end of {name}" for name in (*PREPARING, "prediction_step")} - {"on_init_end"}
    assert passed == {*PREPARING, *BEFORE_COMMIT, *AFTER_COMMIT}


@pytest.mark.parametrize("place", BEFORE_COMMIT)
def test_as_before_the_step(calm, place):
    "What raises before the commit leaves the run as it was before the step, byte for byte."
    for time in some(calm[2][place]):
        bomb, failed = Bomb(place, time), 0
        learn, *_ = bombed(bomb, eval_strategy="no", eval_on_start=False)
        while not learn.run_state.finished:
            before = learn.snapshot()
            try: learn.step()
            except Boom:
                failed += 1
                assert not set(differences(before, learn.snapshot())) - {"begun", "epoch_open"}, time   # these were told before the step
                assert free_of_gradients(learn), time
        assert failed == (time <= bomb.counts[place])


def test_raise_often(calm):
    "A step may fail again and again, each time elsewhere."
    want, heard, _ = calm
    def hook(name):
        counts[name] = counts.get(name, 0) + 1
        if counts[name] in (2, 3, 5, 9): raise Boom(name)
    counts = {}
    learn, first, last = bombed(hook)
    for _ in range(200):
        try: learn.train(); break
        except Boom: pass
    assert sum(n >= 2 for n in counts.values()) > 20
    assert unequal(outcome(learn), want) == [] and once(first) == once(last) == heard


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError, GeneratorExit, StopIteration, torch.OutOfMemoryError])
def test_kinds(calm, kind):
    "Whatever is raised: also what is no Exception, and what Python itself has a use for."
    for place, time in (("end of forward", 10), ("on_step_end", 4), ("getitem", 40), ("on_prediction_step", 5)):
        learn, first, last = bombed(Bomb(place, time, kind=kind))
        with pytest.raises((Paused if kind is KeyboardInterrupt else kind, RuntimeError)): learn.train()
        assert free_of_gradients(learn)
        assert unequal(finish(learn), calm[0]) == [] and once(first) == once(last) == calm[1]


def test_other_verbs(calm):
    "step(), run(), the generator and the moves of a debug step fail and go on in the same way."
    def by_moves(learn):
        step = learn.debug_step()
        for _ in range(step.substeps): step.backward()   # training_step is overridden: forward and backward are one
        step.update()
    verbs = [lambda learn: learn.step(), lambda learn: learn.run(epochs=1), lambda learn: next(learn.steps()), by_moves]
    for place, time in (("on_step_begin", 2), ("forward", 5), ("backward", 7), ("on_substep_end", 3), ("collate", 12), ("on_pre_optimizer_step", 4), ("on_step_end", 5)):
        for verb in verbs:
            learn, first, last = bombed(Bomb(place, time))
            failed = 0
            while not learn.run_state.finished:
                try: verb(learn)
                except Boom: failed += 1; assert free_of_gradients(learn)
            assert failed == 1 and unequal(outcome(learn), calm[0]) == [] and once(first) == calm[1], (place, verb)


def test_on_exception():
    "It is told once for each error, after the run has been put right; one that raises there does not hide the error, nor keep others from hearing."
    seen = []
    class Worse(TrainerCallback):
        def on_exception(self, args, state, control, exception, learner, **kwargs):
            seen.append((str(exception), state.global_step, free_of_gradients(learner)))
            raise ValueError("and this one too")
    last = told()
    learn = hard_learner(hook=Bomb("backward", 5), callbacks=[Worse(), last])
    with pytest.raises(Boom), pytest.warns(UserWarning, match="on_exception.*and this one too"): learn.train()
    assert seen == [("backward for the 5. time", 1, True)] and last.heard[-1] == ("on_exception", 1)
    assert unequal(finish(learn), finish(hard_learner())) == []


# --- data workers ------------------------------------------------------------------------------------------------------

class Fuse:
    "In a data worker: raise or die when an example is fetched, once in all processes."
    def __init__(self, number, how): self.number, self.how, self.gone = number, how, multiprocessing.Value("i", 0)

    def __call__(self, number):
        if number != self.number or torch.utils.data.get_worker_info() is None: return
        with self.gone.get_lock():
            if self.gone.value: return
            self.gone.value = 1
        if self.how == "raises": raise Boom(f"example {number}")
        os.kill(os.getpid(), signal.SIGKILL)


class Fused(Augmented):
    def __init__(self, fuse): super().__init__(); self.fuse = fuse
    def __getitem__(self, i):
        self.fuse(i)
        return super().__getitem__(i)


def order(epoch): return torch.randperm(30, generator=torch.Generator().manual_seed(42 + epoch)).tolist()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("how", ["raises", "is killed"])
def test_worker(how, persistent):
    "A data worker that raises, or is killed, at the first step, in the middle, in the last micro-batch of an epoch."
    want = finish(hard_learner())
    for place in (0, 13, 29):
        learn = hard_learner(train_dataset=Fused(Fuse(order(0)[place], how)), dataloader_num_workers=2, dataloader_persistent_workers=persistent)
        with pytest.raises(Boom if how == "raises" else RuntimeError): learn.train()
        assert learn.state.global_step < 3 and free_of_gradients(learn)
        assert unequal(finish(learn), want, ignore=["args"]) == [], place


def test_no_worker_is_left():
    "After an error in one, and at the end of the run, the workers are gone, whatever holds the error."
    gc.collect()   # a learner of an earlier test, paused, has workers until it is collected
    learn = hard_learner(train_dataset=Fused(Fuse(order(0)[13], "raises")), dataloader_num_workers=2)
    with pytest.raises(Boom) as raised: learn.train()
    assert multiprocessing.active_children() == [] and raised.value is not None
    learn.step()
    assert len(multiprocessing.active_children()) == 2
    learn.set(max_steps=3)
    learn.train()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("event", ["on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end"])
def test_death_is_told_when_a_batch_is_waited_for(event):
    "A worker that dies while the weights are updated does not tear the run: torch would raise at once, wherever the main process is."
    killed = []
    def kill(self, name, state):
        if name != event or killed or state.global_step > 1: return
        killed.extend(multiprocessing.active_children())
        for process in killed: os.kill(process.pid, signal.SIGKILL)
        for process in killed: process.join(5)
        for _ in range(1000): pass   # here the interpreter would handle the signal
    learn = hard_learner(callbacks=[every_event(kill)()], dataloader_num_workers=2)
    with pytest.raises(RuntimeError, match="worker"): learn.train()
    assert killed and learn.state.global_step == 1 and not learn.run_state.current.corrupted
    assert unequal(finish(learn), finish(hard_learner()), ignore=["args"]) == []


def test_worker_and_more():
    "With workers the rest of the matrix holds too."
    for place, time in (("forward", 4), ("backward", 8), ("on_pre_optimizer_step", 3), ("on_step_end", 3), ("on_epoch_end", 1)):
        bomb = Bomb(place, time)
        learn = hard_learner(model=hard_model(bomb), callbacks=[every_event(lambda self, event, state: bomb(event))()], dataloader_num_workers=2)
        with pytest.raises(Boom): learn.train()
        assert unequal(finish(learn), finish(hard_learner()), ignore=["args"]) == [], place


# --- what is put back --------------------------------------------------------------------------------------------------

def test_unfrozen_is_no_late_buffer():
    "A layer that is trained from some step on, by a verb or by hand, is not taken for a buffer."
    learn = hard_learner()
    learn.freeze("inner")
    learn.step(2)
    learn.unfreeze("inner")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.step(2)
    learn = hard_learner()
    learn.step()
    learn.freeze("inner")
    learn.step()
    before = learn.snapshot()
    for p in learn.model.inner.parameters(): p.requires_grad_(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.step(3)
        learn.restore(before)
        learn.step(3)


def test_wishes_of_a_failed_step():
    "What a callback asked for within a step that failed is forgotten with it."
    class Wishes(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs): control.should_training_stop = True
    wishes = Wishes()
    learn = hard_learner(hook=Bomb("forward", 1), callbacks=[wishes])
    control = learn.control
    with pytest.raises(Boom): learn.step()
    learn.remove_callback(wishes)
    assert learn.control is control and not control.should_training_stop
    assert unequal(finish(learn), finish(hard_learner())) == []


def test_logged_within_a_step():
    "self.log() in compute_loss says what it says once, when the step is done: the mean over its micro-batches."
    class Says(Learner):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            self.log({"said": len(inputs["x"])})
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
    def said(learn): return [(row["step"], row["said"]) for row in learn.state.log_history if "said" in row]
    want = hard_learner(Says)
    want.train()
    heard = told()
    learn = hard_learner(Says, Bomb("backward", 5, 9), callbacks=[heard])
    for _ in range(2):
        with pytest.raises(Boom): learn.train()
        assert all(step <= learn.state.global_step for step, _ in said(learn))
    learn.train()
    assert said(learn) == said(want) and [step for step, _ in said(want)] == [*range(1, 7)]
    assert len([h for h in heard.heard if h[0] == "on_log"]) == len(learn.state.log_history)


def test_batch_changed_in_place():
    "A model that writes into its batch does not spoil the second try."
    class Writes(Hard):
        def forward(self, x, labels=None):
            x.mul_(0.5)
            return super().forward(x, labels)
    def make(hook):
        torch.manual_seed(0)
        return hard_learner(model=Writes(hook))
    learn, want = make(Bomb("backward", 1, 6)), finish(make(silent))
    for _ in range(2):
        with pytest.raises(Boom): learn.train()
    assert unequal(finish(learn), want) == []


def test_batch_taken_apart():
    "A loss that pops from its batch does not, either."
    class Pops(Learner):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = nn.functional.cross_entropy(outputs["logits"], labels)
            return (loss, outputs) if return_outputs else loss
    learn = hard_learner(Pops, Bomb("backward", 4))
    with pytest.raises(Boom): learn.train()
    assert unequal(finish(learn), finish(hard_learner())) == []


def test_several_evaluation_sets():
    "An evaluation of several sets that fails in the second goes on there, and each is told once."
    sets = {"one": Augmented(10), "two": Augmented(12), "three": Augmented(8)}
    given = dict(eval_dataset=sets, compute_metrics=accuracy, eval_strategy="epoch", metric_for_best_model="two_accuracy")
    calm = told()
    want = finish(hard_learner(callbacks=[calm], **given))
    class Fails(Learner):
        bomb = Bomb("prediction_step", 3, 10)
        def prediction_step(self, *args, **kwargs):
            self.bomb("prediction_step")
            return super().prediction_step(*args, **kwargs)
    heard = told()
    learn = hard_learner(Fails, callbacks=[heard], **given)
    for _ in range(2):
        with pytest.raises(Boom): learn.train()
    assert unequal(finish(learn), want) == [] and once(heard) == once(calm)
    assert [sorted(r for r in row if "loss" in r) for row in learn.state.log_history if "eval_one_loss" in row] == [["eval_one_loss"]] * 2
    assert [k for row in learn.state.log_history for k in row if k.endswith("_loss") and k != "train_loss"] == ["eval_one_loss", "eval_two_loss", "eval_three_loss"] * 2


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_verbs_that_look(verb):
    "An evaluation by hand that fails leaves the run as it was, whatever failed."
    want = finish(bombed(silent, eval_strategy="no", eval_on_start=False)[0])
    for place, time in (("forward", 2), ("prediction_step", 2), ("on_prediction_step", 2), ("compute_metrics", 1), (f"on_{verb}", 1), ("on_log", 1)):
        if (verb, place) == ("predict", "on_log"): continue
        bomb = Bomb()
        learn, *_ = bombed(bomb, eval_strategy="no", eval_on_start=False)
        learn.step()
        before, modes = learn.snapshot(), [m.training for m in learn.model.modules()]
        bomb.counts, bomb.name, bomb.times = {}, place, (time,)
        with pytest.raises(Boom): getattr(learn, verb)(Augmented(10))
        assert [n for n in differences(before, learn.snapshot()) if n != "due"] == [], place
        assert [m.training for m in learn.model.modules()] == modes and learn.run_state.verb.phase == "idle"
        learn.train()
        assert unequal(outcome(learn)[:2] + ([],), want[:2] + ([],)) == [], place


def test_rubbish_from_training_step():
    "A training_step that returns no loss is refused before the update, not after it."
    class Vector(Learner):
        answer = None
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            return loss if type(self).answer is None else type(self).answer
    want = finish(hard_learner())
    learn = hard_learner(Vector)
    learn.step()
    before = learn.snapshot()
    for answer in (torch.zeros(3), "low", [1.0], {"loss": 1}):
        Vector.answer = answer
        with pytest.raises(TypeError, match="training_step returned .* one number"): learn.step()
        assert differences(before, learn.snapshot()) == []
    Vector.answer = None
    assert unequal(finish(learn), want) == []


# --- the update itself -------------------------------------------------------------------------------------------------

class Fragile(torch.optim.Optimizer):
    "Keeps memory of every kind, and can fail half-way through its update."
    fails_at, not_state = None, ("fails_at",)
    def __init__(self, params, lr): super().__init__(params, {"lr": lr, "count": 0})

    @torch.no_grad()
    def step(self):
        number = itertools.count()   # over all groups
        for group in self.param_groups:
            group["count"] += 1
            for p in (o for o in group["params"] if o.grad is not None):
                state = self.state[p]
                state.setdefault("mean", torch.zeros_like(p)).mul_(0.9).add_(p.grad)
                state["square"] = p.grad.square() + 0.9 * state.get("square", 0)        # a new tensor each time
                state.setdefault("past", []).append(p.grad.clone())                     # a list of tensors
                state["past"] = state["past"][-2:]
                state["count"] = state.get("count", 0) + 1
                p.sub_(group["lr"] * (state["mean"] + sum(state["past"])) / (1 + state["square"].sqrt()))
                if next(number) == self.fails_at: raise Boom("half of an update")


def fragile(**given): return hard_learner(optimizer_cls_and_kwargs=(Fragile, {"lr": 0.01}), **given)


def weights(learn): return torch.cat([p.detach().flatten() for p in learn.model.parameters()])


@pytest.mark.parametrize("after", [0, 1, 4])
def test_copy(after):
    "With rollback='full' an optimizer that fails half-way is put back exactly, its memory included."
    want = finish(fragile(rollback="full"))
    learn = fragile(rollback="full")
    if after: learn.step(after)
    told_before_a_step = {"begun", "epoch_open"}
    for at in (0, 2, 5):
        before = learn.snapshot()
        learn.optimizer.fails_at = at
        with pytest.raises(Boom): learn.step()
        assert not set(differences(before, learn.snapshot())) - told_before_a_step and free_of_gradients(learn)
    learn.optimizer.fails_at = None
    assert unequal(finish(learn), want) == []


def torn():
    "A run that is torn, and its snapshot `before`."
    learn = fragile()
    learn.step(2)
    learn.snapshot("before")
    before, learn.optimizer.fails_at = weights(learn), 2
    with pytest.raises(Boom) as raised: learn.step()
    learn.optimizer.fails_at = None
    assert not torch.equal(weights(learn), before) and free_of_gradients(learn)
    assert "learn.restore" in raised.value.__notes__[0]
    return learn


def test_torn():
    "Without copies the run is marked as corrupted, and verbs raise an error with the reason."
    learn = torn()
    assert "corrupted" in repr(learn) and "some weights may be new" in repr(learn)
    for verb in (learn.step, learn.train, learn.debug_step, learn.snapshot, lambda: learn.run(epochs=1), lambda: next(learn.steps()), lambda: learn.set(lr=0.1)):
        with pytest.raises(InvalidOperation, match="failed in the middle of its update after step 2.*learn.restore"): verb()


def test_torn_healed():
    "restore() and reset() put it right."
    want = finish(fragile())
    for heal in (lambda learn: learn.restore("before"), lambda learn: learn.reset()):
        learn = torn()
        heal(learn)
        assert "corrupted" not in repr(learn)
        assert unequal(finish(learn), want) == []


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_an_optimizer_that_fails_at_the_first_step(fails_at):
    "The first weights are known, so nothing is torn: memory that runs out while the optimizer makes its state is an error like any other."
    want, learn = finish(fragile()), fragile()
    before = learn.snapshot()
    learn.optimizer.fails_at = fails_at
    for _ in range(2):
        with pytest.raises(Boom): learn.step()
        assert set(differences(before, learn.snapshot())) <= {"begun", "epoch_open"} and free_of_gradients(learn) and not learn.optimizer.state
    learn.optimizer.fails_at = None
    assert unequal(finish(learn), want) == []


def test_an_optimizer_that_fails_after_a_callback_has_set_weights():
    "The first step is taken back to the weights that the callback has set."
    class Sets(TrainerCallback):
        def on_train_begin(self, args, state, control, model, **kwargs):
            with torch.no_grad(): model.outer.bias.zero_()
    learn = fragile(callbacks=[Sets()])
    learn.snapshot("first")
    learn.optimizer.fails_at = 2
    with pytest.raises(Boom): learn.step()
    assert not learn.run_state.current.corrupted and not learn.model.outer.bias.any()
    learn.optimizer.fails_at = None
    assert unequal(finish(learn), finish(fragile(callbacks=[Sets()]))) == []


def test_torn_healed_by_a_callback():
    "A callback may do so at on_exception."
    class Heals(TrainerCallback):
        def on_exception(self, args, state, control, learner, **kwargs): learner.restore("before")
    learn = fragile(callbacks=[Heals()])
    learn.step()
    learn.snapshot("before")
    learn.optimizer.fails_at = 1
    with pytest.raises(Boom): learn.step()
    learn.optimizer.fails_at = None
    assert unequal(finish(learn), finish(fragile())) == []


def test_schedule_that_fails():
    "With rollback='full' a schedule that raises takes the update back with it, and each callback is told of the end of steps, epochs and the run once."
    class Fails(torch.optim.lr_scheduler.LambdaLR):
        bomb = staticmethod(silent)
        def step(self, *args):
            self.bomb("step")
            super().step(*args)
    def make(bomb):
        model = hard_model()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
        schedule = Fails(optimizer, lambda step: 1 / (1 + step))
        schedule.bomb = bomb
        heard = told()
        return hard_learner(model=model, optimizers=(optimizer, schedule), callbacks=[heard], rollback="full"), heard
    def ends(heard): return [h for h in once(heard) if h[0] != "on_optimizer_step"]   # told before the schedule's step
    (want, calm), (learn, heard) = make(silent), make(Bomb("step", 2))
    with pytest.raises(Boom): learn.train()
    assert learn.state.global_step == 1 and not learn.run_state.current.corrupted and free_of_gradients(learn)
    assert unequal(finish(learn), finish(want), ignore=["lr_scheduler"]) == [] and ends(heard) == ends(calm)


def test_debug_step_given_up():
    "A debug step that is aborted, left by its block, given up for another, or fails: the run is as before it."
    want = finish(hard_learner())
    bomb = Bomb()
    learn = hard_learner(hook=bomb)
    learn.step()
    before = learn.snapshot()
    step = learn.debug_step()
    step.forward(); step.backward(); step.abort()
    assert differences(before, learn.snapshot()) == [] and free_of_gradients(learn)
    with learn.debug_step() as step: step.forward(); step.backward(); step.forward()
    assert differences(before, learn.snapshot()) == [] and free_of_gradients(learn)
    lost = learn.debug_step()
    lost.forward()
    step = learn.debug_step()
    with pytest.raises(InvalidOperation, match="too late"): lost.backward()
    bomb.counts, bomb.name, bomb.times = {}, "backward", (2,)
    step.forward(); step.backward(); step.forward()
    with pytest.raises(Boom): step.backward()
    assert differences(before, learn.snapshot()) == [] and free_of_gradients(learn)
    with pytest.raises(InvalidOperation, match="too late"): step.forward()
    assert unequal(finish(learn), want) == []


def test_debug_step_asks_later():
    "What a callback asks for after a debug step is done at its boundary, not a step later."
    class Sets(TrainerCallback):
        def on_step_end(self, args, state, control, learner, **kwargs): learner.set(weight_decay=0.25); learner.pause()
    sets = Sets()
    learn = hard_learner(callbacks=[sets])
    step = learn.debug_step()
    for _ in range(3): step.forward(); step.backward()
    step.update()
    assert learn.args.weight_decay == 0.25
    learn.remove_callback(sets)
    step = learn.debug_step()
    learn.log({"looked": 1.0})
    with pytest.raises(InvalidOperation, match="debug step is open"): learn.step()
    step.abort()
    assert len(learn.step(2)) == 2   # the pause was of the debug step


def test_gradients_are_on_again_where_an_interrupt_has_torn_a_block_without_them():
    "The button may come within the end of torch.no_grad, before it has given gradients back."
    class Torn(Augmented):
        on = False
        def __getitem__(self, i):
            if self.on: torch.set_grad_enabled(False); raise KeyboardInterrupt
            return super().__getitem__(i)
    learn, torn = hard_learner(), Torn(6)
    learn.step()
    torn.on = True
    with pytest.raises(KeyboardInterrupt): learn.evaluate(torn)
    assert torch.is_grad_enabled()
    with torch.no_grad():
        with pytest.raises(KeyboardInterrupt): learn.evaluate(torn)
        assert not torch.is_grad_enabled()
    learn.step()
