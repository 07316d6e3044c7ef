"""A model, an optimizer or a loss that a cell or a callback changes between two steps: what is trained afterwards.

Each of these changes leaves something that has gradients and that no optimizer moves, or a method that is no longer called, and the
loss falls all the same. So each test looks at the weights."""
import warnings
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainer_nb import Learner, TrainerCallback

X = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > X[:, 1]).long()
SETTINGS = dict(per_device_train_batch_size=8, num_train_epochs=3, learning_rate=0.01, use_cpu=True, disable_tqdm=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
    def forward(self, x):
        out = self.head(self.body(x).relu())
        return out + self.extra(x) if hasattr(self, "extra") else out


def make(model=None, **given):
    torch.manual_seed(0)
    return Learner(Net() if model is None else model, **{"train_dataset": TensorDataset(X, Y), "loss_func": nn.functional.cross_entropy} | SETTINGS | given)


def frozen():
    torch.manual_seed(0)
    model = Net()
    model.body.requires_grad_(False)
    return model


def copies(module): return [p.detach().clone() for p in module.parameters()]
def moved(module, before): return [not torch.equal(p, q) for p, q in zip(module.parameters(), before, strict=True)]


@contextmanager
def warned():
    "The texts of the warnings of a block."
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        texts = []
        yield texts
    texts += [str(w.message) for w in caught]


def unfreeze(learn): learn.model.body.requires_grad_(True)
def replace(learn): learn.model.head = nn.Linear(8, 2)
def add(learn): learn.model.extra = nn.Linear(4, 2)


CHANGES = {"unfrozen": (unfreeze, "body", frozen), "replaced": (replace, "head", None), "added": (add, "extra", None)}


# --- parameters that the optimizer does not hold ---------------------------------------------------------------------------

class Changes(TrainerCallback):
    "Changes the model of a learner after the second step."
    def __init__(self, change): self.change = change
    def on_step_end(self, args, state, control, learner=None, **kwargs):
        if state.global_step == 2: self.change(learner)


@pytest.mark.parametrize("by", ["cell", "callback"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_parameter_that_is_not_in_the_optimizer_is_named_once_with_the_line_that_adds_it(name, by):
    change, part, model = CHANGES[name]
    learn = make(model and model(), callbacks=[Changes(change)] if by == "callback" else [])
    with warned() as texts:
        learn.step(2)
        if by == "cell": change(learn)
        # to the next epoch, before which a callback's change of the modules is noticed
        learn.step(5), learn.step()
    found = [text for text in texts if "not in the optimizer" in text]
    assert len(found) == 1 and f"'{part}.weight' and 1 more" in found[0]
    module = learn.model.get_submodule(part)
    before = copies(module)
    code = found[0].split("; ")[1].removesuffix(" adds them.")
    exec(code, {"learn": learn})
    with warned() as texts: learn.step(3)
    assert all(moved(module, before)) and texts == []
    assert all(p.grad is None for p in learn.model.parameters())
    rates = [group["lr"] for group in learn.optimizer.param_groups]
    assert rates == pytest.approx([rates[0]] * len(rates))


def test_gradients_of_a_replaced_layer_do_not_add_up():
    "After `unfreeze()`, which adds the new layer to the optimizer, each step has its own gradient."
    learn = make(optim="sgd", lr_scheduler_type="constant", max_grad_norm=0.0)
    learn.step(2)
    learn.model.head = nn.Linear(8, 2)
    with warned(): learn.unfreeze(), learn.step()
    seen = []
    learn.model.head.weight.register_hook(lambda grad: seen.append(grad.clone()))
    for _ in range(3):
        before = learn.model.head.weight.detach().clone()
        learn.step()
        torch.testing.assert_close(learn.model.head.weight, before - 0.01 * seen[-1])


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("verb", ["create_optimizer", "inspect", "snapshot", "reset"])
def test_before_the_first_step_the_optimizer_is_made_anew(name, verb):
    "A verb has made it, and then the model changes: the run is that of a learner that was made with the changed model."
    change, _, model = CHANGES[name]
    torch.manual_seed(1)
    like = make(model and model())
    torch.manual_seed(2)
    change(like)
    learn = make(model and model())
    if verb == "reset": learn.step(2)
    getattr(learn, verb)()
    torch.manual_seed(2)
    change(learn)
    learn.train()
    like.train()
    assert all(torch.equal(p, q) for p, q in zip(learn.model.parameters(), like.model.parameters(), strict=True))
    with warned() as texts: learn.reset(), learn.step()
    assert texts == [] and learn.state.global_step == 1


def test_what_an_optimizer_leaves_out_when_it_is_made_is_left_out_on_purpose():
    "Also after freezing and unfreezing what it holds, in an override, and in a second run."
    class Own(Learner):
        def create_optimizer(self, model=None):
            self.optimizer = torch.optim.SGD(self.model.head.parameters(), lr=0.1)
            return self.optimizer
    torch.manual_seed(0)
    model = Net()
    heads = [make(model, optimizers=(torch.optim.SGD(model.head.parameters(), lr=0.1), None))]
    heads.append(Own(Net(), train_dataset=TensorDataset(X, Y), loss_func=nn.functional.cross_entropy, **SETTINGS))
    for learn in heads:
        before = copies(learn.model.body)
        with warned() as texts:
            learn.step(2)
            learn.model.head.requires_grad_(False)
            learn.evaluate(TensorDataset(X, Y))
            learn.model.head.requires_grad_(True)
            learn.train(), learn.train()
        assert [t for t in texts if "not in the optimizer" in t] == [] and not any(moved(learn.model.body, before))


def test_a_second_run_keeps_the_state_of_its_optimizer_and_names_a_new_layer():
    learn = make(num_train_epochs=1)
    learn.train()
    add(learn)
    held = learn.optimizer
    with warned() as texts: learn.train()
    assert learn.optimizer is held and len([t for t in texts if "'extra.weight' and 1 more" in t]) == 1


def test_layers_that_the_first_forward_pass_makes():
    class Lazy(Net):
        def forward(self, x):
            if not hasattr(self, "extra"): self.extra = nn.Linear(4, 2)
            return super().forward(x)
    learn = make(Lazy())
    with warned() as texts: learn.step(3)
    assert any("'extra.weight' and 1 more" in t for t in texts)


def test_adapters_that_are_switched():
    peft = pytest.importorskip("peft")
    def lora(): return peft.LoraConfig(r=2, target_modules=["body"], init_lora_weights=False)
    torch.manual_seed(0)
    model = peft.get_peft_model(Net(), lora())
    learn = make(model)
    learn.step(2)
    model.add_adapter("two", lora())
    model.set_adapter("two")
    with warned() as texts: learn.step()
    assert any("lora_A.two.weight' and 1 more" in t for t in texts)


# --- groups that are added to the optimizer ------------------------------------------------------------------------------

@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant", "one_cycle", "reduce_lr_on_plateau"])
def test_a_group_that_is_added_by_hand_follows_the_schedule(schedule):
    learn = make(lr_scheduler_type=schedule, eval_dataset=TensorDataset(X, Y), eval_strategy="steps", eval_steps=1)
    learn.step(2)
    add(learn)
    before = copies(learn.model.extra)
    learn.optimizer.add_param_group({"params": learn.model.extra.parameters(), "lr": 0.002})
    with warned() as texts: learn.step(10)
    assert texts == [] and all(moved(learn.model.extra, before)) and learn.model.extra.weight.grad is None
    *_, first, last = [group["lr"] for group in learn.optimizer.param_groups]
    assert last == pytest.approx(first / 5)


def test_a_group_that_is_missing_is_an_error_before_the_step():
    learn = make()
    learn.step(2)
    group = learn.optimizer.param_groups.pop()
    with pytest.raises(ValueError, match="has 1 parameter groups, and its schedule has rates for 2"): learn.step()
    learn.optimizer.param_groups.append(group)
    learn.step()
    assert learn.state.global_step == 3


# --- parameters of another shape or dtype ---------------------------------------------------------------------------------

@pytest.mark.parametrize("optim", ["adamw_torch_fused", "adamw_torch", "sgd", "adafactor"])
def test_the_state_of_a_parameter_of_another_shape_begins_anew(optim):
    "A fused kernel would write beyond the end of the old state, and end the process."
    class Words(nn.Module):
        def __init__(self): super().__init__(); self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 2)
        def forward(self, x): return self.head(self.table((x.abs() * 3).long().clamp(max=9)).mean(1))
    learn = make(Words(), optim=optim, optim_args="momentum=0.9" if optim == "sgd" else None)
    learn.step(2)
    table = learn.model.table
    table.weight.data = torch.cat([table.weight.data, torch.zeros(3000, 8)])
    before, other = copies(table), learn.optimizer.state[learn.model.head.weight]
    steps = {k: v for k, v in other.items() if k == "step"}
    learn.step(3)
    assert all(moved(table, before))
    for key, then in steps.items(): assert float(learn.optimizer.state[learn.model.head.weight][key]) == 5.0 or optim == "adafactor"


def test_the_state_of_a_parameter_of_another_dtype_is_converted():
    class Casts(Net):
        def forward(self, x): return super().forward(x.to(self.head.weight.dtype)).float()
    learn = make(Casts())
    learn.step(2)
    learn.model.double()
    learn.step(2)
    state = learn.optimizer.state[learn.model.head.weight]
    assert state["exp_avg"].dtype == torch.float64 and float(state["step"]) == 4


# --- a loss with parameters --------------------------------------------------------------------------------------------------

class Centers(nn.Module):
    def __init__(self): super().__init__(); self.centers = nn.Parameter(torch.zeros(2, 2))
    def forward(self, output, labels): return (output - self.centers[labels]).square().mean()


def test_parameters_of_a_loss_that_nothing_trains_are_named():
    loss = Centers()
    with warned() as texts: make(loss_func=loss).step(2)
    found = [t for t in texts if "'centers' of the loss function Centers" in t]
    assert len(found) == 1 and loss.centers.abs().sum() == 0
    learn = make(loss_func=loss)
    exec(found[0].split("; ")[1].split(" trains it")[0], {"learn": learn})
    with warned() as texts: learn.step(2)
    assert texts == [] and loss.centers.abs().sum() > 0 and loss.centers.grad is None
    loss = Centers().requires_grad_(False)
    with warned() as texts: make(loss_func=loss).step(2)
    assert texts == []


def test_a_loss_that_is_assigned_in_the_middle_is_named_too():
    learn = make()
    learn.step(2)
    learn.loss_func = Centers()
    with warned() as texts: learn.step(), learn.step()
    assert len([t for t in texts if "'centers' of the loss function" in t]) == 1


# --- methods that are replaced ---------------------------------------------------------------------------------------------

def double(model):
    forward = type(model).forward
    return lambda x: 2 * forward(model, x)


def assign(model): model.forward = double(model)
def run_class_again(model):
    class Again(Net):
        def forward(self, x): return 2 * Net.forward(self, x)
    model.__class__ = Again


@pytest.mark.parametrize("change", [assign, run_class_again])
@pytest.mark.parametrize("settings", [{}, dict(bf16=True), dict(torch_compile=True, torch_compile_backend="eager")], ids=["plain", "bf16", "compiled"])
def test_another_forward_is_the_one_that_is_trained(settings, change):
    "Also where mixed precision or torch.compile has wrapped the former one; and it stays after the verb."
    like, learn = make(**settings), make(**settings)
    for one in (like, learn): one.step(2)
    change(learn.model)
    kept = vars(learn.model).get("forward")
    with torch.no_grad(): twice = learn.model(X)
    like.step(), learn.step()
    assert learn.history[-1].loss != like.history[-1].loss
    assert vars(learn.model).get("forward") is kept
    learn.evaluate(TensorDataset(X, Y))
    assert vars(learn.model).get("forward") is kept and twice.shape == (48, 2)


def test_another_forward_of_checkpointed_layers_is_the_one_that_is_trained():
    def body(): return nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2))
    torch.manual_seed(0)
    first = body()
    plain, learn = make(body(), lr_scheduler_type="constant"), make(body(), activation_checkpointing=True, lr_scheduler_type="constant")
    for one in (plain, learn):
        one.model.load_state_dict(first.state_dict())
        one.step(2)
        block = one.model[1]
        block.forward = lambda x, block=block: 3 * nn.Sequential.forward(block, x)
        one.step(2)
        assert "forward" in vars(block)
    assert [r.loss for r in learn.history] == pytest.approx([r.loss for r in plain.history])


