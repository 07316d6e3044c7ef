"n steps in one go equal any split of them, byte for byte: over verbs, snapshots, tools, kinds of data, workers, and other learners in between."
import collections, contextlib, dataclasses, random, sys, types

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, WeightedRandomSampler, get_worker_info

import trainer_nb.engine.run_state, trainer_nb.engine.snapshot_fields
from trainer_nb import Learner, InvalidOperation, TrainerCallback, differences
from toys import SETTINGS, Augmented, Hard, accuracy, collate, finish, hard_learner, hard_model, outcome, told, unequal


pytestmark = pytest.mark.usefixtures("one_thread")


# --- splits ------------------------------------------------------------------------------------------------------------

def by_ones(learn):
    while not learn.run_state.finished: learn.step()


def by_numbers(learn):
    learn.step(2); learn.step(5); learn.train()


def by_epochs(learn):
    learn.run(epochs=1); assert learn.state.epoch == 1
    learn.run(epochs=0.5); learn.run(epochs=1); learn.run(until=lambda record: record.step >= 8); learn.train()


def by_loops(learn):
    for stop in (2, 5, 7):
        for record in learn.steps():
            if record.step == stop: break
    learn.train()


def by_moves(learn):
    while not learn.run_state.finished:
        step = learn.debug_step()
        for _ in range(step.substeps):
            noise(); step.forward(); noise(); step.backward().grads(); noise()
        step.update()


def by_moves_given_up(learn):
    learn.step()
    step = learn.debug_step(); step.forward(); step.backward(); step.abort()
    learn.step()
    with learn.debug_step() as step: step.forward()
    learn.train()


def by_pauses(learn):
    class Pauses(TrainerCallback):
        def on_step_end(self, args, state, control, learner, **kwargs): learner.pause()
    pauses = Pauses()
    learn.add_callback(pauses)
    for step in (1, 2): learn.train(); assert learn.state.global_step == step
    learn.remove_callback(pauses)
    learn.train()


def by_snapshots(learn):
    learn.step(); learn.snapshot("a")
    learn.step(3); learn.restore("a")
    learn.step(2); learn.snapshot("b")
    learn.step(5); learn.restore("b"); learn.restore("a"); learn.step(4); learn.restore("b"); learn.train()


def from_the_end(learn):
    first = learn.snapshot()
    learn.train(); learn.restore(first); learn.train()


def after_reset(learn):
    learn.step(4); learn.reset(); learn.train(); learn.reset(); learn.train()


def noise():
    "What a cell may do to the generators."
    torch.manual_seed(9); np.random.seed(1); random.seed(2)
    torch.rand(7), np.random.rand(3), random.random()


def among_cells(learn):
    while not learn.run_state.finished:
        learn.model.eval(); learn.step(); noise()   # an eval() after the last step would count as a difference


def among_tools(learn):
    while not learn.run_state.finished:
        learn.step(); noise()
        learn.predict(Augmented(10)); learn.summary(); learn.show_batch(); learn.top_losses(2, Augmented(10)); noise()


def among_evaluations(learn):
    while not learn.run_state.finished: learn.step(); learn.evaluate(Augmented(10))
    learn.state.log_history[:] = [row for row in learn.state.log_history if "eval_loss" not in row]


def after_other_settings(learn):
    learn.step(2); learn.snapshot("a")
    learn.set(per_device_train_batch_size=2, gradient_accumulation_steps=2, lr=3e-3, max_steps=50, weight_decay=0.1, logging_steps=1)
    learn.step(5); learn.restore("a"); learn.train()


def after_freezing(learn):
    learn.step(2); learn.snapshot("a"); learn.freeze("inner", "norm"); learn.step(2); learn.restore("a"); learn.train()


def with_workers_now_and_then(learn):
    learn.step(2); learn.set(dataloader_num_workers=2); learn.step(2); learn.set(dataloader_num_workers=0); learn.train()


SPLITS = [by_ones, by_numbers, by_epochs, by_loops, by_moves, by_moves_given_up, by_pauses, by_snapshots, from_the_end, after_reset,
          among_cells, among_tools, among_evaluations, after_other_settings, after_freezing, with_workers_now_and_then]
LOADED = ([(split, "") for split in SPLITS] +
          [(split, "workers") for split in (by_numbers, by_loops, by_moves, by_snapshots, from_the_end, after_reset, among_tools, after_other_settings)] +
          [(split, "persistent workers") for split in (by_snapshots, from_the_end, after_other_settings)])


