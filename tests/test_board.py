"What is told of a run: after a rewind, after free(), and at the end of a process."
import torch

from trainer_nb import Learner, runlog
from trainer_nb.board import Board, Live


def made(**settings):
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    return Learner(torch.nn.Linear(4, 2), train_dataset=data, eval_dataset=data, loss_func=torch.nn.functional.cross_entropy, use_cpu=True,
                   disable_tqdm=True, max_steps=100, learning_rate=0.1, **settings)


def told(learn):
    board = Board([Live(learn)])
    board.message()
    return board


def test_after_a_rewind():
    "Marks stand at the step that was gone back to, though nothing was replayed; the loss is that of this step."
    learn = made(ring_every=1)
    learn.step(20)
    then = learn.history[11].loss
    assert learn.rewind(8).replayed == 0
    learn.set(lr=0.01)
    said = told(learn).told
    assert [(o["kind"], o["step"]) for o in said["marks"]] == [("rewind", 12), ("set", 12)]
    assert float(said["status"]["loss"]) == float(f"{then:.4g}") and then != learn.history.frame(all=True).loss.iloc[-1]
    learn.step(3)
    assert [o["step"] for o in told(learn).told["marks"]] == [12, 12]
    learn.rewind(15)
    assert told(learn).told["marks"][-1]["step"] == 0 and told(learn).told["status"]["loss"] is None


def test_after_free():
    "What was seen of a run stays when its memory is given back; a run that begins anew is told of."
    learn = made()
    learn.step(20)
    board = told(learn)
    learn.free()
    board.message()
    assert board.told["status"]["words"] == "freed" and board.told["status"]["step"] == 20 and len(board.curves[0].history) == 20
    learn.step(2)
    board.message()
    assert board.told["status"]["step"] == 2 and len(board.curves[0].history) == 2


def test_a_claim_outlives_its_module(tmp_path, monkeypatch):
    "At the end of a process modules lose their names before the last history goes: it lets go of its log all the same, without a word."
    claim = runlog.Claim(tmp_path/"log")
    monkeypatch.setattr(runlog, "os", None)
    claim.drop()
    monkeypatch.undo()
    runlog.Claim(tmp_path/"log").drop()