def test_noise_is_added_to_embeddings_that_were_replaced():
    class Words(nn.Module):
        def __init__(self): super().__init__(); self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 2)
        def get_input_embeddings(self): return self.table
        def forward(self, x): return self.head(self.table((x.abs() * 3).long().clamp(max=9)).mean(1))
    losses = []
    for alpha in (0.0, 50.0):
        torch.manual_seed(0)
        learn = make(Words(), neftune_noise_alpha=alpha or None, learning_rate=0.0)
        with warned():
            learn.step(2)
            torch.manual_seed(1)
            learn.model.table = nn.Embedding(10, 8)
            learn.step()
        losses.append(learn.history[-1].loss)
    assert losses[0] != losses[1]


def test_columns_of_another_forward_reach_it():
    class Rows(torch.utils.data.Dataset):
        def __len__(self): return 32
        def __getitem__(self, i): return {"x": X[i], "weight": torch.tensor(2.0), "labels": Y[i]}
    class Model(Net):
        def forward(self, x, labels=None): return {"loss": nn.functional.cross_entropy(super().forward(x), labels)}
    seen = []
    class Weighted(Model):
        def forward(self, x, labels=None, weight=None):
            seen.append(weight is not None)
            return super().forward(x, labels)
    learn = Learner(Model(), train_dataset=Rows(), **SETTINGS)
    learn.step()
    learn.model.__class__ = Weighted
    learn.step()
    assert seen == [True]


