"""predict_with_generate and what else transformers' Seq2SeqTrainer adds: the same ids, labels, losses and metrics."""
import copy, json

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
from transformers import GenerationConfig
from references import Rows, pad, timeless
from trainer_nb import Learner, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainingArguments
from trainer_nb.args.training_args import resolve_args
from trainer_nb.engine.generate import load_generation_config, padding_token

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::UserWarning:transformers")]


def t5():
    torch.manual_seed(1)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, initializer_factor=8.0))


def bart():
    torch.manual_seed(1)
    return transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, dropout=0.0, init_std=0.5, forced_eos_token_id=None))


def llama():
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, pad_token_id=0, eos_token_id=2, bos_token_id=1, initializer_range=0.5))


def sentences(n, seed=0):
    rng = np.random.default_rng(seed)
    return Rows([{"input_ids": rng.integers(3, 40, size=rng.integers(3, 8)).tolist(), "labels": rng.integers(3, 40, size=rng.integers(2, 9)).tolist()} for _ in range(n)])


def pairs(rows):
    ids = pad(rows)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": pad(rows, "labels", -100)}


def alone(rows):
    "For a model without encoder: as many labels as tokens."
    ids = torch.tensor([row["input_ids"][:3] for row in rows])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def prompted(rows):
    "With decoder_input_ids made of the labels."
    batch = pairs(rows)
    return batch | {"decoder_input_ids": batch["labels"].clamp(min=0)}


def unlabelled(rows): return {k: v for k, v in pairs(rows).items() if k != "labels"}


class Written:
    "What compute_metrics was given, and numbers of it."
    def __init__(self): self.given = []
    def __call__(self, pred):
        self.given += [pred.predictions, pred.label_ids]
        return {"mean": float(pred.predictions.mean()), "width": pred.predictions.shape[1], "labels": pred.label_ids.shape[1]}


def both(model, tmp_path, collate, rows=8, **given):
    "The two, on copies of a model."
    parts = dict(data_collator=collate, eval_dataset=sentences(rows, seed=1))
    settings = dict(output_dir=str(tmp_path), use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, per_device_eval_batch_size=4, predict_with_generate=True) | given
    theirs = transformers.Seq2SeqTrainer(copy.deepcopy(model), transformers.Seq2SeqTrainingArguments(**settings), compute_metrics=Written(), **parts)
    ours = Seq2SeqTrainer(copy.deepcopy(model), Seq2SeqTrainingArguments(**settings), compute_metrics=Written(), **parts)
    return theirs, ours


CASES = {
    "as the model says": (pairs, {}, {}), "arguments": (pairs, dict(generation_max_length=12, generation_num_beams=2), {}),
    "verb": (pairs, dict(generation_max_length=12), dict(max_length=9, num_beams=3)), "longer than usual": (pairs, {}, dict(max_length=30)),
    "new tokens": (pairs, dict(generation_max_length=12), dict(max_new_tokens=5)), "prompted": (prompted, {}, {}),
    "smoothed": (prompted, dict(label_smoothing_factor=0.1), {}), "none": (pairs, {}, dict(max_length=None, num_beams=None)),
    "configured": (pairs, dict(generation_config=GenerationConfig(max_length=25, num_beams=2, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)), {}),
    "configured by new tokens": (pairs, dict(generation_config=GenerationConfig(max_new_tokens=24, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)), {}),
    "repeated": (pairs, {}, dict(no_repeat_ngram_size=2, length_penalty=0.5, num_beams=2)), "loss only": (pairs, dict(prediction_loss_only=True), {}),
}


