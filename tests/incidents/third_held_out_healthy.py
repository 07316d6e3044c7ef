"Further programs without a fault, each with something unusual that is meant, near to the third held-out faults."
import copy

import numpy as np
import torch
from healthy import digits, healthy, mlp
from third_held_out_incidents import (BEGIN, Averaged, Pairs, blobs, coloured, model_with_begin, pixels, share_correct,
                                      views,
                                      windows)
from tiny import (END, MARK, PAD, WORDS, Net, collate_text, counts, language_model, learner, padded, rows, seeded,
                  split, table,
                  texts_of_two_means)
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from trainer_nb import TrainerCallback


class Drawn(Dataset):
    "Samples that a function changes anew each time."
    def __init__(self, samples, change): self.samples, self.change = samples, change
    def __len__(self): return len(self.samples)
    def __getitem__(self, i): return self.change(*self.samples[i])


@healthy
def brightness_without_the_mask():
    "The image becomes brighter or darker, and its mask remains as it is, rightly."
    train, held_out = split(*blobs(), 200)
    return learner(seeded(pixels), Drawn(train, lambda x, mask: (x*(0.8 + 0.4*torch.rand(())) + 0.3*torch.randn(()),
                                                                 mask)), held_out)


@healthy
def channels_in_any_order():
    "What is in the image does not depend on its colours, so the channels are shuffled for training."
    x, _ = coloured()
    train, held_out = split(x, digits(n=480)[1], 360)
    net = seeded(lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16*36, 10)))
    return learner(net, Drawn(train, lambda x, y: (x[torch.randperm(3)], y)), held_out, learning_rate=3e-3,
                   num_train_epochs=8)


@healthy
def windows_split_by_time():
    "The windows overlap within each part, and a gap of one window lies between the parts."
    x, y = windows(900, 0)
    samples = rows(x, y)
    return learner(seeded(mlp, 48, 32, 1), samples[:600], samples[672:], loss=F.mse_loss, learning_rate=1e-3,
                   num_train_epochs=3)


@healthy
def two_tokens_in_front():
    "Each text begins with the same two tokens, for the begin and for who speaks, and ends with two end tokens."
    samples = [{k: [BEGIN, MARK, *o, END] for k in ("input_ids", "labels")} for o in counts(300)]
    return learner(model_with_begin(), samples[:240], samples[240:], data_collator=collate_text, loss=None)


@healthy
def negatives_of_images():
    "Half of the images are shown as negatives, in training as in the evaluation."
    x, y = digits(n=600)
    turned = torch.rand(600, generator=torch.Generator().manual_seed(0)) < 0.5
    return learner(seeded(mlp, 64, 64, 10), *split(torch.where(turned[:, None], 1.03 - x, x), y, 480),
                   num_train_epochs=8)


@healthy
def adapters_of_one_layer():
    "Only one layer has adapters, and the embeddings stay as they are: there are no new words."
    from peft import LoraConfig, get_peft_model
    samples = [{"input_ids": o, "labels": o} for o in counts(300)]
    base = learner(language_model(), samples[:240], samples[240:], loss=None, data_collator=collate_text,
                   num_train_epochs=2)
    base.train()
    config = LoraConfig(r=4, target_modules=["c_proj"], fan_in_fan_out=True)
    return learner(get_peft_model(base.model, config), samples[:240], samples[240:], loss=None,
                   data_collator=collate_text)


class Ignoring(nn.Module):
    "A classifier of texts whose mask is one where there is nothing, as PyTorch has it."
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, 2)
        self.attend = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)

    def forward(self, input_ids, ignored): return self.head(self.attend(self.embed(input_ids),
                                                                        src_key_padding_mask=ignored)[:, 0])


def collate_ignored(samples):
    ids = padded([[MARK, *o] for o, _ in samples], PAD)
    return {"input_ids": ids, "ignored": ids == PAD, "labels": torch.tensor([label for _, label in samples])}


@healthy
def mask_of_what_is_ignored(): return learner(seeded(Ignoring), *texts_of_two_means(), data_collator=collate_ignored,
                                              learning_rate=3e-3, num_train_epochs=6)


