"""Optimizers, schedules and parameter groups are the Trainer's; changes under way do what they say."""
import copy, gc, json, pickle, subprocess, sys, warnings, weakref
import pytest, torch
from torch import nn
from torch.optim import lr_scheduler as S
from trainer_nb import Learner
from trainer_nb.args.training_args import TrainingArguments, resolve_args
from trainer_nb.args.fields import METRIC_SCHEDULES, OPTIMIZER_NAMES
from trainer_nb.args.fields import SCHEDULE_NAMES as ALL_SCHEDULES
from trainer_nb.optim.optimizers import decay_parameter_names, layer_groups, parameter_groups
from trainer_nb.optim.extra_optimizers import OPTIMIZERS
from trainer_nb.optim.optimizers import create_optimizer, optimizer_class, parse_optim_args
from trainer_nb.optim.schedules import scale_schedule, set_base_lr, set_lr, stretch_schedule
from trainer_nb.optim.schedules import SCHEDULES, base_lrs, create_scheduler, load_scheduler_state, scheduler_state

SCHEDULE_NAMES = tuple(n for n in ALL_SCHEDULES if n not in METRIC_SCHEDULES)   # those that are a function of the step
LAMBDAS = tuple(n for n in SCHEDULE_NAMES if n != "one_cycle")
NEEDED = {"cosine_with_min_lr": dict(min_lr=0.01), "cosine_warmup_with_min_lr": dict(min_lr_rate=0.1), "warmup_stable_decay": dict(num_decay_steps=3)}

@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_norm, self.norm, self.fc, self.bn1 = nn.RMSNorm(4), nn.LayerNorm(4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.ffn_norm_weight, self.norm1 = nn.Parameter(torch.ones(4)), nn.GroupNorm(2, 4)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias_table, self.embed = nn.Parameter(torch.ones(4)), nn.Embedding(9, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(11))
        self.post_layernorm_proj, self.LayerNorm, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 9)
        self.head.weight = self.embed.weight
        self.shared = self.blocks[3].norm

def groups_of(n=2, lr=1.0, **kwargs):
    "An optimizer of n groups that needs no gradients."
    return torch.optim.SGD([dict(params=[nn.Parameter(torch.zeros(1))]) for _ in range(n)], lr=lr, **kwargs)

def go(scheduler, optimizer, n):
    "The rates, per group, that each of n steps used."
    used = []
    for _ in range(n):
        used.append([float(g["lr"]) for g in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return used

def made(n, optimizer=None, **settings):
    settings = {"lr_scheduler_kwargs": NEEDED.get(settings.get("lr_scheduler_type")), "learning_rate": 1.0, **settings}
    args = TrainingArguments(**settings)
    optimizer = optimizer or groups_of(lr=args.learning_rate)
    return create_scheduler(optimizer, args, n), optimizer, args

# ---- as the Trainer

def test_the_tables_agree_with_the_arguments():
    assert tuple(OPTIMIZERS) == OPTIMIZER_NAMES and {*SCHEDULES, "one_cycle", *METRIC_SCHEDULES} == set(ALL_SCHEDULES)

KWARGS = [("linear", {}), ("cosine", {}), ("cosine", dict(num_cycles=1.5)), ("constant", {}), ("constant_with_warmup", {}),
          ("polynomial", {}), ("polynomial", dict(lr_end=1e-3, power=2.0))]

@pytest.mark.parametrize("name, kwargs", KWARGS)
@pytest.mark.parametrize("n, warmup", [(1, 0), (2, 0), (10, 0), (10, 1), (10, 3), (10, 0.25), (37, 5), (37, 0.1), (10, 10), (5, 8)])
def test_schedules_are_transformers(name, kwargs, n, warmup):
    get_scheduler = pytest.importorskip("transformers").get_scheduler
    ours, o1, args = made(n, lr_scheduler_type=name, lr_scheduler_kwargs=kwargs, warmup_steps=warmup, learning_rate=0.3)
    o2 = groups_of(lr=0.3)
    theirs = get_scheduler(name, o2, num_warmup_steps=args.get_warmup_steps(n), num_training_steps=n,
                           scheduler_specific_kwargs=dict(kwargs))
    for step in range(n + 4):
        a, b = [g["lr"] for g in o1.param_groups], [g["lr"] for g in o2.param_groups]
        assert a == b, (step, a, b)
        assert ours.get_last_lr() == theirs.get_last_lr()
        o1.step(), o2.step(), ours.step()
        try: theirs.step()
        except ZeroDivisionError: return   # theirs, where the warm-up fills a polynomial wholly

def hf_models():
    t = pytest.importorskip("transformers")
    small = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, vocab_size=13)
    return [t.BertForSequenceClassification(t.BertConfig(**small)), t.GPT2LMHeadModel(t.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=13)),
            t.LlamaForCausalLM(t.LlamaConfig(**small, num_key_value_heads=2)), t.T5ForConditionalGeneration(t.T5Config(
                d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2, vocab_size=13))]

