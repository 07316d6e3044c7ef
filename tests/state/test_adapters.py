"""Adapters of PEFT: the base is kept once and never written, and every promise about a run holds with it."""
import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
from trainer_nb import Learner, differences
from trainer_nb.state.model_files import frozen_base_names
from trainer_nb.device.weight_storage import has_adapters
from trainer_nb.engine.snapshot_tensors import is_shared

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::FutureWarning")]


def gpt2(seed=0, layers=1):
    torch.manual_seed(seed)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=40, n_positions=24, n_embd=16, n_layer=layers, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0))


def bert():
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16, num_labels=3))


def config(**given): return peft.LoraConfig(**dict(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM") | given)


def lora(seed=0, **given):
    base = gpt2(seed)
    torch.manual_seed(1)
    return peft.get_peft_model(base, config(**given))


def texts(n=24):
    rows = torch.randint(1, 40, (n, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in rows]


def learner(model, folder, **given):
    settings = dict(max_steps=6, save_steps=3, learning_rate=1e-2, use_cpu=True, disable_tqdm=True, logging_steps=2, lr_scheduler_type="cosine") | given
    return Learner(model, train_dataset=settings.pop("train_dataset", texts()), output_dir=str(folder), **settings)


def files(folder): return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_an_adapter_that_was_loaded_frozen_names_the_argument(tmp_path):
    "learn.unfreeze() would train the base, too."
    lora().save_pretrained(tmp_path/"adapter")
    learn = learner(peft.PeftModel.from_pretrained(gpt2(), tmp_path/"adapter"), tmp_path/"out")
    with pytest.raises(ValueError, match=r"is_trainable=True") as error: learn.step()
    assert "unfreeze" not in str(error.value) and learn.state.global_step == 0
    assert learner(peft.PeftModel.from_pretrained(gpt2(), tmp_path/"adapter", is_trainable=True), tmp_path/"more").step()[0].step == 1


@pytest.mark.trainer
@pytest.mark.parametrize("layout", ["safetensors", "trainer"])
def test_a_run_resumes_exactly_and_the_base_is_not_written(tmp_path, layout):
    "In a new process the script makes the base again; the checkpoint has the adapter, once, and digests."
    one = learner(lora(lora_dropout=0.3), tmp_path, save_format=layout)
    one.train()
    names = files(tmp_path / "checkpoint-3")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(names)
    assert not {"rest.safetensors", "model.safetensors"} & set(names)   # what is trained lies in the adapter's file, and nowhere else
    two = learner(lora(lora_dropout=0.3), tmp_path, save_format=layout)
    two.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert differences(one.snapshot(), two.snapshot()) == []
    other = learner(lora(seed=5, lora_dropout=0.3), tmp_path, save_format=layout)
    before = other.snapshot()
    with pytest.raises(ValueError, match="on another base model: .* differs"):
        other.load_checkpoint(tmp_path / "checkpoint-3")
    assert differences(before, other.snapshot()) == []


def test_snapshots_share_the_base_and_what_changes_it_is_noticed(tmp_path):
    learn = learner(lora(), tmp_path, save_strategy="no")
    learn.step(2)
    a, b = learn.snapshot(), learn.step(1) and learn.snapshot()
    name = "weights/base_model.model.transformer.wte.weight"
    assert a.tensors[name] is b.tensors[name] is learn.run_state.first.snapshot.tensors[name] and is_shared(a.tensors[name])
    trained = sum(p.nbytes for p in learn.model.parameters() if p.requires_grad)
    assert a.nbytes < 4 * trained + 1000 < sum(t.nbytes for t in a.tensors.values())   # weights and AdamW's two
    learn.model.merge_adapter()                       # writes through .data, which torch does not count
    merged = learn.snapshot()
    attention = "weights/base_model.model.transformer.h.0.attn.c_attn.base_layer.weight"
    assert merged.tensors[attention] is not a.tensors[attention] and merged.tensors[name] is a.tensors[name]
    learn.model.unmerge_adapter()
    learn.restore(b)
    now = learn.snapshot()
    assert differences(now, b) == []                  # the last bits that merging costs, too
    with torch.no_grad(): learn.model.get_input_embeddings().weight.zero_()
    learn.restore(a)
    assert differences(learn.snapshot(), a) == []


def test_a_base_weight_that_changes_is_restored_where_bytes_are_not_compared(tmp_path, monkeypatch):
    "As on a GPU: torch counts the change."
    monkeypatch.setattr("trainer_nb.engine.snapshot_tensors._is_slow_to_compare", lambda t: True)
    learn = learner(lora(), tmp_path, save_strategy="no")
    name, weight = "weights/base_model.model.transformer.wpe.weight", learn.model.base_model.model.transformer.wpe.weight
    learn.step(2)
    a = learn.snapshot()
    then = weight.detach().clone()
    with torch.no_grad(): weight.mul_(2)
    b = learn.snapshot()
    assert b.tensors[name] is not a.tensors[name] and torch.equal(b.tensors[name], 2 * then)
    learn.restore(a)
    assert torch.equal(weight, then) and torch.equal(a.tensors[name], then)
    learn.restore(b)
    assert torch.equal(weight, 2 * then)


def test_rewind_branch_reset_and_spare_memory(tmp_path):
    "Snapshots that are written again into old memory never touch what is shared."
    learn = learner(lora(), tmp_path, rewind_every=1, save_steps=1)
    learn.step(4)
    then = learn.snapshot()
    base = {n: t.clone() for n, t in then.tensors.items() if n in frozen_base_names(learn.run_state)}
    learn.step(2)
    assert not learn.rewind(2).different
    assert differences(learn.snapshot(), then) == []
    branch = learn.branch(learning_rate=5e-3)
    branch.step(1)
    assert all(torch.equal(branch.snapshot().tensors[n], t) for n, t in base.items())
    learn.unfreeze()                                  # the base too: from here on it is copied
    learn.step(2)
    assert frozen_base_names(learn.run_state) == frozenset() and not learn.rewind(1).different
    learn.restore(then)
    assert differences(learn.snapshot(), then) == []
    learn.reset()
    learn.step(4)
    assert all(torch.equal(then.tensors[n], t) for n, t in base.items())


@pytest.mark.parametrize("only_model", [False, True])
def test_the_best_adapter_is_loaded(tmp_path, only_model):
    learn = learner(lora(), tmp_path, eval_dataset=texts(8), eval_strategy="steps", eval_steps=3, load_best_model_at_end=True,
                    metric_for_best_model="loss", greater_is_better=True, save_only_model=only_model)   # the first is the best
    learn.step(3)
    then = learn.snapshot()
    learn.train()
    assert learn.state.best_global_step == 3
    weights = {n: t for n, t in learn.snapshot().tensors.items() if n.startswith("weights/")}
    assert all(torch.equal(t, then.tensors[n]) for n, t in weights.items())


KINDS = {
    "modules_to_save": lambda: peft.get_peft_model(gpt2(), config(modules_to_save=["ln_f"])),
    "prompt tuning": lambda: peft.get_peft_model(gpt2(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)),
    "IA3": lambda: peft.get_peft_model(gpt2(), peft.IA3Config(task_type="CAUSAL_LM", target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"],
                                                              fan_in_fan_out=True)),
    "several": lambda: _several(),
    "in the model": lambda: _inside(),
}


def _several():
    model = lora()
    model.add_adapter("other", config(r=2))
    model.set_adapter("other")
    return model


def _inside():
    model = gpt2()
    torch.manual_seed(1)
    model.add_adapter(config())
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_adapter(tmp_path, kind):
    "Resumed exactly; and the weights alone come back out of what save_model wrote."
    def made():
        torch.manual_seed(3)
        return KINDS[kind]()
    one = learner(made(), tmp_path, max_steps=4, save_steps=2)
    assert has_adapters(one.model) and one.label_names == ["labels"]
    one.train()
    two = learner(made(), tmp_path, max_steps=4, save_steps=2)
    two.load_checkpoint(tmp_path / "checkpoint-2")
    two.train()
    assert differences(one.snapshot(), two.snapshot()) == []
    from trainer_nb.state.model_files import read_weights_for_model
    fresh, folder = made(), one.save_model(tmp_path / "saved")
    before = copy.deepcopy(fresh.state_dict())
    weights = read_weights_for_model(fresh, folder)
    assert all(torch.equal(t, before[k]) for k, t in fresh.state_dict().items())   # looking has left nothing
    fresh.load_state_dict(weights, strict=False)
    assert all(torch.equal(t, one.model.state_dict()[k]) for k, t in fresh.state_dict().items())
    loaded = peft.PeftModel.from_pretrained(gpt2(), folder / "other" if kind == "several" else folder) if kind != "in the model" else None
    if kind == "modules_to_save":
        assert torch.equal(loaded.base_model.model.transformer.ln_f.modules_to_save["default"].weight, one.model.base_model.model.transformer.ln_f.modules_to_save["default"].weight)


def test_an_adapter_of_another_rank_is_refused(tmp_path):
    from trainer_nb.state.model_files import read_weights_for_model
    lora().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="holds another adapter: .* has the shape"): read_weights_for_model(lora(r=2), tmp_path)
    with pytest.raises(ValueError, match="holds another adapter: .* is not in both"): read_weights_for_model(lora(modules_to_save=["ln_f"]), tmp_path)


def test_the_same_numbers_as_the_trainer_and_its_checkpoints(tmp_path):
    "A tiny LoRA model: logs and weights of the two; and a run that the Trainer began is finished here."
    settings = dict(max_steps=12, save_steps=6, learning_rate=1e-2, lr_scheduler_type="linear", use_cpu=True, disable_tqdm=True, logging_steps=2, gradient_accumulation_steps=2)
    theirs = transformers.Trainer(lora(), transformers.TrainingArguments(output_dir=str(tmp_path / "theirs"), report_to="none", dataloader_pin_memory=False,
                                                                         **settings), train_dataset=texts())
    theirs.remove_callback(transformers.PrinterCallback)
    theirs.train()
    ours = learner(lora(), tmp_path / "ours", **settings)
    ours.train()
    def trained(one): return torch.cat([p.detach().flatten() for p in one.model.parameters() if p.requires_grad])
    assert (trained(ours) - trained(theirs)).norm() < 1e-6 * trained(theirs).norm()
    logs = [[{k: row[k] for k in ("loss", "grad_norm", "learning_rate") if k in row} for row in one.state.log_history] for one in (theirs, ours)]
    for a, b in zip(*logs, strict=True): assert b == pytest.approx(a, rel=1e-4)
    gone_on = learner(lora(), tmp_path / "theirs", **settings)
    gone_on.train(resume_from_checkpoint=str(tmp_path / "theirs/checkpoint-6"))
    assert gone_on.state.global_step == 12
    assert (trained(gone_on) - trained(theirs)).norm() < 1e-6 * trained(theirs).norm()


def test_on_two_processes(tmp_path):
    "The base travels with the learner; a checkpoint that was written there is resumed here."
    learn = learner(lora(), tmp_path)
    learn.launch(num_processes=2, train=True)
    home = learner(lora(), tmp_path)
    home.load_checkpoint(tmp_path / "checkpoint-3")
    assert home.state.global_step == 3 and learn.state.global_step == 6
    assert all(torch.equal(t, dict(home.model.named_parameters())[n]) for n, t in learn.model.named_parameters() if not t.requires_grad)


# --- adapters that are merged, switched off or exchanged during a run ----------------------------------------------------

def two_adapters():
    model = lora(init_lora_weights=False)
    torch.manual_seed(2)
    model.add_adapter("other", config(init_lora_weights=False))
    return model


def attention(learn): return learn.model.base_model.model.transformer.h[0].attn.c_attn


def trained(learn): return [n for n, p in learn.model.named_parameters() if p.requires_grad]


def others(a, b):
    "The differences of two runs in other folders."
    return [n for n in differences(a.snapshot(), b.snapshot()) if n != "args"]


CHANGES = {"merge": lambda model: model.merge_adapter(), "set": lambda model: model.set_adapter("other"),
           "disable": lambda model: model.base_model.disable_adapter_layers()}


@pytest.mark.filterwarnings("ignore:.*can be trained and are not in the optimizer")
@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("verb", ["restore", "rewind", "reset", "load_checkpoint"])
@pytest.mark.parametrize("change", CHANGES)
def test_going_back_past_a_change_of_the_adapters(change, verb, steps, tmp_path):
    straight = learner(two_adapters(), tmp_path / "one", save_strategy="no")
    straight.train()
    learn = learner(two_adapters(), tmp_path / "two", save_strategy="no", rewind_every=1)
    learn.step(3)
    then, folder, before = learn.snapshot(), learn.save_checkpoint(), trained(learn)
    CHANGES[change](learn.model)
    if steps and change == "set": learn.step(steps)
    elif steps: learn.evaluate(texts(4))
    {"restore": lambda: learn.restore(then), "rewind": lambda: learn.rewind(1 + (steps if change == "set" else 0)), "reset": learn.reset,
     "load_checkpoint": lambda: learn.load_checkpoint(folder)}[verb]()
    layer = attention(learn)
    assert not layer.merged_adapters and not layer.disable_adapters and layer.active_adapter == ["default"] and trained(learn) == before
    learn.train()
    assert others(learn, straight) == []
    weight = layer.base_layer.weight.detach().clone()
    learn.model.unmerge_adapter()   # nothing is merged
    assert torch.equal(layer.base_layer.weight, weight)


@pytest.mark.parametrize("unmerge", [False, True])
def test_a_checkpoint_of_merged_adapters_loads_in_a_new_process(unmerge, tmp_path):
    "It has the weights that the merge has changed, also where it was undone with rounding errors."
    one = learner(lora(init_lora_weights=False), tmp_path / "one", save_strategy="no")
    one.step(3)
    one.model.merge_adapter()
    if unmerge: one.model.unmerge_adapter()
    folder = one.save_checkpoint()
    two = learner(lora(init_lora_weights=False), tmp_path / "two", save_strategy="no")
    two.load_checkpoint(folder)
    assert attention(two).merged_adapters == attention(one).merged_adapters == ([] if unmerge else ["default"])
    assert torch.equal(attention(two).base_layer.weight, attention(one).base_layer.weight)
    again = two.save_checkpoint(tmp_path / "again")
    three = learner(lora(init_lora_weights=False), tmp_path / "three", save_strategy="no")
    three.load_checkpoint(again)
    for learn in (one, two, three):
        learn.model.unmerge_adapter()
        learn.train()
    assert others(one, two) == others(two, three) == []


def test_a_model_with_merged_adapters_is_another_base(tmp_path):
    one = learner(lora(init_lora_weights=False), tmp_path / "one", save_strategy="no")
    one.step(3)
    folder = one.save_checkpoint()
    two = learner(lora(init_lora_weights=False), tmp_path / "two", save_strategy="no")
    two.model.merge_adapter()
    with pytest.raises(ValueError, match=r"another base model: .* adapters are merged into it \(merge_adapter\(\)\)"): two.load_checkpoint(folder)
