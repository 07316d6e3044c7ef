"Models whose layers are on several devices, or offloaded: trained in place, with every promise about a run."
from types import SimpleNamespace

import pytest, torch

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
from accelerate import cpu_offload, dispatch_model
from trainer_nb import InvalidOperation, Learner, differences
from trainer_nb.device import weight_storage
from trainer_nb.device.weight_storage import WeightDigests, check_placement, is_model_parallel, read_only_weights, weight_digest

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]

LAYERS = ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "model.rotary_emb", "lm_head")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("base")
    made().save_pretrained(path)
    return path


def made():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32,
        bos_token_id=0, eos_token_id=0, pad_token_id=0))


def loaded(folder, device_map, **given): return transformers.AutoModelForCausalLM.from_pretrained(folder, device_map=device_map, **given)


def offloaded(folder, tmp_path, where="disk", adapted=(0,)):
    "The second layer is on a disk; adapters are in the layers with these numbers."
    base = loaded(folder, {n: where if n == "model.layers.1" else "cpu" for n in LAYERS}, offload_folder=str(tmp_path/"offload"))
    torch.manual_seed(1)
    return peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", layers_to_transform=list(adapted)))


def texts(n=24):
    rows = torch.randint(1, 64, (n, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in rows]


SETTINGS = dict(max_steps=6, save_steps=3, learning_rate=1e-2, use_cpu=True, disable_tqdm=True, logging_steps=1)


def learner(model, output, **given):
    return Learner(model, train_dataset=texts(), eval_dataset=texts(8), output_dir=str(output), **SETTINGS | given)


def losses(one): return [row["loss"] for row in one.state.log_history if "loss" in row]


PLACED = {
    "device_map": lambda folder: loaded(folder, {"": "cpu"}),
    "auto": lambda folder: loaded(folder, "auto"),
    "one device with hooks": lambda folder: dispatch_model(made(), {"": "cpu"}, force_hooks=True),
    "layers with hooks": lambda folder: dispatch_model(made(), dict.fromkeys(LAYERS, "cpu"), force_hooks=True),
}


@pytest.mark.parametrize("kind", PLACED)
def test_a_placed_model_is_trained_as_by_the_trainer(folder, tmp_path, kind):
    theirs = transformers.Trainer(PLACED[kind](folder), transformers.TrainingArguments(
        output_dir=str(tmp_path/"theirs"), report_to="none", dataloader_pin_memory=False, **SETTINGS | dict(save_strategy="no")), train_dataset=texts())
    theirs.train()
    ours = learner(PLACED[kind](folder), tmp_path, rewind_every=1)
    hooks = sum(hasattr(m, "_hf_hook") for m in ours.model.modules())
    ours.step(3)
    taken = ours.snapshot()
    branch = ours.branch()
    ours.evaluate()
    ours.train()
    branch.train()
    assert losses(ours) == losses(theirs) and ours.is_model_parallel == theirs.is_model_parallel == False
    for a, b, c in zip(ours.model.parameters(), theirs.model.parameters(), branch.model.parameters()): assert torch.equal(a, b) and torch.equal(a, c)
    assert sum(hasattr(m, "_hf_hook") for m in branch.model.modules()) == sum(hasattr(m, "_hf_hook") for m in ours.model.modules()) == hooks
    assert not ours.rewind(2).different
    ours.restore(taken)
    assert differences(ours.snapshot(), taken) == []
    again = learner(PLACED[kind](folder), tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path/"checkpoint-3"))
    for a, b in zip(again.model.parameters(), branch.model.parameters()): assert torch.equal(a, b)
    ours.free()
    assert all(torch.equal(p, t) for p, t in zip(ours.model.parameters(), (taken.tensors[f"weights/{n}"] for n, _ in ours.model.named_parameters())))


@pytest.mark.parametrize("where", ["disk", "cpu"])
def test_adapters_beside_offloaded_layers(folder, tmp_path, where):
    "The base is read from the disk in each pass; a snapshot has its digests."
    theirs = transformers.Trainer(offloaded(folder, tmp_path, where), transformers.TrainingArguments(
        output_dir=str(tmp_path/"theirs"), report_to="none", dataloader_pin_memory=False, **SETTINGS | dict(save_strategy="no")), train_dataset=texts())
    theirs.train()
    one = learner(offloaded(folder, tmp_path, where), tmp_path, rewind_every=1)
    apart = {o.name: weight_digest(o) for o in read_only_weights(one.model)}
    assert len(apart) == (9 if where == "disk" else 0)
    one.step(3)
    taken = one.snapshot()
    assert not {n.removeprefix("weights/") for n in taken.tensors} & set(apart)
    branch = one.branch()
    one.evaluate()
    one.inspect()
    one.train()
    branch.train()
    assert losses(one) == losses(theirs)
    two = learner(offloaded(folder, tmp_path, where), tmp_path, rewind_every=1)
    two.train(resume_from_checkpoint=str(tmp_path/"checkpoint-3"))
    assert differences(one.snapshot(), two.snapshot()) == []
    ends = [{n: p for n, p in o.model.named_parameters() if p.requires_grad} for o in (one, two, branch, theirs)]
    for other in ends[1:]: assert all(torch.equal(p, other[n]) for n, p in ends[0].items())
    one.restore(taken)
    assert differences(one.snapshot(), taken) == [] and {o.name: weight_digest(o) for o in read_only_weights(one.model)} == apart
    one.free()