@pytest.mark.filterwarnings("ignore")
def test_decay_and_groups_are_the_trainers(tmp_path):
    t = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model in [Net(), nn.LayerNorm(3), nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), *hf_models()]:
            assert decay_parameter_names(model) == set(t.Trainer.get_decay_parameter_names(None, model))
            for frozen in (False, True):
                if frozen: next(model.parameters()).requires_grad_(False)
                trainer = t.Trainer(model, t.TrainingArguments(str(tmp_path), weight_decay=0.1, use_cpu=True, learning_rate=1e-3,
                                                               optim="adamw_torch", report_to="none"))
                theirs = trainer.create_optimizer()
                ours = create_optimizer(model, TrainingArguments(weight_decay=0.1, learning_rate=1e-3, optim="adamw_torch"))
                assert len(theirs.param_groups) == len(ours.param_groups) == 2 and type(ours) is type(theirs)
                for a, b in zip(ours.param_groups, theirs.param_groups):
                    assert [id(p) for p in a.pop("params")] == [id(p) for p in b.pop("params")]
                    assert a == b

# ---- optimizers

@pytest.mark.parametrize("name", ["adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop", "adafactor"])
def test_every_optimizer_steps(name):
    model = nn.Linear(3, 2)
    before = copy.deepcopy(model.state_dict())
    optimizer = create_optimizer(model, TrainingArguments(optim=name, learning_rate=1e-2, weight_decay=0.01))
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert all(g["lr"] == 1e-2 for g in optimizer.param_groups) and [g["weight_decay"] for g in optimizer.param_groups] == [0.01, 0.0]
    assert not torch.equal(before["weight"], model.weight)
    assert bool(optimizer.defaults.get("fused")) == name.endswith("fused")

def test_optim_args():
    assert parse_optim_args("a=1,b=2.5,c=true,d=None,e=word,f='x y',g=(1,2),h=-1e-3") == dict(
        a=1, b=2.5, c=True, d=None, e="word", f="x y", g=(1, 2), h=-1e-3)
    for bad in ("a", "a=", "=1", "a:1", "a=1,,b=2", "a=1,a=2", "**a", "a=f()", "a=1)+(1", "a=1 b=2", "a.b=1", "f(a=1)"):
        with pytest.raises(ValueError, match="cannot be read"): parse_optim_args(bad)
    args = TrainingArguments(optim="sgd", optim_args={"momentum": 0.9})
    assert optimizer_class(args)[1] == dict(lr=5e-5, momentum=0.9)
    assert optimizer_class(TrainingArguments(optim="adamw_torch", optim_args="betas=(0.5,0.6),amsgrad=True"))[1]["betas"] == (0.5, 0.6)
    for key, word in (("lr", "learning_rate"), ("weight_decay", "weight_decay"), ("params", "does not take"), ("momentu", "Did you mean 'momentum'")):
        with pytest.raises(TypeError, match=word): optimizer_class(TrainingArguments(optim="sgd", optim_args={key: 1}))
    # classes that are named in full
    assert optimizer_class(TrainingArguments(optim="torch.optim:NAdam", optim_args="momentum_decay=0.1")) == (torch.optim.NAdam, dict(lr=5e-5, momentum_decay=0.1))
    for given, word in ((dict(optim="torch.optim:Nadam"), "Did you mean 'NAdam'"), (dict(optim="torch.nn:Linear"), "not name a subclass"), (dict(optim="no.such:A"), "install no"),
                        (dict(optim="torch.optim:LBFGS"), "a closure"), (dict(optim="torch.optim:Rprop", weight_decay=0.1), "Rprop takes none")):
        with pytest.raises((ValueError, ImportError), match=word): optimizer_class(TrainingArguments(**given))

