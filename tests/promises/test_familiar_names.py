"Names of fastai and Lightning: those that exist do what they do there, and the others name what to type."
import re
from importlib import resources

import pytest
import torch
from torch import nn

import trainer_nb
from trainer_nb import Learner, differences
from trainer_nb.args.training_args import TrainingArguments
from trainer_nb.core.errors import find_hints

# the public names of the classes, from their documentation
FASTAI = """add_cb add_cbs added_cbs all_batches cbs create_opt default_cbs detach_distributed distrib_ctx dl dls epoch export final_record
    fine_tune fit fit_flat_cos fit_one_cycle fit_sgdr freeze freeze_to get_preds load load_encoder load_learner loss loss_func loss_grad lr lr_find
    metrics model model_dir moms n_epoch no_bar no_logging no_mbar one_batch opt opt_func ordered_cbs parallel_ctx path plot_sched pred predict
    recorder remove_cb remove_cbs removed_cbs save save_encoder show_results show_training_loop smooth_loss splitter summary to_bf16
    to_distributed to_fp16 to_fp32 to_native_fp16 to_parallel training tta unfreeze validate wd wd_bn_bias xb yb""".split()
LIGHTNING = """accumulate_grad_batches all_gather automatic_optimization backward callback_metrics check_val_every_n_epoch checkpoint_callback
    checkpoint_callbacks ckpt_path clip_gradients configure_callbacks configure_gradient_clipping configure_optimizers current_epoch datamodule
    default_root_dir device device_ids early_stopping_callback early_stopping_callbacks estimated_stepping_batches example_input_array
    fast_dev_run fit fit_loop forward freeze global_rank global_step gradient_clip_val hparams interrupted is_global_zero lightning_module
    limit_train_batches load_from_checkpoint local_rank log log_dict log_dir log_every_n_steps logged_metrics logger loggers lr_scheduler_configs
    lr_scheduler_step lr_schedulers manual_backward max_epochs max_steps min_epochs node_rank num_devices num_nodes num_training_batches
    num_val_batches on_train_epoch_end on_validation_end optimizer_step optimizer_zero_grad optimizers overfit_batches precision predict
    predict_dataloaders predict_loop predict_step prepare_data print progress_bar_callback progress_bar_metrics save_checkpoint
    save_hyperparameters scaler setup should_stop state strategy teardown test test_dataloaders test_loop test_step to_onnx to_torchscript
    toggle_optimizer train_dataloader trainer training_step tune tuner unfreeze untoggle_optimizer val_check_interval val_dataloaders validate
    validate_loop validation_step world_size""".split()

class Net(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, classes)
    def forward(self, x, labels=None):
        logits = self.body(x)
        return {"logits": logits} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def samples(n=12): return [{"x": torch.randn(4, generator=torch.Generator().manual_seed(i)), "labels": i % 3} for i in range(n)]


def make(**given):
    return Learner(**dict(model=Net(), train_dataset=samples(), eval_dataset=samples(6), num_train_epochs=2, per_device_train_batch_size=4, learning_rate=0.01,
                          use_cpu=True, disable_tqdm=True) | given)


@pytest.mark.parametrize("library, names", {"fastai": FASTAI, "Lightning": LIGHTNING}.items())
def test_every_name_exists_or_says_what_to_type(library, names):
    learn = make()
    silent = []
    for name in names:
        try: getattr(learn, name)
        except AttributeError as error:
            if "learn." not in str(error) and "Learner(" not in str(error) and ": " not in str(error): silent.append((name, str(error)))
    assert not silent


TEXT = resources.files("trainer_nb").joinpath("hints.txt").read_text("utf-8")
GROUPS = {group for line in TEXT.splitlines() if line.startswith("[") for group in line.strip("[]").split()}
CALLS = {group.removesuffix("()"): find_hints(group) for group in GROUPS if group.endswith("()")}
HINTS = {**find_hints("attributes"), **{f"{call}({name})": hint for call, hints in CALLS.items() for name, hint in hints.items() if " " in hint}}