def test_a_loss_that_is_assigned_may_take_other_arguments():
    learn = make(gradient_accumulation_steps=2)
    learn.step()
    def compute(model, inputs, return_outputs=False): return 2 * nn.functional.cross_entropy(model(inputs[0]), inputs[1])
    learn.compute_loss = compute
    learn.step()
    del learn.compute_loss
    learn.step()
    assert learn.state.global_step == 3


def test_a_training_step_that_is_assigned_begins_in_training_mode():
    "As an override of a subclass does; `from_pretrained` leaves models in evaluation mode."
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    model.eval()
    learn = make(model)
    seen = []
    def training_step(model, inputs, num_items_in_batch=None):
        seen.append(model.training)
        loss = nn.functional.cross_entropy(model(inputs[0]), inputs[1])
        loss.backward()
        return loss.detach()
    learn.training_step = training_step
    learn.step()
    model.eval()
    with warned(): learn.step()
    assert seen == [True, True]


# --- parameters that leave the model -----------------------------------------------------------------------------------------

def replaced(steps, **given):
    learn = make(**given)
    learn.step(2)
    replace(learn)
    learn.optimizer.add_param_group({"params": list(learn.model.head.parameters())})
    learn.step(steps)
    return learn


def test_a_checkpoint_after_a_change_can_be_resumed(tmp_path):
    "The layer that was replaced is no longer in the optimizer, whose state a new process could not place."
    learn = replaced(1, output_dir=str(tmp_path))
    folder = learn.save_checkpoint()
    again = make(output_dir=str(tmp_path))
    again.load_checkpoint(folder)
    branch = learn.branch()
    learn.train(), branch.train(), again.train()
    for one in (branch, again): assert not any(moved(one.model, copies(learn.model)))
    assert sum(len(g["params"]) for g in learn.optimizer.param_groups) == 4


