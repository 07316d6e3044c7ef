"What learn.memory_plan() says a step takes, beside what is known of it; and that it leaves no trace."
import pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from trainer_nb import InvalidOperation, Learner, differences
from trainer_nb.data.collate import is_identical

WIDTH, SAMPLES = 512, 64
DATA = TensorDataset(torch.randn(256, WIDTH), torch.randint(10, (256,)))


def learner(**given):
    model = given.pop("model", None) or nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid(), nn.Linear(WIDTH, 10))
    return Learner(model, train_dataset=DATA, per_device_train_batch_size=SAMPLES, **{"loss_func": F.cross_entropy, "use_cpu": True, **given})


def parts(plan, when="at the peak"): return {row["part"]: row[when] for row in plan}
def near(found, want): return want <= found <= want + 16 * 512


@pytest.mark.parametrize("given, states", [({}, 2), ({"optim": "sgd"}, 0), ({"optim": "adamw_torch_fused"}, 2), ({"optim": "rmsprop"}, 1)])
def test_what_stays_between_steps_is_weights_and_optimizer_state(given, states):
    learn = learner(**given)
    held = sum(p.nbytes for p in learn.model.parameters())
    plan = learn.memory_plan()
    between = parts(plan, "between steps")
    assert near(between["weights"], held) and near(between.get("optimizer", 0), states * held) and "gradients" in parts(plan)
    assert plan.peak == sum(parts(plan).values()) >= plan.between == sum(between.values())
    learn.step(1)
    assert learn.memory_plan().peak == plan.peak          # of the optimizer that there is now


def test_a_forward_pass_keeps_what_its_layers_need():
    "The output of the sigmoid, which is the input of the second layer, and the logits; the output of the first layer is freed."
    class Kept(nn.Sequential):
        def forward(self, x):
            out = super().forward(x)
            held.append(sum(n for n, kind in tracker[0].live.values() if kind == "activations"))
            return out
    held, tracker = [], []
    from trainer_nb.diagnostics import memory_plan
    class Seen(memory_plan.MemoryTracker):
        def __init__(self):
            super().__init__()
            tracker.append(self)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_plan, "MemoryTracker", Seen)
        learner(model=Kept(nn.Linear(WIDTH, WIDTH), nn.Sigmoid(), nn.Linear(WIDTH, 10))).memory_plan()
    assert held == 2 * [SAMPLES * (WIDTH + 10) * 4]


def test_less_is_kept_in_half_precision_and_where_layers_are_computed_twice():
    def deep(): return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid(), nn.Sigmoid()) for _ in range(6)], nn.Linear(WIDTH, 10))
    batch = torch.randn(20_000, WIDTH), torch.zeros(20_000, dtype=torch.long)
    plain, half, again = (learner(model=deep(), **given).memory_plan(batch).peak for given in ({}, {"bf16": True}, {"activation_checkpointing": True}))
    assert half < plain and again < 0.75 * plain


def test_attention_and_dropout_keep_what_they_keep_on_a_gpu():
    "No matrix of length times length, and one byte for each entry of a mask."
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(64, 2, 64, dropout=0.1, batch_first=True)
        def forward(self, x, labels): return {"loss": self.layer(x).mean() + labels.sum()}
    batch = {"x": torch.randn(1, 4096, 64), "labels": torch.zeros(1)}
    assert learner(model=Block(), loss_func=None).memory_plan(batch).peak < 2 * 4096 ** 2


def test_no_trace():
    def made(): return learner(model=nn.Sequential(nn.Linear(WIDTH, 20), nn.BatchNorm1d(20), nn.Dropout(0.1), nn.Linear(20, 10)), num_train_epochs=4)
    torch.manual_seed(0); learn = made()
    torch.manual_seed(0); same = made()
    learn.memory_plan()
    assert learn.optimizer is None
    for each in (learn, same): each.step(3)
    before, numbers = learn.snapshot(), torch.get_rng_state()
    assert learn.memory_plan().peak > 0
    assert differences(learn.snapshot(), before) == [] and torch.equal(torch.get_rng_state(), numbers)
    for each in (learn, same): each.step(3)
    assert differences(learn.snapshot(), same.snapshot()) == []