def test_unknown_names_when_called_directly():
    args = TrainingArguments()
    with pytest.raises(ValueError, match="Did you mean 'sgd'"): args.optim = "sdg"
    with pytest.raises(ValueError, match="Did you mean 'cosine'"): args.lr_scheduler_type = "cosin"
    vars(args).update(optim="sdg", lr_scheduler_type="cosin")   # as a file of another version may have it
    with pytest.raises(ValueError, match="Did you mean 'sgd'"): create_optimizer(nn.Linear(1, 1), args)
    with pytest.raises(ValueError, match="Did you mean 'cosine'"): create_scheduler(groups_of(), args, 3)

def test_class_and_kwargs_of_the_users():
    model = nn.Linear(2, 2)
    o = create_optimizer(model, TrainingArguments(weight_decay=0.5), (torch.optim.RMSprop, dict(lr=0.2)))
    assert [(g["lr"], g["weight_decay"]) for g in o.param_groups] == [(0.2, 0.5), (0.2, 0.0)]
    o = create_optimizer(model, TrainingArguments(), (torch.optim.SGD, dict(lr=0.2, params=[model.bias])))
    assert [len(g["params"]) for g in o.param_groups] == [1]

# ---- groups

def test_layer_groups_hold_every_parameter_once():
    model = Net()
    for groups in (None, ["blocks", "head"], [["embed", "blocks.0"], "blocks", ["blocks.10.fc", "head.bias"]]):
        found = layer_groups(model, groups)
        assert sorted(n for _, ps in found for n, _ in ps) == sorted(n for n, _ in model.named_parameters())
        assert all(ps for _, ps in found)
    assert [g for g, _ in layer_groups(model)][:3] == ["Net", "embed", "blocks"]
    found = dict(layer_groups(model, ["blocks", "blocks.1"]))
    assert {n.split(".")[1] for n, _ in found["blocks.1"]} == {"1"} and any("blocks.10." in n for n, _ in found["blocks"])

def test_a_child_may_be_called_rest():
    model = nn.ModuleDict(dict(rest=nn.Linear(1, 1), b=nn.Linear(1, 1), c=nn.Linear(1, 1)))
    assert [(g, len(p)) for g, p in layer_groups(model, ["rest", "b"])] == [("rest", 2), ("rest", 2), ("b", 2)]

def test_layer_groups_refuse():
    with pytest.raises(ValueError, match="Did you mean 'blocks'"): layer_groups(Net(), ["block"])
    with pytest.raises(ValueError, match="no parameters of its own"): layer_groups(Net(), ["embed", "head.weight"])
    with pytest.raises(ValueError, match="no parameters of its own"): layer_groups(Net(), ["head.bias", "head"])
    with pytest.raises(ValueError, match="no parameters of its own"): layer_groups(Net(), ["head", "head"])

def test_a_rate_per_layer_group():
    model = Net()
    args = TrainingArguments(learning_rate=[1e-4, 1e-3, 1e-2], layer_groups=["blocks", "head"], weight_decay=0.1)
    o = create_optimizer(model, args)
    assert {(g["layer_group"], g["lr"]) for g in o.param_groups} == {(0, 1e-4), (1, 1e-3), (2, 1e-2)}
    assert sum(len(g["params"]) for g in o.param_groups) == len(list(model.parameters()))
    with pytest.raises(ValueError, match="3 layer groups: 'rest', 'blocks', 'head'"):
        parameter_groups(model, resolve_args(args, dict(learning_rate=[1e-4, 1e-3])))
    model.head.requires_grad_(False), model.embed.requires_grad_(False), model.bias_table.requires_grad_(False)
    o = create_optimizer(model, args)
    s = create_scheduler(o, args, 10)
    assert {g["layer_group"] for g in o.param_groups} == {0, 1}     # the frozen head has no group
    set_lr(s, o, [1.0, 2.0, 3.0])                                   # and a list still names every layer group
    assert {(g["layer_group"], g["lr"]) for g in o.param_groups} == {(0, 1.0), (1, 2.0)}
    with pytest.raises(ValueError, match="3 layer groups"): set_lr(s, o, [1.0, 2.0])
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="learn.unfreeze"): parameter_groups(model, args)

