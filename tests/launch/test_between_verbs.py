"What is changed between two verbs of a launched run: by freeze() and unfreeze(), by assignments in the notebook, by run_on_all()."
import copyreg, os, signal, time, warnings

import pytest, torch

from trainer_nb import Learner, TrainerCallback
from trainer_nb.core.errors import InvalidOperation
from trainer_nb.launch.learner_parts import AttributeWatch
from launched import make, same

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch")]

PLAIN = {"model": dict(norm=False, drop=0.0)}
FSDP = {"fsdp": "full_shard"}


# ---- layers that are frozen

class Adapter(torch.nn.Module):
    "A frozen layer, and a small one that is trained, as in LoRA."
    def __init__(self):
        super().__init__()
        self.base, self.small = torch.nn.Linear(8, 2), torch.nn.Linear(8, 2, bias=False)
        self.base.requires_grad_(False)
    def forward(self, x): return self.base(x) + self.small(x)

def adapted(**settings):
    learn = make(eval_strategy="no", kind=lambda model, **more: (torch.manual_seed(0), Learner(Adapter(), **more))[1], **settings)
    learn.set(lr=0.1)
    return learn

def measured(learn):
    "What the tools find that train a copy of the run."
    rates = learn.lr_find(num_steps=20)
    frame = learn.inspect().frame()
    return frame.to_csv(), [float(loss) for loss in rates.losses]


@pytest.mark.parametrize("division", [{}, FSDP], ids=["whole", "fsdp"])
def test_tools_that_train_follow_the_frozen_layers(division):
    "The processes average the gradients of the parameters that can be trained now, as after the next step."
    first, then, back = (make(**PLAIN, **division) for _ in range(3))
    first.freeze()
    for learn in (first, then, back): learn.launch(2)
    then.freeze()
    back.freeze()
    frozen = [measured(learn) for learn in (first, then)]
    assert frozen[0] == frozen[1]
    for learn in (first, then, back): learn.unfreeze()
    all_layers = [measured(learn) for learn in (first, then, back)]
    assert all_layers[0] == all_layers[1] == all_layers[2] != frozen[0]
    for learn in (first, then, back):
        learn.step(2)
        learn.close()
    same(then, back)
    # the optimizer of the first has the layers in another order
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), then.model.parameters()))


def test_tools_that_train_follow_requires_grad():
    "A base that is frozen from the beginning, and trained from some step on."
    here, there = (adapted(per_device_train_batch_size=n) for n in (8, 4))
    def thaw(learn): learn.model.base.requires_grad_(True)
    with there.launch(2):
        for learn in (here, there):
            learn.step(1)
            learn.inspect()
            learn.run_on_all(thaw)
            learn.unfreeze()
        torch.testing.assert_close(torch.tensor(here.lr_find(num_steps=20).losses), torch.tensor(there.lr_find(num_steps=20).losses), rtol=1e-4, atol=1e-5)
        for learn in (here, there): learn.step(2)
    for a, b in zip(here.model.parameters(), there.model.parameters()): torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)


# ---- assignments in the notebook

class Weighted(Learner):
    "A loss with factors: of the class, of the constructor, computed by name, and one that the class changes itself."
    beta = 1.0
    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.gamma = self.factor = 1.0
        self.number = 0
    @property
    def scale(self): return self._scale
    @scale.setter
    def scale(self, value): self._scale = value
    def compute_loss(self, model, inputs, return_outputs=False, **more):
        loss, outputs = super().compute_loss(model, inputs, True, **more)
        loss = loss * self.beta * self.gamma * getattr(self, "fac" + "tor") * getattr(self, "_scale", 1.0)
        return (loss, outputs) if return_outputs else loss
    def evaluate(self, *args, **more):
        self.number += 1
        return super().evaluate(*args, **more)

class Keeper(TrainerCallback):
    "Records an attribute of its own after each step."
    def __init__(self):
        self.value, self.seen = 0, []
    def on_step_end(self, *args, **kwargs): self.seen = [*self.seen, self.value]

class Factor(torch.nn.Module):
    "A loss function with an attribute and a buffer."
    def __init__(self):
        super().__init__()
        self.factor = 1.0
        self.register_buffer("weight", torch.ones(2))
    def forward(self, output, labels): return self.factor * torch.nn.functional.cross_entropy(output, labels, weight=self.weight)

def weighted(*callbacks, loss=None, **settings):
    def kind(model, **more): return Weighted(model, callbacks=[*callbacks], **more | ({} if loss is None else {"loss_func": loss}))
    return make(kind=kind, eval_strategy="no", **settings)


