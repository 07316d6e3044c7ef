"Metrics of generated texts are those of torchmetrics; texts that are generated at evaluations are recorded, and change nothing."
import random, sys

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
from references import Rows, pad, timeless
from trainer_nb import (DataCollatorForChat, Learner, Seq2SeqTrainer, Seq2SeqTrainingArguments, TextSamplesCallback, TrainingArguments, metrics, text_samples)
from trainer_nb.core.history import read_history
from trainer_nb.engine.metrics import decode_predictions, score_texts, text_metrics
from trainer_nb.live.reporting import ReportCallback
from trainer_nb.live.trackers import Tracker

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::UserWarning:transformers")]

WORDS = "<pad> <end> <unk> <user> <assistant> the a cat dog sat slept on mat and . what did do ?".split()
TEMPLATE = "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"


def make_tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({n: i for i, n in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<unk>", chat_template=TEMPLATE)


def llama(dropout=0.0):
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=None, attention_dropout=dropout, initializer_range=0.5))


def t5():
    torch.manual_seed(1)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=len(WORDS), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
        dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, initializer_factor=8.0))


def sentences(n=8, seed=0):
    rng = np.random.default_rng(seed)
    return Rows([{"input_ids": rng.integers(5, 15, size=rng.integers(3, 8)).tolist(), "labels": [*rng.integers(5, 15, size=rng.integers(2, 6)).tolist(), 1]}
                 for _ in range(n)])


def pairs(rows):
    ids = pad(rows)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": pad(rows, "labels", -100)}


def random_texts(n=30, seed=0):
    rng = random.Random(seed)
    def text(): return " ".join(rng.choice("the cat sat on a mat and slept there all day".split()) for _ in range(rng.randint(1, 12)))
    references = [text() for _ in range(n)]
    return [" ".join(w for w in r.split() if rng.random() < 0.8) or "cat" if rng.random() < 0.7 else text() for r in references], references


# ---- the numbers

def test_metrics_are_those_of_torchmetrics():
    text = pytest.importorskip("torchmetrics.functional.text")
    generated, references = random_texts()
    found = score_texts(generated, references, "exact_match", "f1", "wer", "cer", "bleu", "sacrebleu", "chrf", "rouge")
    assert found["wer"] == pytest.approx(float(text.word_error_rate(generated, references)))
    assert found["cer"] == pytest.approx(float(text.char_error_rate(generated, references)))
    squad = text.squad([{"prediction_text": g, "id": str(i)} for i, g in enumerate(generated)],
                       [{"answers": {"answer_start": [0], "text": [r]}, "id": str(i)} for i, r in enumerate(references)])
    assert found["exact_match"] == pytest.approx(float(squad["exact_match"]) / 100) and found["f1"] == pytest.approx(float(squad["f1"]) / 100)
    many = [[r] for r in references]
    assert found["bleu"] == float(text.bleu_score(generated, many)) and found["chrf"] == float(text.chrf_score(generated, many))
    assert found["sacrebleu"] == float(text.sacre_bleu_score(generated, many))
    rouge = text.rouge_score(generated, references, rouge_keys=("rouge1", "rouge2", "rougeL"))
    assert {k: found[k] for k in ("rouge1", "rouge2", "rougeL")} == {k: float(rouge[f"{k}_fmeasure"]) for k in ("rouge1", "rouge2", "rougeL")}
    assert score_texts(references, references, "exact_match", "f1", "wer", "cer") == {"exact_match": 1.0, "f1": 1.0, "wer": 0.0, "cer": 0.0}


def test_small_cases():
    assert score_texts(["An  Answer, the one!"], ["answer one"]) == {"exact_match": 1.0, "f1": 1.0}, "articles are no words"
    assert decode_predictions(make_tokenizer(), np.array([[5, 7, 1, -100], [8, 9, 0, 0]])) == ["the cat", "dog sat"]
    assert score_texts(["x"], ["x y"], lambda g, r: {"length": len(r[0]) - len(g[0])}) == {"length": 2}
    assert metrics.text_metrics is text_metrics


def test_wrong_use_is_an_error(monkeypatch):
    with pytest.raises(ValueError, match="'blue' is not one of 'exact_match'"): text_metrics(make_tokenizer(), "blue")
    with pytest.raises(ValueError, match="1 generated texts and 2 references"): score_texts(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="predict_with_generate=True"): text_metrics(make_tokenizer())((np.zeros((2, 3, 7)), np.zeros((2, 3), int)))
    monkeypatch.setitem(sys.modules, "torchmetrics.functional", None)
    with pytest.raises(ImportError, match="pip install torchmetrics"): score_texts(["a"], ["a"], "bleu")


