"Faults in the model, and in what the optimizer has of it."
import torch
from tiny import Net, collate_text, counts, incident, language_model, learner, seeded, split, table, wrong
from torch import nn
from torch.nn.functional import batch_norm

from trainer_nb import TrainerCallback


@incident("model", "PyTorch forum 84911 (TrainCheck): all is frozen but the norms", "frozen|requires_grad|not trained")
def head_frozen(faulty):
    model = seeded(Net)
    for name, weight in model.named_parameters(): weight.requires_grad = "norm" in name or not faulty
    return learner(model, *split(*table()))


@incident("model", "PyTorch forum, many threads: the head is replaced after the optimizer was made", "not in the optimizer|missing from the optimizer|no optimizer|optimizer does not")
def missing_from_the_optimizer(faulty):
    model = seeded(Net, 8, 10)
    before = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.head = nn.Linear(32, 3)
    optimizer = before if faulty else torch.optim.AdamW(model.parameters(), lr=1e-2)
    return learner(model, *split(*table()), optimizers=(optimizer, None))


@incident("model", "pytorch #40967: a parameter twice in a group", "twice|duplicate|more than once")
def twice_in_the_optimizer(faulty):
    model = seeded(Net)
    weights = [*model.parameters(), *(model.head.parameters() if faulty else ())]
    return learner(model, *split(*table()), optimizers=(torch.optim.SGD(weights, lr=0.1, momentum=0.9), None))


@incident("model", "Karpathy, most common neural net mistakes: softmaxed outputs for a loss that expects logits", "softmax")
def softmax_before_cross_entropy(faulty):
    model = seeded(Net)
    return learner(nn.Sequential(model, nn.Softmax(-1)) if faulty else model, *split(*table()))


@incident("model", "CS231n notes, Dying ReLU; biases that start far below zero", "dead")
def relus_dead(faulty):
    model = seeded(Net)
    for layer in (model.body[0], model.body[2]): nn.init.constant_(layer.bias, -6. if faulty else 0.)
    return learner(model, *split(*table()))


@incident("model", "llm-foundry and others: a new output layer for a model whose weights are tied", "tied|tie_")
def weights_no_longer_tied(faulty):
    model = language_model()
    if faulty: model.lm_head = nn.Linear(32, 23, bias=False)
    texts = [{"input_ids": o, "labels": o} for o in counts()]
    return learner(model, texts[:240], texts[240:], loss=None, data_collator=collate_text)


class TwoBranches(nn.Module):
    "The sum of two branches, one of which is cut off from the gradient."
    def __init__(self, cut):
        super().__init__()
        self.left, self.right, self.head, self.cut = nn.Linear(4, 16), nn.Linear(4, 16), nn.Linear(16, 3), cut

    def forward(self, x):
        right = self.right(x[:, 4:]).relu()
        return self.head(self.left(x[:, :4]).relu() + (torch.tensor(right.tolist()) if self.cut else right))


@incident("model", "PyTorch forum, many threads: a tensor is made anew within forward", "no gradient|gets no grad|without a gradient|detach")
def branch_detached(faulty):
    return learner(seeded(TwoBranches, faulty), *split(*table()))


class Normed(nn.Module):
    "A network with a functional batch norm that uses the batch's statistics, also in evaluation."
    def __init__(self, always):
        super().__init__()
        self.always, self.body, self.head = always, nn.Linear(8, 32), nn.Linear(32, 3)
        self.register_buffer("mean", torch.zeros(32))
        self.register_buffer("var", torch.ones(32))

    def forward(self, x):
        return self.head(batch_norm(self.body(x), self.mean, self.var, training=self.training or self.always).relu())


@incident("model", "License_Plate_Detection_Pytorch #22, CLIP #193: the result depends on the size of the batch", "other samples|across samples|batch norm|depend")
def batch_norm_in_the_wrong_mode(faulty):
    x, y = table()
    return learner(seeded(Normed, faulty), *split(x, y), per_device_eval_batch_size=4)


@incident("model", "Karpathy, A Recipe for Training Neural Networks: verify the loss at the start; init well", "first loss|initial|chance|start")
def weights_start_too_large(faulty):
    model = seeded(lambda: nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)))
    torch.manual_seed(0)
    for layer in model[::2]: nn.init.normal_(layer.weight, std=2.) if faulty else nn.init.kaiming_normal_(layer.weight)
    return learner(model, *split(*table()), learning_rate=1e-3, num_train_epochs=8)


@incident("model", "mmpretrain #702: a stage that is meant to be frozen is trained; here, an attribute is set in place of a call", "requires_grad|frozen|freeze", score=wrong)
def stage_not_frozen(faulty):
    "A body that was trained on much data, and a head that is trained on little."
    first = learner(seeded(Net), *split(*table(2000), 1900), num_train_epochs=8)
    first.train()
    first.model.head = nn.Linear(32, 2)
    if faulty: first.model.body.requires_grad = False
    else: first.model.body.requires_grad_(False)
    x, y = table(400, seed=1)
    return learner(first.model, *split(x, y.clamp(max=1), 40), num_train_epochs=40)


class Unfreeze(TrainerCallback):
    "Train the body, too, from some step on."
    def on_step_begin(self, args, state, control, model, **kwargs):
        if state.global_step == 40: model.body.requires_grad_(True)


@incident("model", "pytorch #115607: after steps without gradients, some parameters are updated no more", "not in the optimizer|never updated|not trained|do not move")
def unfrozen_and_not_updated(faulty):
    x, _ = table()
    model = seeded(Net, 8, 2)
    model.body.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad or not faulty], lr=1e-2)
    return learner(model, *split(x, (x[:, 0]*x[:, 1] > 0).long()), optimizers=(optimizer, None), callbacks=[Unfreeze()], num_train_epochs=12)