def test_an_attribute_that_the_class_reads_is_refused():
    "It would stay as it is in the processes; the error says what reaches them, and this does."
    learn, like = weighted(), weighted()
    with learn.launch(2), like.launch(2):
        learn.step(1)
        for name in ("beta", "gamma", "factor", "scale"):
            with pytest.raises(InvalidOperation, match=rf"learn.run_on_all\(lambda learn: setattr\(learn, '{name}', 0.5\)\)"): setattr(learn, name, 0.5)
        with pytest.raises(InvalidOperation, match=r"delattr\(learn, 'gamma'\)"): del learn.gamma
        with pytest.raises(InvalidOperation, match=r"setattr\(learn, 'beta', \.\.\.\)"): learn.beta = torch.ones(3)
        assert learn.beta == learn.gamma == 1.0
        with pytest.raises(InvalidOperation, match=r"setattr\(learn, 'note', 'of the notebook'\)"): learn.note = "of the notebook"
        like.step(1)
        assert learn.step(2)[-1].loss == like.step(2)[-1].loss
        learn.run_on_all(lambda learn: setattr(learn, "beta", 0.5))
        assert learn.step(1)[-1].loss == pytest.approx(0.5 * like.step(1)[-1].loss, rel=1e-6)
    assert learn.beta == 0.5 and learn.gamma == 1.0
    learn.beta = learn.gamma = 2.0
    assert learn.beta == 2.0


def test_an_override_that_counts_goes_on():
    "It runs in the notebook as well; assignments that the class makes itself raise no error, and one warning names them."
    learn = weighted()
    with learn.launch(2):
        with pytest.warns(UserWarning, match="learn.number was assigned in this process, and the 2 processes"): learn.evaluate()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            learn.evaluate()
        assert learn.run_on_all(lambda learn: learn.number) == [2, 2]
    assert learn.number == 2


