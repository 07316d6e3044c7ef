"Looking inside: what is measured is so, it leaves no trace, and it shows itself everywhere."
import copy, gc, pickle, warnings, weakref, xml.etree.ElementTree as ET
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from toys import Augmented, Bomb, Boom, finish, hard_learner, hard_model, unequal
from trainer_nb import Learner, Paused, TrainerCallback, differences
from trainer_nb.display.charts import SVG_MIME
from trainer_nb.core.errors import InvalidOperation
from trainer_nb.core.history import read_history
from trainer_nb.diagnostics.tensor_stats import NoiseScale
from trainer_nb.display.svg import reduce_columns, color_values, apply_colormap, render_svg

LONG = dict(num_train_epochs=10, logging_steps=4)   # 30 steps


class Stream(IterableDataset):
    def __len__(self): return 30
    def __iter__(self): yield from (Augmented(30)[i] for i in range(30))


RUNS = {"as it is": {}, "workers": dict(dataloader_num_workers=2), "stream": dict(train_dataset=Stream()), "bf16": dict(bf16=True),
        "sgd": dict(optim="sgd", optim_args="momentum=0.9"), "no accumulation": dict(gradient_accumulation_steps=1, num_train_epochs=4),
        "copies": dict(rollback="full"), "one cycle": dict(lr_scheduler_type="one_cycle")}


def looks(learn):
    "Everything that looks inside, once."
    learn.inspect()
    learn.inspect({"x": torch.randn(5, 4), "labels": torch.tensor([0, 1, 2, 0, 1])})
    repr(learn.inspect()), learn.inspect().frame(), learn.plot()


def test_a_batch_of_the_next_epoch_where_the_end_of_this_one_is_pending():
    "A callback fails at the end of an epoch: what is measured is the step that the run takes next."
    class Fails(TrainerCallback):
        armed = True
        def on_epoch_end(self, args, state, control, **kwargs):
            if self.armed: self.armed = False; raise Boom
    learn = hard_learner(num_train_epochs=2, callbacks=[Fails()], max_grad_norm=1000.0)
    with pytest.raises(Boom): learn.run(epochs=1)
    report = learn.inspect()
    norm = sum(o.grad.norm ** 2 for o in report.layers if o.grad.n) ** 0.5
    learn.step()
    assert learn.run_state.cursor.epoch == 1 and learn.state.epoch > 1
    assert norm == pytest.approx(learn.history[-1].grad_norm, rel=1e-4)


def test_no_larger_batch_for_a_network_that_nothing_passes():
    "A layer whose units are all dead passes no gradient: the noise of the rest is no reason for a larger batch."
    def report(bias):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        nn.init.constant_(model[0].bias, bias)
        data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
        return Learner(model, train_dataset=data, loss_func=nn.functional.cross_entropy, max_steps=3, per_device_train_batch_size=32, use_cpu=True, disable_tqdm=True).inspect()
    alive, dead = report(0.0), report(-100.0)
    assert "gradient noise" in repr(alive) and alive.noise is not None
    assert "1: 100% of its units are dead" in dead.unusual and "batch" not in " ".join(dead.said()) and dead.noise is not None


def test_the_axis_of_dead_units_ends_at_all_of_them():
    "Its range does not depend on the shares; where nothing is dead, the picture says so. The colours of the outputs have a label."
    learn = hard_learner()
    panels = {panel.title: panel for panel in learn.inspect().panels()}
    dead = panels["dead units, saturated outputs"]
    assert dead.x_span == (0, 100) and (dead.note == "none") == all(max(line.x, default=0) == 0 for line in dead.things)
    assert ">density<" in render_svg([panels["outputs, how they are spread"]])


# several seconds with data workers
SLOW_WORKERS = [pytest.param(given, id=name, marks=pytest.mark.slow if name == "workers" else ()) for name, given in RUNS.items()]


