"The same verbs on several processes: equal runs, errors and deaths survived, nothing left behind."
import collections, gc, importlib, os, re, signal, tempfile, threading, time

import pytest, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from trainer_nb import Learner, TrainerCallback
from trainer_nb.core.errors import InvalidOperation
from launched import Fails, Net, is_gone, like, likes, make, pids, rows, same   # noqa: F401

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch")]


# ---- equal runs

@pytest.mark.parametrize("n, of, settings", [(2, 4, {"gradient_accumulation_steps": 3}), (4, 2, {"gradient_accumulation_steps": 2, "dataloader_num_workers": 1})])
def test_as_one_process_with_the_batches_of_all(n, of, settings):
    "Weights within rounding, also where the last batch does not come out even, and the same metrics."
    def run(**more): return make(53, model=dict(norm=False, drop=0.0), num_train_epochs=5, **settings, **more)
    alone, many = run(per_device_train_batch_size=n * of), run(per_device_train_batch_size=of)
    alone.train()
    many.launch(n, train=True)
    assert alone.state.global_step == many.state.global_step and alone.state.max_steps == many.state.max_steps
    for (name, a), b in zip(alone.model.state_dict().items(), many.model.state_dict().values()): torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6, msg=name)
    torch.testing.assert_close(torch.tensor(alone.history.column("loss")), torch.tensor(many.history.column("loss")), rtol=1e-5, atol=1e-6)
    assert (alone.history.column("samples") == many.history.column("samples")).all()


class InOrder:
    "A metric by which the order of the batches counts."
    def reset(self): self.value = 0.0
    def update(self, predicted, labels): self.value = self.value / 2 + float(labels.sum())
    def compute(self): return self.value


def test_evaluations_are_exactly_those_of_one_process(like):
    "No sample is counted twice, and the mean is the very number."
    learn = make()
    learn.metrics = {"in_order": InOrder()}
    learn.step(5)
    def without_times(metrics): return {k: v for k, v in metrics.items() if not k.endswith(("_runtime", "_per_second"))}
    here, predicted = without_times(learn.evaluate()), learn.predict(rows(21, 2))
    with learn.launch(2):
        assert without_times(learn.evaluate()) == here
        there = learn.predict(rows(21, 2))
    assert (there.predictions == predicted.predictions).all() and (there.label_ids == predicted.label_ids).all()
    assert without_times(there.metrics) == without_times(predicted.metrics)


@pytest.mark.parametrize("n, start", [(2, "fork"), (3, "fork"), *(pytest.param(*o, marks=pytest.mark.slow) for o in ((2, "spawn"), (4, "fork")))])
def test_any_split_over_verbs_and_launches(likes, n, start):
    learn, epoch = make(), 12 // n
    with learn.launch(n, start=start):
        assert [r.step for r in learn.step(2)] == [1, 2]
        assert learn.run(epochs=1)[-1].step == epoch and learn.history.evaluations()[0]["step"] == epoch
        for i, record in enumerate(learn.steps()):
            if i == 1: break
        assert record.step == epoch + 2
        assert learn.rewind(3).step == epoch - 1 and learn.rewind(1).different == []
        assert learn.rewind(to=1).different == []
    with learn.launch(n, start=start) as same_one:
        assert same_one is learn and learn.train().global_step == 3 * epoch
    same(likes(n), learn)


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_a_loader_that_is_read_by_hand_is_divided(kind):
    "As the run divides it, which reads all of it; 48 samples to train on are 6 batches of each process, 21 to evaluate 2 of 8."
    def read(learn):
        loader = learn.get_train_dataloader() if kind == "train" else learn.get_eval_dataloader()
        found = [x for x, _ in loader]
        assert len(loader) == len(found)
        return torch.cat(found)
    learn = make()
    whole = read(learn)
    with learn.launch(2):
        first = learn.step(1)[0].loss
        parts = learn.run_on_all(read)
        learn.reset()
        assert learn.step(1)[0].loss == first
    assert {tuple(x.tolist()) for x in whole} == {tuple(x.tolist()) for part in parts for x in part}
    assert [len(part) for part in parts] == ([24, 24] if kind == "train" else [11, 10])


