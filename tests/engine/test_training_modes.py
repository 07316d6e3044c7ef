"Training and evaluation mode: each step uses the model as the Trainer does, and what is to stay in evaluation mode stays."
import warnings

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
from trainer_nb import Learner, TrainerCallback, differences
from references import for_classes, sentences
from toys import Augmented, collate, outcome, unequal

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::FutureWarning")]


def said(action):
    "The warnings that an action gives about modes."
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(w.message) for w in caught if "mode" in str(w.message)]


# --- the same numbers as the Trainer -----------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    "A folder with a small BERT that has dropout, as from_pretrained reads it."
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("bert")
    transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16,
        num_labels=3, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)).save_pretrained(folder)
    return str(folder)


class Around(nn.Module):
    "A user's module around a pretrained encoder, with a BatchNorm of its own inside a part in evaluation mode."
    def __init__(self, folder):
        super().__init__()
        self.encoder = transformers.AutoModel.from_pretrained(folder)
        self.neck = nn.Sequential(nn.BatchNorm1d(16), nn.Dropout(0.2)).eval()
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids=None, attention_mask=None, labels=None):
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
        logits = self.head(self.neck(hidden))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def lora(folder):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["query", "value"], lora_dropout=0.1, task_type="SEQ_CLS"))


def around(folder):
    torch.manual_seed(1)
    return Around(folder)


def plain(folder): return transformers.AutoModelForSequenceClassification.from_pretrained(folder)


def seeded(base):
    "The same random draws at the same micro-batch, whichever loop asks for them."
    class Seeded(base):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            if model.training:
                self.draws = getattr(self, "draws", 0) + 1
                torch.manual_seed(self.draws)
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
    return Seeded


@pytest.mark.parametrize("make", [lora, around, plain])
def test_dropout_of_a_pretrained_model_is_that_of_the_trainer(saved, tmp_path, make):
    "Also with evaluations in between; the statistics of a BatchNorm in a submodule are compared as well."
    data = sentences(24)
    settings = dict(output_dir=str(tmp_path), use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, learning_rate=1e-2,
                    dataloader_pin_memory=False, max_steps=6, per_device_train_batch_size=4, gradient_accumulation_steps=2, logging_steps=1,
                    eval_strategy="steps", eval_steps=2)
    theirs = seeded(transformers.Trainer)(make(saved), transformers.TrainingArguments(**settings), train_dataset=data, eval_dataset=data,
                                          data_collator=for_classes)
    theirs.train()
    ours = seeded(Learner)(make(saved), train_dataset=data, eval_dataset=data, data_collator=for_classes, **settings)
    assert said(ours.train) == []   # nobody has put anything into evaluation mode in a cell
    assert [row["loss"] for row in ours.state.log_history if "loss" in row] == pytest.approx(
        [row["loss"] for row in theirs.state.log_history if "loss" in row], rel=1e-5)
    for (name, a), b in zip(theirs.model.state_dict().items(), ours.model.state_dict().values()):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), name
    assert all(m.training for m in ours.model.modules())


# --- what was put into evaluation mode, and by whom --------------------------------------------------------------------

class Net(nn.Module):
    "An encoder with BatchNorm and dropout, and a head; notes in which mode the encoder was used."
    not_state = ("used", "calls", "cache")
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.head = nn.Linear(8, 3)
        self.used = []

    def forward(self, x, labels=None):
        self.used.append((self.encoder.training, self.encoder[1].training, self.encoder[2].training))
        logits = self.head(self.encoder(x))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def learner(model=None, cls=Learner, **given):
    torch.manual_seed(0)
    settings = dict(max_steps=12, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-2, use_cpu=True, disable_tqdm=True) | given
    data = settings.pop("train_dataset", Augmented(30))
    return cls(Net() if model is None else model, train_dataset=data, data_collator=collate, **settings)


AWAKE, ASLEEP = (True, True, True), (False, False, False)


@pytest.mark.parametrize("part", ["", "encoder", "encoder.1"])
def test_an_eval_in_a_cell_is_undone(part):
    learn, calm = learner(), learner()
    learn.step(2)
    learn.model.get_submodule(part).eval()
    assert said(lambda: learn.step(2)) == []   # as in the Trainer; cells do it to use the model
    calm.step(4)
    assert unequal(outcome(learn), outcome(calm)) == [] and set(learn.model.used) == {AWAKE}


@pytest.mark.parametrize("part", ["", "encoder.1"])
def test_a_rewind_over_an_eval_is_exact(part):
    learn = learner(rewind_every=2)
    learn.step(3)
    learn.model.get_submodule(part).eval()
    learn.step(3)
    want = outcome(learn)
    back = learn.rewind(4)
    assert back.different == [] and back.step == 2
    learn.step(4)
    assert differences(want[0], learn.snapshot()) == [] and not [a for a in learn.history.events if a["kind"] == "by hand"]


