"Orders, loaders, columns and counts of the data: the Trainer's rules, and that each holds when a run is taken apart."
import gc, json, logging, os

import numpy as np
import pytest, torch
from torch import nn
from torch.utils.data import IterableDataset

from trainer_nb import Learner, TrainingArguments, differences
from trainer_nb.data.sampling import LengthGroupedSampler

pytestmark = [pytest.mark.filterwarnings("ignore:This DataLoader will create"), pytest.mark.usefixtures("one_thread")]


class Texts(nn.Module):
    "A bag of words with dropout."
    not_state = ("seen",)
    def __init__(self):
        super().__init__()
        self.table, self.out, self.drop, self.seen = nn.EmbeddingBag(50, 8, padding_idx=0), nn.Linear(8, 3), nn.Dropout(0.1), []
    def forward(self, input_ids, labels=None, attention_mask=None):
        if self.training: self.seen.append(tuple(input_ids.shape))
        logits = self.out(self.drop(self.table(input_ids)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


rng = np.random.default_rng(0)
LENGTHS = rng.integers(1, 30, size=37).tolist()
ROWS = [{"input_ids": rng.integers(1, 50, size=n).tolist(), "labels": int(rng.integers(3)), "n": n, "name": i} for i, n in enumerate(LENGTHS)]


def pad(rows):
    ids = nn.utils.rnn.pad_sequence([torch.tensor(r["input_ids"]) for r in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([r["labels"] for r in rows])}


def make(kind=Learner, data=ROWS, **settings):
    torch.manual_seed(0)
    return kind(**dict(model=Texts(), train_dataset=data, data_collator=pad, per_device_train_batch_size=4, num_train_epochs=2, learning_rate=1e-2, use_cpu=True,
                       disable_tqdm=True, gradient_accumulation_steps=2) | settings)


def taken_apart(tmp_path, **settings):
    "A run in one go, and one that was rewound, saved and resumed, are the same; the first is returned."
    whole, parts = make(**settings), make(**settings, output_dir=str(tmp_path), save_strategy="no", rewind_every=1)
    whole.train()
    parts.step(3)
    parts.rewind(2)
    torch.rand(3)
    parts.step(1)
    parts.save_checkpoint()
    later = make(**settings, output_dir=str(tmp_path), save_strategy="no")
    later.train(resume_from_checkpoint=True)
    assert set(differences(whole.snapshot(), later.snapshot())) <= {"args"}
    return whole


# --- orders that go by length ------------------------------------------------------------------------------------------

def test_the_order_by_length_is_the_trainers(tmp_path):
    theirs = pytest.importorskip("transformers.trainer_pt_utils")
    for n, size in ((37, 8), (37, 64), (500, 2), (5, 1), (450, 3)):
        lengths = torch.randint(1, 20, (n,), generator=torch.Generator().manual_seed(n)).tolist()
        for epoch in (0, 3):
            ours = LengthGroupedSampler(lengths, seed=42, size=size).order(epoch).tolist()
            assert ours == theirs.get_length_grouped_indices(lengths, size, generator=torch.Generator().manual_seed(42 + epoch))
    whole = taken_apart(tmp_path, train_sampling_strategy="group_by_length")
    assert len(whole.model.seen) == 20 and whole.model.seen[0][1] == max(LENGTHS)   # the longest comes first
    random = make()
    random.train()
    padding = [sum(a * b for a, b in learn.model.seen) for learn in (whole, random)]
    assert padding[0] < 0.9 * padding[1]
    assert make(train_sampling_strategy="group_by_length", length_column_name="n").get_train_dataloader().sampler.lengths.tolist() == LENGTHS
    assert make(train_sampling_strategy="sequential").get_train_dataloader().sampler.__class__.__name__ == "SequentialSampler"


def test_lengths_come_from_a_column_or_are_counted():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(ROWS)
    for data in (table, table.with_format("torch"), ROWS, table.with_transform(lambda b: b)):
        for how in ({}, dict(length_column_name="n")):
            loader = make(data=data, train_sampling_strategy="group_by_length", **how).get_train_dataloader()
            assert loader.sampler.lengths.tolist() == LENGTHS
    assert "n" not in next(iter(make(data=table, train_sampling_strategy="group_by_length", length_column_name="n").get_train_dataloader()))
    with pytest.raises(ValueError, match="needs a column 'size' in the training data, and it has 'input_ids', 'labels', 'n', 'name'"):
        make(train_sampling_strategy="group_by_length", length_column_name="size").step()


def test_samples_of_a_step_cannot_change_within_an_order_by_length(tmp_path):
    learn = make(train_sampling_strategy="group_by_length", output_dir=str(tmp_path), save_strategy="no")
    learn.step(2)
    with pytest.raises(ValueError, match="an order by length"): learn.set(gradient_accumulation_steps=1)
    learn.set(gradient_accumulation_steps=4, per_device_train_batch_size=2)   # the same number of samples
    learn.save_checkpoint()
    with pytest.raises(ValueError, match="the epoch's end"): make(train_sampling_strategy="group_by_length", output_dir=str(tmp_path), per_device_train_batch_size=8, save_strategy="no").train(True)
    learn.run(epochs=1)
    before = learn.snapshot()
    assert sum(a for a, b in learn.model.seen) == len(ROWS)
    learn.set(gradient_accumulation_steps=1)
    learn.run(epochs=1)
    learn.restore(before)
    learn.model.seen.clear()
    learn.train()
    assert sum(a for a, b in learn.model.seen) == len(ROWS) and learn.args.gradient_accumulation_steps == 4


class Stream(IterableDataset):
    def __iter__(self): return iter(ROWS)


def test_another_order_is_refused_or_of_a_table():
    with pytest.raises(ValueError, match="give 'group_by_length'"): make(train_sampling_strategy="batch_rebalance")
    with pytest.raises(ValueError, match="in its own order; leave it out"): make(data=Stream(), max_steps=3, train_sampling_strategy="group_by_length").step()


# --- workers -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_workers_are_started_as_asked_for(how):
    import multiprocessing
    here, there = make(max_steps=3), make(max_steps=3, dataloader_num_workers=1, dataloader_multiprocessing_context=how)
    here.train()
    there.step(2)
    assert type(there.run_state.loader.source._workers.loader.multiprocessing_context) is type(multiprocessing.get_context(how))
    there.train()
    assert set(differences(here.snapshot(), there.snapshot())) <= {"args"}


def test_the_way_of_starting_reaches_the_loader():
    for how in ("spawn", "forkserver"):
        loader = make(dataloader_num_workers=1, dataloader_multiprocessing_context=how).get_train_dataloader()
        assert loader.multiprocessing_context.get_start_method() == how
    learn = make()
    learn.step()
    learn.set(dataloader_num_workers=1, dataloader_multiprocessing_context="forkserver")
    assert learn.get_train_dataloader().multiprocessing_context.get_start_method() == "forkserver"
    with pytest.raises(ValueError, match="depend on the speed of the workers"): make(dataloader_in_order=False)


# --- accelerator_config ------------------------------------------------------------------------------------------------

def test_accelerator_config_key_by_key(tmp_path):
    def given(config, **more): return TrainingArguments(accelerator_config=config, **more)
    nothing = dict(split_batches=False, dispatch_batches=None, even_batches=True, use_seedable_sampler=True, non_blocking=False, gradient_accumulation_kwargs=None, use_configured_state=False)
    assert given(nothing) == TrainingArguments() and given({"dispatch_batches": False, "even_batches": False}).accelerator_config == {"dispatch_batches": False, "even_batches": False}
    (tmp_path / "a.json").write_text(json.dumps({"even_batches": False}))
    assert given(str(tmp_path / "a.json")) == given({"even_batches": False}) == given('{"even_batches": false}')
    with pytest.warns(UserWarning, match="function of the seed"): given({"use_seedable_sampler": False})
    assert given({"gradient_accumulation_kwargs": {"num_steps": 4}}) == TrainingArguments(gradient_accumulation_steps=4)
    assert given({"use_configured_state": True}).accelerator_config == {"use_configured_state": True}
    for wrong, said in (({"dispatch_batches": True}, "each process reads the data"), ({"use_configured_state": "yes"}, "True or False"),
                        ({"split_batch": True}, "Did you mean 'split_batches'"), ({"gradient_accumulation_kwargs": {"sync": 1}}, "no key 'sync'"), ({"gradient_accumulation_kwargs": 3}, "should be a dict"),
                        ({"gradient_accumulation_kwargs": {"adjust_scheduler": False}}, "advances once per optimizer step"), ("none.json", "path of a JSON file"), ({"even_batches": 3}, "True or False"), ({"split_batches": True}, "that of each process")):
        with pytest.raises(ValueError, match=said): given(wrong)
    with pytest.raises(ValueError, match="leave one of them out"): given({"non_blocking": True}, dataloader_pin_memory=False)
    with pytest.raises(ValueError, match="leave num_steps out"): given({"gradient_accumulation_kwargs": {"num_steps": 4}}, gradient_accumulation_steps=2)
    config = pytest.importorskip("transformers.trainer_pt_utils").AcceleratorConfig
    assert given(config(even_batches=False)) == given({"even_batches": False}) and given(config()) == TrainingArguments()
    with pytest.raises(NotImplementedError, match="give an object"): given(config)


# --- where the epoch's data begins -------------------------------------------------------------------------------------

def test_data_may_begin_anew_after_a_resume(tmp_path):
    first = make(data=ROWS, output_dir=str(tmp_path), save_strategy="no", train_sampling_strategy="sequential")
    first.step(2)
    first.save_checkpoint(), first.run(epochs=1), first.save_checkpoint()
    given = dict(output_dir=str(tmp_path), save_strategy="no", train_sampling_strategy="sequential", ignore_data_skip=True)
    shapes = [tuple(pad(ROWS[i:i + 4])["input_ids"].shape) for i in range(0, 37, 4)]
    third = make(**given)
    third.load_checkpoint(tmp_path / "checkpoint-5")   # at the end of an epoch: nothing to begin anew
    third.train()
    assert third.model.seen == shapes
    second = make(**given)
    with pytest.warns(UserWarning, match="starts from the beginning"): second.load_checkpoint(tmp_path / "checkpoint-2")
    second.train()
    assert second.model.seen == (shapes + shapes)[:16] and second.state.global_step == 10     # the first epoch once more, as many steps in all
    other = make(data=ROWS[:20], **given)               # other data may take its place
    with pytest.warns(UserWarning, match="starts from the beginning"): other.load_checkpoint(tmp_path / "checkpoint-2")
    other.step()
    assert other.model.seen == shapes[:2]


def test_the_trainer_begins_the_data_anew_in_the_same_way(tmp_path):
    transformers = pytest.importorskip("transformers")
    def trainer(**more):
        torch.manual_seed(0)
        model = Texts()
        args = transformers.TrainingArguments(str(tmp_path), per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=2, train_sampling_strategy="sequential", use_cpu=True,
                                              save_steps=2, report_to="none", disable_tqdm=True, remove_unused_columns=False, ignore_data_skip=True, **more)
        return transformers.Trainer(model, args, train_dataset=ROWS, data_collator=pad)
    trainer().train()
    again = trainer(save_strategy="no")
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    shapes = [tuple(pad(ROWS[i:i + 4])["input_ids"].shape) for i in range(0, 37, 4)]
    assert again.model.seen == (shapes + shapes)[:16] and again.state.global_step == 10


# --- tokens ------------------------------------------------------------------------------------------------------------

def tokens(learn): return [(row["step"], row["num_input_tokens_seen"]) for row in learn.state.log_history]


@pytest.mark.parametrize("how", ["all", "non_padding"])
def test_tokens_seen_are_the_trainers(how, tmp_path):
    transformers = pytest.importorskip("transformers")
    settings = dict(per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=1, logging_steps=2, use_cpu=True, disable_tqdm=True, include_num_input_tokens_seen=how, eval_strategy="epoch")
    torch.manual_seed(0)
    theirs = transformers.Trainer(Texts(), transformers.TrainingArguments(str(tmp_path), report_to="none", save_strategy="no", remove_unused_columns=False, **settings), train_dataset=ROWS, eval_dataset=ROWS[:9], data_collator=pad)
    theirs.train()
    ours = make(**settings, eval_dataset=ROWS[:9])
    out = ours.train()
    assert tokens(ours) == tokens(theirs) and ours.state.num_input_tokens_seen == theirs.state.num_input_tokens_seen > 500
    assert [sorted(set(a) - {"train_tokens_per_second", "train_runtime"}) for a in ours.state.log_history] == [sorted(set(b) - {"train_tokens_per_second", "train_runtime"}) for b in theirs.state.log_history]
    assert ours.state.log_history[0]["train_tokens_per_second"] > 0 and out.metrics["train_tokens_per_second"] > 0 and out.metrics["num_input_tokens_seen"] == ours.state.num_input_tokens_seen
    assert "num_input_tokens_seen" not in make(num_train_epochs=1).train().metrics


def test_tokens_hold_when_a_run_is_taken_apart(tmp_path):
    whole = taken_apart(tmp_path, include_num_input_tokens_seen="non_padding", logging_steps=1)
    assert whole.state.num_input_tokens_seen == 2 * sum(LENGTHS)
    learn, fail = make(include_num_input_tokens_seen=True, logging_steps=1), [1]
    from trainer_nb import TrainerCallback
    class Once(TrainerCallback):
        def on_pre_optimizer_step(self, *args, **kwargs):
            if fail: fail.pop(); raise RuntimeError("once")
    learn.add_callback(Once())
    with pytest.raises(RuntimeError, match="once"): learn.step()
    assert learn.state.num_input_tokens_seen == 0
    learn.step()
    assert learn.state.num_input_tokens_seen == sum(a * b for a, b in learn.model.seen[-2:])
    later = make()
    later.step()
    later.set(include_num_input_tokens_seen="all")
    later.step()
    assert later.state.num_input_tokens_seen == sum(a * b for a, b in later.model.seen[-2:])
    unmasked = make(include_num_input_tokens_seen="non_padding", data_collator=lambda rows: {k: v for k, v in pad(rows).items() if k != "attention_mask"})
    with pytest.warns(UserWarning, match="batches an attention_mask"): unmasked.step()
    assert unmasked.state.num_input_tokens_seen == sum(a * b for a, b in unmasked.model.seen)   # all tokens
    class Words: pad_token_id = 0
    counted = make(include_num_input_tokens_seen="non_padding", data_collator=lambda rows: {k: v for k, v in pad(rows).items() if k != "attention_mask"}, processing_class=Words())
    counted.run(epochs=1)
    assert counted.state.num_input_tokens_seen == sum(LENGTHS)


# --- what a subclass may have written for the Trainer ------------------------------------------------------------------

def test_overrides_written_for_the_trainer_are_heard():
    class Doubles(Learner):
        "Changes what is trained on, and how the loss is divided."
        def get_batch_samples(self, epoch_iterator, num_batches, device):
            batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
            self.items = (num_batches, items)
            return [b | {"input_ids": b["input_ids"].clamp(max=20)} for b in batches], items
        def _prepare_input(self, data): self.prepared = getattr(self, "prepared", 0) + 1; return super()._prepare_input(data)
        def set_initial_training_values(self, args, dataloader):
            self.values = super().set_initial_training_values(args, dataloader)
            return *self.values[:-1], 7
        def _set_signature_columns_if_needed(self): self._signature_columns = ["input_ids", "labels", "name"]
        def _get_train_sampler(self, train_dataset=None): return torch.utils.data.SequentialSampler(train_dataset or self.train_dataset)
    names = []
    def collate(rows): names.extend(sorted(rows[0])); return pad(rows)
    learn, plain = make(Doubles, data_collator=collate), make(train_sampling_strategy="sequential")
    learn.train(), plain.train()
    assert learn.state.global_step == 7 and learn.values == (2, 5, 37, 74, 8, 10, 10) and learn.items == (2, None) and learn.prepared == 14
    assert set(names) == {"input_ids", "labels", "name"} and learn.model.seen == plain.model.seen[:14]
    assert torch.equal(learn.model.table.weight[21:], make().model.table.weight[21:]) and not torch.equal(learn.model.table.weight[:21], make().model.table.weight[:21])
    class Loses(Learner):
        def get_batch_samples(self, epoch_iterator, num_batches, device): return [next(epoch_iterator)], None
    with pytest.raises(ValueError, match="returned 1 micro-batches; expected 2"): make(Loses).step()
    assert plain.num_examples(plain.get_train_dataloader()) == 37 and plain.get_total_train_batch_size(plain.args) == 8
    with pytest.raises(ValueError, match="The batch is empty"): plain._prepare_inputs({})
    stream = make(data=Stream(), max_steps=3)
    assert stream.set_initial_training_values(stream.args, stream.get_train_dataloader())[1:] == (3, 24, 24, 8, 6, 3)


def test_the_trainer_counts_the_same(tmp_path):
    transformers = pytest.importorskip("transformers")
    for settings in (dict(num_train_epochs=2), dict(num_train_epochs=1.5), dict(max_steps=7), dict(num_train_epochs=3, gradient_accumulation_steps=3)):
        ours = make(**settings)
        theirs = transformers.Trainer(Texts(), transformers.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True, per_device_train_batch_size=4, **dict(gradient_accumulation_steps=2) | settings),
                                      train_dataset=ROWS, data_collator=pad)
        assert ours.set_initial_training_values(ours.args, ours.get_train_dataloader()) == theirs.set_initial_training_values(theirs.args, theirs.get_train_dataloader())
        assert ours.get_total_train_batch_size(ours.args) == theirs.get_total_train_batch_size(theirs.args)


# --- columns -----------------------------------------------------------------------------------------------------------

def test_columns_of_wrapped_models_and_misspelt_ones(caplog):
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(Texts(), peft.LoraConfig(target_modules=["out"]))
    mixed = peft.PeftMixedModel(Texts(), peft.LoraConfig(target_modules=["out"]))
    for model in (wrapped, mixed, torch.nn.DataParallel(Texts())):
        learn = make(model=model)
        with caplog.at_level(logging.INFO, "trainer_nb"): columns = learn.get_train_dataloader().collate_fn([ROWS[0]])
        assert learn.model_facts.name == "Texts" and learn.label_names == ["labels"] and set(columns) == {"input_ids", "attention_mask", "labels"}
    assert "Texts's forward does not take, and they are left out: n, name." in caplog.text
    with pytest.warns(UserWarning, match="'lables' of the training set is left out.*did you mean 'labels'"):
        with pytest.raises((KeyError, TypeError)): make(data=[{"input_ids": [1], "lables": 1}] * 4).step()
    with pytest.raises(ValueError, match="remove_unused_columns=False"): make(data=[{"a": 1, "b": 2}] * 4).step()
    assert make(label_names=["y"]).label_names == ["y"]


# --- several processes -------------------------------------------------------------------------------------------------

def test_orders_by_length_on_several_processes():
    "Launched in the middle of an epoch, with the global batch kept, every sample is seen once in it, and the tokens of all are counted."
    settings = dict(train_sampling_strategy="group_by_length", include_num_input_tokens_seen="non_padding", logging_steps=1, accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}})
    alone, learn = make(**settings), make(**settings)
    alone.train()
    learn.step(2)
    learn.launch(2, keep_global_batch=True, start="fork")
    learn.step(4)
    learn.close()
    learn.train()
    assert tokens(learn) == tokens(alone) and tokens(learn)[-1][1] == 2 * sum(LENGTHS)
    assert [r.samples for r in learn.history] == [r.samples for r in alone.history]