def test_polynomial_ends_at_lr_end_in_each_group():
    o = create_optimizer(Net(), TrainingArguments(learning_rate=[1e-4, 1e-2], layer_groups=["blocks"], optim="sgd"))
    s = create_scheduler(o, TrainingArguments(lr_scheduler_type="polynomial", lr_scheduler_kwargs=dict(lr_end=1e-6)), 5)
    assert all(abs(r - 1e-6) < 1e-15 for r in (go(s, o, 6)[-1]))
    with pytest.raises(ValueError, match="smaller lr_end"): made(5, lr_scheduler_type="polynomial", lr_scheduler_kwargs=dict(lr_end=2.0))

# ---- schedules

def test_unknown_keywords():
    for name in SCHEDULE_NAMES:
        for key in ("num_cycle", "num_warmup_steps", "lr_init", "max_lr", "total_steps"):
            with pytest.raises(TypeError, match=f"lr_scheduler_kwargs has '{key}', which the schedule '{name}' does not take"):
                made(5, lr_scheduler_type=name, lr_scheduler_kwargs={key: 1})

@pytest.mark.parametrize("n, kwargs, warmup, pct", [(10, {}, 0, 0.3), (10, {}, 4, 0.4), (10, dict(pct_start=0.5), 4, 0.5),
    (20, dict(div_factor=10.0, anneal_strategy="linear"), 0.25, 0.25), (7, dict(three_phase=True, pct_start=0.4), 0, 0.4), (2, {}, 0, 0.3)])
def test_one_cycle_is_torchs(n, kwargs, warmup, pct):
    for make in (lambda: groups_of(lr=0.5, momentum=0.9), lambda: groups_of(lr=0.5), lambda: torch.optim.AdamW(nn.Linear(1, 1).parameters(), lr=0.5)):
        o1, o2 = make(), make()
        ours, _, _ = made(n, o1, lr_scheduler_type="one_cycle", warmup_steps=warmup, lr_scheduler_kwargs=kwargs, learning_rate=0.5)
        cycles = o2.defaults.get("momentum") != 0
        theirs = S.OneCycleLR(o2, max_lr=0.5, total_steps=n, cycle_momentum=cycles, **{"pct_start": pct, **kwargs})
        assert isinstance(ours, S.OneCycleLR)
        for _ in range(n):
            for key in ("lr", "momentum", "betas"): assert [g.get(key) for g in o1.param_groups] == [g.get(key) for g in o2.param_groups]
            o1.step(), o2.step(), ours.step(), theirs.step()

@pytest.mark.parametrize("n", [1, 2, 3, 4, 10, 33])
def test_one_cycle_never_divides_by_zero(n):
    for settings in [dict(warmup_steps=w) for w in (0, 1, 2, n - 1, n, n + 5, 0.1, 0.5)] + [
            dict(lr_scheduler_kwargs=dict(pct_start=p)) for p in (0.0, 0.1, 0.5, 1 / 3, 1.0)]:
        s, o, _ = made(n, lr_scheduler_type="one_cycle", **settings)
        rates = go(s, o, n)
        assert all(0 <= r <= 1.0 for rs in rates for r in rs), (settings, rates)

def test_one_cycle_without_momentum():
    o = create_optimizer(nn.Linear(2, 2), TrainingArguments(optim="adafactor"))
    create_scheduler(o, TrainingArguments(lr_scheduler_type="one_cycle"), 10)
    s, o, _ = made(10, lr_scheduler_type="one_cycle")
    go(s, o, 5)
    assert o.param_groups[0]["momentum"] == 0