def test_a_callbacks_eval_is_undone_before_the_next_micro_batch():
    class Sampler(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs): model.eval()
        def on_substep_end(self, args, state, control, model=None, **kwargs): model.encoder.eval()
        def on_step_end(self, args, state, control, model=None, **kwargs): model.eval()
    learn, calm = learner(callbacks=[Sampler()]), learner()
    assert said(lambda: learn.step(4)) == []   # the Trainer undoes it without a word, too
    calm.step(4)
    assert learn.model.used == calm.model.used == [AWAKE] * 8
    assert torch.equal(learn.model.head.weight, calm.model.head.weight)


def test_an_overridden_training_step_begins_in_training_mode():
    class Own(Learner):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = self.compute_loss(model, self._prepare_inputs(inputs)) / self.current_gradient_accumulation_steps
            loss.backward()
            return loss.detach()
    class Leaves(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs): model.eval()
    learn = learner(cls=Own, callbacks=[Leaves()])
    learn.step(3)
    assert learn.model.used == [AWAKE] * 6


def test_an_eval_between_the_moves_of_a_debug_step():
    learn, calm = learner(), learner()
    debug = learn.debug_step()
    learn.model.eval()
    debug.forward()
    debug.backward(); debug.forward(); debug.backward(); debug.update()
    calm.step()
    assert unequal(outcome(learn), outcome(calm)) == [] and learn.model.used == [AWAKE, AWAKE]


class KeepsNorm(Net):
    "The usual way to keep the statistics of a BatchNorm: train() is overridden."
    calls = 0
    def train(self, mode=True):
        super().train(mode)
        self.encoder[1].eval()
        self.calls += 1
        return self


def test_a_module_that_overrides_train_is_called_for_each_micro_batch():
    learn = learner(KeepsNorm().train())
    learn.step()
    before = learn.model.calls
    learn.step(3)
    assert learn.model.used == [(True, False, True)] * 8 and learn.model.calls >= before + 6
    assert learn.model.encoder[1].num_batches_tracked == 0


def test_an_instance_whose_train_is_replaced_is_called():
    learn = learner()
    encoder = learn.model.encoder.eval()
    encoder.train = lambda mode=True: encoder
    assert said(lambda: learn.step(2)) == [] and learn.model.used == [ASLEEP] * 4
    learn.rewind(1)
    assert learn.model.used == [ASLEEP] * 6


def test_a_mode_that_no_step_undoes_is_an_act():
    "The loss function is not the model: train() is not called on it, so an eval() there counts, and is noted."
    class Loss(nn.Module):
        def __init__(self): super().__init__(); self.drop = nn.Dropout(0.5)
        def forward(self, logits, labels): return nn.functional.cross_entropy(self.drop(logits), labels)
    learn = Learner(nn.Linear(4, 3), train_dataset=[(torch.randn(4), i % 3) for i in range(24)], loss_func=Loss(), max_steps=10, use_cpu=True,
                    disable_tqdm=True, rewind_every=1)
    learn.step(2)
    before = learn.snapshot()
    learn.loss_func.eval()
    assert said(learn.step) == [] and not learn.loss_func.training and not learn.loss_func.drop.training
    acts = [e for e in learn.history.events if e["kind"] == "by hand"]
    assert [(e["step"], e["data"]["changed"]) for e in acts] == [(2, ["training modes"])]
    learn.step(3)
    assert learn.rewind(4).different == [] and learn.step(3) and not learn.loss_func.training
    learn.restore(before)
    assert learn.loss_func.training and learn.loss_func.drop.training and differences(before, learn.snapshot()) == []


def test_tools_put_back_what_they_found():
    model = Net()
    model.encoder.eval()
    learn = learner(model, eval_dataset=Augmented(8), max_steps=30)
    for tool in (learn.evaluate, lambda: learn.predict(Augmented(4)), learn.inspect, lambda: learn.lr_find(num_steps=10), learn.summary,
                 lambda: learn.top_losses(2)):
        tool()
        assert [m.training for m in model.modules()] == [True, False, False, False, False, True]
    learn.step(2)
    assert all(m.training for m in model.modules())
    learn.reset()
    assert [m.training for m in model.modules()] == [True, False, False, False, False, True]
    assert said(learn.step) == []


# --- layers that stay in evaluation mode -------------------------------------------------------------------------------

def test_frozen_layers_in_evaluation_mode():
    "Neither their weights nor their statistics move, and dropout is off; unfreezing wakes them."
    learn = learner()
    learn.step()
    learn.freeze("encoder", eval_mode=True)
    before, n = {k: v.clone() for k, v in learn.model.state_dict().items()}, len(learn.model.used)
    learn.step(2); learn.evaluate(Augmented(4)); learn.model.train()
    assert said(lambda: learn.step(2)) == []
    assert {k for k, v in learn.model.state_dict().items() if not torch.equal(v, before[k])} == {"head.weight", "head.bias"}
    assert set(learn.model.used[n:]) == {ASLEEP} and learn.model.training and learn.model.head.training
    learn.unfreeze("encoder")
    n = len(learn.model.used)
    assert said(learn.step) == []
    assert learn.model.used[n:] == [AWAKE, AWAKE] and learn.model.encoder[0].weight.requires_grad
    assert [(a["act"], a["what"]) for a in learn.journal] == [("freeze", "encoder, in evaluation mode"), ("unfreeze", "encoder")]