@pytest.fixture(scope="module")
def whole(): return finish(hard_learner(num_train_epochs=3))


@pytest.mark.parametrize("split, workers", LOADED, ids=lambda o: o or "none" if isinstance(o, str) else o.__name__)
def test_split(whole, split, workers):
    "Whatever the split, and however the data is loaded: the same bytes."
    loading = {"dataloader_num_workers": 2, "dataloader_persistent_workers": workers == "persistent workers"} if workers else {}
    learn = hard_learner(num_train_epochs=3, **loading)
    split(learn)
    assert unequal(outcome(learn), whole, ignore=["args"]) == []


def test_every_split_in_two_by_snapshot():
    "From each of 30 steps, and from before the first: in the same learner, in any order, and in a new one."
    learn, taken = hard_learner(num_train_epochs=10, logging_steps=4), []
    taken.append(learn.snapshot())
    while not learn.run_state.finished:
        learn.step()
        taken.append(learn.snapshot())
    want = outcome(learn)
    assert [s.step for s in taken] == [*range(31)]
    for step in random.Random(0).sample(range(31), 31):
        other = hard_learner(num_train_epochs=10, logging_steps=4)
        for one in (learn, other):
            one.restore(taken[step])
            assert one.state.global_step == step and differences(taken[step], one.snapshot()) == []
            if not one.run_state.finished: one.train()
        assert unequal(outcome(learn), want) == [], step
        found = outcome(other)
        first = next((i for i, row in enumerate(want[2]) if row["step"] > step), 0)   # the mean over steps of which it knows the later ones; so is train_loss
        def logs(rows): return [{k: v for k, v in row.items() if k != "train_loss" and (i != first or k != "loss")} for i, row in enumerate(rows)]
        assert differences(found[0], want[0]) == [] and logs(found[2]) == logs(want[2]), step
        assert other.history.column("step").tolist() == [*range(step + 1, 31)]   # what was before is another run's


def test_two_runs_differ():
    "The comparison can fail: another seed, another order of the data, one more step."
    base = finish(hard_learner())
    for other in (dict(seed=1), dict(data_seed=1), dict(num_train_epochs=3), dict(dataloader_drop_last=True)):
        assert "weights/inner.weight" in unequal(finish(hard_learner(**other)), base), other


def test_draws_differ():
    "Reproducible is not the same as equal: no two micro-batches draw the same dropout, no two fetches the same noise."
    masks, noise = [], []
    class Draws(Hard):
        def forward(self, x, labels=None):
            masks.append(tuple(torch.rand(8).tolist()))
            return super().forward(x, labels)
    class Fetches(Augmented):
        def __getitem__(self, i):
            row = super().__getitem__(i)
            noise.append(tuple((row["x"] - self.x[i]).tolist()))
            return row
    hard_learner(model=Draws(), train_dataset=Fetches()).train()
    assert len(set(masks)) == len(masks) == 16 and len(set(noise)) == len(noise) == 60


def test_events_of_any_split():
    "The callbacks hear the same events at the same steps."
    def heard(split):
        listener = told()
        split(hard_learner(num_train_epochs=3, callbacks=[listener]))
        return [h for h in listener.heard if h[0] not in ("on_pause", "on_resume")]
    want = heard(lambda learn: learn.train())
    for split in (by_ones, by_numbers, by_epochs, by_loops, by_moves, by_pauses, among_cells): assert heard(split) == want, split


class Langevin(torch.optim.SGD):
    "An optimizer that draws noise."
    @torch.no_grad()
    def step(self):
        super().step()
        for group in self.param_groups:
            for p in group["params"]: p.add_(0.01 * torch.randn_like(p))


@pytest.mark.parametrize("split", [by_ones, by_moves, by_snapshots, among_tools], ids=lambda split: split.__name__)
def test_noisy_optimizer(split):
    "Noise that the optimizer draws is a function of the place, too."
    def make(): return hard_learner(num_train_epochs=3, optimizer_cls_and_kwargs=(Langevin, {"lr": 0.01}))
    learn = make()
    split(learn)
    assert unequal(outcome(learn), finish(make())) == []


@pytest.mark.parametrize("given", [dict(optim="sgd"), dict(optim="adafactor"), dict(lr_scheduler_type="one_cycle"), dict(max_grad_norm=0.0), dict(bf16=True),
                                   dict(rollback="full"), dict(weight_decay=0.1), dict(max_steps=7), dict(num_train_epochs=1.5), dict(logging_strategy="epoch")],
                         ids=str)
