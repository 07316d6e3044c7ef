"""Everything that transformers' Trainer and TrainingArguments have in public is here under the same name, or is named here with the reason."""
import ast, inspect, json, os, signal, textwrap, time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

transformers = pytest.importorskip("transformers")
from toys import Augmented, SETTINGS, collate, hard_learner, hard_model
from trainer_nb import Learner, InvalidOperation, TrainerCallback, TrainingArguments, differences
from trainer_nb.state.async_save import is_checkpoint_writer
from trainer_nb.core.errors import find_hints

pytestmark = pytest.mark.usefixtures("one_thread")
Theirs = transformers.Trainer

# Attributes that the Trainer gives itself and that nobody asks for from outside.
INNER = {"gather_function": "evaluations gather by the device", "model_preparation_time": "nothing is timed but training and evaluating"}
ABSENT_ARGS = {"default_optim": "a constant; the default of optim", "is_torch_greater_or_equal_than_2_8": "a constant of the Trainer's module"}
NOT_CALLED = find_hints("overrides")


def parameters(function): return [p for p in inspect.signature(function).parameters]


def test_every_public_method_is_here_with_its_signature():
    "Parameters may be added, none may be missing, and the order is the same."
    for name, theirs in inspect.getmembers(Theirs):
        if name.startswith("_") or not callable(theirs): continue
        wanted, mine = parameters(theirs), parameters(getattr(Learner, name))
        assert [p for p in mine if p in wanted] == wanted, f"{name}: {wanted}, and here {mine}"


def test_every_private_method_is_here_or_cannot_be_overridden():
    "A subclass that overrides one of the Trainer's inner methods is called, or refused; never ignored."
    inner = [n for n, f in inspect.getmembers(Theirs, inspect.isfunction) if n.startswith("_") and not n.startswith("__")]
    assert not [n for n in inner if not hasattr(Learner, n) and n not in NOT_CALLED]
    stale = {n for n in NOT_CALLED if not hasattr(Theirs, n)}
    assert not stale, f"{stale} are no methods of the Trainer's"
    for name in NOT_CALLED:
        with pytest.raises(TypeError, match=f"Mine.{name} would have no effect"):
            type("Mine", (Learner,), {name: lambda self, *args, **kwargs: None})(hard_model(), train_dataset=Augmented())
    page = json.loads((Path(__file__).parents[2]/"nbs/tutorials/from_trainer.ipynb").read_text("utf-8"))
    rows = [line.strip("| \n").split(" | ") for cell in page["cells"] for line in cell["source"] if line.startswith("| `_") or line.startswith("| `create_")]
    shown = {name.strip("`"): f"{why}; {instead}" for names, why, instead in rows for name in names.split(", ")}
    assert len(shown) > 5 and shown.items() <= NOT_CALLED.items()   # the most common ones, with the words of the error


def test_every_attribute_is_here():
    "What the Trainer writes into itself can be read here, and means the same."
    tree = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(Theirs))))
    names = {n.attr for n in tree if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and isinstance(n.value, ast.Name) and n.value.id == "self"}
    learn = hard_learner()
    learn.step()
    missing = {n for n in names if not n.startswith("_") and not hasattr(learn, n)}
    assert missing <= set(INNER), missing
    assert learn.model_wrapped is learn.run_state.wrapped_model and learn.accelerator.device.type == "cpu" and learn.args.n_gpu == 0
    assert (learn.is_in_train, learn.is_deepspeed_enabled, learn.is_fsdp_enabled, learn.is_model_parallel, learn.place_model_on_device) == (False, False, False, False, True)
    assert (learn.get_tp_size(), learn.get_cp_size(), learn.get_sp_size(), learn._get_learning_rate()) == (1, 1, 1, learn.optimizer.param_groups[0]["lr"])
    assert learn._get_output_dir() == learn.args.output_dir and learn.hp_search_backend is None and learn.label_smoother is None
    learn.end()
    assert learn.run_state.first.freed


def test_is_in_train_inside_and_outside():
    seen = []
    class Ask(TrainerCallback):
        def on_step_end(self, args, state, control, learner=None, **kwargs): seen.append(learner.is_in_train)
        def on_evaluate(self, args, state, control, learner=None, **kwargs): seen.append(("evaluate", learner.is_in_train))
    learn = hard_learner(callbacks=[Ask()], eval_dataset=Augmented(6), eval_strategy="steps", eval_steps=1)
    learn.step()
    learn.evaluate()
    assert seen == [True, ("evaluate", True), ("evaluate", False)] and not learn.is_in_train