def test_trainable_layers_in_evaluation_mode_and_freezing_without():
    learn = learner()
    learn.unfreeze("encoder", eval_mode=True)
    before = learn.model.encoder[0].weight.clone()
    learn.step(2)
    assert learn.model.used == [ASLEEP] * 4 and not torch.equal(before, learn.model.encoder[0].weight)
    learn.freeze("encoder")   # says nothing of the mode: training mode, as ever
    learn.step()
    assert learn.model.used[4:] == [AWAKE] * 2


def test_a_group_without_a_module_of_its_own_is_refused():
    class Direct(Net):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
        def forward(self, x, labels=None): return super().forward(x * self.scale, labels)
    learn = learner(Direct())
    with pytest.raises(ValueError, match="'Direct'.*Leave eval_mode=True out"): learn.freeze("Direct", eval_mode=True)
    assert learn.model.scale.requires_grad and len(learn.journal) == 0


def held(**given):
    learn = learner(**given)
    learn.step(2)
    learn.freeze("encoder", eval_mode=True)
    learn.step(2)
    return learn


@pytest.mark.parametrize("layout", ["safetensors", "trainer"])
def test_a_checkpoint_keeps_it(tmp_path, layout):
    "In a new process the run goes on with these layers in evaluation mode."
    one = held(output_dir=str(tmp_path), save_format=layout, save_strategy="no")
    one.save_checkpoint()
    one.step(3)
    two = learner(output_dir=str(tmp_path), save_format=layout, save_strategy="no")
    if layout == "trainer": two.freeze("encoder")   # its groups are those of the frozen model
    two.load_checkpoint(str(tmp_path / "checkpoint-4"))
    two.step(3)
    assert two.model.used[-6:] == [ASLEEP] * 6
    assert all(torch.equal(a, b) for a, b in zip(one.model.state_dict().values(), two.model.state_dict().values()))


def test_a_trial_keeps_it():
    learn = held()
    seen = len(learn.model.used)
    learn.lr_find(num_steps=10)
    assert set(learn.model.used[seen:]) == {ASLEEP}
    with learn.debug_step() as debug: debug.forward()
    assert learn.model.used[-1] == ASLEEP


def test_a_compiled_model_keeps_it():
    learn = held(torch_compile=True, torch_compile_backend="eager")
    plain = held()
    assert all(torch.allclose(a, b) for a, b in zip(learn.model.state_dict().values(), plain.model.state_dict().values()))
    assert torch.equal(learn.model.encoder[1].running_mean, plain.model.encoder[1].running_mean)


def test_snapshots_have_each_modules_flag():
    learn = learner()
    learn.step()
    learn.model.encoder[2].eval()
    taken = learn.snapshot()
    learn.model.train()
    assert differences(taken, learn.snapshot()) == ["modes"]
    learn.restore(taken)
    assert [n for n, m in learn.model.named_modules() if not m.training] == ["encoder.2"]


def test_a_cache_that_train_empties_is_emptied_after_an_evaluation():
    "DoRA keeps norms of weights while it is in evaluation mode: stale ones must not come into a later evaluation."
    class Caching(Net):
        cache = None
        def train(self, mode=True):
            if mode: self.cache = None
            return super().train(mode)
        def forward(self, x, labels=None):
            if not self.training and self.cache is None: self.cache = self.head.weight.detach().clone()
            out = super().forward(x, labels)
            if not self.training: out["loss"] = self.cache.sum()
            return out
    learn = learner(Caching().train(), eval_dataset=Augmented(8))
    taken = learn.snapshot()
    first = learn.evaluate()["eval_loss"]
    learn.step(3); learn.evaluate()
    learn.restore(taken)
    assert learn.evaluate()["eval_loss"] == first


def test_several_processes_keep_it():
    "Frozen before the launch, there, and at home again: the layers are in evaluation mode in all processes."
    learn = learner()
    learn.freeze("encoder", eval_mode=True)
    learn.launch(2)
    learn.step(2)
    used = learn.run_on_all(lambda one: set(one.model.used))
    learn.unfreeze()
    learn.step(2)
    awake = learn.run_on_all(lambda one: one.model.used[-1])
    learn.freeze("encoder", eval_mode=True)
    learn.step(2)
    learn.close()
    learn.step(2)
    assert used == [{ASLEEP}] * 2 and awake == [AWAKE] * 2 and learn.model.used[-1] == ASLEEP