@pytest.mark.parametrize("given", SLOW_WORKERS)
def test_no_trace(given):
    "At the beginning, in the middle of an epoch, at its end and after the end of the run."
    settings = LONG | given
    want, learn = finish(hard_learner(**settings)), hard_learner(**settings)
    for steps in (0, 2, 1, 6):
        if steps: learn.step(steps)
        was = learn.snapshot()
        looks(learn)
        assert differences(was, learn.snapshot()) == []
    assert unequal(finish(learn), want) == []
    was = learn.snapshot()
    looks(learn)
    assert differences(was, learn.snapshot()) == [] and learn.run_state.finished


@pytest.mark.parametrize("where", ["getitem", "collate", "forward", "end of forward", "backward"])
@pytest.mark.parametrize("kind", [Boom, KeyboardInterrupt])
def test_no_trace_when_it_fails(where, kind):
    want = finish(hard_learner(**LONG))
    learn = hard_learner(**LONG)
    learn.step(4)
    was, seen = learn.snapshot(), len(learn.history.events)
    for at in (1, 2):
        count = [0]
        def hook(name):
            count[0] += name == where
            if count[0] == at and name == where: raise kind("half-way")
        learn.model.hook = learn.train_dataset.hook = learn.data_collator.keywords["hook"] = hook
        learn.run_state.loader.close(); learn.run_state.current.window = None
        with pytest.raises(Paused if kind is KeyboardInterrupt else kind): learn.inspect()
        learn.model.hook = learn.train_dataset.hook = learn.data_collator.keywords["hook"] = lambda name: None
        assert count[0] >= at and differences(was, learn.snapshot()) == [] and len(learn.history.events) == seen
    assert unequal(finish(learn), want) == []


def test_it_holds_nothing():
    learn = hard_learner(**LONG)
    learn.step(2)
    kept = [learn.inspect(), learn.watch(), learn.plot()]
    gone = weakref.ref(learn)
    learn.unwatch(); del learn
    gc.collect()
    assert gone() is None and repr(kept[0]).startswith("Step 3")


# --- what is measured ---------------------------------------------------------------------------------------------------------

OPTIMIZERS = {"adamw": {}, "sgd": dict(optim="sgd", optim_args="momentum=0.9,nesterov=True", weight_decay=0.1), "adafactor": dict(optim="adafactor"),
              "given": dict(optimizers=True), "clipped": dict(max_grad_norm=0.01), "fused": dict(optim="adamw_torch_fused")}


@pytest.mark.parametrize("given", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_update_is_the_one_that_is_made(given):
    "Weight by weight, whatever the optimizer does with the gradient."
    model = hard_model()
    if "optimizers" in given: given = dict(optimizers=(torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5), None))
    learn = hard_learner(model=model, **LONG | given)
    learn.step(5)
    found = learn.inspect()
    before = {n: p.detach().clone() for n, p in learn.model.named_parameters() if p.requires_grad}
    learn.step()
    for layer in ("inner", "outer"):
        moved = torch.stack([(p.detach() - before[n]).norm() for n, p in learn.model.named_parameters() if n.startswith(layer)]).norm()
        weight = torch.stack([before[n].norm() for n in before if n.startswith(layer)]).norm()
        assert found[layer].ratio == pytest.approx(float(moved / weight), rel=1e-5)
        assert found[layer].weight.norm == pytest.approx(float(weight), rel=1e-5)


def test_clipped_gradients_are_shown_as_the_update_gets_them_and_it_is_said():
    learn = hard_learner(**LONG, max_grad_norm=0.01)
    report = learn.inspect()
    assert sum(o.grad.norm ** 2 for o in report.layers if o.grad.n) ** 0.5 == pytest.approx(0.01, rel=1e-3)
    said = next(o for o in report.words if "clipped" in o)
    assert "max_grad_norm is 0.0100" in said and said.endswith("The report shows them after clipping.")
    assert not any("clipped" in o for o in hard_learner(**LONG, max_grad_norm=0).inspect().words)