KNOWN = {*TrainingArguments.__dataclass_fields__, "lr", "optimizers", "loss_func", "metrics", "eval_dataset", "train_dataset", "data_collator", "compute_metrics",
         "resume_from_checkpoint", "dataset", "num_processes", "max_momentum", "base_momentum", "div_factor", "final_div_factor", "steps", "epochs", "to", "cluster"}


def missing_parts(learn, hint):
    "The attributes of the learner and the settings that a hint names and that do not exist."
    missing = [name for name in re.findall(r"\b(\w+)=", hint) if name not in KNOWN]
    for chain in re.findall(r"\blearn\.(\w+(?:\.\w+)*)", hint):
        thing = learn
        for part in chain.split(".")[:2]:
            if not hasattr(thing, part):
                missing.append(chain)
                break
            thing = getattr(thing, part)
            # parts that the first step makes, and the model of the user
            if thing is None or isinstance(thing, nn.Module): break
    return missing


def test_what_a_hint_names_exists():
    learn = make()
    wrong = {name: missing for name, hint in HINTS.items() if (missing := missing_parts(learn, hint))}
    assert not wrong and missing_parts(learn, "learn.refit() and learn.set(lerning_rate=1)") == ["lerning_rate", "refit"]


def test_no_hint_for_a_name_that_exists():
    "It would never be read."
    learn = make()
    assert not [name for name in find_hints("attributes") if hasattr(type(learn), name) or name in vars(learn)]
    assert not {call for call in CALLS if not hasattr(Learner, call) and not hasattr(trainer_nb, call)}


def test_validate_is_evaluate():
    a, b = make(), make()
    want, found = a.evaluate(), b.validate()
    assert {k: v for k, v in found.items() if "runtime" not in k and "per_second" not in k} == {k: v for k, v in want.items() if "runtime" not in k and "per_second" not in k}
    with pytest.raises(TypeError, match="evaluates another data set"): b.validate(ds_idx=1)


# --- the sentence about the learning rate -----------------------------------------------------------------------------------

SENTENCES = {
    # schedule: of the settings, before the first step, after three of twelve steps
    "linear": (dict(), "learning rate: 0.1 at the next step (was 0.01); the linear schedule falls to 8.333e-3 at step 12, the last.",
               "learning rate: 0.1 at the next step (was 7.5e-3); the linear schedule falls to 0.01111 at step 12, the last."),
    "linear, warmup": (dict(warmup_steps=4), "learning rate: 0 at the next step; the linear schedule rises to 0.1 at step 5 and falls to 0.0125 at step 12, the last.",
                       "learning rate: 0.1 at the next step (was 7.5e-3); the linear schedule rises to 0.1333 at step 5 and falls to 0.01667 at step 12, the last."),
    "constant": (dict(lr_scheduler_type="constant"), "learning rate: 0.1 at the next step (was 0.01); the constant schedule keeps it to step 12.",
                 "learning rate: 0.1 at the next step (was 0.01); the constant schedule keeps it to step 12."),
    "one_cycle": (dict(lr_scheduler_type="one_cycle"), "learning rate: 4e-3 at the next step (was 4e-4); the one_cycle schedule rises to 0.0",
                  "learning rate: 0.1 at the next step (was 9.9"),
    "plateau": (dict(lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="epoch"),
                "learning rate: 0.1 at the next step (was 0.01); the reduce_lr_on_plateau schedule changes it after evaluations.",
                "learning rate: 0.1 at the next step (was 0.01); the reduce_lr_on_plateau schedule changes it after evaluations."),
    "groups": (dict(optimizers=True, lr_scheduler_type="constant"), "learning rate: 0.1, 0.2 at the next step (was 0.01, 0.02); the constant schedule keeps it",
               "learning rate: 0.1, 0.2 at the next step (was 0.01, 0.02); the constant schedule keeps it"),
}


@pytest.mark.parametrize("kind", SENTENCES)
@pytest.mark.parametrize("done", [0, 3])
def test_set_says_which_rate_comes_next(kind, done):
    given, first, later = SENTENCES[kind]
    if "optimizers" in given:
        model = Net()
        groups = [{"params": [model.body.weight]}, {"params": [model.body.bias], "lr": 0.02}]
        given = given | dict(model=model, optimizers=(torch.optim.SGD(groups, lr=0.01), None), learning_rate=5e-5)
    learn = make(train_dataset=samples(24), **given)
    if done: learn.step(done)
    changed = learn.set(lr=0.1)
    assert repr(changed).startswith(later if done else first), repr(changed)
    assert changed.sentences()[0] in changed._repr_html_().replace("&#x27;", "'")
    said = float(changed.sentences()[0].split()[2].rstrip(","))
    assert learn.step()[0].learning_rate == pytest.approx(said, rel=1e-3)


