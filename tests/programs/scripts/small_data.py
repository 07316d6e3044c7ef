"Data and tokenizers in place of those that scripts load from the Hub: generated here, the same in every process."
import random

import numpy as np
from datasets import Dataset, DatasetDict
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

NOUNS = "film book song meal room".split()
GOOD, BAD = "lovely fine great".split(), "poor dull awful".split()
NAMES, PLACES = "anna boris clara dmitri".split(), "berlin oslo quito turin".split()


def tokenizer(texts, pairs=True):
    "A tokenizer of words with BERT's template."
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special))
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1" if pairs else None,
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=32)


def seq2seq_tokenizer(texts):
    "A tokenizer of words with T5's ends."
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["<pad>", "</s>", "<unk>", "de", "en"]))
    words.post_processor = processors.TemplateProcessing(single="$A </s>", pair=None, special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=24)


def reviews(rows=74, unlabelled=11):
    "Sentences with labels 0 and 1, and a test set without labels."
    draw = random.Random(0)
    def row(i):
        word = draw.choice(GOOD + BAD)
        text = " ".join(["a", word] + draw.choices(NOUNS, k=1 + i % 6))
        return {"sentence1": text, "sentence2": draw.choice(NOUNS), "label": int(word in GOOD), "idx": i}
    made = [row(i) for i in range(rows)]
    test = [{k: v for k, v in row(i).items() if k != "label"} for i in range(unlabelled)]
    return DatasetDict(train=Dataset.from_list(made[:-21]), validation=Dataset.from_list(made[-21:]),
                       test=Dataset.from_list(test))


def scores(rows=60):
    "Sentences with a number each."
    def scored(part): return Dataset.from_list([row | {"label": len(row["sentence1"].split()) / 4} for row in part])
    data = reviews(rows)
    return DatasetDict(train=scored(data["train"]), validation=scored(data["validation"]))


def entities(rows=60):
    "Sentences in words with a tag per word."
    draw = random.Random(1)
    def row(i):
        tokens, tags = [], []
        for _ in range(1 + i % 3):
            tokens += [draw.choice(NAMES), draw.choice(NAMES), "visits", draw.choice(PLACES), "and"]
            tags += [1, 2, 0, 3, 0]
        cut = draw.randint(3, len(tokens))
        return {"id": str(i), "tokens": tokens[:cut], "ner_tags": tags[:cut]}
    made = [row(i) for i in range(rows)]
    return DatasetDict(train=Dataset.from_list(made[:-24]), validation=Dataset.from_list(made[-24:-9]),
                       test=Dataset.from_list(made[-9:]))


def questions(rows=44):
    "Questions whose answers are spans of their contexts."
    draw = random.Random(2)
    def row(i):
        pairs = [(draw.choice(NAMES), draw.choice(PLACES)) for _ in range(2 + i % 4)]
        context = " . ".join(f"{name} lives in {place}" for name, place in pairs)
        name, place = pairs[-1]
        start = context.rindex(f"{name} lives in {place}") + len(f"{name} lives in ")
        return {"id": f"q{i}", "question": f"where lives {name}", "context": context,
                "answers": {"text": [place], "answer_start": [start]}}
    made = [row(i) for i in range(rows)]
    return DatasetDict(train=Dataset.from_list(made[:-12]), validation=Dataset.from_list(made[-12:]))


def documents(rows=46):
    "Texts of words with a summary each: the words that stand twice."
    draw = random.Random(3)
    words = NOUNS + GOOD + BAD
    def row(i):
        kept = draw.sample(words, k=1 + i % 4)
        return {"document": " ".join(w for w in kept for _ in range(2)), "summary": " ".join(kept)}
    made = [row(i) for i in range(rows)]
    return DatasetDict(train=Dataset.from_list(made[:-17]), validation=Dataset.from_list(made[-17:-7]),
                       test=Dataset.from_list(made[-7:]))


def translations(rows=46):
    "Pairs of sentences in two languages, in the shape of WMT."
    draw = random.Random(4)
    pairs = list(zip(NOUNS + GOOD, NAMES + PLACES))
    def row(i):
        chosen = draw.choices(pairs, k=1 + i % 5)
        return {"translation": {"en": " ".join(a for a, _ in chosen), "de": " ".join(b for _, b in reversed(chosen))}}
    made = [row(i) for i in range(rows)]
    return DatasetDict(train=Dataset.from_list(made[:-17]), validation=Dataset.from_list(made[-17:-7]),
                       test=Dataset.from_list(made[-7:]))


def texts(rows=120):
    "Lines of running text."
    draw = random.Random(5)
    def line(): return " ".join(f"a {draw.choice(GOOD + BAD)} {draw.choice(NOUNS)}" for _ in range(draw.randint(1, 6)))
    made = [{"text": line()} for _ in range(rows)]
    return DatasetDict(train=Dataset.from_list(made[:-30]), validation=Dataset.from_list(made[-30:]))


def pictures(rows=52):
    "Pictures that are bright in their upper or lower half."
    from PIL import Image
    draw = np.random.default_rng(6)
    def row(i):
        pixels = draw.integers(0, 128, (20, 20, 3), dtype=np.uint8)
        pixels[10 * (i % 2):10 * (i % 2) + 10] += 100
        return {"image": Image.fromarray(pixels), "label": i % 2}
    made = [row(i) for i in range(rows)]
    return DatasetDict(train=Dataset.from_list(made[:-15]), validation=Dataset.from_list(made[-15:]))


def sounds(rows=40):
    "Tones of two heights, of different lengths, with the letters that they stand for."
    draw = np.random.default_rng(7)
    def row(i):
        heights = draw.integers(0, 2, 1 + i % 3)
        wave = np.concatenate([np.sin(np.arange(400) * (0.3 + 0.4 * h)) for h in heights])
        wave = wave + 0.05 * draw.standard_normal(len(wave))
        text = "".join("ab"[h] for h in heights)
        return {"audio": wave.astype(np.float32).tolist(), "label": int(heights[0]), "text": text}
    made = [row(i) for i in range(rows)]
    return DatasetDict(train=Dataset.from_list(made[:-13]), validation=Dataset.from_list(made[-13:]))