def test_split_of_other_settings(given):
    want = finish(hard_learner(**given))
    learn = hard_learner(**given)
    learn.step(); learn.snapshot("a"); learn.step(3); learn.restore("a"); learn.step(2)
    step = learn.debug_step()
    for _ in range(step.substeps): step.forward(); step.backward()
    step.update()
    learn.train()
    assert unequal(outcome(learn), want) == []


def test_evaluations_on_the_way():
    "Evaluations that the settings ask for come at the same steps with the same numbers, and a schedule that waits for them goes on."
    def make():
        model = hard_model()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        return hard_learner(model=model, optimizers=(optimizer, plateau), num_train_epochs=4, eval_dataset=Augmented(10), compute_metrics=accuracy,
                            eval_strategy="steps", eval_steps=2, metric_for_best_model="loss")
    want = finish(make())
    assert len({row["learning_rate"] for row in want[2] if "learning_rate" in row}) > 1
    for split in (by_ones, by_numbers, by_loops, by_snapshots, from_the_end):
        learn = make()
        split(learn)
        assert unequal(outcome(learn), want) == [], split


# --- kinds of data -----------------------------------------------------------------------------------------------------

class Stream(IterableDataset):
    "A stream with a shuffle buffer that uses python's generator; workers share it."
    def __init__(self, n=30): self.n = n
    def __iter__(self):
        info, rows, buffer = get_worker_info(), Augmented(self.n), []
        for i in range(info.id if info else 0, self.n, info.num_workers if info else 1):
            buffer.append(rows[i])
            if len(buffer) > 5: yield buffer.pop(random.randrange(len(buffer)))
        random.shuffle(buffer)
        yield from buffer


class Sized(Stream):
    def __len__(self): return self.n


class Several(Augmented):
    "Gives a whole batch for a list of indices."
    def __getitem__(self, i): return collate([super(Several, self).__getitem__(j) for j in i])


class Loading(Learner):
    "A learner whose training data comes from a function of it."
    loader = None
    def get_train_dataloader(self): return type(self).loader(self)


def loading(function): return type("Loading", (Loading,), {"loader": staticmethod(function)})


def how(learn): return dict(batch_size=learn.args.train_batch_size, collate_fn=collate, num_workers=learn.args.dataloader_num_workers)


def weighted(learn): return DataLoader(learn.train_dataset, sampler=WeightedRandomSampler([1.0] * 29 + [9.0], 30), **how(learn))


def with_generator(learn): return DataLoader(learn.train_dataset, sampler=RandomSampler(learn.train_dataset, generator=torch.Generator()), **how(learn))


def batch_sampled(learn):
    parts = how(learn)
    return DataLoader(learn.train_dataset, batch_sampler=BatchSampler(RandomSampler(learn.train_dataset), parts.pop("batch_size"), False), **parts)


def unbatched(learn): return DataLoader(Several(), batch_size=None, sampler=BatchSampler(RandomSampler(range(30)), 4, False))


class Batches:
    "Any iterable of batches; draws its order and its noise as it goes."
    def __len__(self): return 8
    def __iter__(self):
        rows, order = Augmented(), torch.randperm(30).tolist()
        for start in range(0, 30, 4): yield collate([rows[i] for i in order[start:start + 4]])


def hf_stream():
    datasets = pytest.importorskip("datasets")
    def rows(shards):
        x = Augmented().x
        for shard in shards:
            for i in range(15 * shard, 15 * shard + 15): yield {"x": x[i].tolist(), "labels": int(x[i].sum() > 0)}
    def noisy(row): return {"x": [v + 0.1 * random.random() for v in row["x"]]}
    return datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1]}).shuffle(seed=3, buffer_size=8).map(noisy)


def hf_table():
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_list([{"x": x.tolist(), "labels": int(x.sum() > 0), "text": "left out"} for x in Augmented().x])


def collate_lists(rows): return {"x": torch.tensor([r["x"] for r in rows]) + 0.01 * torch.rand(len(rows), 4), "labels": torch.tensor([r["labels"] for r in rows])}


class Plain(nn.Module):
    "A model without a loss, for one or two inputs."
    def __init__(self): super().__init__(); self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
    def forward(self, x): return self.layers(x)