def test_sums_of_many_kinds():
    "Layers that are used twice, tied weights, sparse gradients, half precision, layers that are never called."
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.twice, self.never = nn.Embedding(50, 6, sparse=True), nn.Linear(6, 6), nn.Linear(3, 3)
            self.act, self.out = nn.Tanh(), nn.Linear(6, 50, bias=False)
        def forward(self, x, labels):
            h = self.act(20 * self.twice(self.act(self.twice(self.embed(x).mean(1)))))
            return {"loss": nn.functional.cross_entropy(self.out(h), labels), "h": h}
    torch.manual_seed(0)
    model = Odd()
    rows = [{"x": torch.randint(0, 50, (5,)), "labels": i % 50} for i in range(64)]
    learn = Learner(model, train_dataset=rows, use_cpu=True, per_device_train_batch_size=16, max_steps=9, optimizers=(torch.optim.SparseAdam(model.embed.parameters()), None),
                    disable_tqdm=True, max_grad_norm=0)
    found = learn.inspect()
    assert found.missing() == ["never.weight", "never.bias"] and found["never"].output.n == 0
    assert found["embed"].grad.norm > 0 and found["act"].saturated > 0.3
    assert any("never.weight got no gradient" in o for o in found.unusual)


def test_what_is_dead_and_not_finite_is_named_first():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad(): model[2].bias.fill_(-100.0)
    data = TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
    learn = Learner(model, train_dataset=data, loss_func=nn.functional.cross_entropy, use_cpu=True, max_steps=9, disable_tqdm=True)
    found = learn.inspect()
    assert found["3"].dead == 1.0 and "3: 100% of its units are dead" in found.unusual
    with torch.no_grad(): model[0].weight[0, 0] = float("nan")
    assert learn.inspect().unusual[0].endswith("is not finite")
    learn.inspect()._ipython_display_()


def test_thousands_of_tensors():
    "In groups that fit a page; the frame has each layer."
    class Block(nn.Module):
        def __init__(self): super().__init__(); self.a, self.norm, self.b = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)
        def forward(self, x): return x + self.b(torch.relu(self.norm(self.a(x))))
    model = nn.Sequential(nn.Sequential(*[nn.Sequential(*[Block() for _ in range(10)]) for _ in range(30)]), nn.Linear(4, 2))
    with torch.no_grad(): model[0][17][3].b.weight.mul_(1e-4); model[0][17][3].b.bias.mul_(1e-4)
    learn = Learner(model, train_dataset=TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,))), loss_func=nn.functional.cross_entropy, use_cpu=True,
                    max_steps=9, disable_tqdm=True)
    found = learn.inspect()
    assert len(found.layers) == 901 and found.unusual[0].startswith("0.17.3.b: update/weight")
    assert all(len(p.rows) <= 40 for p in found.panels()) and found.html().count("<tr>") <= 41 and len(found.said()) < 12
    assert len(str(found.bundle())) < 200_000 and len(found.frame()) == 901


def test_noise():
    "Few samples of a noisy problem ask for larger batches, many of a clear one do not; micro-batches are the parts where there are some."
    x = torch.randn(2048, 10, generator=torch.Generator().manual_seed(0))
    clear = (x @ torch.ones(10, 1)).squeeze(1)
    noisy = clear * 0.02 + 3 * torch.randn(2048, generator=torch.Generator().manual_seed(1))
    def learner(y, batch, **given):
        torch.manual_seed(0)
        return Learner(nn.Linear(10, 1), train_dataset=TensorDataset(x, y), loss_func=lambda out, y, **kw: (out.squeeze(-1) - y).square().mean(), use_cpu=True,
                       max_steps=9, per_device_train_batch_size=batch, disable_tqdm=True, **given)
    assert learner(clear, 512).inspect().noise.scale < 128
    assert learner(noisy, 8).inspect().noise.scale > 16
    assert learner(clear, 64, gradient_accumulation_steps=4).inspect().noise.part == 64
    assert learner(clear, 1).inspect().noise is None
    # no fraction of a sample
    assert "scale is at most 1 sample (a rough" in repr(NoiseScale(0.25, 64, 8)) and "about 2 samples" in repr(NoiseScale(2.0, 64, 8))