@pytest.mark.trainer
def test_the_trainer_and_we_report_the_same_metrics(tmp_path):
    given = dict(output_dir=str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, per_device_eval_batch_size=4, predict_with_generate=True, generation_max_length=9)
    parts = dict(data_collator=pairs, eval_dataset=sentences(), compute_metrics=text_metrics(make_tokenizer(), "exact_match", "f1", "wer", "cer", "rouge"))
    theirs = transformers.Seq2SeqTrainer(t5(), transformers.Seq2SeqTrainingArguments(**given), **parts).evaluate()
    ours = Seq2SeqTrainer(t5(), Seq2SeqTrainingArguments(**given), **parts).evaluate()
    assert timeless(ours).keys() >= {"eval_wer", "eval_rougeL"} and timeless(ours) == timeless(theirs)


# ---- texts at evaluations

def chats(n=12):
    rng = random.Random(0)
    return [{"messages": [{"role": "user", "content": f"what did the {(who := rng.choice(['cat', 'dog']))} do ?"},
                          {"role": "assistant", "content": f"the {who} {'sat' if who == 'cat' else 'slept'} ."}]} for _ in range(n)]


def learner(*callbacks, dropout=0.2, data=None, **given):
    tokenizer = make_tokenizer()
    args = TrainingArguments(**dict(per_device_train_batch_size=4, max_steps=8, learning_rate=1e-2, seed=5, use_cpu=True, disable_tqdm=True, logging_steps=1,
                                    eval_strategy="steps", eval_steps=2) | given)
    return Learner(llama(dropout), args, train_dataset=chats(), eval_dataset=data or chats(5), callbacks=callbacks, processing_class=tokenizer,
                   data_collator=DataCollatorForChat(tokenizer, assistant_only_loss=True))


def test_texts_are_recorded_and_change_nothing():
    "With dropout in training, and with sampling."
    plain, watched = learner(), learner(TextSamplesCallback(3, do_sample=True, max_new_tokens=5))
    plain.step(5), watched.step(5)
    watched.model.train()
    torch.manual_seed(3)
    watched.evaluate()
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1)) and all(m.training for m in watched.model.modules())
    plain.evaluate()
    plain.train(), watched.train()
    assert [r.loss for r in plain.history] == [r.loss for r in watched.history]
    for p, q in zip(plain.model.parameters(), watched.model.parameters()): assert torch.equal(p, q)
    rows = text_samples(watched)
    assert [row["step"] for row in rows] == [2] * 3 + [4] * 3 + [5] * 3 + [6] * 3 + [8] * 3 and {*rows[0]} == {"step", "prompt", "generated", "reference"}
    assert rows[0]["prompt"].startswith("what did the") or rows[0]["prompt"].startswith("<user> what did the")
    assert rows[0]["reference"] in ("the cat sat .", "the dog slept .")
    assert "reference" in repr(rows) and "<td" in rows._repr_html_()


def test_the_same_texts_again_after_going_back_and_in_the_log(tmp_path):
    learn = learner(TextSamplesCallback(2, do_sample=True, max_new_tokens=5), output_dir=str(tmp_path), save_strategy="no", eval_strategy="no")
    learn.step(2), learn.evaluate()
    before = learn.snapshot()
    learn.step(2), learn.evaluate()
    first = text_samples(learn)[2:]
    learn.restore(before)
    assert len(text_samples(learn)) == 2 and len(text_samples(learn, all=True)) == 4
    learn.step(2), learn.evaluate()
    assert text_samples(learn)[2:] == first
    learn.history.flush()
    path, = (tmp_path/"runs").glob("*.jsonl")
    assert text_samples(read_history(path)) == text_samples(learn)