def test_the_label_smoother_is_the_trainers():
    from transformers.trainer_pt_utils import LabelSmoother
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    labels[0, 2:] = -100
    learn = hard_learner(label_smoothing_factor=0.2)
    for shift in (False, True):
        want = LabelSmoother(0.2)({"logits": logits.clone()}, labels.clone(), shift_labels=shift)
        assert torch.equal(learn.label_smoother({"logits": logits}, labels, shift_labels=shift), want)


def test_initial_training_values_are_the_trainers(tmp_path):
    for n, given in ((30, {}), (30, {"max_steps": 7}), (5, {"gradient_accumulation_steps": 4}), (None, {"max_steps": 9})):
        data = Augmented(n) if n else (x for x in ())
        loader = torch.utils.data.DataLoader(data, batch_size=8) if n else iter(())
        settings = dict(per_device_train_batch_size=8, gradient_accumulation_steps=2) | given
        theirs = Theirs(hard_model(), transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **settings), train_dataset=Augmented(8))
        ours = hard_learner(**dict(max_steps=-1, num_train_epochs=3) | settings)
        assert ours.set_initial_training_values(ours.args, loader) == theirs.set_initial_training_values(theirs.args, loader)
    with pytest.raises(ValueError, match="max_steps"): hard_learner(max_steps=-1).set_initial_training_values(hard_learner(max_steps=-1).args, iter(()))


def test_overrides_that_count(tmp_path):
    "A subclass as they are written for the Trainer: each of these methods is asked by the loop."
    calls = []
    class Mine(Learner):
        def autocast_smart_context_manager(self, cache_enabled=True):
            calls.append("autocast")
            return super().autocast_smart_context_manager(cache_enabled)
        def _prepare_inputs(self, inputs):
            inputs = super()._prepare_inputs(inputs)
            calls.append(("inputs", len(inputs["x"])))
            return inputs
        def call_model_init(self, trial=None):
            calls.append("init")
            return super().call_model_init(trial)
        def _save(self, output_dir=None, state_dict=None):
            super()._save(output_dir, state_dict)
            open(f"{output_dir}/mine.txt", "w").write("beside the weights")
        def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
            calls.append(("ignored", ignore_keys))
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
    made = dict(model_init=hard_model, data_collator=collate, train_dataset=Augmented(), eval_dataset=Augmented(4)) | SETTINGS
    learn = Mine(output_dir=str(tmp_path), max_steps=2, save_strategy="steps", save_steps=1, eval_strategy="steps", eval_steps=2, **made)
    learn.train(ignore_keys_for_eval=["extra"])
    assert "init" in calls and "autocast" in calls and ("ignored", ["extra"]) in calls and ("inputs", 4) in calls
    assert (tmp_path / "checkpoint-1/mine.txt").read_text() == "beside the weights" and (tmp_path / "checkpoint-1/model.safetensors").is_file()
    again = Mine(output_dir=str(tmp_path), max_steps=2, save_strategy="no", **made)
    again.load_checkpoint(tmp_path / "checkpoint-1")
    again.step()
    assert not [n for n in differences(again.snapshot(), learn.snapshot()) if "/" in n]   # weights, buffers, optimizer
    learn.save_model(tmp_path / "saved")
    assert (tmp_path / "saved/mine.txt").is_file()
    with pytest.raises(ValueError, match="no trial"): learn.train(trial={"learning_rate": 1})