def test_a_second_schedule_starts_from_the_same_base():
    for first in SCHEDULE_NAMES:
        for second in SCHEDULE_NAMES:
            s, o, _ = made(10, lr_scheduler_type=first)
            go(s, o, 7)
            s, o, _ = made(10, o, lr_scheduler_type=second)
            fresh, o2, _ = made(10, lr_scheduler_type=second)
            assert base_lrs(o) == base_lrs(o2) == [1.0, 1.0]
            assert ("max_lr" in o.param_groups[0]) == (second == "one_cycle")
            assert go(s, o, 10) == go(fresh, o2, 10), (first, second)

def test_what_a_scheduler_does_to_the_optimizer():
    "Torch puts a wrapper around `optimizer.step`: hooks, copies, a second scheduler and freeing still work."
    model = nn.Linear(2, 2)
    args = TrainingArguments(learning_rate=0.1)
    o = create_optimizer(model, args)
    seen = []
    o.register_step_post_hook(lambda *a: seen.append(1))
    s = create_scheduler(o, args, 5)
    wrapped = o.step
    s = create_scheduler(o, args, 5)
    assert o.step is wrapped
    model(torch.ones(1, 2)).sum().backward()
    o.step(), s.step()
    assert seen == [1]
    assert copy.deepcopy(o).state_dict()["param_groups"] == o.state_dict()["param_groups"]
    assert type(pickle.loads(pickle.dumps(o))) is type(o)
    held = weakref.ref(o), weakref.ref(s)
    gc.disable()
    try:
        del o, s, wrapped
        assert [h() for h in held] == [None, None]
    finally: gc.enable()

def test_zero_steps_is_a_schedule_too():
    for name in SCHEDULE_NAMES: made(0, lr_scheduler_type=name)

# ---- changes under way

TORCHS = dict(step=lambda o: S.StepLR(o, 3, 0.5), multi=lambda o: S.MultiStepLR(o, [2, 5], 0.5), exp=lambda o: S.ExponentialLR(o, 0.9),
    cosine=lambda o: S.CosineAnnealingLR(o, 20), cosine_min=lambda o: S.CosineAnnealingLR(o, 20, eta_min=0.1),
    restarts=lambda o: S.CosineAnnealingWarmRestarts(o, 6, eta_min=0.1), linear=lambda o: S.LinearLR(o, 0.5, 1.0, 8),
    constant=lambda o: S.ConstantLR(o, 0.5, 8), poly=lambda o: S.PolynomialLR(o, 20, 2.0), lam=lambda o: S.LambdaLR(o, lambda s: 1 / (1 + s)),
    mult=lambda o: S.MultiplicativeLR(o, lambda s: 0.9), cyclic=lambda o: S.CyclicLR(o, 0.5, 1.0, 3, cycle_momentum=False),
    one=lambda o: S.OneCycleLR(o, 1.0, 20, cycle_momentum=False),
    sequence=lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.5, 1.0, 4), S.CosineAnnealingLR(o, 16)], [6]),
    chained=lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.5, 6), S.ExponentialLR(o, 0.9)], optimizer=o))

def close(a, b): assert torch.allclose(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64), rtol=1e-12, atol=1e-15), (a, b)

@pytest.mark.parametrize("name", [*TORCHS, *(n for n in SCHEDULE_NAMES)])
@pytest.mark.parametrize("factors", [0.1, [3.0, 3.0]])
def test_scaling_reaches_every_scheduler(name, factors):
    make = TORCHS.get(name) or (lambda o: create_scheduler(o, TrainingArguments(lr_scheduler_type=name, warmup_steps=3, lr_scheduler_kwargs=NEEDED.get(name)), 20))
    o1, o2 = groups_of(), groups_of()
    a, b = make(o1), make(o2)
    close(go(a, o1, 5), go(b, o2, 5))
    scale_schedule(a, o1, factors)
    f = factors if isinstance(factors, float) else factors[0]
    assert a.get_last_lr() == [g["lr"] for g in o1.param_groups]
    close(go(a, o1, 14), [[r * f for r in rs] for rs in go(b, o2, 14)])