def test_set_of_the_base_says_it_too():
    learn = make(train_dataset=samples(24))
    learn.step(6)
    changed = learn.set(learning_rate=0.1)
    assert repr(changed).startswith("learning rate: 0.05 at the next step (was 5e-3); the linear schedule falls to 8.333e-3 at step 12, the last.")
    assert learn.step()[0].learning_rate == pytest.approx(0.05)
    assert "learning rate" not in repr(learn.set(weight_decay=0.1)).split("setting")[0]
    learn = make()
    learn.set(learning_rate=0.3)
    assert learn.step()[0].learning_rate == 0.3


def test_a_schedule_of_the_user_continues():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learn = make(model=model, optimizers=(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)), learning_rate=5e-5)
    learn.step()
    assert "the StepLR schedule continues from there" in repr(learn.set(lr=0.5))


# --- plot_schedule ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["linear", "cosine", "one_cycle", "constant", "polynomial"])
def test_the_plot_shows_what_the_steps_use(name):
    learn, like = (make(train_dataset=samples(40), lr_scheduler_type=name, warmup_steps=0.2) for _ in "ab")
    like.train()
    used = [r.learning_rate for r in like.history]
    for done in (0, 7):
        if done: learn.step(done)
        before = learn.snapshot()
        chart = learn.plot_schedule()
        lines = {thing.name: thing for thing in chart.panels()[0].things if hasattr(thing, "name")}
        assert list(lines["planned"].y) == pytest.approx(used[done:], rel=1e-12) and list(lines["planned"].x) == list(range(done + 1, 21))
        assert ("so far" in lines) == bool(done) and (not done or list(lines["so far"].y) == used[:done])
        assert not differences(before, learn.snapshot())
    learn.train()
    assert [r.learning_rate for r in learn.history] == used
    assert (len(chart.panels()) == 2) == (name == "one_cycle")
    assert "finished" in repr(learn.plot_schedule())


@pytest.mark.parametrize("done", [0, 7])
def test_the_panels_of_the_schedule_have_the_same_steps(done):
    "The present step is within the axis of each, and that of the momentum says why it has no past."
    learn = make(train_dataset=samples(40), lr_scheduler_type="one_cycle")
    if done: learn.step(done)
    rates, momentum = learn.plot_schedule().panels()
    assert rates.x_span == momentum.x_span == (min(done, 1), 20)
    assert momentum.note == ("past values are not recorded" if done else "")


def test_the_plot_with_groups_and_with_schedules_of_the_user():
    learn = make()
    learn.fit(1, 0.1)
    learn.plan(1, schedule="linear")
    things = learn.plot_schedule().panels()[0].things
    assert [getattr(t, "name", None) for t in things][:2] == ["so far", "planned"]
    model = Net()
    optimizer = torch.optim.SGD([{"params": [model.body.weight]}, {"params": [model.body.bias], "lr": 0.5}], lr=0.1)
    learn = make(model=model, optimizers=(optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)), learning_rate=5e-5)
    learn.step(2)
    lines = {t.name: list(t.y) for t in learn.plot_schedule().panels()[0].things if hasattr(t, "name")}
    assert set(lines) == {"so far", "planned, group 1", "planned, group 2"}
    assert [r.learning_rate for r in learn.run()] == pytest.approx(lines["planned, group 1"])
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learn = make(model=model, optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, Counts())), learning_rate=5e-5)
    learn.step(2)
    calls = learn.lr_scheduler.lr_lambdas[0].calls
    assert len(learn.plot_schedule().panels()[0].things) == 2 and learn.lr_scheduler.lr_lambdas[0].calls == calls


class Counts:
    calls = 0
    def __call__(self, step):
        self.calls += 1
        return 1.0