def plain():
    torch.manual_seed(0)
    return Plain()


def far(output, x): return (output.sum(1) - x.sum(1)).square().mean()


class Pairs(Augmented):
    def __getitem__(self, i): return tuple(super().__getitem__(i).values())[:2]


class Singles(Augmented):
    def __getitem__(self, i): return super().__getitem__(i)["x"]


DATA = {
    "stream": lambda: dict(train_dataset=Stream(), max_steps=9),
    "stream with a length": lambda: dict(train_dataset=Sized(), num_train_epochs=3),
    "datasets' stream": lambda: dict(train_dataset=hf_stream(), max_steps=9, data_collator=collate_lists),
    "datasets' table": lambda: dict(train_dataset=hf_table(), data_collator=collate_lists),
    "ready loader": lambda: dict(train_dataset=DataLoader(Augmented(), batch_size=4, shuffle=True, collate_fn=collate)),
    "ready loader over a stream": lambda: dict(train_dataset=DataLoader(Stream(), batch_size=4, collate_fn=collate), max_steps=9),
    "weighted": lambda: dict(cls=loading(weighted)),
    "sampler with a generator": lambda: dict(cls=loading(with_generator)),
    "batch sampler": lambda: dict(cls=loading(batch_sampled)),
    "unbatched": lambda: dict(cls=loading(unbatched)),
    "any iterable": lambda: dict(cls=loading(lambda learn: Batches())),
    "pairs": lambda: dict(model=plain(), train_dataset=Pairs(), loss_func=nn.functional.cross_entropy, data_collator=None),
    "single tensors": lambda: dict(model=plain(), train_dataset=Singles(), loss_func=far, data_collator=None),
}
ORDERED_BY_WORKERS = ("stream", "datasets' stream", "stream with a length")


WITHOUT_WORKERS = ("unbatched", "any iterable", "ready loader", "ready loader over a stream")   # they do not ask the settings


@pytest.mark.parametrize("kind, workers", [(kind, n) for kind in DATA for n in (0, 2) if not (n and kind in WITHOUT_WORKERS)])
def test_data(kind, workers):
    "Every kind of data can be split, and gone back in; map-style data is the same with and without workers."
    def make(n): return hard_learner(**DATA[kind]() | ({"dataloader_num_workers": n} if n else {}))
    want, learn = finish(make(workers)), make(workers)
    learn.step(2); noise(); learn.snapshot("a"); learn.step(4); learn.restore("a"); learn.run(epochs=1); learn.step(); learn.train()
    assert unequal(outcome(learn), want) == []
    if workers and kind not in ORDERED_BY_WORKERS: assert unequal(want, finish(make(0)), ignore=["args"]) == []


@pytest.mark.parametrize("kind", ["stream", "datasets' stream", "stream with a length", "any iterable", "ready loader over a stream"])
def test_end_of_a_stream(kind):
    "An epoch of a stream ends with its last step, as that of a list does: its events come then, not at the next step."
    heard = told()
    learn = hard_learner(**DATA[kind]() | {"callbacks": [heard], "logging_strategy": "no"})
    assert len(learn.run(epochs=1)) == 3 and heard.heard[-1] == ("on_epoch_end", 3) and learn.run_state.cursor == (1, 0)
    learn.step()
    assert heard.heard.count(("on_epoch_begin", 3)) == 1


def test_ready_loader_with_workers():
    "A ready DataLoader's own workers change nothing."
    def loader(n): return DataLoader(Augmented(), batch_size=4, shuffle=True, collate_fn=collate, num_workers=n)
    assert unequal(finish(hard_learner(train_dataset=loader(2))), finish(hard_learner(train_dataset=loader(0)))) == []


# --- settings that are changed in mid-epoch ----------------------------------------------------------------------------

class Remembers(nn.Module):
    "Remembers what it was trained on."
    def __init__(self): super().__init__(); self.w, self.batches = nn.Parameter(torch.zeros(1)), []
    def forward(self, x):
        self.batches.append(x.tolist())
        return {"loss": (self.w * x).mean()}


class Numbers(IterableDataset):
    def __iter__(self): return ({"x": float(i)} for i in range(37))


class SizedNumbers(Numbers):
    def __len__(self): return 37


NUMBERS = [{"x": float(i)} for i in range(37)]


def remembering(data=NUMBERS, **given):
    return Learner(Remembers(), train_dataset=data, **dict(per_device_train_batch_size=4, num_train_epochs=2, learning_rate=0.1, use_cpu=True, disable_tqdm=True) | given)