@pytest.mark.parametrize("name", [n for n in (*TORCHS, *SCHEDULE_NAMES) if n not in ("cosine_min", "restarts")])
def test_a_factor_per_group(name):
    make = TORCHS.get(name) or (lambda o: create_scheduler(o, TrainingArguments(lr_scheduler_type=name, warmup_steps=3, lr_scheduler_kwargs=NEEDED.get(name)), 20))
    o1, o2 = groups_of(), groups_of()
    a, b = make(o1), make(o2)
    go(a, o1, 5), go(b, o2, 5)
    scale_schedule(a, o1, [2.0, 0.5])
    close(go(a, o1, 14), [[r * 2.0, s * 0.5] for r, s in go(b, o2, 14)])

@pytest.mark.parametrize("name", [*TORCHS, *(n for n in SCHEDULE_NAMES)])
@pytest.mark.parametrize("steps", [1, 5])
def test_each_scheduler_goes_on_from_its_state(name, steps):
    "Also where a part of the state is not plain, such as the milestones of a MultiStepLR: it stays as the new one has it."
    make = TORCHS.get(name) or (lambda o: create_scheduler(o, TrainingArguments(lr_scheduler_type=name, warmup_steps=3, lr_scheduler_kwargs=NEEDED.get(name)), 20))
    o1, o2 = groups_of(), groups_of()
    a, b = make(o1), make(o2)
    go(a, o1, steps)
    load_scheduler_state(b, json.loads(json.dumps(scheduler_state(a))))
    for g, h in zip(o2.param_groups, o1.param_groups): g.update({k: v for k, v in h.items() if k != "params"})
    close(go(a, o1, 10), go(b, o2, 10))

def test_plateau_and_none():
    o = groups_of()
    s = S.ReduceLROnPlateau(o, patience=0, factor=0.5, min_lr=0.2)
    s.step(1.0)
    set_lr(s, o, 0.1)
    assert s.min_lrs == [pytest.approx(0.02)] * 2 and s.get_last_lr() == [0.1, 0.1]
    for _ in range(5): s.step(2.0)
    assert o.param_groups[0]["lr"] == pytest.approx(0.02)
    set_base_lr(s, o, 0.3)
    assert o.param_groups[0]["lr"] == pytest.approx(0.3)
    o = groups_of()
    set_lr(None, o, 0.1)
    assert [g["lr"] for g in o.param_groups] == [0.1, 0.1]

@pytest.mark.parametrize("name", [*TORCHS, *SCHEDULE_NAMES])
def test_set_lr_is_what_the_next_step_uses(name):
    make = TORCHS.get(name) or (lambda o: create_scheduler(o, TrainingArguments(lr_scheduler_type=name, warmup_steps=3, lr_scheduler_kwargs=NEEDED.get(name)), 20))
    o1, o2 = groups_of(), groups_of()
    a, b = make(o1), make(o2)
    go(a, o1, 5), go(b, o2, 5)
    now = o1.param_groups[0]["lr"]
    set_lr(a, o1, 0.0123)
    assert [g["lr"] for g in o1.param_groups] == [0.0123, 0.0123] == a.get_last_lr()
    close(go(a, o1, 14), [[r * 0.0123 / now for r in rs] for rs in go(b, o2, 14)])

def test_set_lr_keeps_ratios_or_takes_a_list():
    o = groups_of()
    o.param_groups[1]["lr"] = 10.0
    s = create_scheduler(o, TrainingArguments(lr_scheduler_type="constant"), 5)
    set_lr(s, o, 0.1)
    close(go(s, o, 2), [[0.1, 1.0]] * 2)
    set_lr(s, o, [0.5, 0.25])
    assert go(s, o, 2) == [[0.5, 0.25]] * 2
    for bad in (0, -1.0, float("nan"), float("inf"), True, [0.1, 0.0]):
        with pytest.raises(ValueError, match="above 0"): set_lr(s, o, bad)
    with pytest.raises(ValueError, match="'0.1' is text; give a number: lr=0.1"): set_lr(s, o, "0.1")
    for bad in ([], [0.1], [0.1] * 3):
        with pytest.raises(ValueError, match="2 groups of parameters"): set_lr(s, o, bad)
    assert go(s, o, 1) == [[0.5, 0.25]]