@pytest.mark.parametrize("begun", [False, True])
def test_attributes_of_callbacks_and_of_the_loss(begun):
    "A warning names them at the next verb, once, with the call that reaches them; at the end, those of the processes win."
    keeper, loss = Keeper(), Factor()
    learn = weighted(keeper, loss=loss)
    if begun: learn.step(1)
    with learn.launch(2):
        learn.step(1)
        keeper.value, loss.factor = 1, 0.5
        with pytest.warns(UserWarning, match=r"Keeper.value and loss.factor were assigned .* the 2 processes.*learn.run_on_all\("): learn.step(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            learn.step(1)
        loss.weight[0] = 3
        with pytest.warns(UserWarning, match="loss.weight was assigned"): learn.step(1)
        assert learn.run_on_all(lambda learn: (learn.loss_func.factor, learn.loss_func.weight.tolist())) == [(1.0, [1, 1])] * 2
        learn.run_on_all(lambda learn: setattr(learn.callback_handler.find(Keeper), "value", 2))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            learn.step(1)
        with pytest.warns(UserWarning, match="Keeper.value .1 here"): learn.close()
    assert keeper.seen == [0] * (4 + begun) + [2] and keeper.value == 2 and loss.factor == 1.0


def test_what_python_adds_to_a_class_is_no_assignment():
    watch = AttributeWatch()
    watch.remember(weighted(keeper := Keeper()))
    copyreg._slotnames(Keeper)   # as pickle does
    assert "__slotnames__" in vars(Keeper) and watch.changed() == []
    keeper.value = 1
    assert watch.changed() == ["Keeper.value"]
    Keeper.__call__ = print
    assert watch.changed() == ["Keeper.value", "Keeper.__call__"]
    del Keeper.__call__


def test_layers_that_are_frozen_by_hand():
    "In the notebook, where the processes do not see it."
    learn = make(eval_strategy="no")
    model = learn.model
    with learn.launch(2):
        learn.step(1)
        model.inward.requires_grad_(False)
        model.drop.p = 0.5
        with pytest.warns(UserWarning, match=r"model.drop.p and requires_grad of 2 parameters were assigned"): learn.step(1)
        assert learn.run_on_all(lambda learn: [p.requires_grad for p in learn.model.parameters()]) == [[True] * 6] * 2


# ---- assignments in the processes

@pytest.mark.parametrize("steps", [0, 1])
def test_what_the_processes_have_assigned_comes_back(steps):
    "Also before the first step: the run continues with the values with which it was trained."
    keeper, like_keeper = Keeper(), Keeper()
    learn, like = weighted(keeper, loss=Factor()), weighted(like_keeper, loss=Factor())
    def assign(learn):
        learn.beta, learn.gamma = 0.5, 0.25
        learn.callback_handler.find(Keeper).value = 9
        learn.loss_func.factor = 3.0
    if steps:
        with learn.launch(2), like.launch(2): learn.step(steps), like.step(steps)
    with learn.launch(2):
        learn.run_on_all(assign)
        learn.snapshot()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            learn.step(2)
            learn.close()
    assert (learn.beta, learn.gamma, learn.loss_func.factor, keeper.value, keeper.seen) == (0.5, 0.25, 3.0, 9, [0] * steps + [9, 9])
    with like.launch(2):
        like.run_on_all(assign)
        like.step(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.step(2)
    assign(like)
    like.step(2)
    same(learn, like)


def test_what_the_processes_have_assigned_without_a_step():
    "The run has not begun, and comes back with the values."
    learn = weighted(keeper := Keeper())
    with learn.launch(2), warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.run_on_all(lambda learn: setattr(learn, "beta", 0.5))
        learn.run_on_all(lambda learn: setattr(learn.callback_handler.find(Keeper), "value", 9))
        learn.close()
    assert learn.beta == 0.5 and keeper.value == 9


@pytest.mark.parametrize("n", [1, 2])
def test_what_run_on_all_assigns_is_in_the_journal(n):
    "So a replay begins behind it; what only reads, trains or evaluates is no change."
    learn = weighted(keeper := Keeper())
    if n == 2: learn.launch(2)
    learn.run_on_all(lambda learn: len(learn.step(2)))
    learn.run_on_all(lambda learn: (learn.beta, learn.callback_handler.find(Keeper).seen, learn.evaluate()))
    assert [e["act"] for e in learn.journal if e["act"] != "launch"] == []
    learn.run_on_all(lambda learn: (setattr(learn, "beta", 0.5), setattr(learn.callback_handler.find(Keeper), "value", 1)))
    learn.step(2)
    acts = [(e["step"], e["what"].removeprefix("changed: ")) for e in learn.journal if e["act"] == "by hand"]
    assert {step for step, _ in acts} == {2} and sorted(", ".join(what for _, what in acts).split(", ")) == ["Keeper.value", "Weighted.beta"]
    assert learn.rewind(1).different == [] and learn.run_on_all(lambda learn: learn.beta)[0] == 0.5
    learn.step(1)
    learn.close()
    assert learn.beta == 0.5 and keeper.seen == [0, 0, 1, 1]


@pytest.mark.parametrize("n", [1, 2])
def test_attributes_of_layers_that_run_on_all_assigns(n):
    "The journal has them, the notebook's model and processes that are started again take them over."
    learn, like = make(eval_strategy="no"), make(eval_strategy="no")
    for one in (learn, like):
        if n == 2: one.launch(2)
        one.step(2)
        one.run_on_all(lambda learn: setattr(learn.model.drop, "p", 0.5))
        one.step(1)
    assert [(e["step"], e["what"]) for e in learn.journal if e["act"] == "by hand"] == [(2, "changed: model.drop.p")]
    if n == 2:
        os.kill(learn.processes[1]["pid"], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="SIGKILL"): learn.step(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while learn.state.global_step < 5: learn.step(1)
        like.step(2)
        for one in (learn, like): one.close()
    assert learn.model.drop.p == like.model.drop.p == 0.5
    assert [r.loss for r in learn.history if not r.abandoned] == [r.loss for r in like.history]


# ---- weights

def weights(learn): return [p.tolist() for p in learn.model.parameters()]

def test_new_weights_are_the_same_in_all_processes():
    "Also where they are drawn at random: nothing averages weights later."
    learn = make(eval_strategy="no")
    with learn.launch(2), warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.step(1)
        before = learn.run_on_all(weights)
        learn.run_on_all(lambda learn: learn.model.out.reset_parameters())
        first = learn.run_on_all(weights)
        learn.run_on_all(lambda learn: learn.model.out.reset_parameters())
        second = learn.run_on_all(weights)
        assert first[0] == first[1] != before[0] and second[0] == second[1] != first[0]
        learn.step(2)
        third = learn.run_on_all(weights)
        assert third[0] == third[1] != second[0]


def test_what_one_process_assigns_is_recorded_in_all():
    "Each of them would otherwise take a snapshot for rewind at another step, and wait for the others."
    learn = weighted(Keeper())
    def assign(learn):
        if os.environ["RANK"] == "1": learn.beta = 0.5
    with learn.launch(2):
        learn.step(2)
        learn.run_on_all(assign)
        learn.step(2)
        assert learn.run_on_all(lambda learn: [e["data"]["changed"] for e in learn.history.events if e["kind"] == "by hand"]) == [[["Weighted.beta"]]] * 2
        assert learn.rewind(1).different == []


# ---- what a function returns, and what it leaves behind in one process

def test_a_function_can_return_records():
    "Of steps that it has taken: their values, not the history."
    learn = weighted()
    with learn.launch(2):
        first, second = learn.run_on_all(lambda learn: learn.step(2))
        assert repr(first) == repr(learn.history[:2]) and first.loss == second.loss == learn.history[:2].loss
        assert [r.step for r in learn.run_on_all(lambda learn: learn.step(1)[-1])] == [3, 3]


def only(rank, act):
    "A function of the learner that acts in one process only."
    return lambda learner: act(learner) if os.environ["RANK"] == rank else None

@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize("act, what", [
    (lambda learn: len(repr(learn.set(lr=1e-3))), "\\(the journal and the optimizer\'s groups\\)"),
    (lambda learn: learn.add_callback(Keeper()), "\\(the journal and the callbacks\\)"),
    (lambda learn: learn.freeze("inward"), "\\(the journal and requires_grad of the parameters\\)"),
    (lambda learn: setattr(learn.args, "max_grad_norm", 0.1), "\\(the journal and the settings\\)"),
    (lambda learn: learn.optimizer.param_groups[0].update(lr=5.0), "\\(the optimizer\'s groups\\)"),
    (lambda learn: len(learn.model.out.bias.data.add_(1)), "\\(the weights\\)"),
], ids=["set", "callback", "freeze", "args", "groups", "weights"])
def test_what_one_process_changes_alone_raises_an_error(rank, act, what):
    "The next step would wait for ever, or train with other weights in each process; the run continues with those of rank 0."
    learn, like = weighted(), weighted()
    with learn.launch(2), like.launch(2):
        for one in (learn, like): one.step(2)
        with pytest.raises(InvalidOperation, match=f"{what}.*started again, with the state of rank 0, after step 2"): learn.run_on_all(only(rank, act))
        learn.step(2)
        losses = learn.run_on_all(lambda learn: learn.history[-1].loss), like.step(2)[-1].loss
        assert losses[0][0] == losses[0][1] and (rank == "0" or losses[0][0] == losses[1])
        assert learn.rewind(1).different == []


@pytest.mark.parametrize("rank, act", [("0", lambda learn: len(learn.step(1))), ("1", lambda learn: learn.evaluate())], ids=["step", "evaluate"])
def test_what_one_process_does_alone_does_not_wait_for_ever(rank, act):
    "It waits for exchanges that the others never begin."
    learn, like = weighted(), weighted()
    with learn.launch(2), like.launch(2):
        for one in (learn, like): one.step(2)
        start = time.monotonic()
        with pytest.raises(InvalidOperation, match=f"rank {rank} waits for the others, .*started again, with the state of rank {1 - int(rank)}, after step 2"):
            learn.run_on_all(only(rank, act))
        assert time.monotonic() - start < 30
        assert learn.step(2).loss == like.step(2).loss
        assert learn.rewind(1).different == [] and learn.step(1)[0].step == 4
    same(learn, like)


def test_a_process_may_take_its_time():
    "Without exchanges; what depends on the rank and changes nothing is allowed."
    learn = weighted()
    with learn.launch(2):
        learn.step(1)
        assert learn.run_on_all(only("0", lambda learn: time.sleep(4) or str(learn.summary())))[1] is None
        assert len(learn.run_on_all(only("1", lambda learn: str(learn.snapshot())))) == 2 and learn.step(1)[0].step == 2


REPLACEMENTS = {
    "out": lambda learn: setattr(learn.model, "out", torch.nn.Sequential(torch.nn.Linear(16, 2), torch.nn.Linear(2, 2))),
    "inward.bias": lambda learn: setattr(learn.model.inward, "bias", torch.nn.Parameter(torch.ones(16))),
    "extra": lambda learn: learn.model.register_parameter("extra", torch.nn.Parameter(torch.ones(3))),
}

@pytest.mark.parametrize("ranks", ["01", "1"])
def test_layers_that_a_function_replaces_are_refused(ranks):
    "The notebook has the former ones, so that the run could not come back."
    learn, like = weighted(), weighted()
    def replace(act): return lambda learner: act(learner) if os.environ["RANK"] in ranks else None
    with learn.launch(2), like.launch(2):
        for one in (learn, like): one.step(2)
        for name, act in REPLACEMENTS.items():
            with pytest.raises(InvalidOperation, match=f"'{name}' of the model cannot be added or replaced by run_on_all.*learn.close"): learn.run_on_all(replace(act))
        assert learn.step(2).loss == like.step(2).loss
    learn.step(1), like.step(1)
    same(learn, like)


def test_a_function_that_fails_in_one_process_before_a_change():
    "The others have made it; the next step does not wait for ever."
    learn, like = weighted(), weighted()
    def change(learn):
        if os.environ["RANK"] == "1": raise OSError("no such file")
        learn.set(lr=1e-3)
    with learn.launch(2), like.launch(2):
        for one in (learn, like): one.step(2)
        with pytest.raises(OSError, match="no such file"): learn.run_on_all(change)
        assert learn.step(2).loss == like.step(2).loss