class FixedCentres(nn.Module):
    "Distances to fixed points, which are no parameters and need no gradient, and a linear layer on them."
    def __init__(self):
        super().__init__()
        self.points, self.head = digits()[0][::15].clone(), nn.Linear(40, 10)

    def forward(self, x): return self.head((-torch.cdist(x, self.points.to(x.device))).softmax(1)*40)


@healthy
def fixed_points(): return learner(seeded(FixedCentres), *split(*digits(n=500)))


@healthy
def slow_running_statistics():
    "The running statistics change slowly, over many small batches."
    net = seeded(lambda: nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32, momentum=0.02), nn.ReLU(),
                                       nn.Linear(32, 10)))
    return learner(net, *split(*digits(n=600), 480), per_device_train_batch_size=8, learning_rate=3e-3)


class Patches(nn.Module):
    "Rows of an image as patches, by view(), and attention among them."
    def __init__(self):
        super().__init__()
        self.embed, self.position, self.head = nn.Linear(8, 32), nn.Parameter(torch.randn(8, 32)*0.02), nn.Linear(32,
                                                                                                                  10)
        self.attend = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)

    def forward(self, x): return self.head(self.attend(self.embed(x.view(len(x), 8, 8)) + self.position).mean(1))


@healthy
def rows_as_patches(): return learner(seeded(Patches), *split(*digits(n=500)), learning_rate=3e-3, num_train_epochs=10)


class LearnedTemperature(nn.Module):
    "Two views of a sample and a temperature that is learned, as in CLIP."
    def __init__(self):
        super().__init__()
        self.net, self.scale = mlp(20, 64, 16), nn.Parameter(torch.tensor(1/0.07).log())

    def forward(self, x): return F.normalize(self.net(x), dim=1)*(self.scale.exp()**0.5)


class PairsAsTheyAre(Pairs):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        one, other = (model(o) for o in inputs)
        loss = F.cross_entropy(one @ other.T, torch.arange(len(one)))
        return (loss, one) if return_outputs else loss


@healthy
def learned_temperature(): return learner(seeded(LearnedTemperature), views(600, 0), None, PairsAsTheyAre, loss=None,
                                          learning_rate=3e-3, per_device_train_batch_size=32, num_train_epochs=10)


@healthy
def plateau_of_the_loss():
    "The rate falls whenever the loss of the evaluation has not fallen for an epoch, and it does so several times."
    given = dict(lr_scheduler_type="reduce_lr_on_plateau", lr_scheduler_kwargs=dict(patience=0, factor=0.3),
                 metric_for_best_model="eval_loss")
    return learner(seeded(mlp, 64, 32, 10), *split(*digits(n=500)), compute_metrics=share_correct,
                   eval_strategy="epoch", num_train_epochs=12, **given)


class SlowWeights(TrainerCallback):
    "Lookahead: every five steps, the weights go half of the way back."
    def on_train_begin(self, args, state, control, model, **kwargs): self.slow = copy.deepcopy(model.state_dict())

    def on_step_end(self, args, state, control, model, **kwargs):
        if state.global_step % 5: return
        self.slow = {k: (v + model.state_dict()[k])/2 for k, v in self.slow.items()}
        model.load_state_dict(self.slow)


@healthy
def lookahead(): return learner(seeded(Net), *split(*table()), callbacks=[SlowWeights()])


class Tagger(nn.Module):
    "A label for each token, of it and the one before: the metric compares the same positions, rightly."
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = Averaged().embed, nn.GRU(16, 32, batch_first=True), nn.Linear(32, 2)

    def forward(self, input_ids, attention_mask): return self.head(self.rnn(self.embed(input_ids))[0]).transpose(1, 2)


def share_of_tags(predicted):
    known = predicted.label_ids != -100
    return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids)[known].mean())}


@healthy
def tags_of_tokens():
    draw = np.random.default_rng(0)
    texts = [draw.integers(3, WORDS, draw.integers(4, 14)).tolist() for _ in range(400)]
    samples = [{"input_ids": o, "labels": [int(b > a) for a, b in zip([0, *o], o)]} for o in texts]
    return learner(seeded(Tagger), samples[:300], samples[300:], data_collator=collate_text,
                   compute_metrics=share_of_tags, eval_strategy="epoch")
