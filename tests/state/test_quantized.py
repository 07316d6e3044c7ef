"""Quantized base models with adapters (QLoRA): the base is only read, a snapshot has its digest, and every promise about a run holds."""

import pytest
import safetensors
import torch

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
bitsandbytes = pytest.importorskip("bitsandbytes")
from trainer_nb import InvalidOperation, Learner, TrainerCallback, differences
from trainer_nb.device.weight_storage import read_only_weights, weight_digest

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]

BNB = transformers.BitsAndBytesConfig
KINDS = {
    "nf4": lambda: BNB(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "fp4": lambda: BNB(load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_compute_dtype=torch.bfloat16),
    "int8": lambda: BNB(load_in_8bit=True),
    "torchao": lambda: _torchao(),
}
each_kind = pytest.mark.parametrize("kind", ["nf4", "int8", "torchao", pytest.param("fp4", marks=pytest.mark.slow)])


def _torchao():
    quantization = pytest.importorskip("torchao.quantization")
    return transformers.TorchAoConfig(quantization.Int8WeightOnlyConfig())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "A tiny model with biases in some of its layers, saved as users load theirs."
    torch.manual_seed(0)
    config = transformers.Qwen2Config(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                                      max_position_embeddings=32, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    model = transformers.Qwen2ForCausalLM(config)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n.endswith("bias"): p.normal_()
    path = tmp_path_factory.mktemp("base")
    model.save_pretrained(path)
    return path


def load(folder, kind, **given): return transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=KINDS[kind](), **given)


def adapt(model, kbit=False, **given):
    if kbit: model = peft.prepare_model_for_kbit_training(model)
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(**dict(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", lora_dropout=0.1) | given))


def qlora(folder, kind="nf4", kbit=False, **given): return adapt(load(folder, kind), kbit, **given)


def texts(n=24):
    rows = torch.randint(1, 64, (n, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in rows]


SETTINGS = dict(max_steps=6, save_steps=3, learning_rate=1e-2, use_cpu=True, disable_tqdm=True, logging_steps=1, lr_scheduler_type="cosine")


def learner(model, output, **given):
    settings = SETTINGS | given
    return Learner(model, train_dataset=texts(), eval_dataset=texts(8), output_dir=str(output), **settings)


def unequal(one, two): return [n for n in differences(one, two) if n not in ("args", "user", "control")]


def trained(model): return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


def assert_same(one, two): assert one.keys() == two.keys() and all(torch.equal(t, two[n]) for n, t in one.items())


@pytest.mark.parametrize("kind, kbit", [("nf4", False), ("fp4", True), ("int8", False), ("torchao", False)])
def test_the_same_numbers_as_the_trainer(folder, tmp_path, kind, kbit):
    settings = SETTINGS | dict(save_strategy="no", gradient_accumulation_steps=2)
    if kbit: settings["activation_checkpointing"] = True
    theirs = transformers.Trainer(qlora(folder, kind, kbit, lora_dropout=0.0), transformers.TrainingArguments(
        output_dir=str(tmp_path/"theirs"), report_to="none", dataloader_pin_memory=False, **settings), train_dataset=texts())
    theirs.remove_callback(transformers.PrinterCallback)
    theirs.train()
    ours = learner(qlora(folder, kind, kbit, lora_dropout=0.0), tmp_path/"ours", **settings)
    ours.train()
    names = ("loss", "grad_norm", "learning_rate")
    logs = [[{k: row[k] for k in names if k in row} for row in one.state.log_history] for one in (theirs, ours)]
    assert logs[0] == logs[1] and len(logs[0]) == 7
    assert_same(trained(theirs.model), trained(ours.model))


@each_kind
def test_a_run_resumes_exactly_beside_a_base_that_is_loaded_again(folder, tmp_path, kind):
    one = learner(qlora(folder, kind), tmp_path)
    one.train()
    names = {p.name for p in (tmp_path/"checkpoint-3").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names and "model.safetensors" not in names
    with safetensors.safe_open(tmp_path/"checkpoint-3"/"rest.safetensors", "pt") as rest: assert all(n.startswith("buffers/") for n in rest.keys())
    two = learner(qlora(folder, kind), tmp_path)
    two.train(resume_from_checkpoint=str(tmp_path/"checkpoint-3"))
    assert differences(one.snapshot(), two.snapshot()) == []


@each_kind
def test_time_travel(folder, tmp_path, kind):
    "Snapshots without the base, rewinding, branches, resetting, and evaluations that leave no trace."
    want = learner(qlora(folder, kind), tmp_path/"a", save_strategy="no")
    want.train()
    end = want.snapshot()
    learn = learner(qlora(folder, kind), tmp_path/"b", save_strategy="no", rewind_every=1)
    base = {o.name: weight_digest(o) for o in read_only_weights(learn.model)}
    assert len(base) == 14
    learn.step(2)
    taken = learn.snapshot()
    assert not [n for n in taken.tensors if n.removeprefix("weights/") in base] and set(taken.values["read_only"].values()) == set(base.values())
    learn.evaluate()
    learn.predict(texts(4))
    learn.step(2)
    branch = learn.branch()
    assert all(a.weight is b.weight for a, b in zip(read_only_weights(learn.model), read_only_weights(branch.model)))
    learn.evaluate()
    branch.train()
    learn.step(1)
    assert not learn.rewind(2).different
    learn.restore(taken)
    assert differences(learn.snapshot(), taken) == []
    learn.train()
    for o in (learn, branch): assert unequal(o.snapshot(), end) == []
    learn.reset()
    learn.train()
    assert unequal(learn.snapshot(), end) == []
    assert {o.name: weight_digest(o) for o in read_only_weights(learn.model)} == base
    assert (branch.predict(texts(4)).predictions == want.predict(texts(4)).predictions).all()


def test_an_altered_base_and_another_one_are_reported(folder, tmp_path):
    learn = learner(qlora(folder), tmp_path)
    learn.step(3)
    taken = learn.snapshot()
    weight = next(read_only_weights(learn.model)).weight
    weight.data[0] += 1
    with pytest.raises(ValueError, match="'base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight' of the base model differs: .* Load the base again"):
        learn.restore(taken)
    weight.data[0] -= 1
    learn.restore(taken)
    learn.model.merge_adapter()
    with pytest.raises(ValueError, match="of the base model differs"): learn.restore(taken)
    other = learner(qlora(folder, "fp4"), tmp_path)
    before = other.snapshot()
    with pytest.raises(ValueError, match="on another base model: .* differs"): other.load_checkpoint(tmp_path/"checkpoint-3")
    assert differences(before, other.snapshot()) == []


def test_models_that_cannot_be_trained(folder, tmp_path):
    bare = load(folder, "nf4")
    with pytest.raises(InvalidOperation, match=r"quantized weights cannot be trained; attach adapters: model = peft.get_peft_model"): learner(bare, tmp_path)
    with pytest.raises(ValueError, match="purely quantized"): transformers.Trainer(bare, transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none"))
    learn = learner(qlora(folder), tmp_path)
    with pytest.raises(InvalidOperation, match="attach adapters"): learn.model = bare
    made = Learner(model_init=lambda: load(folder, "nf4"), train_dataset=texts(), output_dir=str(tmp_path), **SETTINGS)
    with pytest.raises(InvalidOperation, match="attach adapters"): made.step()
    other = qlora(folder)
    other.base_model.model.hf_quantizer = type("Q", (), {"is_trainable": False, "quantization_config": type("C", (), {"quant_method": "bits"})})
    with pytest.raises(InvalidOperation, match="quantized with bits in a form that passes no gradients; load it with"): learner(other, tmp_path)


def test_evaluations_do_not_rearrange_the_base(folder, tmp_path):
    "On some CPUs bitsandbytes does, and the layers pass no gradients from then on."
    learn = learner(qlora(folder, lora_dropout=0.0), tmp_path, save_strategy="no")
    learn.model.eval()
    with torch.no_grad(): learn.model(texts(1)[0]["input_ids"][None])
    learn.evaluate()
    learn.model.generate(input_ids=texts(1)[0]["input_ids"][None], max_new_tokens=2, do_sample=False)
    learn.step()
    assert all(p.grad is None for p in learn.model.parameters())
    moved = [n for n, p in learn.model.named_parameters() if "lora_B" in n and p.ne(0).any()]
    assert len(moved) == 4
    model = qlora(folder)
    layer = next(m for m in model.modules() if isinstance(m, bitsandbytes.nn.Linear4bit))
    layer.weight.quant_state.packing_format_for_cpu = True
    with pytest.raises(InvalidOperation, match="rearranged the weights of .* Load the model again"): learner(model, tmp_path)


@pytest.mark.parametrize("kind", ["fp4", "int8"])
def test_biases_that_a_layer_converts(folder, tmp_path, kind):
    "In its first forward pass, to the type in which it computes; the first snapshot and a new process have the other type."
    one = learner(qlora(folder, kind, kbit=True), tmp_path, bf16=True, rewind_every=1)
    one.train()
    end = one.snapshot()
    one.reset()
    one.train()
    assert unequal(one.snapshot(), end) == []
    two = learner(qlora(folder, kind, kbit=True), tmp_path, bf16=True)
    two.train(resume_from_checkpoint=str(tmp_path/"checkpoint-3"))
    assert unequal(two.snapshot(), end) == []


@pytest.mark.parametrize("kind", ["nf4", "torchao"])
def test_failing_steps(folder, tmp_path, kind):
    failures = []
    class Fails(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if len(failures) < 2 and state.global_step == 2:
                failures.append(state.global_step)
                raise RuntimeError("stopped by the test")
    want = learner(qlora(folder, kind), tmp_path, save_strategy="no")
    want.train()
    for given in ({}, {"rollback": "full"}):
        learn = learner(qlora(folder, kind), tmp_path, save_strategy="no", **given)
        failures.clear()
        learn.add_callback(Fails())
        for _ in range(2):
            with pytest.raises(RuntimeError): learn.train()
        learn.train()
        assert_same(trained(learn.model), trained(want.model))


def test_the_best_adapter_is_loaded_and_saved_alone(folder, tmp_path):
    learn = learner(qlora(folder), tmp_path, eval_strategy="steps", eval_steps=3, load_best_model_at_end=True, metric_for_best_model="loss", greater_is_better=True)
    learn.step(3)
    then = trained(learn.model)
    learn.train()
    assert learn.state.best_global_step == 3
    assert_same(trained(learn.model), then)
    path = learn.save_model(tmp_path/"saved")
    assert {p.name for p in path.iterdir()} <= {"adapter_config.json", "adapter_model.safetensors", "README.md", "training_args.json"}
    again = peft.PeftModel.from_pretrained(load(folder, "nf4"), path)
    assert_same({n.replace("default.", ""): p for n, p in again.named_parameters() if "lora" in n}, {n.replace("default.", ""): p for n, p in then.items()})
    first = learn.predict(texts(4)).predictions
    assert (first == learner(again, tmp_path).predict(texts(4)).predictions).all()


def test_checkpoints_in_the_trainers_layout(folder, tmp_path):
    layout = "trainer"
    one = learner(qlora(folder), tmp_path, save_format=layout)
    one.train()
    two = learner(qlora(folder), tmp_path, save_format=layout)
    two.train(resume_from_checkpoint=str(tmp_path/"checkpoint-3"))
    assert differences(one.snapshot(), two.snapshot()) == []


class Own(torch.nn.Module):
    "A quantized layer of bitsandbytes in a module of the user's own, with trained layers beside it."
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.base, self.last = torch.nn.Linear(4, 64), bitsandbytes.nn.LinearNF4(64, 64), torch.nn.Linear(64, 3)
    def forward(self, x): return self.last(self.base(self.first(x)))


def test_quantized_layers_in_a_module_of_the_users_own(tmp_path):
    data = torch.utils.data.TensorDataset(torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3)
    def made():
        return Learner(Own(), train_dataset=data, loss_func=torch.nn.functional.cross_entropy, output_dir=str(tmp_path), **SETTINGS | dict(load_best_model_at_end=False))
    one, two = made(), made()
    one.train()
    two.train(resume_from_checkpoint=str(tmp_path/"checkpoint-3"))
    assert unequal(one.snapshot(), two.snapshot()) == []


@pytest.fixture
def no_exceptions(monkeypatch):
    "The Trainer's optimizer finds exceptions (32 bits for an embedding) by the number of a parameter, also those of other tests."
    shared = bitsandbytes.optim.GlobalOptimManager.get_instance()
    for name, empty in dict(pid2config={}, index2config={}, module_weight_config_triple=[]).items(): monkeypatch.setattr(shared, name, empty)


@pytest.mark.parametrize("optim", ["adamw_bnb_8bit", "paged_adamw_8bit", *(pytest.param(o, marks=pytest.mark.slow) for o in ("paged_adamw_32bit", "lion_8bit"))])
def test_optimizers_of_bitsandbytes(folder, tmp_path, optim, no_exceptions):
    settings = dict(optim=optim, save_steps=2, max_steps=4)
    large = dict(r=64, target_modules=["q_proj", "v_proj", "up_proj"], lora_dropout=0.0)   # 4096 numbers: from there on the state has 8 bits
    one = learner(qlora(folder, **large), tmp_path, **settings)
    one.train()
    two = learner(qlora(folder, **large), tmp_path, **settings)
    two.train(resume_from_checkpoint=str(tmp_path/"checkpoint-2"))
    assert differences(one.snapshot(), two.snapshot()) == []
    theirs = transformers.Trainer(qlora(folder, **large), transformers.TrainingArguments(
        output_dir=str(tmp_path/"theirs"), report_to="none", dataloader_pin_memory=False, **SETTINGS | settings | dict(save_strategy="no")), train_dataset=texts())
    theirs.train()
    assert_same(trained(theirs.model), trained(one.model))


@each_kind
def test_on_two_processes(folder, tmp_path, kind):
    "The base travels with the learner; a checkpoint that was written there is resumed here."
    learn = learner(qlora(folder, kind), tmp_path)
    learn.launch(num_processes=2, train=True)
    home = learner(qlora(folder, kind), tmp_path)
    home.load_checkpoint(tmp_path/"checkpoint-3")
    assert home.state.global_step == 3 and learn.state.global_step == 6
    assert {weight_digest(o) for o in read_only_weights(learn.model)} == {weight_digest(o) for o in read_only_weights(home.model)}


def test_a_quantized_base_is_not_divided(folder, tmp_path):
    "The error says what to type, and the run goes on with it."
    learn = learner(qlora(folder, "nf4"), tmp_path, fsdp=True)
    with pytest.raises(ValueError, match="quantized weights cannot be divided here; leave it out"), learn.launch(num_processes=2): learn.step()
    learn.args.fsdp = None
    with learn.launch(num_processes=2): assert learn.step()[0].step == 1