def test_a_larger_global_batch_leaves_the_order_by_length_as_it_is():
    "The pieces of the order go by what one process takes, so that a launch in the middle of an epoch loses no sample and repeats none."
    learn = make(train_sampling_strategy="group_by_length", include_num_input_tokens_seen="non_padding", logging_steps=1)
    learn.step(2)
    with learn.launch(2, start="fork"): learn.run(epochs=1)
    assert tokens(learn)[-1][1] == sum(LENGTHS) and sum(r.samples for r in learn.history) == len(ROWS)
    assert learn.history[2].samples == 2 * learn.history[1].samples


# --- streams -----------------------------------------------------------------------------------------------------------

def test_streams_work_with_collators_and_counts(tmp_path):
    "A stream of torch, and one of datasets that is shuffled: masks, tokens and columns, taken apart."
    datasets = pytest.importorskip("datasets")
    from trainer_nb import DataCollatorForLanguageModeling
    from trainer_nb.data.collate import pad_rows

    class Words:
        mask_token, pad_token_id, deprecation_warnings = "[M]", 0, {}
        def __len__(self): return 50
        def convert_tokens_to_ids(self, token): return 1
        def get_special_tokens_mask(self, ids, already_has_special_tokens=True): return [i < 2 for i in ids]
        def pad(self, features, return_tensors, pad_to_multiple_of=None): ids = pad_rows([f["input_ids"] for f in features], 0); return {"input_ids": ids, "attention_mask": (ids > 0).long()}

    class Guess(nn.Module):
        def __init__(self): super().__init__(); self.table = nn.Embedding(50, 50)
        def forward(self, input_ids, labels=None): return {"loss": nn.functional.cross_entropy(self.table(input_ids).flatten(0, 1), labels.flatten(), ignore_index=-100)}

    class Masks(DataCollatorForLanguageModeling):
        def __call__(self, features): assert set(features[0]) <= {"input_ids", "labels"}; return {k: v for k, v in super().__call__([{"input_ids": f["input_ids"]} for f in features]).items() if k != "attention_mask"}

    def stream(kind): return Stream() if kind == "torch" else datasets.Dataset.from_list(ROWS).to_iterable_dataset(num_shards=2).shuffle(seed=3, buffer_size=8)
    for kind in ("torch", "datasets"):
        torch.manual_seed(0)
        state = Guess().state_dict()
        def fresh():
            model = Guess()
            model.load_state_dict(state)
            return make(model=model, data=stream(kind), data_collator=Masks(Words(), mlm_probability=0.4, random_replace_prob=0.0), processing_class=Words(), max_steps=7, num_train_epochs=3,
                        include_num_input_tokens_seen="non_padding", output_dir=str(tmp_path / kind), save_strategy="no", logging_steps=1)
        whole, parts, later = fresh(), fresh(), fresh()
        whole.train()
        parts.step(3), torch.rand(3), parts.rewind(1), parts.save_checkpoint()
        later.train(resume_from_checkpoint=parts.history.path.parents[1] / "checkpoint-2")
        assert set(differences(whole.snapshot(), later.snapshot())) <= {"args", "bookmark"} and tokens(whole) == tokens(later)
        assert whole.state.epoch > 1 and tokens(whole)[4][1] == sum(LENGTHS)   # five steps are an epoch
    with pytest.raises(ValueError, match="pass max_steps="): make(data=Stream()).step()