def epochs_of(learn):
    "The samples of each epoch, sorted."
    flat = [v for batch in learn.model.batches for v in batch]
    return [sorted(flat[i:i + 37]) for i in range(0, len(flat), 37)]


@pytest.mark.parametrize("data, given", [(NUMBERS, {}), (NUMBERS, {"dataloader_num_workers": 2}), (SizedNumbers(), {}), (Numbers(), {"max_steps": 12})], ids=["list", "workers", "sized stream", "stream"])
def test_batch_size_in_mid_epoch(data, given):
    "Every sample of the epoch is seen exactly once, whatever the batches; going back in time and a failed step change nothing of that."
    learn = remembering(data, **given)
    learn.step(3)
    learn.set(per_device_train_batch_size=7)
    learn.step(2)
    learn.set(gradient_accumulation_steps=3)
    learn.snapshot("a")
    seen = len(learn.model.batches)
    learn.step()
    learn.restore("a")
    del learn.model.batches[seen:]
    learn.train()
    assert all(epoch == [float(i) for i in range(37)] for epoch in epochs_of(learn)[:2])
    if not given.get("max_steps"): assert len(epochs_of(learn)) == 2 and learn.state.epoch == 2
    assert {7, 4} <= {len(b) for b in learn.model.batches}


def test_a_ready_loader_keeps_its_batch_size():
    "A setting that it leaves without effect is said to have none, and cannot be set."
    learn = remembering(DataLoader(NUMBERS, batch_size=4, shuffle=True), per_device_train_batch_size=16)
    with pytest.warns(UserWarning, match="no effect"): learn.step(3)
    with pytest.raises(ValueError, match="DataLoader, which has its own"): learn.set(per_device_train_batch_size=7)
    learn.train()
    assert all(epoch == [float(i) for i in range(37)] for epoch in epochs_of(learn))


def test_steps_are_counted_anew():
    "max_steps follows from what is left: 25 samples in batches of 7 and windows of 2, then an epoch of 37."
    learn = remembering()
    assert learn.step(3) and learn.state.max_steps == 20
    learn.set(per_device_train_batch_size=7)
    assert learn.state.max_steps == 3 + 4 + 6
    learn.set(gradient_accumulation_steps=2)
    assert learn.state.max_steps == 3 + 2 + 3
    learn.train()
    assert learn.state.global_step == 8 and learn.optimizer.param_groups[0]["lr"] == 0


def test_smaller_batch_after_a_failure():
    "After a step that failed (memory ran out, say), its samples are cut anew as well."
    class Limited(Remembers):
        def forward(self, x):
            if len(x) > 4: raise torch.OutOfMemoryError("a batch too many")
            return super().forward(x)
    learn = remembering(per_device_train_batch_size=8)
    learn.model = Limited()
    with pytest.raises(torch.OutOfMemoryError): learn.train()
    learn.set(per_device_train_batch_size=4, gradient_accumulation_steps=2)
    learn.train()
    assert epochs_of(learn) == [[float(i) for i in range(37)]] * 2 and learn.state.global_step == 10


def test_streams_read_by_workers_cannot_be_cut_anew():
    "Nobody would know which worker has read what; at the end of an epoch it can be done."
    learn = remembering(Numbers(), max_steps=30, dataloader_num_workers=2)
    learn.step(2)
    for change in (dict(per_device_train_batch_size=7), dict(dataloader_num_workers=0)):
        with pytest.raises(ValueError, match="middle of an epoch of a stream.*learn.run"): learn.set(**change)
    learn.run(epochs=1)
    learn.set(per_device_train_batch_size=7)
    learn.step(2)


def test_prolong():
    "A finished run is extended; the schedule is stretched to the new length, from where it stands."
    learn = remembering()
    learn.train()
    with pytest.raises(InvalidOperation, match=r"set\(max_steps"): learn.step()
    learn.set(max_steps=25)
    assert learn.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 5 / 25)
    learn.train()
    assert learn.state.global_step == 25 and learn.state.epoch == 2.5 and learn.optimizer.param_groups[0]["lr"] == 0
    learn.set(num_train_epochs=4, max_steps=-1)
    learn.train()
    assert learn.state.global_step == 40 and epochs_of(learn) == [[float(i) for i in range(37)]] * 4