# --- show_results and predict_one -------------------------------------------------------------------------------------------

class Named(list): classes = ["red", "green", "blue"]


def test_results_of_a_classifier():
    learn = make(eval_dataset=Named(samples(6)))
    learn.train()
    before = learn.snapshot()
    results, want = learn.show_results(4), learn.predict(learn.eval_dataset)
    assert not differences(before, learn.snapshot()) and len(results) == 4
    assert results.targets == [Named.classes[i % 3] for i in range(4)]
    assert results.predictions == [Named.classes[i] for i in want.predictions.argmax(-1)[:4]]
    shares = torch.tensor(want.predictions).softmax(-1).max(-1).values
    assert [r.probability for r in results] == pytest.approx(shares[:4].tolist())
    assert "predicted" in results._repr_html_() and list(results.frame()["target"]) == results.targets
    assert len(learn.show_results()) == 6 and len(learn.show_results(2, dataset=samples(3))) == 2


def test_results_of_a_regression_and_of_pictures():
    def loss(out, y): return nn.functional.mse_loss(out, y)
    rows = [(s["x"], s["x"].sum().reshape(1)) for s in samples()]
    learn = make(model=nn.Linear(4, 1), loss_func=loss, train_dataset=rows, eval_dataset=rows)
    found = learn.show_results(3)
    assert found.targets == pytest.approx([float(y) for _, y in rows[:3]])
    assert found.predictions == pytest.approx(learn.predict(rows).predictions[:3, 0].tolist(), rel=1e-6) and found[0].probability is None
    pictures = [(torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(i)), i % 3) for i in range(6)]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    learn = make(model=model, loss_func=nn.functional.cross_entropy, train_dataset=pictures, eval_dataset=pictures)
    html = learn.show_results(5)._repr_html_()
    assert html.count("<img") == 5 and "target / predicted" in html
    same = [(x, x) for x, _ in pictures]
    learn = make(model=nn.Conv2d(1, 1, 1), loss_func=loss, train_dataset=same, eval_dataset=same)
    assert learn.show_results(2)._repr_html_().count("<img") == 6
    # masks, and several labels
    masks, several = (torch.utils.data.TensorDataset(torch.rand(4, 1, 8, 8), labels) for labels in (torch.ones(4, 8, 8).long(), torch.ones(4, 2)))
    learn = Learner(torch.nn.Conv2d(1, 2, 1), eval_dataset=masks, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True)
    for found in (*learn.show_results(4), learn.predict_one(masks[0]), learn.predict_one(masks[0][0])):
        assert found.predicted.shape == (8, 8) and not found.predicted.is_floating_point()
    assert learn.show_results(2)._repr_html_().count("<img") == 6
    binary = torch.utils.data.TensorDataset(masks.tensors[0], masks.tensors[1][:, None].float())
    learn = Learner(torch.nn.Conv2d(1, 1, 1), eval_dataset=binary, loss_func=torch.nn.functional.binary_cross_entropy_with_logits, use_cpu=True, disable_tqdm=True)
    for found in (*learn.show_results(4), learn.predict_one(binary[0])): assert set(found.predicted.unique().tolist()) <= {0.0, 1.0}
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    torch.nn.init.zeros_(net[1].weight)
    net[1].bias.data.copy_(torch.tensor([-1.0, 1.0]))
    learn = Learner(net, eval_dataset=several, loss_func=torch.nn.BCEWithLogitsLoss(), use_cpu=True, disable_tqdm=True)
    assert [(r.target, r.predicted) for r in learn.show_results(4)] == [("0, 1", "1")] * 4 and learn.predict_one(several[0][0]).predicted == "1"


def test_results_need_a_set_and_a_number():
    with pytest.raises(ValueError, match="show_results.*nothing to look at"): make(eval_dataset=None).show_results()
    with pytest.raises(ValueError, match="from 1 on"): make().show_results(0)
    with pytest.raises(TypeError, match="it is called 'n' here"): make().show_results(max_n=3)


