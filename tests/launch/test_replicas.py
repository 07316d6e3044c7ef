"Random numbers that are drawn in an update, or by callbacks, are the same in all processes that hold the same weights."
import pytest, torch

from trainer_nb import Learner, TrainerCallback
from trainer_nb.engine.prepare import ReplicasDiffer

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch")]
NOISE = 1e-3


class Net(torch.nn.Module):
    "Its dropout differs between the processes, as it should."
    def __init__(self): super().__init__(); self.layer, self.drop = torch.nn.Linear(4, 1), torch.nn.Dropout(0.2)
    def forward(self, x, labels): return {"loss": (self.layer(self.drop(x)) - labels).pow(2).mean()}


@torch.no_grad()
def disturb(tensors):
    for t in tensors: t.add_(NOISE * torch.randn_like(t))


class Noisy(torch.optim.SGD):
    "Langevin dynamics: noise is added to the weights in each update, as stochastic rounding does."
    def step(self, closure=None):
        super().step(closure)
        disturb([p for group in self.param_groups for p in group["params"]])


class Disturbs(TrainerCallback):
    "Adds noise to the weights at an event, or to the gradients before the update."
    def __init__(self, event): self.event = event; setattr(self, event, self.disturb)
    def disturb(self, args, state, control, model=None, **kwargs):
        disturb([p.grad if self.event == "on_pre_optimizer_step" else p for p in model.parameters()])


DATA = [{"x": torch.randn(4, generator=g), "labels": torch.randn(1, generator=g)} for g in [torch.Generator().manual_seed(0)] for _ in range(64)]
GIVEN = {"optimizer": dict(optimizer_cls_and_kwargs=(Noisy, {"lr": 0.05}))} | {
    event: dict(callbacks=[Disturbs(event)], optim="sgd") for event in ("on_train_begin", "on_epoch_begin", "on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end")}


def make(**given):
    torch.manual_seed(0)
    return Learner(Net(), train_dataset=DATA, report_to="none", per_device_train_batch_size=4, disable_tqdm=True, use_cpu=True,
                   **{"save_strategy": "no", "max_steps": 20, "learning_rate": 0.05, "gradient_accumulation_steps": 2, "rollback": "full"} | given)


def weights(learn): return b"".join(p.detach().numpy().tobytes() for p in learn.model.parameters())


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_replicas_stay_equal(start):
    "Whatever draws them; the processes are started once for all."
    def compare(learn):
        # in each process: every run of this test, one after the other
        return {name: weights(one) for name, one in ((name, finished(given)) for name, given in GIVEN.items())}
    def finished(given):
        one = make(**given)
        one.step(8)
        return one
    learn = make()
    with learn.launch(2, start=start):
        first, second = learn.run_on_all(compare)
    assert len(set(first.values())) == len(GIVEN) - 1   # noise of the optimizer is that of a callback behind it
    assert [name for name in GIVEN if first[name] != second[name]] == []


def test_noise_is_drawn_anew_in_each_step():
    learn = make(**GIVEN["optimizer"], learning_rate=0.0)
    with learn.launch(2):
        seen = [learn.run_on_all(weights)[0] for _ in (learn.step(1) for _ in range(3))]
    assert len(set(seen)) == 3


class ChangesOne(TrainerCallback):
    "Changes the first weight on rank 1 alone, where nothing averages."
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == 2 and args.process_index == 1:
            with torch.no_grad(): model.layer.weight[0, 0] += 1


@pytest.mark.parametrize("where", ["evaluate", "save", "by hand", "finish", "close"])
def test_replicas_that_differ_are_an_error(where, tmp_path):
    "Wherever it is noticed; the run can be closed, and goes on with the weights of rank 0."
    settings = {"save": dict(save_strategy="steps", save_steps=3, output_dir=str(tmp_path))}.get(where, {})
    learn = make(callbacks=[ChangesOne()], eval_dataset=DATA[:8], max_steps=4, **settings)
    act = {"evaluate": learn.evaluate, "by hand": lambda: learn.save_checkpoint(tmp_path / "checkpoint-2"), "close": learn.close}.get(where, learn.train)
    learn.launch(2)
    learn.step(2)
    with pytest.raises(ReplicasDiffer, match="'layer.weight'.* step " + {"save": "3", "finish": "4"}.get(where, "2")): act()
    if where != "close":
        with pytest.raises(ReplicasDiffer): learn.close()
    assert learn.run_state.parts.remote_run is None and not any(tmp_path.glob("checkpoint-*")) and learn.train().global_step == 4
