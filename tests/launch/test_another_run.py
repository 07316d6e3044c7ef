"A run on several processes is replaced by another one: the processes do it, and nothing passes through the notebook's device."
import os, shutil, signal
from contextlib import contextmanager

import pytest, torch

from trainer_nb.core.history import read_history
from trainer_nb.device.accelerator import Device
from trainer_nb.launch import remote_run
from trainer_nb.launch.remote_run import RemoteRun
from trainer_nb.state.async_save import wait_for_save
from launched import counted, make, pids, same

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch")]

FSDP = {"fsdp": "full_shard"}
ZERO_2, ZERO_3 = ({"deepspeed": {"zero_optimization": {"stage": stage}}} for stage in (2, 3))
DIVISIONS = [pytest.param({}, id="ddp"), pytest.param(FSDP, id="fsdp"), *(pytest.param(d, id=i, marks=pytest.mark.slow) for d, i in ((ZERO_2, "zero2"), (ZERO_3, "zero3")))]
SETTINGS = {"num_train_epochs": 2, "eval_strategy": "no", "lr_scheduler_type": "cosine", "warmup_steps": 2}


def divided(division, **settings):
    if "deepspeed" in division: pytest.importorskip("deepspeed")
    return make(**SETTINGS | division | settings)


@pytest.fixture
def no_device(monkeypatch):
    "A context in which the notebook can move no model to a device; the processes can."
    def only_there(function):
        def call(*args, **kwargs):
            assert "RANK" in os.environ, "the notebook's device was used"
            return function(*args, **kwargs)
        return call
    @contextmanager
    def patched():
        with monkeypatch.context() as here:
            for owner, name in ((Device, "prepare"), (torch.nn.Module, "to")): here.setattr(owner, name, only_there(getattr(owner, name)))
            yield
    return patched


@pytest.fixture
def in_the_notebook(monkeypatch):
    "Returns a function that lets the notebook execute the verbs that may begin another run, between two launches."
    def begin_run(remote, learner, name, args, kwargs):
        learner.close()
        try: return getattr(learner, name)(*args, **kwargs)
        finally: learner.launch(remote.num_processes, keep_global_batch=remote.plan.keep_global_batch)
    return lambda: monkeypatch.setattr(RemoteRun, "begin_run", begin_run)