def test_prolonged_equals_long():
    "With a constant rate, a run of two epochs that is extended to three is a run of three."
    want = finish(hard_learner(num_train_epochs=3, lr_scheduler_type="constant", logging_strategy="no"))
    learn = hard_learner(num_train_epochs=2, lr_scheduler_type="constant", logging_strategy="no")
    learn.train(); learn.set(num_train_epochs=3); learn.train()
    assert unequal(outcome(learn)[:2] + ([],), want[:2] + ([],), ignore=["logged", "schedule_steps"]) == []


def test_shorten():
    "A run may be ended where it stands, not before."
    learn = remembering()
    learn.step(12)
    with pytest.raises(ValueError, match="lies behind"): learn.set(max_steps=11)
    with pytest.raises(ValueError, match="has done 12"): learn.set(num_train_epochs=1)
    assert learn.state.max_steps == 20
    learn.set(max_steps=12)
    learn.train()
    assert learn.state.global_step == 12 and learn.run_state.finished


def test_rate():
    "lr= is what the next step uses, and the rest of the schedule is scaled; learning_rate= is the schedule's base."
    learn = remembering(num_train_epochs=1)
    learn.step(5)
    learn.set(lr=0.02)
    assert [r.learning_rate for r in learn.step(5)] == pytest.approx([0.02, 0.016, 0.012, 0.008, 0.004])
    learn = remembering(num_train_epochs=1)
    learn.step(5)
    learn.set(learning_rate=0.02)
    assert [r.learning_rate for r in learn.step(2)] == pytest.approx([0.01, 0.008])


def test_rate_as_a_tensor():
    "A learning rate that is a tensor is logged as it was, not as the schedule left it."
    model = hard_model()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=torch.tensor(0.1))
    learn = hard_learner(model=model, optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))))
    learn.step(3)
    assert learn.history.column("learning_rate").tolist() == pytest.approx([0.1, 0.05, 0.1 / 3])
    learn.snapshot("a"); want = [r.learning_rate for r in learn.step(2)]
    learn.restore("a")
    assert [r.learning_rate for r in learn.step(2)] == want and differences(learn.snapshot(), learn.snapshot()) == []


# --- what a snapshot holds ---------------------------------------------------------------------------------------------

def test_mean_of_a_log_after_going_back():
    "A log that follows a restore covers the same steps as it would have."
    want = finish(hard_learner(num_train_epochs=4, logging_steps=5))
    learn = hard_learner(num_train_epochs=4, logging_steps=5)
    learn.step(3); learn.snapshot("a"); learn.step(4); learn.restore("a"); learn.step(1); learn.restore("a"); learn.train()
    assert unequal(outcome(learn), want) == []


def test_parameters_of_a_loss():
    "Parameters that only the optimizer knows belong to the run: trained, freed of gradients, put back."
    class Center(nn.Module):
        def __init__(self): super().__init__(); self.centers = nn.Parameter(torch.zeros(3, 3))
        def forward(self, output, labels): return (output - self.centers[labels]).square().mean()
    def make():
        model, loss = plain(), Center()
        optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=0.01)
        return hard_learner(model=model, train_dataset=Pairs(), data_collator=None, loss_func=loss, optimizers=(optimizer, None)), loss
    learn, loss = make()
    want = finish(learn), loss.centers.detach().clone()
    learn, loss = make()
    learn.step(2); learn.snapshot("a"); learn.step(2)
    assert loss.centers.grad is None
    learn.restore("a")
    got = finish(learn), loss.centers.detach().clone()
    assert unequal(got[0], want[0]) == [] and torch.equal(got[1], want[1]) and want[1].abs().sum() > 0
    learn.reset()
    assert loss.centers.abs().sum() == 0


def execute(source, monkeypatch):
    "Run a module's source, as a module of its own."
    module = types.ModuleType("trainer_nb.engine.broken")
    module.__package__ = "trainer_nb.engine"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source, "broken.py", "exec"), vars(module))


def test_a_field_without_a_kind_is_refused(monkeypatch):
    "A new field of RunState without a kind raises an error when the module is imported, and a name that is no field where it is set."
    with pytest.raises(AttributeError): hard_learner().run_state.discard("backups")
    source = open(trainer_nb.engine.run_state.__file__).read()
    assert source.count("    begun: bool = value_field") == 1
    broken = source.replace("    begun: bool = value_field", "    forgotten: int = 0\n    begun: bool = value_field")
    with pytest.raises(TypeError, match="RunState.forgotten has no kind"): execute(broken, monkeypatch)


