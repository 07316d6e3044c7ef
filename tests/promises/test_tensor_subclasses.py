"Optimizers whose state is of tensors of another kind: taken apart where the kind is known, refused by name at the first step where it is not."
import pytest
import torch

import trainer_nb.optim.optimizers as optim_module
from tensor_kinds import Coarse, CoarseMomentum, coarse
from toys import finish, hard_learner, unequal
from trainer_nb.engine.snapshot import differences


def test_known_kinds_are_held_exactly(tmp_path, monkeypatch):
    "In snapshots, rewinds, branches and checkpoints."
    monkeypatch.setattr(optim_module, "TENSOR_SUBCLASS_MODULES", (Coarse.__module__,))
    want = finish(coarse())
    learn = coarse(output_dir=str(tmp_path), save_strategy="no")
    learn.step(5)
    taken = learn.snapshot()
    assert any(n.endswith("/momentum.codes") for n in taken.tensors) and taken.values["optimizer"]["apart"]["outer.bias/momentum"]["class"] == "Coarse"
    other = learn.branch()
    learn.step(3)
    learn.rewind(6)
    learn.step(3)
    assert differences(learn.snapshot(), taken) == [] and type(learn.optimizer.state[learn.model.outer.bias]["momentum"]) is Coarse
    learn.save_checkpoint()
    again = coarse(output_dir=str(tmp_path), save_strategy="no")
    again.load_checkpoint()
    for o in (learn, other, again): assert unequal(finish(o), want, ignore=("args",)) == []


def test_others_are_refused_at_the_first_step_by_name():
    learn = coarse()
    with pytest.raises(TypeError, match="CoarseMomentum keeps a tensor_kinds.Coarse, .*as 'momentum'"): learn.step(2)
    assert learn.state.global_step == 1   # the step is done
    learn = hard_learner(optimizer_cls_and_kwargs=(CoarseMomentum, dict(other=object())))
    with pytest.raises(TypeError, match="keeps a builtins.object, as 'projector'"): learn.step(1)


def test_torchao():
    "The real ones, where they are installed."
    optim = pytest.importorskip("torchao.optim")
    def made():
        torch.manual_seed(0)
        from trainer_nb import Learner
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 2))
        data = torch.utils.data.TensorDataset(torch.randn(60, 64), torch.randint(0, 2, (60,)))
        return Learner(model, train_dataset=data, loss_func=torch.nn.functional.cross_entropy, optimizer_cls_and_kwargs=(optim.AdamW8bit, dict(lr=1e-3)),
                       max_steps=9, disable_tqdm=True, rewind_every=2)
    want, learn = finish(made()), made()
    learn.step(7)
    learn.rewind(4)
    assert unequal(finish(learn), want, ignore=("args",)) == []