# --- watching -----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("given", SLOW_WORKERS)
def test_watching_changes_nothing(given):
    settings = LONG | given
    want, learn = finish(hard_learner(**settings)), hard_learner(**settings)
    print(learn.watch(every=2, what=("output", "weight", "gradient", "update", "histogram")))
    out = finish(learn)
    assert unequal(out, want, ignore=("callbacks",)) == []
    steps, layers, norms = learn.watched.values("gradient norm")
    assert steps.tolist() == list(range(1, learn.state.global_step + 1, 2)) and norms.shape == (len(steps), len(layers))
    assert np.isfinite(norms[:, layers.index("inner")]).all() and np.isnan(norms[:, layers.index("drop")]).all()


def test_watched_is_what_inspect_says():
    learn = hard_learner(**LONG)
    learn.step(4)
    learn.watch(every=1, what=("output", "weight", "gradient", "update"))
    found = learn.inspect()
    learn.step(1)
    for column, of in {"gradient norm": lambda o: o.grad.norm, "weight norm": lambda o: o.weight.norm, "weight spread": lambda o: o.weight.spread, "update/weight": lambda o: o.ratio,
                       "output norm": lambda o: o.output.norm, "output mean": lambda o: o.output.mean, "output spread": lambda o: o.output.spread, "dead": lambda o: o.dead}.items():
        _, layers, numbers = learn.watched.values(column)
        for name in ("inner", "norm", "outer"): assert numbers[-1][layers.index(name)] == pytest.approx(of(found[name]), rel=1e-4, abs=1e-6), (column, name)


def test_nothing_is_there_between_two_that_are_measured():
    learn, hooks = hard_learner(**LONG), []
    class Counts(TrainerCallback):
        def on_substep_end(self, args, state, control, model, **kwargs): hooks.append((state.global_step, sum(len(m._forward_hooks) for m in model.modules())))
    learn.model.hook = lambda name: hooks.append((learn.state.global_step, sum(len(m._forward_hooks) for m in learn.model.modules()))) if name == "forward" else None
    learn.watch(every=3)
    learn.step(7)
    assert {step for step, n in hooks if n} == {0, 3, 6} and sum(n > 0 for _, n in hooks) == 3   # of each, the first micro-batch


def test_watched_rows_go_back_with_the_run(tmp_path):
    "Left behind by a rewind, in the log and back again, in a branch, and thinned out in memory alone."
    learn = hard_learner(rewind_every=1, output_dir=str(tmp_path), save_strategy="no", **LONG)
    learn.watch(every=2)
    learn.step(9); learn.rewind(4); learn.step(2)
    assert learn.watched.values("dead")[0].tolist() == [1, 3, 5, 7] and learn.history.readings.count == 12   # two for each: numbers and histograms
    learn.history.flush()
    back = read_history(learn.history.path)
    from trainer_nb.diagnostics.watch import WatchReport
    for column in learn.watched.names():
        one, other = learn.watched.values(column), WatchReport(back).values(column)
        assert one[0].tolist() == other[0].tolist() and one[1] == other[1]
        np.testing.assert_allclose(one[2], other[2], rtol=1e-4)
    branch = learn.branch()
    branch.step(4)
    assert branch.watched.values("dead")[0].tolist() == [1, 3, 5, 7, 9, 11]
    branch.free()


