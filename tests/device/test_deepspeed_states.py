"States of an optimizer, a schedule and a scaler on their way between DeepSpeed's flat tensors and an ordinary run."
import pytest
import torch

pytest.importorskip("deepspeed")

from trainer_nb.device.deepspeed import MASTER, FlatGroup, FlatPlace, _joined, check_parameter_states, engine_scale, join_flat, torch_scale
from trainer_nb.device.deepspeed import shared_entries
from trainer_nb.optim.schedules import select_groups

GROUP = FlatGroup(6, 1, [FlatPlace("a", 0, 2, (2,)), FlatPlace("b", 2, 4, (2, 2))])
WEIGHTS = {"weights/a": torch.tensor([1.0, 2.0]), "weights/b": torch.arange(4.0).view(2, 2)}


def joined(states): return _joined(WEIGHTS | states, GROUP, 0, torch.zeros(6))


@pytest.mark.parametrize("name, moments", [("a", [5.0, 6.0, 0, 0, 0, 0]), ("b", [0, 0, 5.0, 6.0, 7.0, 8.0])])
def test_a_parameter_without_a_state_gets_zeros(name, moments):
    "Whichever parameter of a flat tensor it is; DDP has no state for one that never had a gradient."
    shape = WEIGHTS[f"weights/{name}"].shape
    states = {f"optimizer/{name}/exp_avg": torch.tensor([m for m in moments if m]).view(shape), f"optimizer/{name}/step": torch.tensor(4.0)}
    found = joined(states)
    assert {k: v.tolist() for k, v in found.items()} == {MASTER: [1, 2, 0, 1, 2, 3], "exp_avg": moments, "step": 4}


def test_full_weights_of_some_parameters():
    "The fp32 weights of a snapshot, where they differ from the model's."
    assert joined({f"optimizer/b/{MASTER}": torch.full((2, 2), 9.0)})[MASTER].tolist() == [1, 2, 9, 9, 9, 9]


def test_numbers_of_steps_that_differ_are_reported():
    with pytest.warns(UserWarning, match="'step' is 2 for 'b' and 4 for 'a'.*continues with 4"):
        found = joined({"optimizer/b/step": torch.tensor(2.0), "optimizer/a/step": torch.tensor(4.0)})
    assert found["step"] == 4
    with pytest.warns(UserWarning, match="'step' is 2 for 'a' and 3 for 'b'"): assert shared_entries({"a/step": 2, "b/step": 3, "c/step": 9}, {"a", "b"}) == {"step": 3}
    assert shared_entries({"b/kind": "x", "c/kind": "y"}, {"a", "b"}) == {"kind": "x"}


def test_states_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match="'row' of 'b' has the shape \\(2,\\).*without deepspeed="): check_parameter_states({"optimizer/b/row": torch.zeros(2)}, [GROUP])
    check_parameter_states(WEIGHTS | {"optimizer/b/step": torch.tensor(1.0), "optimizer/other/row": torch.zeros(2)}, [GROUP])


def test_states_of_dimensions_zero_and_parts():
    "Any state without dimensions is shared, whatever its name."
    assert joined({"optimizer/a/k": torch.tensor(3), "optimizer/b/k": torch.tensor(3)})["k"] == 3
    two = FlatGroup(3, 1, GROUP.places)
    assert join_flat({"a": WEIGHTS["weights/a"], "b": WEIGHTS["weights/b"]}, two, 1, torch.float32).tolist() == [1, 2, 3]


def test_groups_of_a_schedule():
    state = {"base_lrs": [1, 2, 3], "_last_lr": [4, 5, 6], "last_epoch": 3, "_schedulers": [{"base_lrs": [7, 8, 9]}], "milestones": [1, 2, 3]}
    assert select_groups(state, [0, 2], 3) == {"base_lrs": [1, 3], "_last_lr": [4, 6], "last_epoch": 3, "_schedulers": [{"base_lrs": [7, 9]}], "milestones": [1, 2, 3]}


# -- the scale of the loss in fp16