def test_at_zero():
    s, o, _ = made(10, warmup_steps=2)
    with pytest.raises(ValueError, match=r"set\(learning_rate=...\)"): set_lr(s, o, 0.1)
    set_base_lr(s, o, 0.1)
    assert go(s, o, 3) == [[0.0, 0.0], [0.05, 0.05], [0.1, 0.1]]

@pytest.mark.parametrize("name", SCHEDULE_NAMES)
@pytest.mark.parametrize("at", [0, 1, 5, 19])
def test_set_base_lr_is_as_if_from_the_start(name, at):
    a, o1, _ = made(20, lr_scheduler_type=name, warmup_steps=4)
    b, o2, _ = made(20, lr_scheduler_type=name, warmup_steps=4, learning_rate=0.37)
    go(a, o1, at), go(b, o2, at)
    if o1.param_groups[0]["lr"]: set_lr(a, o1, 0.9)
    set_base_lr(a, o1, 0.37)
    assert a.last_epoch == b.last_epoch and a._step_count == b._step_count
    if name == "one_cycle": close(go(a, o1, 20 - at), go(b, o2, 20 - at))
    else: assert go(a, o1, 20 - at) == go(b, o2, 20 - at)
    assert base_lrs(o1) == [0.37, 0.37]

def test_set_base_lr_refuses_whole():
    s, o, _ = made(10, lr_scheduler_type="polynomial", lr_scheduler_kwargs=dict(lr_end=0.1))
    before = go(s, o, 2), copy.deepcopy(scheduler_state(s)), [dict(g, params=0) for g in o.param_groups]
    with pytest.raises(ValueError, match="smaller lr_end"): set_base_lr(s, o, 0.05)
    with pytest.raises(ValueError): set_base_lr(s, o, [0.5])
    assert before[1:] == (scheduler_state(s), [dict(g, params=0) for g in o.param_groups])

def test_rates_that_are_tensors():
    o = torch.optim.SGD([dict(params=[nn.Parameter(torch.zeros(1))]) for _ in range(2)], lr=torch.tensor(1.0))
    s = create_scheduler(o, TrainingArguments(learning_rate=1.0), 10)
    go(s, o, 2)
    set_lr(s, o, 0.5)
    assert all(isinstance(g["lr"], torch.Tensor) for g in o.param_groups)
    assert go(s, o, 1) == [[0.5, 0.5]]
    set_base_lr(s, o, 2.0)
    assert go(s, o, 1)[0][0] == pytest.approx(2.0 * 0.7)
    json.dumps(scheduler_state(s))

@pytest.mark.parametrize("name", SCHEDULE_NAMES)
@pytest.mark.parametrize("warmup", [0, 3, 0.2])
@pytest.mark.parametrize("at", [0, 2, 9, 10])
@pytest.mark.parametrize("n", [40, 7])
def test_stretching_is_as_if_from_the_start(name, warmup, at, n):
    settings = dict(lr_scheduler_type=name, warmup_steps=warmup)
    if n < at: n = at + 1
    a, o1, args = made(10, **settings)
    b, o2, _ = made(n, **settings)
    go(a, o1, at), go(b, o2, at)
    assert stretch_schedule(a, o1, args, n) is a
    assert a._step_count == b._step_count and a.last_epoch == at
    assert go(a, o1, n - at) == go(b, o2, n - at)

def test_stretching_keeps_a_factor():
    a, o1, args = made(10)
    b, o2, _ = made(30)
    go(a, o1, 4), go(b, o2, 4)
    set_lr(a, o1, 0.06)
    stretch_schedule(a, o1, args, 30)
    close(go(a, o1, 26), [[r * 0.1 for r in rs] for rs in go(b, o2, 26)])

def test_stretching_cycles_the_momentum_too():
    make = lambda n: made(n, groups_of(momentum=0.9), lr_scheduler_type="one_cycle")
    a, o1, args = make(10)
    b, o2, _ = make(40)
    go(a, o1, 4), go(b, o2, 4)
    stretch_schedule(a, o1, args, 40)
    assert [g["momentum"] for g in o1.param_groups] == [g["momentum"] for g in o2.param_groups]