def test_a_run_under_way_is_recounted():
    "Positions count samples of the global order: what is left is divided anew, and nothing is seen twice."
    seen = []
    class Told(Dataset):
        def __len__(self): return 48
        def __getitem__(self, i): seen.append(i); return rows(48)[i]
    learn = make(data=Told(), num_train_epochs=1)
    learn.step(5)
    assert learn.state.max_steps == 12
    with learn.launch(2):
        assert learn.state.max_steps == 5 + 4 and learn.step(2)[-1].samples == 8 and learn.state.epoch == pytest.approx(4 / 6)
    assert learn.state.max_steps == 7 + 3 and learn.step(1)[0].samples == 4
    assert learn.train().global_step == 10
    order = torch.randperm(48, generator=torch.Generator().manual_seed(42)).tolist()
    assert seen == order[:20] + order[36:]   # the rest was read there
    assert [e["act"] for e in learn.journal] == ["launch", "close"]


def test_steps_are_not_taken_again_by_another_number_of_processes():
    "Not there what was done here, nor here what was done there, also where the snapshots in between are lost."
    learn = make()
    learn.step(5)
    with learn.launch(2):
        learn.step(4)
        assert learn.rewind(3).different == [] and learn.rewind(to=5).step == 5   # the state that went there
        with pytest.raises(ValueError, match="launch at step 5 .* belong to the notebook's process; learn.restore"): learn.rewind(2)
        learn.step(2)
        with pytest.raises(ValueError, match=r"launch at step 5 has moved the run, .*; learn.rewind\(to=5\) goes back that far, and"): learn.rewind(3)
        os.kill(pids(learn)[1], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="SIGKILL"): learn.step(1)
        learn.step(3)
        assert learn.rewind(2).different == []
        with pytest.raises(ValueError, match=r"rewind\(6\) cannot go back to step 2"): learn.rewind(6)
    learn.step(3)
    assert learn.rewind(2).different == []
    with pytest.raises(ValueError, match="close at step 8"): learn.rewind(2)


def test_the_global_batch_can_stay():
    learn = make(gradient_accumulation_steps=2)
    with learn.launch(2, keep_global_batch=True):
        assert learn.step(1)[0].samples == 8 and learn.state.max_steps == 18
        assert learn.run_on_all(lambda learn: learn.args.gradient_accumulation_steps) == [1, 1]
    assert learn.args.gradient_accumulation_steps == 2 and learn.step(1)[0].samples == 8
    with pytest.raises(ValueError, match="a batch of 8 samples .2 micro-batches of 4. cannot be divided among 3 processes"): learn.launch(3, keep_global_batch=True)
    with pytest.raises(ValueError, match="a batch of 4 samples .1 micro-batch of 4. cannot be divided among 3 processes"): make().launch(3, keep_global_batch=True)
    with learn.launch(2, keep_global_batch=True):   # under way, too
        assert learn.step(1)[0].samples == 8 and learn.state.max_steps == 18
        assert learn.rewind(1).step == 2 and learn.step(1)[0].samples == 8
    assert learn.args.gradient_accumulation_steps == 2 and learn.step(1)[0].samples == 8 and learn.state.max_steps == 18


class Numbers(IterableDataset):
    def __iter__(self): yield from rows(48)


class Ready:
    "Ready batches."
    def __iter__(self): return iter([tuple(torch.stack(o) for o in zip(*(rows(48)[i] for i in range(k, k + 4)))) for k in range(0, 48, 4)])
    def __len__(self): return 12


class ReadyLearner(Learner):
    def get_train_dataloader(self): return Ready()


@pytest.mark.parametrize("what", ["stream", "loader", "ready batches"])
def test_other_data(what):
    "Shared by the processes, as by one with larger batches."
    def run(size):
        settings = {"model": dict(norm=False, drop=0.0), "max_steps": 9, "per_device_train_batch_size": size}
        if what == "stream": return make(data=Numbers(), **settings)
        if what == "loader": return make(data=DataLoader(rows(48), batch_size=size), model=settings["model"], max_steps=9)
        return make(kind=ReadyLearner, **settings)
    many = run(4)
    many.launch(2, train=True)
    if what == "ready batches": alone = make(data=DataLoader(rows(48), batch_size=8), model=dict(norm=False, drop=0.0), max_steps=9)
    else: alone = run(8)
    alone.train()
    for a, b in zip(alone.model.parameters(), many.model.parameters()): torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)