def test_what_was_watched_is_a_value():
    "Later training does not change it; it refers to no learner and no history, and can be copied and pickled."
    learn = hard_learner(rewind_every=1, **LONG)
    learn.watch(every=1)
    learn.step(4)
    first = learn.watched
    frame, bundle, text, shapes = first.frame(), first.bundle(), repr(first), first.histograms().bundle()
    learn.step(3); learn.rewind(5); learn.watch(every=2, what="weight"); learn.step(1)
    for seen in (first, copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert seen.frame().equals(frame) and seen.bundle() == bundle and repr(seen) == text and seen.histograms().bundle() == shapes
    assert learn.watched.values("dead")[0].tolist() == [1, 2] and learn.watched.values("weight norm")[0].tolist() == [3]
    seen, held, gone = set(), [first], weakref.ref(learn.history)
    while held:
        o = held.pop()
        if id(o) in seen or isinstance(o, type): continue
        seen.add(id(o))
        assert not isinstance(o, (Learner, nn.Module, torch.Tensor, type(learn.history))), o
        held += gc.get_referents(o)
    learn.free()
    del learn
    gc.collect()
    assert gone() is None and first.frame().equals(frame)


def test_nothing_watched_is_left_after_going_back():
    "All that was watched was left behind: that shows as nothing, and is no error."
    learn = hard_learner(rewind_every=1, **LONG)
    learn.step(2); learn.watch(every=1); learn.step(2); learn.rewind(2)
    assert len(learn.watched.values("dead")[0]) == 0 and "Nothing has been watched yet" in repr(learn.watched) and learn.watched.panels() == []
    with pytest.raises(KeyError, match="no histogram"): learn.watched.histograms("inner")
    learn.plot("loss", "dead")


def test_a_layer_that_was_watched_later_is_blank_before():
    "In the picture, in the figure, and without a warning."
    learn = hard_learner(**LONG)
    learn.watch(every=1, layers="inner", what="output"); learn.step(3)
    learn.watch(every=1, what="output"); learn.step(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        heat = next(o for o in learn.watched.panels() if o.title == "output spread").things[0]
        row = heat.rows.index("outer (Linear)")
        assert np.isnan(heat.values[row][:3]).all() and np.isfinite(heat.values[row][3:]).all()
        assert apply_colormap(*color_values(heat))[row, :, 3].tolist() == [0, 0, 0, 255, 255, 255]
        assert np.isnan(reduce_columns(heat, 3).values[row, 0])


def test_a_step_that_fails_is_not_watched():
    want, learn = finish(hard_learner(**LONG)), hard_learner(hook=Bomb("backward", 8), **LONG)
    learn.watch(every=1)
    learn.step(2)
    with pytest.raises(Boom): learn.step(1)
    assert all(not m._forward_hooks for m in learn.model.modules())
    learn.predict(Augmented(9))
    assert unequal(finish(learn), want, ignore=("callbacks",)) == [] and learn.watched.values("dead")[0].tolist() == list(range(1, 31))


WRONG = [({"layers": "iner"}, "There is no layer 'iner'.*inner"), ({"every": 0}, "every must be a positive integer, got 0"), ({"what": "outputs"}, "'outputs' cannot be watched.*output"),
         ({"what": "dead"}, "cannot be watched.*A forward hook"), ({"layers": []}, "would watch nothing"), ({"what": ()}, "would watch nothing")]


def test_refusals_of_watching():
    learn = hard_learner(**LONG)
    for given, words in WRONG:
        with pytest.raises(ValueError, match=words): learn.watch(**given)
    blocks = Learner(nn.Sequential(nn.Sequential(OrderedDict(mlp=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))))))
    with pytest.raises(ValueError, match="Did you mean .0.mlp. or "): blocks.watch(layers="0.mpl")
    with pytest.raises(KeyError, match="'dead' was not watched"): learn.watched.values("dead")
    with pytest.raises(KeyError, match="There is no layer 'iner'.*inner"): learn.inspect()["iner"]


# --- showing itself -----------------------------------------------------------------------------------------------------------

def shown():
    learn = hard_learner(eval_dataset=Augmented(9), eval_strategy="steps", eval_steps=5, **LONG)
    learn.watch(every=3)
    learn.step(9); learn.set(lr=0.001); learn.step(9); learn.rewind(3)
    other = learn.branch(learning_rate=0.02)
    other.step(6)
    return [learn.inspect(), learn.watched, learn.watched.histograms(), learn.plot(), learn.plot("loss", "dead", also=other, x="time", log=True),
            learn.plot(also=[other, other.history], x="epoch", smooth=0)]


def test_every_form():
    "As a picture that is well-formed, and as text; small enough to be kept."
    for result in shown():
        bundle = result.bundle()
        assert len(str(bundle)) < 200_000
        root = ET.fromstring(bundle[SVG_MIME])
        assert root.tag.endswith("svg") and "nan" not in bundle[SVG_MIME].lower().replace("nano", "") and len(repr(result).splitlines()) > 3