def test_one_sample_is_as_in_the_data_set():
    learn = make(train_dataset=Named(samples()), eval_dataset=Named(samples(6)))
    learn.step(2)
    want = learn.predict(samples(6)).predictions
    for i, sample in enumerate(samples(6)):
        for given in (sample, {"x": sample["x"]}, sample["x"], sample["x"].numpy()):
            found = learn.predict_one(given)
            assert torch.allclose(found.output, torch.tensor(want[i]), atol=1e-6) and found.predicted == Named.classes[want[i].argmax()]
            assert found.probabilities[found.predicted] == found.probability == max(found.probabilities.values())
            assert found.target == (Named.classes[i % 3] if isinstance(given, dict) and "labels" in given else None)
    assert found.predicted in repr(found) and "probability" in found._repr_html_()
    assert [r.step for r in learn.step(1)] == [3]


def test_one_sample_of_other_kinds():
    rows = [(s["x"], s["x"].sum().reshape(1)) for s in samples()]
    learn = make(model=nn.Linear(4, 1), loss_func=nn.functional.mse_loss, train_dataset=rows, eval_dataset=rows)
    for given in (rows[0], rows[0][0]):
        found = learn.predict_one(given)
        assert found.predicted == pytest.approx(float(learn.model(rows[0][0]))) and found.probabilities is None
    learn = make(model=nn.Linear(4, 3), loss_func=nn.functional.cross_entropy, train_dataset=[(s["x"], s["labels"]) for s in samples()], eval_dataset=None)
    assert learn.predict_one(samples()[0]["x"]).predicted in range(3)
    numbers = samples()[0]["x"].tolist()
    assert torch.equal(learn.predict_one(numbers).output, learn.predict_one(samples()[0]["x"]).output)
    rows = [(torch.tensor([i / 9]), torch.tensor([i / 9])) for i in range(9)]
    learn = make(model=nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 1)), nn.Linear(1, 1)), loss_func=nn.functional.mse_loss, train_dataset=rows, eval_dataset=None)
    assert torch.equal(learn.predict_one(0.5).output, learn.predict_one([0.5]).output)
    words = make(model=nn.Embedding(9, 2), loss_func=lambda out, y: out.sum(), train_dataset=[(torch.tensor([1, 2]), 0)] * 9, eval_dataset=None)
    assert torch.equal(words.predict_one([1, 2]).output, words.predict_one(torch.tensor([1, 2])).output)


def test_several_labels_are_no_classes():
    "Also for an input without labels, where the data or the model has names."
    rows = Named((s["x"], torch.tensor([1.0, 1.0, 0.0])) for s in samples())
    learn = make(model=nn.Linear(4, 3), loss_func=nn.functional.binary_cross_entropy_with_logits, train_dataset=rows, eval_dataset=rows)
    for given in (rows[0], rows[0][0], (rows[0][0],)):
        found = learn.predict_one(given)
        assert found.probabilities is found.probability is None and isinstance(found.predicted, str)
    model = Net()
    model.config = type("Config", (), dict(id2label={0: "red", 1: "green", 2: "blue"}, problem_type="multi_label_classification"))()
    learn = make(model=model, train_dataset=[{"x": s["x"]} for s in samples()], eval_dataset=None, max_steps=1)
    assert learn.predict_one(samples()[0]["x"]).probabilities is None
    model.config.problem_type = None
    assert learn.predict_one(samples()[0]["x"]).predicted in ("red", "green", "blue")


def test_a_batch_is_no_sample():
    pairs = [(s["x"], s["labels"]) for s in samples()]
    for learn in (make(), make(model=nn.Linear(4, 3), loss_func=nn.functional.cross_entropy, train_dataset=pairs, eval_dataset=None)):
        for batch in (pairs[0][0][None], torch.randn(2, 4), torch.randn(2, 4).numpy()):
            with pytest.raises(ValueError, match=r"takes one sample, not a batch: x\[0\]; predict\(data_set\)"): learn.predict_one(batch)
        assert learn.predict_one(pairs[0][0]).predicted in range(3)