def test_parameters_without_a_gradient_and_others_frozen():
    "Found out by the first step; who is frozen on the way is left out from then on."
    alone, many = (make(model=dict(norm=False, drop=0.0, spare=True), per_device_train_batch_size=size, layer_groups=["inward"]) for size in (8, 4))
    for learn in (alone, many):
        if learn is many: learn.launch(2)
        learn.step(2)
        learn.freeze(0)
        learn.step(2)
        learn.unfreeze(0)
        learn.step(2)
    many.close()
    for (name, a), b in zip(alone.model.named_parameters(), many.model.parameters()): torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6, msg=name)


class Scaled(torch.nn.Module):
    "A loss with a parameter of its own."
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.0))
    def forward(self, out, labels): return torch.nn.functional.cross_entropy(self.scale * out, labels)


def test_parameters_of_the_loss():
    "They are averaged as well, also after the model was wrapped anew."
    def run(size):
        torch.manual_seed(0)
        net, loss = Net(norm=False, drop=0.0), Scaled()
        return Learner(net, optimizers=(torch.optim.SGD([*net.parameters(), *loss.parameters()], lr=0.5), None), loss_func=loss, train_dataset=rows(48),
                       per_device_train_batch_size=size, max_steps=6, use_cpu=True, disable_tqdm=True)
    alone, many = run(8), run(4)
    for learn in (alone, many):
        if learn is many: learn.launch(2)
        learn.step(2)
        learn.freeze("inward")
        learn.step(2)
        learn.unfreeze("inward")
        learn.step(2)
    scales = many.run_on_all(lambda learn: learn.loss_func.scale.item())
    many.close()
    assert scales[0] == scales[1] == pytest.approx(alone.loss_func.scale.item(), rel=1e-5) and scales[0] != 1
    for a, b in zip(alone.model.parameters(), many.model.parameters()): torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)


# ---- the verbs

def test_a_condition_is_asked_in_the_kernel():
    "It sees what the kernel has, and stops at the very step."
    learn, wanted = make(), {"step": 4}
    with learn.launch(2):
        assert learn.run(until=lambda record: record.step == wanted["step"])[-1].step == 4 == learn.state.global_step
        assert learn.run_on_all(lambda learn: learn.state.global_step) == [4, 4]


def test_in_the_background(like):
    learn = make()
    with learn.launch(2):
        run = learn.start(steps=2)
        assert run.wait(60).global_step == 2
        assert run.step(3).wait(60).global_step == 5
        run.resume()
        run.pause()
        assert len(set(learn.run_on_all(lambda learn: learn.state.global_step))) == 1 and learn.run_on_all(lambda learn: learn.state.global_step)[0] == learn.state.global_step
        # the pause may have come after the last step
        if not learn.run_state.finished: run.resume().wait(60)
    same(like, learn)