class Counting:
    "A loss that keeps what it has seen."
    def __init__(self): self.mean, self.seen = torch.zeros(()), []
    def __call__(self, output, labels):
        loss = F.cross_entropy(output, labels)
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        self.seen.append(loss.detach())
        return loss


class CountingModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
    def forward(self, output, labels):
        loss = F.cross_entropy(output, labels)
        self.mean.mul_(0.9).add_(0.1 * loss.detach())
        return loss


class Last(Learner):
    last = None
    def compute_loss(self, *args, **kwargs):
        self.last = super().compute_loss(*args, **kwargs)
        return self.last


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("loss, cls", [(Counting, Learner), (CountingModule, Learner), (lambda: F.cross_entropy, Last)])
def test_what_a_loss_keeps_is_as_it_was(loss, cls, steps):
    learn = cls(nn.Linear(WIDTH, 10), train_dataset=DATA, loss_func=loss(), use_cpu=True)
    if steps: learn.step(steps)
    def kept():
        where = vars(learn.loss_func) | dict(learn.loss_func.named_buffers() if isinstance(learn.loss_func, nn.Module) else ())
        return {k: torch.stack([*v]) if k == "seen" and v else v.clone() if isinstance(v, torch.Tensor) else v for k, v in where.items() if k in ("mean", "seen")}
    before, last, events = kept(), learn.__dict__.get("last"), len(learn.history.events)
    learn.memory_plan()
    assert is_identical(kept(), before) and type(learn.__dict__.get("last")) is type(last)
    learn.step(1)
    assert "by hand" not in [e["kind"] for e in learn.history.events[events:]]


class Numbers(nn.Linear):
    def forward(self, x): return super().forward(x if x.sum() > 0 else -x)


@pytest.mark.parametrize("given, error, word", [
    (dict(model=Numbers(WIDTH, 10)), InvalidOperation, "numbers"), (dict(train_dataset=None), ValueError, "train_dataset"),
    (dict(fsdp="full_shard"), InvalidOperation, "fsdp")])
def test_errors(given, error, word):
    data = {"train_dataset": DATA} | {k: given.pop(k) for k in ("train_dataset",) if k in given}
    learn = Learner(given.pop("model", None) or nn.Linear(WIDTH, 10), loss_func=F.cross_entropy, **data, **given)
    with pytest.raises(error, match=word): learn.memory_plan()


def test_gpt2_as_measured():
    "GPT-2 with 124 million parameters, 16 x 1,024 tokens, bf16: torch counted 23.1 GiB on an H200 (benchmarks/gpu.py)."
    from transformers import GPT2Config, GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config(use_cache=False))
    tokens = torch.zeros(16, 1024, dtype=torch.long)
    plan = Learner(model, train_dataset=DATA, bf16=True, use_cpu=True, optim="adamw_torch_fused").memory_plan({"input_ids": tokens, "labels": tokens})
    assert abs(plan.peak / (23.1 * 2 ** 30) - 1) < 0.05


@pytest.mark.gpu
@pytest.mark.parametrize("given", [{}, {"bf16": True}, {"gradient_accumulation_steps": 2}])
def test_what_a_gpu_takes(given):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU(), nn.Dropout(0.1)) for _ in range(8)], nn.Linear(WIDTH, 10))
    learn = Learner(model, train_dataset=TensorDataset(torch.randn(80_000, WIDTH), torch.zeros(80_000, dtype=torch.long)),
                    loss_func=F.cross_entropy, per_device_train_batch_size=16_000, rewind_every=0, **given)
    plan = learn.memory_plan()
    learn.step(1)
    torch.cuda.reset_peak_memory_stats()
    learn.step(1)
    assert abs(plan.peak / torch.cuda.max_memory_allocated() - 1) < 0.05