def test_an_input_alone_where_the_data_is_a_stream():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self): return iter([(s["x"], s["labels"]) for s in samples()])
    given = dict(loss_func=nn.functional.cross_entropy, eval_dataset=None, max_steps=4)
    learn, like = (make(model=nn.Linear(4, 3), train_dataset=Stream(), **given) for _ in range(2))
    like.model.load_state_dict(learn.model.state_dict())
    learn.step(2)
    assert torch.allclose(learn.predict_one(samples()[0]["x"]).output, learn.model(samples()[0]["x"]))
    learn.train(), like.train()
    assert [r.loss for r in learn.history] == [r.loss for r in like.history]
    learn = make(model=nn.Linear(4, 3), train_dataset=None, **given | dict(eval_dataset=list(Stream())))
    assert learn.predict_one(samples()[0]["x"]).predicted in range(3)
    # the target of an autoencoder is the input
    learn = make(model=nn.Linear(4, 4), train_dataset=[s["x"] for s in samples()], **given | dict(loss_func=nn.functional.mse_loss))
    assert torch.equal(learn.predict_one(samples()[0]["x"]).target, samples()[0]["x"])


def test_a_picture_and_a_text():
    image = pytest.importorskip("PIL.Image").new("L", (8, 8), 128)
    class Pictures(list):
        def transform(self, picture): return torch.full((1, 8, 8), picture.getpixel((0, 0)) / 255)
    pictures = Pictures([(torch.rand(1, 8, 8), i % 3) for i in range(6)])
    learn = make(model=nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), loss_func=nn.functional.cross_entropy, train_dataset=pictures, eval_dataset=None)
    assert torch.allclose(learn.predict_one(image).output, learn.predict_one(torch.full((1, 8, 8), 128 / 255)).output)
    with pytest.raises(TypeError, match="needs an image processor"): make().predict_one(image)
    with pytest.raises(TypeError, match="needs a tokenizer"): make().predict_one("a text")


def test_a_text_with_a_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film"]
    (tmp_path/"vocab.txt").write_text("\n".join(words))
    tokenizer = transformers.BertTokenizer(str(tmp_path/"vocab.txt"))
    config = transformers.BertConfig(vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=2,
                                     id2label={0: "negative", 1: "positive"})
    rows = [dict(tokenizer(text), labels=i) for i, text in enumerate(["bad film", "good film film"])]
    learn = make(model=transformers.BertForSequenceClassification(config), train_dataset=rows, eval_dataset=rows, processing_class=tokenizer)
    found = learn.predict_one("good film film")
    assert found.predicted in ("negative", "positive") and torch.allclose(found.output, torch.tensor(learn.predict(rows).predictions[1]), atol=1e-6)
    results = learn.show_results()
    assert results.targets == ["negative", "positive"] and "good film" in results[1].text and "good film" in results._repr_html_()


def test_what_is_no_sample_and_no_data_set():
    learn = make()
    with pytest.raises(TypeError, match=r"for one sample, learn.predict_one\(sample\)"): learn.predict(samples()[0])
    with pytest.raises(TypeError, match=r"not an object of type str"): learn.predict("a text")
    with pytest.raises(TypeError, match=r"learn.predict_one\(sample\)"): learn.predict(item=samples()[0])
    two = [dict(s, z=s["x"]) for s in samples()]
    class Both(Net):
        def forward(self, x, z, labels=None): return super().forward(x + z, labels)
    learn = make(model=Both(), train_dataset=two, eval_dataset=two)
    with pytest.raises(TypeError, match="a dict with x, labels, z"): learn.predict_one(two[0]["x"])
    assert learn.predict_one(two[0]).target == 0 and learn.step()[0].step == 1


@pytest.mark.xdist_group("launch")
def test_on_two_processes():
    learn = make(train_dataset=samples(24))
    want = make(train_dataset=samples(24))
    alone = want.predict_one(samples()[0]), [r.predicted for r in want.show_results(3)]
    with learn.launch(2):
        assert learn.predict_one(samples()[0]).probability == pytest.approx(alone[0].probability)
        assert [r.predicted for r in learn.show_results(3)] == alone[1]
        changed = learn.set(lr=0.02)
        assert repr(changed).startswith("learning rate: 0.02 at the next step (was 0.01); the linear schedule falls to")
        planned = learn.plot_schedule().panels()[0].things[0]
        assert learn.validate()["eval_loss"] > 0
        learn.train()
    assert [r.learning_rate for r in learn.history] == pytest.approx(list(planned.y))