OVERFLOWS = [0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
WINDOW = 4


def engine_scaler():
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler
    return DynamicLossScaler(2.0 ** 10, WINDOW, 1, 1, False)


class TorchScaler:
    "torch's scaler, of which each step overflows or does not."
    def __init__(self): self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10, growth_interval=WINDOW)
    def step(self, overflow):
        p = torch.nn.Parameter(torch.zeros(1))
        p.grad = torch.full((1,), float("inf") if overflow else 1.0)
        optimizer = torch.optim.SGD([p], lr=0.1)
        self.scaler.scale(torch.zeros(1))
        self.scaler.step(optimizer)
        self.scaler.update()
        return self.scaler.get_scale()


@pytest.fixture
def quiet(monkeypatch):
    from deepspeed import comm
    monkeypatch.setattr(comm, "get_rank", lambda: 1)


@pytest.mark.parametrize("change", range(1, len(OVERFLOWS)))
def test_the_scale_goes_on(change, quiet):
    """A run changes its scaler after any step: both have the scale at which it was, and reduce it after the same overflows. The
    new one grows as soon as the old one would have, but for the step by which DeepSpeed's first growth is late."""
    def sequence(scaler, steps):
        if isinstance(scaler, TorchScaler): return [scaler.step(o) for o in steps]
        return [scaler.update_scale(bool(o)) or scaler.cur_scale for o in steps]
    first, later = OVERFLOWS[:change], OVERFLOWS[change:]
    theirs, ours = engine_scaler(), TorchScaler()
    before = sequence(theirs, first)
    ours.step(0)
    ours.scaler.load_state_dict(ours.scaler.state_dict() | torch_scale(vars(theirs), WINDOW))
    assert ours.scaler.get_scale() == before[-1]
    stable = next((i for i, o in enumerate(later) if o), len(later))
    # until the next overflow
    n = min(stable, WINDOW)
    gap = sequence(ours, later[:n]), sequence(theirs, later[:n])
    assert gap[0] == gap[1] or gap[0][:-1] == gap[1][:-1] and first[-1]
    # and back: from the state of torch's scaler
    back = engine_scaler()
    back.cur_iter = 100
    state = ours.scaler.state_dict()
    vars(back).update(engine_scale(state, back.cur_iter))
    assert back.cur_scale == ours.scaler.get_scale() and torch_scale(vars(back), WINDOW) == {k: state[k] for k in ("scale", "_growth_tracker")}
    rest = [0] * (2 * WINDOW + 1)
    assert sequence(back, rest) == sequence(ours, rest)


def test_a_scaler_reads_the_state_of_the_other(monkeypatch):
    "Through the functions that restore a run; a scale that does not change stays as it is configured."
    from types import SimpleNamespace
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from trainer_nb.device.deepspeed import DeepSpeedModel
    from trainer_nb.engine.snapshot_fields import _restore_scaler
    strategy = DeepSpeedModel.__new__(DeepSpeedModel)
    strategy.engine = SimpleNamespace(optimizer=SimpleNamespace(loss_scaler=engine_scaler()))
    saved = torch.amp.GradScaler("cpu", init_scale=64.0).state_dict() | {"_growth_tracker": 0}
    strategy.load_scaler_state(saved)
    state = strategy.scaler_state()
    assert state["cur_scale"] == 64 and state["scale_window"] == WINDOW and state["cur_iter"] == 0
    strategy.load_scaler_state(state | {"cur_scale": 32.0})
    assert strategy.scaler_state()["cur_scale"] == 32
    strategy.engine.optimizer.loss_scaler = LossScaler(8.0)
    strategy.load_scaler_state(state)
    assert vars(strategy.engine.optimizer.loss_scaler) == vars(LossScaler(8.0))
    own = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=100)
    run = SimpleNamespace(device=SimpleNamespace(scaler=own, reset_scaler=lambda: None))
    _restore_scaler(run, SimpleNamespace(values={"scaler": state}))
    assert own.get_scale() == 64 and own.get_growth_interval() == 100
    _restore_scaler(run, SimpleNamespace(values={"scaler": saved}))
    assert own.get_scale() == 64 and own.get_growth_interval() == 2000
