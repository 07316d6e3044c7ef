"The collators give the numbers of transformers' own; what they draw is a function of the place in the run."
import copy, logging

import numpy as np
import pytest, torch
from torch import nn

import trainer_nb
from trainer_nb import Learner, differences

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on a mat un believ able and slept well under that big old tree".split()


@pytest.fixture
def hf():
    "transformers, with a new fast tokenizer of a few words."
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    plain = tokenizers.Tokenizer(tokenizers.models.WordPiece({f"##{w}" if w in ("believ", "able") else w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    plain.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    transformers.tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    return transformers


TEXTS = ["the cat sat on a mat", "unbelievable", "the old cat slept well under that big old tree and unbelievable mat", "a tree"]


def same(ours, theirs):
    assert sorted(ours) == sorted(theirs)
    for k in theirs:
        a, b = ours[k], theirs[k]
        assert (torch.equal(a, b) and a.dtype == b.dtype) if isinstance(b, torch.Tensor) else a == b, k


def both(hf, name, features, *args, **how):
    "A batch of ours and one of theirs, from the same state of the generator."
    out = []
    for module in (trainer_nb, hf):
        torch.manual_seed(3)
        out.append(getattr(module, name)(*args, **how)(copy.deepcopy(features)))
    same(*out)
    return out[0]


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_numbers_are_transformers(hf, side, recwarn):
    tok = hf.tokenizer
    tok.padding_side = side
    texts = [dict(tok(t)) for t in TEXTS]
    for how in ({}, dict(pad_to_multiple_of=8), dict(padding="max_length", max_length=20)):
        both(hf, "DataCollatorWithPadding", [t | {"label": i} for i, t in enumerate(texts)], tok, **how)
    for how in ({}, dict(mlm=False, pad_to_multiple_of=8), dict(mask_replace_prob=0.0, random_replace_prob=1.0, mlm_probability=0.9)):
        both(hf, "DataCollatorForLanguageModeling", texts, tok, **how)
    both(hf, "DefaultDataCollator", [{"x": 1.0, "label": 1}, {"x": 2.0, "label": 0}])
    both(hf, "DefaultDataCollator", [{"x": np.ones(3), "label_ids": [1, 2]}, {"x": np.zeros(3), "label_ids": [0, 3]}])
    for name in ("ForTokenClassification", "ForSeq2Seq", "ForMultipleChoice", "WithFlattening"):
        assert getattr(trainer_nb, f"DataCollator{name}") is getattr(hf, f"DataCollator{name}")
    assert not [w for w in recwarn if "fast tokenizer" in str(w.message)]


def test_whole_words_are_hidden_as_wholes(hf):
    tok = hf.tokenizer
    rows = [dict(tok(TEXTS[2], return_offsets_mapping=True)), dict(tok(TEXTS[2], return_offsets_mapping=True))]
    assert len(rows[0]["input_ids"]) > len(TEXTS[2].split()) + 2   # a word of several tokens
    torch.manual_seed(3)
    ours = trainer_nb.DataCollatorForWholeWordMask(tok, mlm_probability=0.5)(copy.deepcopy(rows))
    torch.manual_seed(3)
    with pytest.warns(UserWarning): theirs = hf.DataCollatorForLanguageModeling(tok, whole_word_mask=True, mlm_probability=0.5, mask_replace_prob=0.9)(copy.deepcopy(rows))
    same(ours, theirs)
    long = [dict(tok(t, return_offsets_mapping=True)) for t in TEXTS]   # of different lengths, which theirs cannot pad
    for seed in range(5):
        torch.manual_seed(seed)
        batch = trainer_nb.DataCollatorForWholeWordMask(tok, mlm_probability=0.5)(copy.deepcopy(long))
        first, second, third = batch["labels"][1, 1:4].tolist()   # un ##believ ##able
        assert (first == -100) == (second == -100) == (third == -100)


# --- in a run ----------------------------------------------------------------------------------------------------------

class Guess(nn.Module):
    "Guesses tokens; notes what it was given."
    def __init__(self):
        super().__init__()
        self.table, self.seen = nn.Embedding(30, 30), []
    def forward(self, input_ids, attention_mask=None, labels=None):
        self.seen.append((input_ids, labels))
        logits = self.table(input_ids)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100), "logits": logits}


def guessing(collator, rows, **settings):
    torch.manual_seed(0)
    return Learner(Guess(), train_dataset=rows, data_collator=collator, **dict(per_device_train_batch_size=2, num_train_epochs=2, use_cpu=True, disable_tqdm=True, learning_rate=1e-2) | settings)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_what_is_hidden_depends_on_the_place_alone(hf, tmp_path):
    "Ours without and with a seed, and theirs with one: however the run is taken apart, with workers too, the same tokens are hidden."
    rows = [{"input_ids": hf.tokenizer(t)["input_ids"]} for t in TEXTS * 2 + TEXTS[:1]]
    runs = []
    for n, make in enumerate([lambda: trainer_nb.DataCollatorForLanguageModeling(hf.tokenizer, mlm_probability=0.4), lambda: trainer_nb.DataCollatorForLanguageModeling(hf.tokenizer, mlm_probability=0.4, seed=7),
                              lambda: hf.DataCollatorForLanguageModeling(hf.tokenizer, mlm_probability=0.4), lambda: hf.DataCollatorForLanguageModeling(hf.tokenizer, mlm_probability=0.4, seed=7)]):
        whole, parts = guessing(make(), rows), guessing(make(), rows, output_dir=str(tmp_path / str(n)), save_strategy="no", rewind_every=1)
        whole.train()
        parts.step(3)
        parts.data_collator.mlm_probability = 0.1
        parts.rewind(2)
        torch.rand(5)
        parts.save_checkpoint()
        later = guessing(make(), rows, output_dir=str(tmp_path / str(n)), save_strategy="no", dataloader_num_workers=2 * (n == 3))
        if n == 3: parts.set(dataloader_num_workers=2); parts.train(); later = parts
        else: later.train(resume_from_checkpoint=True)
        # the collator's own generator, which is seeded for each batch, is used in the workers where there are some
        assert set(differences(whole.snapshot(), later.snapshot())) <= {"args"} | ({"user/data_collator.generator"} if n == 3 else set())
        runs.append(torch.cat([ids.flatten() for ids, _ in whole.model.seen]))
    assert torch.equal(runs[0], runs[2])                                       # theirs draws the same where nothing has a seed
    assert not torch.equal(runs[0], runs[1]) and not torch.equal(runs[2], runs[3])   # a seed of the collator's gives other draws


def test_columns_that_are_for_the_collator_reach_it(hf, caplog):
    datasets = pytest.importorskip("datasets")
    rows = [{k: v for k, v in hf.tokenizer(t, return_offsets_mapping=True).items() if k in ("input_ids", "offset_mapping")} | {"text": t} for t in TEXTS]
    for data in (rows, datasets.Dataset.from_list(rows)):
        caplog.clear()
        with caplog.at_level(logging.INFO, "trainer_nb"):
            learn = guessing(trainer_nb.DataCollatorForWholeWordMask(hf.tokenizer, mlm_probability=0.5), data)
            learn.step()
        told, = [r.message for r in caplog.records if r.name == "trainer_nb" and "columns" in r.message]
        assert told == "The training set has columns that Guess's forward does not take, and they are left out: text."


# what the samples are, and the lengths of the padded batch
RAGGED = {
    "a dict of tensors": ([{"x": torch.ones(2, 3)}, {"x": torch.ones(4, 3)}], (2, 4, 3), 0),
    "a dict of lists": ([{"x": [1.0, 2.0]}, {"x": [3.0]}], (2, 2), 0),
    "pairs": ([(torch.ones(2), 1), (torch.ones(4), 0)], (2, 4), 0),
    "tensors": ([torch.ones(2), torch.ones(4)], (2, 4), 0),
    "labels": ([{"x": 1.0, "labels": [1, 2]}, {"x": 1.0, "labels": [1]}], (2, 2), -100),
}


@pytest.mark.parametrize("samples, shape, padding", RAGGED.values(), ids=RAGGED)
def test_sequences_without_a_tokenizer_are_padded_by_the_code_in_the_error(samples, shape, padding):
    "The error for unequal lengths names no tokenizer, and its code makes a tensor of the samples."
    with pytest.raises(ValueError, match="different lengths.*data_collator=") as caught: trainer_nb.default_data_collator(samples)
    text = str(caught.value)
    assert "tokenizer" not in text
    padded = eval(text[text.index("torch.nn.utils"):].removesuffix("."), {"torch": torch, "samples": samples})
    assert padded.shape == shape and (padded == padding).any()


def test_tokens_of_unequal_lengths_need_a_tokenizer():
    for name in ("input_ids", "attention_mask"):
        with pytest.raises(ValueError, match="different lengths.*processing_class=tokenizer"): trainer_nb.default_data_collator([{name: [1, 2]}, {name: [1]}])


def test_images_of_unequal_sizes_are_not_sequences():
    images = [(torch.ones(3, 8, 8), 1), (torch.ones(3, 8, 9), 0)]
    with pytest.raises(ValueError, match="different lengths.*one shape in the data set") as caught: trainer_nb.default_data_collator(images)
    assert "pad_sequence" not in str(caught.value) and "tokenizer" not in str(caught.value)