@pytest.mark.parametrize("name", TORCHS)
def test_the_users_schedule_is_not_stretched(name):
    o = groups_of()
    s = TORCHS[name](o)
    go(s, o, 3)
    before = copy.deepcopy({k: v for k, v in s.state_dict().items() if not callable(v)})
    rates = [g["lr"] for g in o.param_groups]
    assert stretch_schedule(s, o, TrainingArguments(lr_scheduler_type="one_cycle"), 100) is s
    assert rates == [g["lr"] for g in o.param_groups] and before.keys() <= s.state_dict().keys()
    assert before["_last_lr"] == s.state_dict()["_last_lr"]

# ---- state

@pytest.mark.parametrize("name", [*TORCHS, *SCHEDULE_NAMES])
def test_state_is_plain_and_comes_back(name):
    make = TORCHS.get(name) or (lambda o: create_scheduler(o, TrainingArguments(lr_scheduler_type=name, warmup_steps=3, lr_scheduler_kwargs=NEEDED.get(name)), 20))
    o1 = groups_of()
    a = make(o1)
    go(a, o1, 5)
    set_lr(a, o1, 0.3)
    state = json.loads(json.dumps(scheduler_state(a)))
    groups = copy.deepcopy(o1.state_dict())
    kept = copy.deepcopy(state)
    rest = go(a, o1, 12)
    for again in (a, None):
        o2 = o1 if again else groups_of()
        b = again or make(o2)
        load_scheduler_state(b, state)
        o2.load_state_dict(groups)
        assert go(b, o2, 12) == rest
        assert state == kept

def test_state_remembers_the_length():
    for name in SCHEDULE_NAMES:
        a, o, args = made(10, lr_scheduler_type=name, warmup_steps=0.3)
        go(a, o, 4)
        state, groups = scheduler_state(a), copy.deepcopy(o.state_dict())
        rest = go(a, o, 6)
        stretch_schedule(a, o, args, 100)
        load_scheduler_state(a, state), o.load_state_dict(groups)
        assert go(a, o, 6) == rest, name

def test_plateaus_state():
    o = groups_of()
    s = S.ReduceLROnPlateau(o, patience=1)
    s.step(torch.tensor(1.0)), s.step(2.0)
    state = scheduler_state(s)
    t = S.ReduceLROnPlateau(groups_of(), patience=1)
    load_scheduler_state(t, state)
    assert t.num_bad_epochs == 1 and t.best == 1.0

@pytest.mark.parametrize("module", ["optim", "optim.optimizers", "optim.schedules", "optim.extra_optimizers"])
def test_it_is_light(module):
    code = (f"import sys, torch; before = set(sys.modules); import trainer_nb.{module}; new = set(sys.modules) - before;"
            "print(sorted(m for m in new if m.startswith(('torch', 'transformers', 'accelerate', 'fastcore', 'pandas'))), 'torch._dynamo' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[] False"


# --- gradients that hold only some rows --------------------------------------------------------------------------------

class Looked(nn.Module):
    "An embedding and a layer."
    def __init__(self, sparse):
        super().__init__()
        self.words, self.out = nn.Embedding(20, 8, sparse=sparse), nn.Linear(8, 2)
    def forward(self, x): return self.out(self.words(x).mean(1))


@pytest.mark.parametrize("limit", [0.0, 0.01])
def test_sparse_gradients_are_clipped_like_dense_ones(limit):
    x, y = torch.randint(0, 20, (32, 5), generator=torch.Generator().manual_seed(1)), torch.arange(32) % 2
    def train(sparse):
        torch.manual_seed(0)
        learn = Learner(Looked(sparse), train_dataset=torch.utils.data.TensorDataset(x, y), loss_func=nn.functional.cross_entropy,
                        optim="sgd", learning_rate=1.0, max_grad_norm=limit, max_steps=8, use_cpu=True, disable_tqdm=True)
        learn.train()
        return learn
    dense, sparse = train(False), train(True)
    torch.testing.assert_close(list(sparse.model.parameters()), list(dense.model.parameters()), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(sparse.history.column("grad_norm"), dense.history.column("grad_norm"), rtol=1e-6, atol=0)