def test_results_can_be_kept():
    "Pickled, copied, and shown again, without the learner that they came from."
    from trainer_nb.tune.batch_size import BatchSizes, Proposal, SizeResult
    learn = hard_learner(**LONG)
    sizes = BatchSizes([SizeResult(1, True, 10.0, 5.0), SizeResult(2, True, 15.0, 6.0)], Proposal(1, 2), None).attach(learn)
    for result in [*shown(), learn.lr_find(num_steps=12, start=1e-4, end=1), sizes]:
        for other in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
            assert repr(other) == repr(result) and other.bundle() == result.bundle() and other.html() == result.html()
    with pytest.raises(InvalidOperation, match="learn.set.per_device_train_batch_size=2, gradient_accumulation_steps=1"): copy.copy(sizes).apply()
    assert sizes.apply() is not None and learn.args.per_device_train_batch_size == 2


def test_plot_says_what_there_is():
    learn = hard_learner(**LONG)
    assert "nothing to draw yet" in repr(learn.plot())
    learn.step(3)
    with pytest.raises(ValueError, match="no column 'los' to draw; it has .*loss"): learn.plot("los")
    with pytest.raises(ValueError, match="x is one of"): learn.plot(x="hours")
    with pytest.raises(TypeError, match="A run to draw"): learn.plot(also=3)


# --- what a stranger has tried --------------------------------------------------------------------------------------------------

def test_a_run_that_diverges_is_drawn():
    "The steps that were finite, and a gap."
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    learn = Learner(net, train_dataset=TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,))), loss_func=nn.functional.cross_entropy, use_cpu=True,
                    max_steps=40, disable_tqdm=True)
    learn.watch(every=1)
    learn.step(4)
    with torch.no_grad(): net[0].weight.fill_(float("nan"))
    learn.step(2)
    for result in (learn.watched, learn.watched.histograms(), learn.plot("loss", "dead"), learn.inspect()): result.bundle()
    assert learn.inspect().noise is None and learn.inspect().unusual[0] == "0: its weight is not finite"
    assert learn.confusion(TensorDataset(torch.randn(8, 4), torch.randint(0, 3, (8,)))).unknown == 8
    learn.history.readings.kept = learn.history.readings.kept[-4:]   # none of them finite
    learn.watched.histograms().svg()


class Holds(torch.optim.SGD):
    "Steps over references of its own."
    def __init__(self, params, lr): super().__init__(params, lr=lr); self.held = [p for g in self.param_groups for p in g["params"]]
    def step(self, closure=None):
        for p in self.held:
            if p.grad is not None: p.data.add_(p.grad, alpha=-0.01); p.mul_(1.0) if not p.requires_grad else None
        with torch.no_grad(): torch._foreach_add_([p for p in self.held if p.grad is not None], 0.0)


def test_an_optimizer_with_references_of_its_own():
    def made(): model = hard_model(); return hard_learner(model=model, optimizers=(Holds(model.parameters(), 0.01), None), **LONG)
    want, learn = finish(made()), made()
    learn.step(2); learn.inspect()
    assert unequal(finish(learn), want) == []


class Writes(nn.Module):
    "Changes its input in place."
    def __init__(self): super().__init__(); torch.manual_seed(0); self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    def forward(self, x, labels=None): return {"loss": nn.functional.cross_entropy(self.body(x.mul_(1.5)), labels)}


def test_a_model_that_writes_into_its_input():
    def made(): return hard_learner(model=Writes(), **LONG)
    want, learn = finish(made()), made()
    learn.step(1)
    class Fails(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs): raise Boom
    fails = Fails()
    learn.add_callback(fails)
    with pytest.raises(Boom): learn.step(1)
    learn.remove_callback(fails)
    learn.inspect(); learn.lr_find(num_steps=10)
    assert unequal(finish(learn), want) == []


class Branches(nn.Module):
    "Another layer each time."
    def __init__(self): super().__init__(); self.a, self.b, self.out, self.turn = nn.Linear(4, 4), nn.Linear(4, 6), nn.ModuleList([nn.Linear(4, 3), nn.Linear(6, 3)]), 0
    def forward(self, x, labels=None):
        self.turn += 1
        h = self.out[self.turn % 2]((self.a, self.b)[self.turn % 2](x))
        return {"loss": nn.functional.cross_entropy(h, labels)}