@pytest.mark.parametrize("every", [3, 7])
def test_the_steps_before_a_layer_left_the_optimizer_can_be_reached(every):
    "Snapshots from before and after are restored in either order, and the steps are the same, byte for byte."
    learn = make(rewind_every=every, max_steps=40)
    learn.step(2)
    learn.snapshot("with")
    replace(learn)
    learn.optimizer.add_param_group({"params": list(learn.model.head.parameters())})
    learn.step(4)
    learn.snapshot("without")
    learn.step(4)
    def sizes(): return [len(g["params"]) for g in learn.optimizer.param_groups]
    def losses(): return {r.step: r.loss for r in learn.history.current}
    want, weights = losses(), copies(learn.model)
    assert sum(sizes()) == 4 and len(sizes()) == 3
    assert not learn.rewind(to=7).different
    learn.step(3)
    assert losses() == want and not any(moved(learn.model, weights))
    for name, size in (("with", 2), ("without", 3), ("with", 2)):
        learn.restore(name)
        assert sum(sizes()) == 4 and len(sizes()) == size
    learn.restore("without")
    learn.step(4)
    assert losses() == want and not any(moved(learn.model, weights))


def test_a_snapshot_with_other_parameters_changes_nothing():
    "One of a run with another optimizer is refused."
    learn, other = replaced(4), replaced(4)
    other.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    other.step()
    before = [list(g["params"]) for g in learn.optimizer.param_groups]
    with pytest.raises(ValueError, match="holds other parameters"): learn.restore(other.snapshot())
    assert all(p is q for a, b in zip(before, learn.optimizer.param_groups, strict=True) for p, q in zip(a, b["params"], strict=True))