def test_what_cannot_work_is_reported(folder, tmp_path):
    "The Trainer leaves such weights as they are, silently, or fails in a backward pass."
    with pytest.raises(InvalidOperation, match="'model.embed_tokens.weight' is offloaded .* Give it one in device_map="): learner(cpu_offload(made(), torch.device("cpu")), tmp_path).step()
    part = loaded(folder, {n: "disk" if n == "model.layers.1" else "cpu" for n in LAYERS}, offload_folder=str(tmp_path/"offload"))
    with pytest.raises(InvalidOperation, match="'model.layers.1.self_attn.q_proj.weight' is offloaded"): learner(part, tmp_path).train()
    with pytest.raises(InvalidOperation, match="an adapter of an offloaded layer, and has no values; .* layers_to_transform="): learner(offloaded(folder, tmp_path, adapted=(0, 1)), tmp_path).train()
    with pytest.raises(InvalidOperation, match="several processes need a model on one device each"): learner(offloaded(folder, tmp_path), tmp_path).launch(num_processes=2)
    parallel = torch.nn.Linear(2, 2)
    parallel.tp_size = 2
    with pytest.raises(ValueError, match="was loaded with tp_plan=, which is unsupported; learn.launch"): check_placement(parallel, 1)
    with torch.device("meta"): empty = made()
    with pytest.raises(ValueError, match="is on the meta device and has no weights"): learner(empty, tmp_path).step()


def test_maps_of_several_devices():
    "As the Trainer reads them: on several accelerators, or on another one than the learner's."
    model, gpu = torch.nn.Linear(2, 2), torch.device("cuda", 0)
    for found, there in (({"a": 0, "b": 1}, True), ({"": 0}, False), ({"": 1}, True), ({"": "cuda:0"}, False), ({"a": 0, "b": "cpu"}, False), ({"": "cpu"}, False), (None, False)):
        model.hf_device_map = found
        assert is_model_parallel(model, gpu) is there
    model.hf_device_map = {"a": 0, "b": 1}
    check_placement(model, 1)
    with pytest.raises(InvalidOperation, match="load it without device_map="): check_placement(model, 2)


@pytest.mark.gpu
def test_layers_on_a_gpu_and_on_the_host(folder, tmp_path):
    "Accelerate offloads the part that is mapped to the CPU; adapters are in the other part."
    def spread():
        base = loaded(folder, {n: "cpu" if n == "model.layers.1" else 0 for n in LAYERS})
        torch.manual_seed(1)
        return peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", layers_to_transform=[0]))
    settings = dict(use_cpu=False)
    one = learner(spread(), tmp_path, **settings)
    one.step(3)
    taken = one.snapshot()
    one.train()
    end = one.snapshot()
    one.restore(taken)
    one.train()
    assert differences(one.snapshot(), end) == []
    two = learner(spread(), tmp_path, **settings)
    two.train(resume_from_checkpoint=str(tmp_path/"checkpoint-3"))
    assert [n for n in differences(two.snapshot(), end) if n != "args"] == []


def test_another_weight_in_the_same_memory_has_its_own_digest(monkeypatch):
    "As a stand-in for tensors on a GPU: parts with the same address and version."
    computed = []
    part = SimpleNamespace(is_cuda=True, data_ptr=lambda: 4096, _version=0)
    monkeypatch.setattr(weight_storage, "_offloaded", lambda o: None)
    monkeypatch.setattr(weight_storage, "weight_parts", lambda o: ({"": part}, "packed"))
    monkeypatch.setattr(weight_storage, "weight_digest", lambda o: computed.append(o) or str(len(computed)))
    digests = WeightDigests()
    def weight(): return SimpleNamespace(name="base", module=None, weight=torch.nn.Parameter(torch.ones(3), requires_grad=False))
    first = weight()
    assert [digests.digest(first), digests.digest(first)] == ["1", "1"]
    assert digests.digest(weight()) == "2"
    del first
    assert digests.digest(weight()) == "3"
    part._version = 1
    assert digests.digest(third := weight()) == "4" and digests.digest(third) == "4"