def test_layers_that_are_not_always_used():
    learn = hard_learner(model=Branches(), **LONG | dict(gradient_accumulation_steps=4))
    assert learn.inspect().noise is not None
    learn.watch(every=1); learn.step(4); learn.watch(every=1, layers="a"); learn.step(2)
    steps, layers, numbers = learn.watched.values("gradient norm")
    assert steps.tolist() == [1, 2, 3, 4, 5, 6] and np.isfinite(numbers[:, layers.index("a")]).all() and np.isnan(numbers[4:, layers.index("b")]).all()
    drawn = [p.things[0].x for p in learn.watched.histograms().panels() if p.title in "ab"]
    assert sum(map(len, drawn)) >= 4   # which of the two the first micro-batch of a step goes through


def test_watching_while_checkpoints_are_written(tmp_path):
    "The thread that writes fetches, too."
    learn = hard_learner(output_dir=str(tmp_path), save_steps=1, num_train_epochs=20, logging_steps=4)
    learn.watch(every=1)
    learn.train(); learn.free()
    assert read_history(tmp_path).readings.count == 120


def test_the_pictures_of_a_report_by_their_titles():
    "With its sentences, without its table; all where none is named."
    report = hard_learner(**LONG).inspect()
    titles = [panel.title for panel in report.panels()]
    assert "gradient norm" in titles and [panel.title for panel in report.plot().panels()] == titles
    chosen = report.plot("gradient norm")
    assert [panel.title for panel in chosen.panels()] == ["gradient norm"] and chosen.said() == report.said() and "<table" not in chosen.html()
    with pytest.raises(ValueError, match="no picture 'gradient'.*'gradient norm'.*Did you mean 'gradient norm'"): report.plot("gradient")


def test_a_layer_that_is_dead_as_a_whole_comes_before_unusual_updates():
    "Where nothing passes a layer, the updates before it vanish; those behind it are large beside them, which is no cause."
    model = nn.Sequential(OrderedDict(a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 4), relu=nn.ReLU(), head=nn.Linear(4, 4)))
    data = TensorDataset(torch.randn(16, 4), torch.randint(0, 4, (16,)))
    learn = Learner(model, train_dataset=data, loss_func=nn.functional.cross_entropy, use_cpu=True, max_steps=100, optim="sgd",
                    optim_args="momentum=0.9", learning_rate=0.01, lr_scheduler_type="constant")
    learn.step(1)
    with torch.no_grad(): model.c.bias.fill_(-1e3)
    learn.step(60)
    unusual = learn.inspect().unusual
    assert unusual[0] == "relu: 100% of its units are dead" and any(o.startswith("head: update/weight") for o in unusual), unusual


class SquareRoot(nn.Module):
    "A finite output, whose gradient is nan for negative numbers."
    def forward(self, x): return torch.where(x > 0, x.sqrt(), 0.0)


def rooted(**settings):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), SquareRoot(), nn.Linear(8, 8), nn.Linear(8, 1))
    x = torch.randn(32, 4)
    return Learner(net, train_dataset=TensorDataset(x, x.sum(1, keepdim=True)), loss_func=nn.functional.mse_loss, disable_tqdm=True, max_steps=8, **settings)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_gradient_that_is_not_finite_is_not_spread_by_clipping(accumulated):
    "The layers between the cause and the loss have finite gradients; the step itself is as without the report."
    learn, like = rooted(gradient_accumulation_steps=accumulated), rooted(gradient_accumulation_steps=accumulated)
    report = learn.inspect()
    assert report.unusual == ["0: its gradient is not finite", "1: its gradient is not finite"]
    assert any("without clipping, which would make every gradient NaN" in words for words in report.words) and learn.args.max_grad_norm == 1
    assert not any("without clipping" in words for words in rooted(max_grad_norm=0).inspect().words)
    assert unequal(finish(learn), finish(like)) == []