def test_every_other_verb(tmp_path, like):
    "Tools leave no trace there either; what they find comes home."
    learn = make(output_dir=str(tmp_path), save_strategy="no")
    with learn.launch(2):
        learn.step(4)
        assert learn.lr_find(num_steps=12).rates[0] == pytest.approx(1e-7) and "inward" in repr(learn.inspect())
        learn.watch(every=2)
        assert len(learn.top_losses(2)) == 2 and "right" in repr(learn.confusion()) and "inward" in repr(learn.summary())
        learn.snapshot("here")
        learn.step(3)
        assert len(learn.watched.frame()) > 0
        learn.restore("here")
        learn.unwatch()
        assert learn.state.global_step == 4 and learn.snapshots["here"].step == 4
        folder, _ = learn.save_checkpoint(), learn.wait()
        assert folder.name == "checkpoint-4" and (tmp_path/"runs").exists()
        assert (learn.save_model(tmp_path/"model")/"model.safetensors").exists()
        assert "step 4" in repr(learn.dashboard())
        for refused in (learn.branch, learn.debug_step, learn.batch_size_find, lambda: learn.launch(2)):
            with pytest.raises(InvalidOperation, match="is not possible while the run is on 2 processes: learn.close.. first.$"): refused()
        # None would be taken for an optimizer that was not created yet
        for name, example in (("optimizer", r"optimizer.param_groups\[0\]\[.lr.\]"), ("lr_scheduler", "lr_scheduler.get_last_lr"), ("accelerator", "accelerator.mixed_precision")):
            with pytest.raises(InvalidOperation, match=f"^learn.{name} is in the 2 processes that have the run. .*learn.run_on_all.lambda learn: learn.{example}.*learn.close.. first"): getattr(learn, name)
        assert not hasattr(learn, "optimizer") and getattr(learn, "lr_scheduler", None) is None
        for name in ("compute_loss", "training_step", "_prepare_inputs", "loss_is_scaled_for_ga"):
            with pytest.raises(InvalidOperation, match=f"Replacing learn.{name} is not possible while the run is on 2 processes"): setattr(learn, name, lambda *args: None)
        there = learn.run_on_all(lambda learn: (learn.optimizer.param_groups[0]["lr"], learn.lr_scheduler.get_last_lr(), learn.accelerator.mixed_precision))
        assert there[0] == there[1] and there[0][0] > 0
        with pytest.raises(InvalidOperation, match="Replacing learn.train_dataset"): learn.train_dataset = rows(48)
        assert learn.get_num_trainable_parameters() > 0
        # once, at the line that reads it: no verb above has read the model as the user does
        with pytest.warns(UserWarning, match="weights of the launch") as warned: learn.model
        assert [w.filename for w in warned] == [__file__]
        learn.train()
    same(like, learn)
    assert {"launch", "checkpoint", "close"} <= {e["act"] for e in learn.journal}


def test_settings_and_callbacks(like):
    learn = make(num_train_epochs=1)
    class Counts(TrainerCallback):
        steps = 0
        def on_step_end(self, args, state, control, **kwargs): self.steps += 1
        def state(self): return {"args": {}, "attributes": {"steps": self.steps}}
    counts = Counts()
    with learn.launch(2):
        learn.add_callback(counts)
        learn.step(2)
        learn.set(num_train_epochs=3)
        assert learn.args.num_train_epochs == 3 and learn.state.max_steps == 18
        learn.step(2)
    assert counts.steps == 4
    learn.pop_callback(counts)
    learn.launch(2, train=True)
    assert learn.state.global_step == 18 and learn.args.num_train_epochs == 3


def test_prints_come_home_in_whole_lines(capfd):
    class Says(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): print("step", state.global_step, "on", os.environ["RANK"])
    learn = make(callbacks=[Says()])
    with learn.launch(2): learn.step(2)
    assert [o for o in capfd.readouterr().out.splitlines() if o.startswith("step")] == ["step 1 on 0", "step 2 on 0"]


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_checkpoints_are_resumed_on_as_many(tmp_path, likes, n):
    first = make(output_dir=str(tmp_path), save_steps=5)
    with first.launch(n): first.step(11)
    second = make(output_dir=str(tmp_path), save_steps=5)
    with second.launch(n):
        second.train(resume_from_checkpoint=True)
    second.state.save_steps, second.state.best_model_checkpoint = likes(n).state.save_steps, None
    same(likes(n), second)


# ---- errors and deaths


@pytest.mark.parametrize("n, ranks", [(2, "1"), (2, "01"), pytest.param(3, "2", marks=pytest.mark.slow)])
def test_an_error_on_a_rank_is_raised_as_it_is(tmp_path, likes, n, ranks):
    "With its traceback there; the run is as before the step, and goes on."
    bad = tmp_path/"bad"
    learn = make(data=Fails(bad, ranks))
    with learn.launch(n):
        learn.step(4)
        bad.touch()
        with pytest.raises(OSError, match="no such picture") as raised: learn.step(2)
        notes = "\n".join(raised.value.__notes__)
        assert any(f"rank {rank}" in notes for rank in ranks) and "__getitem__" in notes and "closed by peer" not in notes and "call learn.close(), repair the data" in notes
        assert learn.state.global_step == 4 and len(learn.history) == 4
        bad.unlink()
        learn.train()
    same(likes(n), learn)