# --- data on a GPU ------------------------------------------------------------------------------------------------------

class OnGpu:
    "Raises in a data worker what torch raises there for a tensor on a GPU."
    def __len__(self): return 8
    def __getitem__(self, i):
        if torch.utils.data.get_worker_info() is None: return ROWS[i]
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method")


def test_data_on_a_gpu_are_not_for_forked_workers():
    learn = make(data=OnGpu(), dataloader_num_workers=1)
    with pytest.raises(ValueError, match="uses a GPU, which a forked data worker cannot; keep the data on the host.*dataloader_num_workers=0"): learn.step()
    make(data=OnGpu()).step()


class Garbage:
    "In a cycle, and so left to the collection: notes which process frees it."
    def __init__(self, place): self.place, self.me = place, self
    def __del__(self): (self.place/str(os.getpid())).touch()


def test_workers_do_not_free_what_the_program_has_left(tmp_path):
    "Such as tensors of a GPU, which ends a process that is a fork."
    learn = make(data_collator=lambda rows: gc.collect() and None or pad(rows), dataloader_num_workers=1)
    gc.disable()
    Garbage(tmp_path)
    try: learn.step(1)
    finally: gc.enable()
    gc.collect()
    assert [o.name for o in tmp_path.iterdir()] == [str(os.getpid())]
