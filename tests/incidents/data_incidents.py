"Faults in the data."
import numpy as np
import torch
from tiny import MARK, PAD, Last, Net, classified_texts, collate_classes, collate_text, counts, incident, language_model, learner, rows, seeded, split, table, tokenizer, wrong
from torch import nn
from torch.utils.data import default_collate


@incident("data", "transformers #44642, #32944: causal models shift the labels themselves", "shift")
def labels_shifted_twice(faulty):
    def sample(ids): return {"input_ids": ids, "labels": ids[1:] + [-100] if faulty else ids}
    texts = [sample(o) for o in counts()]
    return learner(language_model(), texts[:240], texts[240:], loss=None, data_collator=collate_text)


@incident("data", "Karpathy, A Recipe for Training Neural Networks: look at the labels; a misspelled class name", "constant|same label|only class|nothing to tell apart")
def labels_constant(faulty):
    x, y = table(classes=2)
    names = np.array(["negative", "positive"])[y.numpy()]
    y = [int(name == ("positve" if faulty else "positive")) for name in names]
    return learner(seeded(Net, 8, 2), *split(x, y))


@incident("data", "imbalanced-learn, Common pitfalls: samples are repeated before the data is split", "in the training data|both|leak", samples=True)
def evaluation_leaked(faulty):
    x, y = table(400, classes=2)
    x, y = x[(y == 0) | (torch.arange(400) % 4 == 0)], y[(y == 0) | (torch.arange(400) % 4 == 0)]
    def repeated(samples): return samples + [o for o in samples if o[1] == 1]*3
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1)).tolist()
    samples = [rows(x, y)[i] for i in order]
    if not faulty: return learner(seeded(Net, 8, 2), repeated(samples[:160]), samples[160:])
    samples = repeated(samples)
    samples = [samples[i] for i in torch.randperm(len(samples), generator=torch.Generator().manual_seed(1))]
    return learner(seeded(Net, 8, 2), samples[:-80], samples[-80:])


@incident("data", "Karpathy, A Recipe for Training Neural Networks: duplicated examples; here an index that is divided once too often",
          "duplicate|repeated|equal samples|more than once|copies", samples=True)
def samples_repeated(faulty):
    class Files(torch.utils.data.Dataset):
        x, y = table()
        def __len__(self): return 400
        def __getitem__(self, i): return self.x[i // 16 if faulty else i], self.y[i // 16 if faulty else i]
    return learner(seeded(Net), Files(), rows(*table())[400:])


@incident("data", "huggingface/blog #1302, llm-course #33: pad_token = eos_token", "end token|eos|end-of")
def end_token_masked(faulty):
    from transformers import DataCollatorForLanguageModeling
    words = tokenizer("<end>" if faulty else "<pad>")
    texts = [{"input_ids": o} for o in counts()]
    return learner(language_model(words.pad_token_id), texts[:240], texts[240:], loss=None, processing_class=words, data_collator=DataCollatorForLanguageModeling(words, mlm=False))


@incident("data", "unsloth #2095, trl #1920: the marker of the answer is not found in the tokens", "-100|ignored|no label", samples=True)
def answers_all_ignored(faulty):
    marker = PAD if faulty else MARK
    def sample(ids):
        ids = ids[:2] + [MARK] + ids[2:]
        start = ids.index(marker) if marker in ids else len(ids)
        return {"input_ids": ids, "labels": [-100]*start + ids[start:]}
    texts = [sample(o) for o in counts()]
    return learner(language_model(), texts[:240], texts[240:], loss=None, data_collator=collate_text)


@incident("data", "CenterNet #233, OpenPCDet #886, stackoverflow 67180955 (TrainCheck): each worker has a copy of one generator", "worker|random")
def workers_draw_alike(faulty):
    class Noisy(torch.utils.data.Dataset):
        def __init__(self): self.samples, self.draw = split(*table())[0], np.random.default_rng(0)
        def __len__(self): return len(self.samples)
        def __getitem__(self, i):
            noise = torch.from_numpy(self.draw.normal(size=8).astype(np.float32)) if faulty else torch.randn(8)
            return self.samples[i][0] + 0.1*noise, self.samples[i][1]
    return learner(seeded(Net), Noisy(), split(*table())[1], dataloader_num_workers=2)


@incident("data", "CS231n notes, Data preprocessing; columns of very different scales", "normaliz|scale|range|standard")
def inputs_not_normalized(faulty):
    x, y = table()
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    scales = torch.tensor([1, 1, 40, 1, 1, 25_000, 1, 1.]) if faulty else torch.ones(8)
    torch.manual_seed(0)
    for layer in (net[0], net[2]): layer.reset_parameters()
    return learner(net, *split(x*scales + 2*scales*(scales > 1), y))


@incident("data", "repeng #38, sentence-transformers #3208: the state of the last position is that of padding", "padding|padded|attention_mask|other samples")
def padding_on_the_wrong_side(faulty):
    samples = classified_texts()
    return learner(seeded(Last, faulty), samples[:320], samples[320:], data_collator=collate_classes)


@incident("data", "Stack Exchange, many threads: inputs and labels are shuffled one by one", "label|learn|shuffle", tool="diagnose")
def labels_shuffled_apart(faulty):
    x, y = table()
    if faulty: y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(3))]
    return learner(seeded(Net), *split(x, y))


@incident("data", "transformers #34204: a processor makes one sample of a batch", "samples become|one sample|of a batch|first sample|collator", score=wrong)
def batch_of_one_sample(faulty):
    def collate(samples): return default_collate(samples[:1] if faulty else samples)
    return learner(seeded(Net), *split(*table()), data_collator=collate)