def test_an_error_behind_the_commit_of_one_rank(like):
    "The others are a step ahead, or on their way: all are brought to the same one."
    class Breaks(TrainerCallback):
        order = 50
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 7 and os.environ.get("RANK") == "1" and not os.path.exists(path): open(path, "w").close(); raise ValueError("a callback broke")
    path = f"/tmp/trainer_nb-broke-{os.getpid()}"
    learn = make(callbacks=[Breaks()])
    try:
        with learn.launch(2):
            with pytest.raises(ValueError, match="a callback broke"): learn.train()
            assert len(set(learn.run_on_all(lambda learn: learn.state.global_step))) == 1
            learn.train()
    finally: os.path.exists(path) and os.unlink(path)
    same(like, learn)


@pytest.mark.parametrize("rank, when", [(0, "busy"), (1, "idle")])
def test_a_process_that_is_killed(like, rank, when):
    learn = make(num_train_epochs=3)
    with learn.launch(2):
        learn.step(5)
        victims = pids(learn)
        if when == "idle":
            os.kill(victims[rank], signal.SIGKILL)
            time.sleep(0.2)
        else:
            class Slow(TrainerCallback):
                def on_step_begin(self, args, state, control, **kwargs): time.sleep(0.05)
            learn.add_callback(Slow())
            threading.Thread(target=lambda: (time.sleep(0.2), os.kill(victims[rank], signal.SIGKILL))).start()
        with pytest.raises(RuntimeError, match=f"rank {rank} was killed by SIGKILL"): learn.train()
        assert all(map(is_gone, victims)) and len(learn.history) >= learn.state.global_step >= 5
        if when == "busy": learn.pop_callback(Slow)
        learn.train()
    same(like, learn)


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_it_goes_on_by_itself(likes, n):
    learn = make()
    with learn.launch(n, max_restarts=1):
        learn.step(5)
        os.kill(pids(learn)[1], signal.SIGKILL)
        with pytest.warns(UserWarning, match="rank 1 was killed by SIGKILL.*after step 5. The run is as it was before the step, and continues automatically .max_restarts allows 0 more"): learn.train()
        assert "restart" in [e["act"] for e in learn.journal]
    same(likes(n), learn)


def test_a_step_that_fails_alike_on_all(tmp_path, like):
    "Nothing has to be started again for that."
    bad = tmp_path/"bad"
    learn = make(data=Fails(bad, "01"))
    with learn.launch(2):
        learn.step(4)
        before = pids(learn)
        bad.touch()
        for _ in range(2):
            with pytest.raises(OSError): learn.train()
        bad.unlink()
        learn.train()
        assert pids(learn) == before
    same(like, learn)


# ---- what cannot be, and what is left

def test_what_cannot_be_launched(tmp_path, monkeypatch):
    learn = make()
    with pytest.raises(ValueError, match="^On a CPU launch.. needs the number of processes: learn.launch.num_processes=2..$"): learn.launch()
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ValueError, match="started this process alone .WORLD_SIZE=1.; let it start several, as torchrun"): learn.launch()
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ValueError, match="from 1 on"): learn.launch(0)
    with pytest.raises(TypeError, match="whole number"): learn.launch("two")
    with pytest.raises(ValueError, match="fork|spawn"): learn.launch(2, start="thread")
    with open(__file__) as file:
        held = make(data=Fails(tmp_path, ""))
        held.train_dataset.file = file
        with pytest.raises(ValueError, match="the learner's train_dataset cannot be sent there: its attribute `file`"): held.launch(2, start="spawn")
        assert held.step(1)[0].step == 1     # it is here, and goes on
    with pytest.raises(ValueError, match="fp16"): make(fp16=True).launch(2, train=True)
    with pytest.raises(InvalidOperation, match="middle|inside|is running"): make(callbacks=[Launches()]).step(1)