def test_a_model_with_an_encoder_generates_from_tokens():
    callback = TextSamplesCallback(2, make_tokenizer(), max_new_tokens=6)
    data = sentences()
    args = Seq2SeqTrainingArguments(use_cpu=True, disable_tqdm=True, predict_with_generate=True, generation_max_length=9, per_device_eval_batch_size=2)
    learn = Seq2SeqTrainer(t5(), args, data_collator=pairs, eval_dataset={"one": data, "two": data}, callbacks=[callback])
    learn.evaluate()
    rows = text_samples(learn)
    assert len(rows) == 4 and rows[0]["reference"] == " ".join(WORDS[i] for i in data[0]["labels"][:-1])
    tokens = learn.model.eval().generate(input_ids=torch.tensor([data[0]["input_ids"]]), max_new_tokens=6)
    assert rows[0]["generated"] == decode_predictions(make_tokenizer(), tokens.tolist())[0]


def test_the_texts_are_those_of_the_set_that_is_evaluated():
    "By its name or the set itself; for a set that is not the learner's, those of the first."
    sets = {"a": chats(2), "b": chats(4)[2:]}
    learn = learner(TextSamplesCallback(1, max_new_tokens=2), data=sets)
    for given, generated in [(None, ["a", "b"]), ("b", ["b"]), (sets["b"], ["b"]), ("a", ["a"]), (chats(1), ["a"])]:
        before = len(text_samples(learn))
        learn.evaluate(given)
        assert [row["dataset"] for row in text_samples(learn)[before:]] == generated


@pytest.mark.parametrize("sample, prompt, reference", [
    ("the cat", "the cat", None), ({"text": "the cat"}, "the cat", None), ({"prompt": "the cat", "completion": "sat ."}, "the cat", "sat ."),
    ({"input_ids": [5, 7, 9, 1], "labels": [-100, -100, 9, 1]}, "the cat", "sat"),
    ({"conversations": [{"from": "user", "value": "the cat"}, {"from": "assistant", "value": "sat"}]}, "the cat", "sat")], ids=str)
def test_the_forms_of_samples(sample, prompt, reference):
    learn = learner(TextSamplesCallback([sample], max_new_tokens=3))
    learn.evaluate()
    row, = text_samples(learn)
    assert row["prompt"].removeprefix("<user> ").removesuffix(" <assistant>").strip() == prompt and row["reference"] == reference


def test_padding_does_not_change_a_text():
    "Prompts of different lengths, together and alone."
    samples = ["the", "the cat sat on the mat and"]
    together, *alone = [learner(TextSamplesCallback(s, max_new_tokens=4)) for s in (samples, samples[:1], samples[1:])]
    for one in (together, *alone): one.evaluate()
    assert [r["generated"] for r in text_samples(together)] == [r["generated"] for one in alone for r in text_samples(one)]


def test_wrong_use_of_the_callback_is_an_error(tmp_path):
    with pytest.raises(TypeError, match="text_metrics"): TextSamplesCallback(metrics=["bleu"])
    with pytest.raises(ValueError, match="no prompt"): learner(TextSamplesCallback([{"input_ids": [5, 7], "labels": [5, 7]}])).evaluate()
    with pytest.raises(ValueError, match="Give TextSamplesCallback samples="): learner(TextSamplesCallback([{"words": "a"}])).evaluate()
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self): return iter(chats(4))
    with pytest.raises(TypeError, match="no samples by number"): learner(TextSamplesCallback(2), data=Stream()).evaluate()
    plain = Learner(torch.nn.Linear(2, 2), eval_dataset=torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4, 2)), loss_func=torch.nn.functional.mse_loss,
                    callbacks=[TextSamplesCallback(["a"])], use_cpu=True)
    with pytest.raises(TypeError, match="needs the tokenizer"): plain.evaluate()
    other = Learner(torch.nn.Linear(2, 2), eval_dataset=plain.eval_dataset, loss_func=torch.nn.functional.mse_loss, use_cpu=True,
                    callbacks=[TextSamplesCallback(["the cat"], make_tokenizer())])
    with pytest.raises(TypeError, match="Linear has none"): other.evaluate()
    theirs = transformers.Trainer(t5(), transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True), data_collator=pairs,
                                  eval_dataset=sentences(), callbacks=[TextSamplesCallback(2)])
    with pytest.raises(TypeError, match="not transformers'"): theirs.evaluate()


def marked_learner(callback, data=None, **collator):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    return Learner(llama(), TrainingArguments(use_cpu=True, disable_tqdm=True), eval_dataset=data or chats(3), callbacks=[callback], processing_class=tokenizer,
                   data_collator=DataCollatorForChat(tokenizer, **collator))