def test_a_kept_field_without_a_keeper_is_refused(monkeypatch):
    "And so does one that is to be kept, if nobody keeps it."
    @dataclasses.dataclass
    class More(trainer_nb.engine.run_state.RunState):
        forgotten: object = trainer_nb.engine.run_state.kept_field()
    monkeypatch.setattr(trainer_nb.engine.run_state, "RunState", More)
    source = open(trainer_nb.engine.snapshot_fields.__file__).read()
    with pytest.raises(TypeError, match="A kept field of RunState has no keeper"): execute(source, monkeypatch)


def test_a_value_is_copied():
    "A value field of the run state and a counter are copied into a snapshot, and out of it."
    learn = hard_learner()
    learn.step()
    taken = learn.snapshot()
    assert {"cursor", "samples"} < learn.run_state.values().keys() <= taken.values.keys()
    learn.step()
    learn.restore(taken)
    assert all(now == taken.values[name] for name, now in learn.run_state.values().items())
    learn.state.log_history.append("mine")
    assert "mine" not in taken.values["state"].log_history


# --- learners among each other -----------------------------------------------------------------------------------------

def test_taking_turns():
    "Learners of different precision, step by step and one inside the other's callbacks, end as each alone."
    given = [dict(bf16=True), dict(), dict(bf16=True, seed=3)]
    want = [finish(hard_learner(**g)) for g in given]
    assert "weights/inner.weight" in unequal(want[0], want[1])
    learners = [hard_learner(**g) for g in given]
    while not learners[0].run_state.finished:
        for learn in learners: learn.step()
    assert [unequal(outcome(learn), w) for learn, w in zip(learners, want)] == [[]] * 3
    inner = hard_learner()
    class Within(TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            if not inner.run_state.finished: inner.step()
    assert unequal(finish(hard_learner(bf16=True, callbacks=[Within()])), want[0]) == [] and unequal(outcome(inner), want[1]) == []


def test_bf16_learns():
    "bf16 reaches the layers, and the loss goes down."
    seen = set()
    learn = remembering_classes(bf16=True)
    learn.model.layers[0].register_forward_hook(lambda module, inputs, out: seen.add(out.dtype))
    learn.train()
    losses = learn.history.column("loss")
    assert seen == {torch.bfloat16} and losses[-5:].mean() < 0.6 * losses[:5].mean()
    assert all(p.dtype == torch.float32 for p in learn.model.parameters())


def remembering_classes(**given):
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    return Learner(plain(), train_dataset=[(row, int(row[:3].argmax())) for row in x], loss_func=nn.functional.cross_entropy, learning_rate=0.02,
                   num_train_epochs=6, use_cpu=True, disable_tqdm=True, **given)


# --- a model made late, methods overridden -----------------------------------------------------------------------------

def test_model_init():
    "It is called at first use, once, with the generators seeded: the same model whatever was drawn before."
    calls = []
    def init():
        calls.append(1)
        return Hard()
    def make(**given): return Learner(model_init=init, train_dataset=Augmented(), data_collator=collate, **SETTINGS | given)
    learn = make()
    assert not calls and "not started" in repr(learn) and not calls
    want = finish(learn)
    assert len(calls) == 1
    noise()
    learn = make()
    learn.summary()
    noise()
    assert unequal(finish(learn), want) == [] and len(calls) == 2
    learn.reset()
    assert unequal(finish(learn), want) == []
    assert "weights/inner.weight" in unequal(finish(make(seed=3)), want)


class AsInScripts(Learner):
    "Overrides as scripts for the Trainer have them."
    not_state = ("calls",)
    def __init__(self, *args, **kwargs):
        self.calls = collections.Counter()
        super().__init__(*args, **kwargs)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.calls["compute_loss"] += 1
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs["logits"], labels, label_smoothing=0.1)
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.calls["training_step"] += 1
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager(): loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss / self.current_gradient_accumulation_steps)
        return loss.detach() / self.current_gradient_accumulation_steps

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        self.calls["prediction_step"] += 1
        loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)
        return loss, logits, inputs["labels"] if labels is None else labels

    def get_train_dataloader(self):
        self.calls["get_train_dataloader"] += 1
        return DataLoader(self.train_dataset, batch_size=self.args.train_batch_size, shuffle=True, collate_fn=self.data_collator)

    def create_optimizer(self, model=None):
        self.calls["create_optimizer"] += 1
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.args.learning_rate, momentum=0.9)
        return self.optimizer

    def create_scheduler(self, num_training_steps, optimizer=None):
        self.calls["create_scheduler"] += 1
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer if optimizer is None else optimizer, lambda step: 1 - step / num_training_steps)
        return self.lr_scheduler

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        self.calls["evaluate"] += 1
        metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        return {**metrics, "eval_twice": 2 * metrics["eval_loss"]}

    def log(self, logs, start_time=None):
        self.calls["log"] += 1
        super().log({**logs, "mine": 1.0})