class Launches(TrainerCallback):
    def on_step_begin(self, args, state, control, learner, **kwargs): learner.launch(2)


def resident():
    "MB of this process in memory."
    with open("/proc/self/statm") as f: return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def target_of(fd: str):
    "What a file descriptor of this process is open on; None if it is closed by now."
    try: return os.readlink(f"/proc/self/fd/{fd}")
    except OSError: return None


@pytest.mark.parametrize("times", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_nothing_is_left(tmp_path, monkeypatch, times):
    "Processes, threads, files, shared memory; and, over many launches, memory."
    importlib.import_module("torch._dynamo")   # which makes a folder of its own when it is imported
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    def state():
        "Threads, open files by kind, folders, shared memory. What is open is named, so that a failure says what was left."
        files = collections.Counter(re.sub(r"\d+", "", target) for target in map(target_of, os.listdir("/proc/self/fd")) if target is not None)
        return sorted(re.sub(r"\d+", "", t.name) for t in threading.enumerate()), files, os.listdir(tmp_path), [o for o in os.listdir("/dev/shm") if f"-{os.getpid()}-" in o]
    def once():
        learn = make()
        with learn.launch(2, start="fork"):
            learn.step(1)
            found = pids(learn)
        assert all(map(is_gone, found))
    def settled():
        "The state when nothing is about to end: a thread may be on its last line, and hold a connection."
        for _ in range(100):
            gc.collect()
            found = state()
            time.sleep(0.1)
            gc.collect()
            if state() == found: return found
        raise AssertionError("threads or files come and go")
    once()
    before = settled()
    assert before[2:] == ([], [])
    held = []
    for i in range(times):
        once()
        gc.collect()
        held.append(resident())
    for _ in range(200):
        gc.collect()   # what a thread leaves behind that ended after the last collection may be a cycle, and hold a connection
        if state() == before: break   # a thread may be on its last line
        time.sleep(0.1)
    assert state() == before
    if times > 10: assert held[-1] - held[times // 2] < 10, held


def test_a_learner_that_is_forgotten_or_freed():
    learn = make()
    learn.launch(2)
    found = pids(learn)
    learn.free()
    assert all(map(is_gone, found)) and learn.processes is None
    learn = make()
    learn.launch(2)
    found = pids(learn)
    del learn
    gc.collect()
    assert all(map(is_gone, found))


def test_a_rate_is_found_and_applied_there():
    "Trials leave no trace on any process; apply() sets the rate on all of them, and is recorded."
    learn = make(num_train_epochs=2)
    with learn.launch(2):
        learn.step(2)
        before = learn.run_on_all(lambda learn: [p.sum().item() for p in learn.model.parameters()])
        found = learn.lr_find(num_steps=12, start=1e-4, end=1)
        assert len(found.trials) > 1 and found.steps == len(found.rates) + sum(trial.steps for trial in found.trials)
        assert learn.run_on_all(lambda learn: [p.sum().item() for p in learn.model.parameters()]) == before
        found.suggestion = 0.02   # whatever the trials say
        found.apply()
        assert found.setting[0] == "lr" and learn.run_on_all(lambda learn: learn.optimizer.param_groups[0]["lr"]) == [pytest.approx(0.02)] * 2
    assert "set" in [e["act"] for e in learn.journal]


def test_close_pauses_a_run_in_the_background():
    "Otherwise it would go on here, in one process; also at the end of a with block."
    learn = make(num_train_epochs=500)
    try:
        learn.launch(2)
        run = learn.start(until=lambda record: False)
        while learn.state.global_step < 3: time.sleep(0.01)
        learn.close()
        step = learn.state.global_step
        assert "paused after step" in run.status and learn.processes is None
        time.sleep(0.3)
        assert learn.state.global_step == step
        with pytest.raises(KeyError), learn.launch(2):
            learn.start()
            raise KeyError("in the block")
        step = learn.state.global_step
        time.sleep(0.3)
        assert learn.state.global_step == step and "paused" in run.status
        learn.step(1)
        assert learn.state.global_step == step + 1
    finally: learn.close()