@pytest.fixture
def folder(tmp_path):
    "Returns a function that writes checkpoints of a divided run into two folders, and returns these."
    def write(division):
        learn = divided(division, output_dir=str(tmp_path / "one"), save_strategy="steps", save_steps=3)
        with learn.launch(2): learn.step(7)
        learn.history.close_log()
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        return tmp_path / "one", tmp_path / "two"
    return write


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("begun", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_checkpoint_is_loaded_by_the_processes(division, begun, folder, no_device, in_the_notebook):
    def launched(where):
        learn = divided(division, output_dir=str(where), save_strategy="no")
        learn.launch(2)
        return learn
    def resumed(learn, where):
        if begun: learn.step(2)
        before = pids(learn)
        report = learn.load_checkpoint(where / "checkpoint-3")
        assert report.step == learn.state.global_step == 3 and learn.state.max_steps == 12
        return learn, pids(learn) == before
    one, two = folder(division)
    learn = launched(one)
    with no_device():
        _, same_processes = resumed(learn, one)
        assert same_processes and learn.step(1)[0].step == 4
        learn.train()
    learn.close()
    in_the_notebook()
    like, same_processes = resumed(launched(two), two)
    assert not same_processes
    like.train()
    like.close()
    same(like, learn)
    assert kinds(learn) == kinds(like) and learn.history.run_id == like.history.run_id
    # the notebook writes the log
    learn.history.flush()
    assert counted_in(one, learn) == counted(learn) and len(counted(learn)) == 12


def kinds(learn): return [e["kind"] for e in learn.history.events]


def counted_in(folder, learn):
    told = read_history(folder / "runs" / f"run-{learn.history.run_id}.jsonl")
    return [(r.step, r.loss) for r in told if not r.abandoned]


def test_fresh_processes_load_a_checkpoint_of_their_own_run(tmp_path):
    "The notebook has its log open."
    learn = make(output_dir=str(tmp_path), save_strategy="no")
    with learn.launch(2, start="spawn"):
        learn.step(3)
        folder = learn.save_checkpoint()
        losses = [r.loss for r in learn.step(2)]
        assert learn.load_checkpoint(folder).step == 3 and [r.loss for r in learn.step(2)] == losses


@pytest.mark.parametrize("division", DIVISIONS)
def test_training_resumes_from_the_newest_checkpoint(division, folder, no_device, capfd):
    "With the numbers of a run that goes on; that of another number of processes gives a warning."
    one, _ = folder(division)
    whole = divided(division)
    whole.launch(2, train=True)
    learn = divided(division, output_dir=str(one), save_strategy="no")
    with learn.launch(2), no_device(): learn.train(resume_from_checkpoint=True)
    learn.state.best_model_checkpoint = None
    same(whole, learn)
    three = divided(division, output_dir=str(one), save_strategy="no", per_device_train_batch_size=2)
    with three.launch(3), no_device(): three.load_checkpoint(one / "checkpoint-6")
    assert "2 processes then, 3 processes now" in capfd.readouterr().err


@pytest.mark.parametrize("saved", ["divided", "whole"])
def test_the_batch_of_one_process_stays_divided(saved, tmp_path, no_device):
    "With keep_global_batch the loaded run is divided, too, whatever the number of processes that saved it."
    settings = FSDP | {"per_device_train_batch_size": 8, "save_strategy": "steps", "save_steps": 2}
    saver = make(**SETTINGS | settings | (FSDP if saved == "divided" else {"fsdp": None}), output_dir=str(tmp_path / "one"))
    if saved == "divided":
        with saver.launch(2, keep_global_batch=True): saver.step(5)
    else:
        saver.step(5)
    wait_for_save(saver.run_state)
    saver.history.close_log()
    learn = make(**SETTINGS | settings, output_dir=str(tmp_path / "one"))
    with learn.launch(2, keep_global_batch=True), no_device():
        learn.step(1)
        assert learn.load_checkpoint(tmp_path / "one" / "checkpoint-4").step == 4
        there = learn.run_on_all(lambda learn: (learn.args.per_device_train_batch_size, learn.state.max_steps))
        learn.train()
    assert there == [(4, 12)] * 2 and learn.args.per_device_train_batch_size == 8
    whole = make(**SETTINGS | settings | {"save_strategy": "no"})
    if saved == "divided":
        with whole.launch(2, keep_global_batch=True): whole.train()
        assert counted(whole)[4:] == counted(learn)[-8:]


@pytest.mark.parametrize("division", DIVISIONS)
def test_a_snapshot_of_another_run_is_restored_by_the_processes(division, no_device, in_the_notebook):
    other = divided(division, learning_rate=3e-2)
    with other.launch(2):
        other.step(4)
        taken = other.snapshot()
        other.step(2)
    def launched():
        learn = divided(division, learning_rate=3e-2)
        learn.launch(2)
        learn.step(1)
        return learn
    def restored(learn):
        parent = learn.history.run_id
        learn.restore(taken)
        assert learn.state.global_step == 4 and not len(learn.history) and learn.history.parent == taken.values["run"]
        assert learn.history.run_id not in (parent, taken.values["run"])
        return learn
    learn = launched()
    with no_device():
        restored(learn)
        learn.step(1)
        again = learn.snapshot("again")
        learn.step(1)
        # its own, now
        learn.restore("again")
        learn.step(1)
    assert [r.loss for r in learn.history if not r.abandoned] == [r.loss for r in other.history[-2:]]
    learn.close()
    in_the_notebook()
    like = restored(launched())
    like.step(2)
    like.close()
    same(like, learn)
    assert kinds(like) == ["restore", "launch", "plan", "close"] and kinds(learn)[:3] == kinds(like)[:3]
    assert again.values["run"] == learn.history.run_id
    learn.reset()
    assert learn.state.global_step == 0


@pytest.mark.parametrize("division", DIVISIONS)
def test_training_after_the_end_begins_in_the_processes(division, no_device, in_the_notebook, capfd):
    "With the same weights and optimizer, and a new schedule."
    def launched():
        learn = divided(division)
        learn.launch(2)
        return learn
    def twice(learn):
        learn.train()
        first = learn.history
        learn.train()
        assert learn.history.parent == first.run_id and learn.state.global_step == 12
        return learn
    learn = launched()
    with no_device():
        twice(learn)
        assert "train() begins a new run at step 0, with the same weights" in capfd.readouterr().out
    learn.close()
    in_the_notebook()
    like = twice(launched())
    like.close()
    same(like, learn)
    assert kinds(learn) == kinds(like)
    for o in (learn, like):
        o.reset()
        with o.launch(2): o.step(2)
    same(like, learn)


def test_what_cannot_be_loaded_changes_nothing(folder, no_device):
    one, _ = folder(FSDP)
    learn, other = (divided(FSDP, optim="sgd") for _ in range(2))
    with learn.launch(2), no_device():
        learn.step(2)
        before, history = pids(learn), learn.history
        with pytest.raises(ValueError, match="no such folder"): learn.load_checkpoint(one / "nowhere")
        with pytest.raises(ValueError, match="cannot be resumed here"): learn.load_checkpoint(one / "checkpoint-3")
        assert pids(learn) == before and learn.history is history
        learn.step(2)
    with other.launch(2): other.step(4)
    same(other, learn)


@pytest.mark.parametrize("late", [False, True])
def test_a_process_dies_when_another_run_has_begun(late, no_device, monkeypatch):
    "The notebook has the other run, or has not: it is that one, or the earlier one, that continues."
    other = divided(FSDP)
    with other.launch(2):
        other.step(4)
        taken = other.snapshot()
    learn = divided(FSDP)
    learn.launch(2, start="fork")
    learn.step(2)
    earlier = learn.snapshot("earlier")
    learn.step(1)
    name = "follow_history" if late else "share_history"
    function = getattr(remote_run, name)
    def kills(replica, *args):
        os.kill(os.getpid(), signal.SIGKILL) if replica.worker.rank == 1 else None
        return function(replica, *args)
    with no_device():
        with monkeypatch.context() as here:
            here.setattr(remote_run, name, kills)
            with pytest.raises(RuntimeError, match="rank 1 was killed by SIGKILL"): learn.restore(taken)
        run_id = taken.values["run"] if late else earlier.values["run"]
        assert learn.state.global_step == (4 if late else 2) and (learn.history.parent if late else learn.history.run_id) == run_id
        learn.step(2)
    learn.close()
    like = divided(FSDP)
    with like.launch(2): like.step(6 if late else 4)
    for n, p in like.model.state_dict().items(): assert torch.equal(p, learn.model.state_dict()[n]), n
