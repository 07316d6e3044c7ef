"States of an optimizer, a schedule and a scaler on their way between DeepSpeed's flat tensors and an ordinary run."
import pytest
import torch

pytest.importorskip("deepspeed")

from trainer_nb.device.deepspeed import MASTER, FlatGroup, FlatPlace, _joined, check_parameter_states, join_flat
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


def test_a_scale_goes_on_with_deepspeed_only():
    "That of a run without it, which has another scaler, is left out; a scale that does not change stays as it is configured."
    from types import SimpleNamespace
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from trainer_nb.device.deepspeed import DeepSpeedModel
    strategy = DeepSpeedModel.__new__(DeepSpeedModel)
    scaler = DynamicLossScaler(2.0 ** 10, 4, 1, 1, False)
    strategy.engine = SimpleNamespace(optimizer=SimpleNamespace(loss_scaler=scaler))
    state = strategy.scaler_state()
    strategy.load_scaler_state(torch.amp.GradScaler("cpu", init_scale=64.0).state_dict())
    assert strategy.scaler_state() == state
    strategy.load_scaler_state(state | {"cur_scale": 32.0})
    assert strategy.scaler_state()["cur_scale"] == 32
    strategy.engine.optimizer.loss_scaler = LossScaler(8.0)
    strategy.load_scaler_state(state)
    assert vars(strategy.engine.optimizer.loss_scaler) == vars(LossScaler(8.0))