def test_a_test_set_without_labels(tmp_path):
    "T5 cannot be called without labels; it generates all the same, and there is no loss."
    for model in (t5, bart):
        for given in (dict(max_length=9), dict(max_new_tokens=4)):
            found = [one.predict(sentences(4), **given) for one in both(model(), tmp_path, unlabelled, generation_max_length=12)]
            assert (found[0].predictions == found[1].predictions).all() and found[0].predictions.shape == found[1].predictions.shape
            assert found[0].label_ids is found[1].label_ids is None and timeless(found[0].metrics) == timeless(found[1].metrics) == {}
    # transformers' own collator gives labels that are None, with which its trainer fails
    _, ours = both(t5(), tmp_path, lambda rows: unlabelled(rows) | {"labels": None})
    assert ours.predict(sentences(4)).label_ids is None


# The Seq2SeqTrainer writes defaults into the model's configuration after its first batch, and generates the others differently. Here they are all like its first.
USUAL_LENGTH = {"as the model says", "prompted", "smoothed", "none", "repeated", "loss only"}


QUICK = ("as the model says", "verb", "prompted")


@pytest.mark.trainer
@pytest.mark.parametrize("model, names", [*((m, QUICK) for m in (t5, bart, llama)), *(pytest.param(m, tuple(CASES), marks=pytest.mark.slow) for m in (t5, llama))])
def test_generated_as_by_the_seq2seq_trainer(model, names, tmp_path):
    "The same tokens, labels, loss and metrics; from evaluate and from predict."
    for name in names:
        collate, settings, given = CASES[name]
        if model is llama:
            if "decoder_start_token_id" in str(settings) or name in ("prompted", "smoothed"): continue   # the Seq2SeqTrainer smooths without a shift
            collate = alone
        first = name in USUAL_LENGTH
        theirs, ours = both(model(), tmp_path, collate, rows=4 if first else 8, **settings)
        want, got = timeless(theirs.evaluate(**given)), timeless(ours.evaluate(**given))
        assert got == pytest.approx(want, rel=1e-5), name
        arrays = [theirs.compute_metrics.given, ours.compute_metrics.given]
        if not first: arrays = [[*found, *one.predict(sentences(8, seed=2), **given)[:2]] for found, one in zip(arrays, (theirs, ours))]
        for a, b in zip(*arrays, strict=True): assert a.dtype == b.dtype and a.shape == b.shape and (a == b).all(), name
        assert name == "loss only" or len(set(arrays[0][0].flatten().tolist())) > 3, "all the same token: this would compare nothing"


