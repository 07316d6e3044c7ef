"""The same numbers as transformers' Trainer on transformers' models: language models of three kinds, smoothed losses, ragged counts of tokens, bf16."""
import json

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
from trainer_nb import Learner
from references import bert, both, for_classes, for_language, gpt2, llama, make, one_thread, pad, relative, rows_of, sentences, vector   # noqa: F401


def t5():
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
                                                                         decoder_start_token_id=0, pad_token_id=0))


def for_t5(rows):
    ids = pad(rows)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": pad(rows, fill=-100)}


def ragged(rows):
    "Only some of the tokens count, of each row another number; of some rows none."
    batch = for_language(rows)
    for i, row in enumerate(rows): batch["labels"][i, : (row["label"] * 3)] = -100
    return batch


SETTINGS = dict(max_steps=8, per_device_train_batch_size=4, gradient_accumulation_steps=3, logging_steps=2, per_device_eval_batch_size=4)
# A smoothed loss is summed in another order, so gradients differ in the last bit; AdamW makes much of that where a gradient is nearly zero.
SMOOTHED = {"optim": "sgd", "learning_rate": 0.3}
CASES = {
    "gpt2, ragged counts": (gpt2, ragged, {}),
    "gpt2, a count per micro-batch": (gpt2, ragged, {"average_tokens_across_devices": False}),
    "gpt2, label smoothing": (gpt2, for_language, {"label_smoothing_factor": 0.1} | SMOOTHED),
    "llama, label smoothing, ragged": (llama, ragged, {"label_smoothing_factor": 0.2} | SMOOTHED),
    "bert, label smoothing": (bert, for_classes, {"label_smoothing_factor": 0.1} | SMOOTHED),
    "bert, epochs": (bert, for_classes, {"max_steps": -1, "num_train_epochs": 2}),
    "bert, part of an epoch": (bert, for_classes, {"max_steps": -1, "num_train_epochs": 1.5}),
    "t5": (t5, for_t5, {"weight_decay": 0.1, "optim": "sgd"}),
    "gpt2, polynomial": (gpt2, for_language, {"lr_scheduler_type": "polynomial", "warmup_steps": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_same_run(both, case):
    model, collate, given = CASES[case]
    theirs, ours = both(model(), sentences(30), data_collator=collate, **SETTINGS | given)
    assert ours.state.global_step == theirs.state.global_step >= 4


def test_evaluations_are_the_same(make):
    "Loss and predictions of an untrained model, with labels that differ in length."
    for model, collate in ((gpt2, ragged), (bert, for_classes)):
        data = sentences(10, low=8, high=9)
        theirs, ours = (made(model(), data, data_collator=collate, eval_dataset=data, **SETTINGS) for made in (make.theirs, make.ours))
        a, b = theirs.evaluate(), ours.evaluate()
        assert b["eval_loss"] == pytest.approx(a["eval_loss"], rel=1e-5)
        np.testing.assert_allclose(ours.predict(data).predictions, theirs.predict(data).predictions, rtol=1e-4, atol=1e-6)


def test_bf16_is_the_same_within_its_rounding(make):
    "Autocast rounds to 8 bits, and the two cast in the same places: the weights agree to 1 in 1000, and do not agree with those of fp32."
    from accelerate.state import AcceleratorState
    data = sentences(30)
    AcceleratorState._reset_state(reset_partial_state=True)   # the Trainer takes the precision that the last one left
    def trained(made, bf16):   # at once: the order of the Trainer's data hangs on what is drawn between its making and its training
        run = made(gpt2(), data, data_collator=for_language, bf16=bf16, **SETTINGS)
        run.train()
        return vector(run.model)
    theirs, ours, full = trained(make.theirs, True), trained(make.ours, True), trained(make.ours, False)
    assert relative(ours, theirs) < 1e-3 < relative(full, theirs)


def test_what_is_saved_is_what_transformers_saves(tmp_path, make):
    "The same files and the same bytes, for models with tied weights and for several files; from_pretrained gives them back, tied."
    for name, model in (("gpt2", gpt2), ("bert", bert), ("t5", t5)):
        theirs, ours = make.theirs(model(), sentences(4)), make.ours(model(), sentences(4))
        theirs.save_model(tmp_path / f"{name}-theirs")
        ours.save_model(tmp_path / f"{name}-ours")
        a, b = ({p.name: p for p in (tmp_path / f"{name}-{who}").iterdir()} for who in ("theirs", "ours"))
        assert set(a) - {"training_args.bin"} == set(b) - {"training_args.json"} and {"config.json", "model.safetensors"} <= set(b)
        assert all(b[n].read_bytes() == a[n].read_bytes() for n in b if n != "training_args.json")
        back = type(ours.model).from_pretrained(tmp_path / f"{name}-ours")
        assert all(torch.equal(t, ours.model.state_dict()[k]) for k, t in back.state_dict().items())
    tied = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "gpt2-ours")
    assert tied.lm_head.weight is tied.transformer.wte.weight
    from safetensors import safe_open
    with safe_open(tmp_path / "gpt2-ours/model.safetensors", "pt") as file: assert "lm_head.weight" not in file.keys()


def test_a_checkpoint_is_a_pretrained_model(tmp_path):
    "With what generation needs; the attention that the model was made with is left alone."
    model = gpt2()
    model.generation_config.max_new_tokens = 3
    attention = model.config._attn_implementation
    learn = Learner(model, train_dataset=sentences(8), data_collator=for_language, output_dir=str(tmp_path), max_steps=2, save_steps=2, use_cpu=True, disable_tqdm=True)
    learn.train()
    folder = tmp_path / "checkpoint-2"
    assert learn.model.config._attn_implementation == attention
    back = transformers.GPT2LMHeadModel.from_pretrained(folder)
    assert back.generation_config.max_new_tokens == 3 and back.lm_head.weight is back.transformer.wte.weight
    assert all(torch.equal(t, learn.model.state_dict()[k]) for k, t in back.state_dict().items())
    assert json.loads((folder / "run.json").read_text())["base"] == {}
    fresh = Learner(gpt2(), train_dataset=sentences(8), data_collator=for_language, use_cpu=True)
    from trainer_nb.state.model_files import read_weights_for_model
    fresh.model.load_state_dict(read_weights_for_model(fresh.model, folder), strict=False)
    assert all(torch.equal(a, b) for a, b in zip(fresh.model.parameters(), learn.model.parameters()))


def test_entries_that_a_model_does_not_save(tmp_path):
    "`_keys_to_ignore_on_save`: the file lacks them, the run resumes with them."
    class Positions(transformers.GPT2LMHeadModel):
        _keys_to_ignore_on_save = [r"extra"]
        def __init__(self, config):
            super().__init__(config)
            self.register_buffer("extra", torch.zeros(2))
        def forward(self, input_ids=None, attention_mask=None, labels=None):
            self.extra += 1
            return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
    def learner():
        torch.manual_seed(0)
        return Learner(Positions(gpt2().config), train_dataset=sentences(16), data_collator=for_language, output_dir=str(tmp_path), max_steps=4, save_steps=2, use_cpu=True,
                       disable_tqdm=True)
    one, two = learner(), learner()
    one.train()
    from safetensors import safe_open
    with safe_open(tmp_path / "checkpoint-2/model.safetensors", "pt") as file: assert "extra" not in file.keys()
    two.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert torch.equal(one.model.extra, two.model.extra) and one.model.extra[0] == 4
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters()))