def test_arguments_are_set_in_groups(tmp_path):
    "The same values as the Trainer's setters give, call by call."
    calls = [("set_training", dict(learning_rate=1e-3, batch_size=4, weight_decay=0.1, num_epochs=2, max_steps=7, gradient_accumulation_steps=3, seed=1)),
             ("set_evaluate", dict(strategy="steps", steps=9, batch_size=3, accumulation_steps=2, delay=1, loss_only=True)), ("set_testing", dict(batch_size=5, loss_only=True)),
             ("set_save", dict(strategy="epoch", steps=11, total_limit=2, on_each_node=True)), ("set_optimizer", dict(name="sgd", learning_rate=0.1, beta1=0.8, args="momentum=0.9")),
             ("set_logging", dict(strategy="epoch", steps=4, first_step=True, nan_inf_filter=True, on_each_node=True, replica_level="warning")),
             ("set_lr_scheduler", dict(name="cosine", num_epochs=5, warmup_steps=3)), ("set_dataloader", dict(train_batch_size=2, drop_last=True, num_workers=1, prefetch_factor=3, sampler_seed=6))]
    ours, theirs = TrainingArguments(str(tmp_path)), transformers.TrainingArguments(str(tmp_path))
    alike = {k for k, v in theirs.to_dict().items() if k in ours.to_dict() and v == ours.to_dict()[k]}
    for name, given in calls:
        assert getattr(ours, name)(**given) is ours
        getattr(theirs, name)(**given)
        assert parameters(getattr(ours, name)) == parameters(getattr(theirs, name)), name
        mine = ours.to_dict()
        differ = {k: (v, mine[k]) for k, v in theirs.to_dict().items() if k in alike and v != mine[k]}
        # their setter leaves the word as it was given; here the argument is read as a list at any time
        if differ.get("report_to") == ("none", []): del differ["report_to"]
        assert differ == {}, name
    before = ours.to_dict()
    with pytest.raises(ValueError, match="save_steps=0"): ours.set_save(steps=0)
    assert ours.to_dict() == before
    plain = ours.to_sanitized_dict()
    assert set(theirs.to_sanitized_dict()) <= set(plain) and all(type(v) in (bool, int, float, str) for v in plain.values())
    public = {n for n, _ in inspect.getmembers(transformers.TrainingArguments) if not n.startswith("_")}
    assert {n for n in public if not hasattr(TrainingArguments, n)} <= set(ABSENT_ARGS)
    assert (ours.device.type, ours.parallel_mode.value, ours.ddp_timeout_delta, ours.place_model_on_device) == ("cpu", "not_parallel", theirs.ddp_timeout_delta, None) or ours.n_gpu


def test_each_machine_writes_if_asked(monkeypatch):
    def run(each, **world): return SimpleNamespace(args=SimpleNamespace(save_on_each_node=each), device=SimpleNamespace(world=SimpleNamespace(**world)))
    assert [is_checkpoint_writer(run(each, is_main_process=first, local_rank=local)) for each in (False, True) for first, local in ((True, 0), (False, 0), (False, 1))] == [
        True, False, False, True, True, False]
    for name, value in dict(RANK="2", LOCAL_RANK="0").items(): monkeypatch.setenv(name, value)
    assert [TrainingArguments("out", save_on_each_node=each).should_save for each in (False, True)] == [False, True]


@pytest.fixture
def asked():
    "A handler for SIGTERM that was there before, so that the process lives on."
    heard, before = [], signal.signal(signal.SIGTERM, lambda *ignored: heard.append("asked"))
    yield heard
    signal.signal(signal.SIGTERM, before)


def terminate_at(step, event="on_step_begin"):
    class Scheduler(TrainerCallback):
        pass
    def act(self, args, state, control, **kwargs):
        if state.global_step == step: signal.raise_signal(signal.SIGTERM)
    setattr(Scheduler, event, act)
    return Scheduler()


def test_sigterm_writes_a_checkpoint_at_the_boundary(tmp_path, asked):
    "In the middle of a step, at its end, and while nobody trains; the run goes on from there exactly."
    plain = hard_learner(enable_jit_checkpoint=False, save_strategy="no", output_dir=str(tmp_path / "plain"))
    plain.train()
    for event, at, stands in (("on_step_begin", 2, 3), ("on_step_end", 2, 2), ("on_log", 2, 2)):
        folder, heard = tmp_path / event, len(asked)
        learn = hard_learner(enable_jit_checkpoint=True, output_dir=str(folder), save_strategy="no", callbacks=[terminate_at(at, event)])
        learn.train()
        assert asked[heard:] == ["asked"] and learn.state.global_step == stands and not learn.run_state.finished, event
        again = hard_learner(output_dir=str(folder), save_strategy="no", enable_jit_checkpoint=True)
        again.train(resume_from_checkpoint=True)
        assert [n for n in differences(again.snapshot(), plain.snapshot()) if n not in ("args", "state")] == [], event
        signal.raise_signal(signal.SIGTERM)   # the run is finished: nothing to write
        assert len(asked) == heard + 2
    idle = hard_learner(enable_jit_checkpoint=True, output_dir=str(tmp_path / "idle"), save_strategy="no")
    idle.step()
    signal.raise_signal(signal.SIGTERM)
    assert asked[-1] == "asked" and (tmp_path / "idle/checkpoint-1").is_dir()
    assert hard_learner(enable_jit_checkpoint=True).args.saves_checkpoints and hard_learner(enable_jit_checkpoint=True).args.save_dir == "trainer_output"
    with pytest.raises(InvalidOperation, match="the signal reaches this process"): idle.launch(num_processes=2)