def test_the_mean_loss_is_over_samples(tmp_path):
    "The Seq2SeqTrainer takes a small last batch for a whole one; its Trainer does not."
    theirs, ours = both(t5(), tmp_path, pairs, rows=9)
    plain = transformers.Trainer(t5(), transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", per_device_eval_batch_size=4), data_collator=pairs)
    assert ours.evaluate()["eval_loss"] == pytest.approx(plain.evaluate(sentences(9, seed=1))["eval_loss"], rel=1e-6) != theirs.evaluate()["eval_loss"]


def test_in_training_by_hand_and_without_a_trace(tmp_path):
    "Evaluations of a run generate too; drawing tokens at random is repeated, and reaches nothing; the model's configuration stays as it was."
    def run(**more):
        torch.manual_seed(0)
        learn = Learner(t5(), train_dataset=sentences(20), eval_dataset=sentences(8, seed=1), data_collator=pairs, use_cpu=True, disable_tqdm=True, max_steps=3, **more)
        learn.train()
        return learn
    seen = Written()
    plain, learn = run(), run(predict_with_generate=True, compute_metrics=seen, eval_strategy="steps", eval_steps=1)
    assert len(seen.given) == 6 and all(torch.equal(a, b) for a, b in zip(plain.model.state_dict().values(), learn.model.state_dict().values()))
    before = learn.model.generation_config.to_dict()
    first, again, other = (learn.predict(sentences(8), do_sample=True, **more).predictions for more in ({}, {}, {"temperature": 5.0}))
    assert (first == again).all() and (first.shape != other.shape or (first != other).any()) and before == learn.model.generation_config.to_dict()
    learn.set(generation_max_length=7, predict_with_generate=True)
    with learn.run_state.device.activated(): loss, tokens, labels = learn.prediction_step(learn.model, pairs(sentences(3).rows), False, max_length=4)
    assert tokens.shape == (3, 20) and (tokens[:, 4:] == 0).all() and loss is not None
    assert learn._gen_kwargs is None
    learn.set(predict_with_generate=False)
    learn.compute_metrics = None
    assert isinstance(learn.predict(sentences(3)).predictions, tuple)
    with pytest.raises(TypeError, match="got 'top_k'.*predict_with_generate=True"): learn.evaluate(top_k=2)


def test_a_configuration_may_be_an_object_a_dict_a_file_a_folder(tmp_path):
    "It is put on the model, also on one that model_init makes; the arguments hold it as plain values."
    config = GenerationConfig(max_length=11, num_beams=2)
    config.save_pretrained(tmp_path)
    for given in (config, config.to_dict(), str(tmp_path), tmp_path / "generation_config.json", json.dumps(config.to_dict())):
        args = TrainingArguments(generation_config=given, predict_with_generate=True)
        assert json.loads(args.to_json_string()) and resolve_args(args, {}) == args
        for parts in (dict(model=t5()), dict(model_init=t5)):
            found = Learner(args=args, **parts).model.generation_config
            assert (found.max_length, found.num_beams) == (11, 2)
    with pytest.raises(ValueError, match="contradicts itself.*temperature"): load_generation_config({"do_sample": False, "temperature": 0.5})
    with pytest.raises(TypeError, match="give a GenerationConfig"): Learner(t5(), generation_config=3)


def test_mistakes(tmp_path):
    rows = sentences(4)
    def evaluate(model, **more): return Learner(model, eval_dataset=rows, data_collator=pairs, use_cpu=True, predict_with_generate=True, compute_metrics=Written(), **more).evaluate()
    class Plain(torch.nn.Module):
        def __init__(self): super().__init__(); self.layer = torch.nn.Linear(2, 2)
        def forward(self, input_ids, attention_mask, labels): return {"loss": self.layer.weight.sum()}
    with pytest.raises(TypeError, match="generate method, and Plain has none"): evaluate(Plain())
    model = t5()
    model.config.pad_token_id = model.generation_config.pad_token_id = None
    with pytest.raises(ValueError, match="processing_class=tokenizer"): padding_token(Learner(model))
    reader = type("Reader", (), {"pad_token_id": None, "eos_token_id": 9})()
    assert padding_token(Learner(model, processing_class=reader)) == 9
    with pytest.warns(UserWarning, match="generation_max_length has no effect"): Learner(t5(), generation_max_length=4)


def test_tools_that_look_at_logits_get_them():
    "Whatever evaluations do."
    from trainer_nb.engine.evaluate import evaluation_mode
    from trainer_nb.diagnostics.interpret import iterate_predictions
    learn = Learner(t5(), eval_dataset=sentences(4), data_collator=pairs, use_cpu=True, predict_with_generate=True)
    with evaluation_mode(learn): (_, _, _, predicted, labels), = iterate_predictions(learn, learn.get_eval_dataloader())
    assert predicted.shape == (*labels.shape, 40) and learn._gen_kwargs is None


def test_scripts_hand_on_lengths_in_any_case(tmp_path):
    "As translation scripts do: None where nobody has set them, and with or without generating."
    learn = Seq2SeqTrainer(t5(), Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True), eval_dataset=sentences(3), data_collator=pairs)
    want = learn.evaluate()["eval_loss"]
    assert learn.evaluate(max_length=None, num_beams=None)["eval_loss"] == want
    with pytest.warns(UserWarning, match="max_length and num_beams has no effect"): assert learn.evaluate(max_length=5, num_beams=2)["eval_loss"] == want
    with pytest.raises(TypeError, match="top_k"): learn.evaluate(top_k=3)