def test_prompts_are_rendered_as_in_training():
    "With the template and the text column of the collator, which may not be the tokenizer's."
    other = TEMPLATE.replace("<{{ m.role }}> ", "a <{{ m.role }}> ")
    learn = marked_learner(TextSamplesCallback(2, max_new_tokens=3), chat_template=other)
    learn.evaluate()
    assert all(row["prompt"].startswith("a ") for row in text_samples(learn))
    # the collator's own tokenizer has the template, another one is given for the texts
    bare = make_tokenizer()
    bare.chat_template = None
    learn = marked_learner(TextSamplesCallback(1, bare, max_new_tokens=3))
    learn.data_collator.tokenizer.chat_template = TEMPLATE
    learn.evaluate()
    assert text_samples(learn)[0]["reference"].startswith("the ")
    learn = marked_learner(TextSamplesCallback(1, max_new_tokens=3), [{"words": "the cat sat"}, {"words": "a dog slept"}], text_field="words")
    learn.evaluate()
    assert text_samples(learn)[0]["prompt"] == "the cat sat"
    with pytest.raises(ValueError, match="no chat template"):
        marked_learner(TextSamplesCallback(chats(1)), [{"text": "the cat sat"}]).evaluate()


@pytest.mark.parametrize("sample, prompt, reference", [
    ({"input_ids": [5, 7, 9, 1], "assistant_masks": [0, 0, 1, 1]}, "the cat", "sat"),
    ({"input_ids": [5, 7, 9, 1], "completion_mask": [0, 0, 1, 1]}, "the cat", "sat"),
    ({"conversations": [{"from": "human", "value": "the cat"}, {"from": "gpt", "value": "sat"}]}, "the cat", "sat"),
    ({"chosen": "the cat sat", "rejected": "the cat and"}, "the cat", "sat")], ids=str)
def test_more_forms_of_samples(sample, prompt, reference):
    learn = learner(TextSamplesCallback([sample], max_new_tokens=3))
    learn.evaluate()
    row, = text_samples(learn)
    assert row["prompt"].removeprefix("<user> ").removesuffix(" <assistant>").strip() == prompt and row["reference"].strip() == reference


class Texts(Tracker):
    "Keeps one value per step, as MLflow's files do."
    name = "texts"
    def __init__(self): self.texts = {}
    def log_texts(self, rows, step): self.texts[step] = rows


@pytest.mark.parametrize("given", [False, True])
def test_each_evaluation_set_has_its_texts(given):
    "Given samples are answered once."
    sets = {"a": chats(3), "b_a": chats(9)[6:]}
    tracker = Texts()
    callback = TextSamplesCallback(chats(2) if given else 2, max_new_tokens=4)
    learn = learner(callback, ReportCallback(tracker), data=sets)
    learn.step(4)
    rows = text_samples(learn)
    if given:
        assert [row["step"] for row in rows] == [2] * 2 + [4] * 2 and "dataset" not in rows[0]
        return
    assert [(row["step"], row["dataset"]) for row in rows] == [(step, name) for step in (2, 4) for name in ("a", "a", "b_a", "b_a")]
    for name, data in sets.items():
        assert [row["reference"] for row in rows if row["dataset"] == name][:2] == [s["messages"][-1]["content"] for s in data[:2]]
    assert {step: [row["dataset"] for row in found] for step, found in tracker.texts.items()} == {2: ["a", "a", "b_a", "b_a"], 4: ["a", "a", "b_a", "b_a"]}
    learn.evaluate("b_a")
    assert [row["dataset"] for row in text_samples(learn)[8:]] == ["b_a", "b_a"]


@pytest.mark.parametrize("samples", [0, -1, [], "the cat", {"text": "the cat"}], ids=str)
def test_no_samples_are_an_error_at_once(samples):
    with pytest.raises(ValueError, match="has no samples; give their number"): TextSamplesCallback(samples)


def test_the_histories_of_two_processes_have_the_same_events():
    "So a run of which a process has died goes on from another one, and keeps the texts."
    learn = learner(TextSamplesCallback(2, max_new_tokens=2))
    with learn.launch(2):
        learn.step(2)
        places = learn.run_on_all(lambda learn: learn.history.place())
        events = learn.run_on_all(lambda learn: [(e["kind"], e["data"]) for e in learn.history.events if e["kind"] == "texts"])
    assert places[0] == places[1] and events[0] == events[1] and len(events[0]) == 1
    assert len(text_samples(learn)) == 2