@pytest.mark.parametrize("precision", [{}, {"bf16": True}], ids=["fp32", "bf16"])
def test_overridden(precision):
    "All of them are called, as often as the Trainer would, and the run can be split like any other."
    def make(): return hard_learner(AsInScripts, eval_dataset=Augmented(10), eval_strategy="epoch", metric_for_best_model="twice", greater_is_better=False, compute_metrics=accuracy, **precision)
    learn = make()
    want = finish(learn)
    assert learn.calls == dict(compute_loss=20, training_step=16, prediction_step=4, get_train_dataloader=1, create_optimizer=1, create_scheduler=1, evaluate=2, log=6)
    assert learn.state.best_metric is not None and all(row["mine"] == 1.0 for row in learn.state.log_history)
    learn = make()
    learn.step(2); learn.snapshot("a"); learn.step(2); learn.restore("a")
    step = learn.debug_step()
    for _ in range(step.substeps): step.backward()
    step.update()
    learn.train()
    assert unequal(outcome(learn), want) == []


# --- nothing is asked of the device ------------------------------------------------------------------------------------

ASKS = "item tolist cpu numpy __bool__ __float__ __int__ __index__ __array__ is_nonzero".split()


@contextlib.contextmanager
def counting_questions(monkeypatch):
    "Counts what is asked of tensors, by the innermost frame that is of this package."
    asked = collections.Counter()
    def counted(name, method):
        def wrapper(tensor, *args, **kwargs):
            frame = sys._getframe(1)
            while frame is not None and not frame.f_globals.get("__name__", "").startswith(("trainer_nb", "torch.")): frame = frame.f_back
            where = "" if frame is None else f"{frame.f_globals['__name__']}.{frame.f_code.co_name}"
            if where.startswith("trainer_nb") and where != "trainer_nb.data.sources.iterate_from": asked[f"{name} in {where}"] += 1   # that one slices the order, which is on the host
            return method(tensor, *args, **kwargs)
        return wrapper
    with monkeypatch.context() as patch:
        for name in ASKS: patch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)), raising=False)
        for name in ("equal", "allclose", "nonzero", "is_nonzero"): patch.setattr(torch, name, counted(name, getattr(torch, name)))
        yield asked


@pytest.mark.parametrize("given", [{}, {"max_grad_norm": 0.0}, {"bf16": True}, {"rollback": "full"}, {"optim": "sgd"}, {"gradient_accumulation_steps": 1},
                                   {"callbacks": [told()]}, {"lr_scheduler_type": "one_cycle"}], ids=lambda given: next(iter(given), "as it is"))
def test_nothing_is_asked(monkeypatch, given):
    "Between two logs no step asks a tensor for its value; a log, and looking at a record, may."
    rows = [{"x": torch.randn(4), "labels": i % 3} for i in range(400)]
    learn = hard_learner(model=Quiet(), train_dataset=rows, data_collator=None, logging_steps=50, **given)
    learn.step(3)   # the first step looks at what the forward pass changes
    monkeypatch.setattr("trainer_nb.device.strategy.is_below", lambda norm, limit: False)   # as on a GPU: it asks tensors on the CPU only
    monkeypatch.setattr("trainer_nb.core.columns.is_on_host", lambda value: False)   # likewise
    with counting_questions(monkeypatch) as asked:
        records = learn.step(10)
        for _ in learn.steps():
            if learn.state.global_step == 30: break
        assert asked == {}, asked
        records[-1].loss
        assert asked, "the counting itself does not work"


class Quiet(nn.Module):
    "BatchNorm and dropout, and nothing that asks."
    def __init__(self): super().__init__(); self.layers = Plain().layers
    def forward(self, x, labels): return {"loss": nn.functional.cross_entropy(self.layers(x), labels)}