def test_a_layer_that_a_loss_still_uses_is_named():
    learn = make()
    learn.step(2)
    old = learn.model.head
    learn.model.head = nn.Identity()
    learn.loss_func = lambda output, labels: nn.functional.cross_entropy(old(output), labels)
    before = copies(old)
    with pytest.warns(UserWarning, match="has left the model, and so the optimizer, and the loss still depends on it"): learn.step(2)
    assert not any(moved(old, before))
    learn.optimizer.add_param_group({"params": list(old.parameters())})
    learn.step()
    assert all(moved(old, before)) and old.weight.grad is None


def test_parts_that_are_trained_in_turn_by_other_optimizers():
    "A second optimizer of the user's has its part; freezing the parts in turn is no change that has to be named."
    class Turns(Learner):
        def create_optimizer(self, model=None):
            self.optimizer = torch.optim.SGD(self.model.head.parameters(), lr=0.1)
            self.other = torch.optim.SGD(self.model.body.parameters(), lr=0.1)
            return self.optimizer
        def training_step(self, model, inputs, num_items_in_batch=None):
            for i, part in enumerate((self.model.head, self.model.body)): part.requires_grad_(self.state.global_step % 2 == i)
            loss = super().training_step(model, inputs, num_items_in_batch)
            if self.state.global_step % 2: self.other.step()
            return loss
    torch.manual_seed(0)
    learn = Turns(Net(), train_dataset=TensorDataset(X, Y), loss_func=nn.functional.cross_entropy, **SETTINGS)
    before = copies(learn.model)
    with warned() as texts: learn.step(5), learn.step(6)
    assert [t for t in texts if "optimizer" in t] == [] and all(moved(learn.model, before))