def test_without_a_handler_the_script_ends_with_143(tmp_path, monkeypatch):
    # a shell that another test has left in this process would make it a notebook, which the signal ends
    monkeypatch.setattr("IPython.get_ipython", lambda: None)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        learn = hard_learner(enable_jit_checkpoint=True, output_dir=str(tmp_path), save_strategy="no", callbacks=[terminate_at(1)])
        with pytest.raises(SystemExit) as end: learn.train()
        assert end.value.code == 143 and (tmp_path / "checkpoint-2").is_dir()
    finally: signal.signal(signal.SIGTERM, before)


def test_a_model_card(tmp_path, monkeypatch):
    "What scripts write at their end: the Trainer's arguments, a head that YAML and the Hub's own library read; somebody's README stays."
    from huggingface_hub import ModelCard
    learn = hard_learner(output_dir=str(tmp_path / "out"), eval_dataset=Augmented(6), save_strategy="no")
    learn.train(), learn.evaluate()
    learn.create_model_card(language="en", license="mit", tags="digits: small", finetuned_from="base/model", tasks="text-classification", dataset_tags=["glue"], dataset_args="mrpc")
    card = ModelCard.load(tmp_path / "out/README.md")
    assert (card.data.language, card.data.license, card.data.base_model, card.data.tags, card.data.pipeline_tag, card.data.datasets) == (
        ["en"], "mit", "base/model", ["digits: small", "trainer_nb"], "text-classification", ["glue"])
    assert f"{learn.state.log_history[-1]['eval_loss']:.6g}" in card.text and str(tmp_path) not in card.text
    (tmp_path / "out/README.md").write_text("# Mine\n")
    with pytest.warns(UserWarning, match="was kept and no model card was written"): learn.create_model_card()
    assert (tmp_path / "out/README.md").read_text() == "# Mine\n"
    monkeypatch.chdir(tmp_path)
    hard_learner().create_model_card()
    assert (tmp_path / "trainer_output" / "README.md").is_file()


def test_sigterm_in_an_evaluation_by_hand_writes_the_weights_of_the_run(tmp_path, asked):
    "Not those that are in bf16 for the moment; a debug step that stands open is given up; a branch writes its own checkpoint, and its parent too."
    learn = hard_learner(enable_jit_checkpoint=True, output_dir=str(tmp_path / "look"), save_strategy="no", eval_dataset=Augmented(12), bf16_full_eval=True,
                         callbacks=[terminate_at(1, "on_prediction_step")])
    learn.step()
    before = learn.snapshot()
    learn.evaluate()
    until = time.monotonic() + 10
    while not asked and time.monotonic() < until: time.sleep(0.01)
    assert asked == ["asked"]
    again = hard_learner(output_dir=str(tmp_path / "look"), save_strategy="no", enable_jit_checkpoint=True, eval_dataset=Augmented(12), bf16_full_eval=True)
    again.load_checkpoint(str(tmp_path / "look/checkpoint-1"))
    assert [n for n in differences(again.snapshot(), before) if n not in ("args", "state")] == []
    learn = hard_learner(enable_jit_checkpoint=True, output_dir=str(tmp_path / "debug"), save_strategy="no")
    learn.step()
    learn.debug_step().forward()
    signal.raise_signal(signal.SIGTERM)
    assert (tmp_path / "debug/checkpoint-1").is_dir() and learn.run_state.current.debug_step is None
    learn = hard_learner(enable_jit_checkpoint=True, output_dir=str(tmp_path / "branch"), save_strategy="no")
    learn.step()
    branch = learn.branch(lr=0.01)
    branch.step()
    signal.raise_signal(signal.SIGTERM)
    assert os.path.isdir(os.path.join(branch.args.output_dir, "checkpoint-2")) and (tmp_path / "branch/checkpoint-1").is_dir()


def test_what_scripts_copy_from_the_trainer(tmp_path):
    "Names with an underscore that recipes use, and a tokenizer that only the collator knows."
    class Words:
        def save_pretrained(self, folder): Path(folder, "words.txt").write_text("a b")
    class Collate:
        tokenizer = Words()
        def __call__(self, rows): return collate(rows)
    learn = hard_learner(data_collator=Collate(), output_dir=str(tmp_path), save_strategy="steps", save_steps=2)
    teacher = torch.nn.Linear(2, 2)
    assert learn._train_batch_size == 4 and learn._move_model_to_device(teacher, torch.device("cpu")) is teacher
    assert torch.equal(learn.gather_function(torch.ones(3)), torch.ones(3))
    learn.train()
    learn.save_model(str(tmp_path / "model"))
    assert (tmp_path / "checkpoint-2/words.txt").is_file() and (tmp_path / "model/words.txt").is_file()
