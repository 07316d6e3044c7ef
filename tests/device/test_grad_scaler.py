"""The gradient scaler of fp16, in the transaction, the schedule and the snapshot.

On a CPU these tests put a scaler of torch where Accelerate's would be. test_gpu.py has the rest."""
import math, pytest, torch

from trainer_nb import InvalidOperation, Learner
from toys import Bomb, Boom, finish, hard_learner, outcome, unequal
from scalers import overflow, scale, scaled   # noqa: F401

PLAIN, FUSED = dict(optim="adamw_torch"), dict(optim="adamw_torch_fused")   # the fused one looks for overflows itself


@pytest.mark.parametrize("given", [PLAIN, FUSED], ids=["plain", "fused"])
def test_the_scale_leaves_no_trace_in_the_numbers(given):
    "A power of two scales without rounding: the same bytes as without a scaler; the norm and the clipping are of unscaled gradients."
    last, rows, logged = finish(hard_learner(**given))
    mine = finish(scaled(**given))
    assert unequal((last, rows, logged), mine) == ["scaler"]
    assert mine[0].values["scaler"]["scale"] == 2.0 ** 11   # it grew once in six steps


@pytest.mark.parametrize("given", [PLAIN, FUSED], ids=["plain", "fused"])
def test_an_overflow_skips_the_update_and_halves_the_scale(given):
    learn = scaled(**given)
    learn.step(2)
    before, rate = [p.detach().clone() for p in learn.model.parameters() if p.requires_grad], learn.lr_scheduler.get_last_lr()
    overflow(learn.model)
    [record] = learn.step()
    assert all(torch.equal(a, b) for a, b in zip(before, (p for p in learn.model.parameters() if p.requires_grad)))
    assert scale(learn) == 2.0 ** 9 and record.step == 3 and not math.isfinite(record.grad_norm)
    if given is PLAIN: assert learn.lr_scheduler.get_last_lr() == rate   # nothing was learnt, so the schedule waits; a fused optimizer is not asked
    assert learn.step()[0].loss > 0


@pytest.mark.parametrize("place", ["forward", "backward", "on_pre_optimizer_step"])
@pytest.mark.parametrize("given", [PLAIN, FUSED], ids=["plain", "fused"])
def test_a_step_given_up_at_any_place_is_the_same_step_again(given, place):
    "On on_pre_optimizer_step the gradients are unscaled already, which a scaler remembers."
    from trainer_nb import TrainerCallback
    class Raises(TrainerCallback):
        left, not_state = 1, ("left",)
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if state.global_step == 3 and place == "on_pre_optimizer_step" and self.left: self.left = 0; raise Boom
    want = finish(scaled(**given))
    learn = scaled(hook=Bomb(place, 11), callbacks=[Raises()], **given)
    with pytest.raises(Boom): learn.train()
    assert unequal(want, finish(learn)) == []


def test_optimizers_by_name():
    "Gradients that wait for another optimizer follow the scale; an overflow skips one update, and what fails afterwards takes back the scale, too."
    from going_back import lbfgs_in_a_step_of_its_own, named_optimizers_in_a_step_of_its_own as make
    def with_scale(learn):
        learn.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10, growth_interval=3)
        return learn
    def weights(learn): return [t.clone() for t in learn.model.state_dict().values()]
    plain, learn = make(), with_scale(make())
    for one in (plain, learn): one.step(5)
    assert all(map(torch.equal, weights(plain), weights(learn))) and scale(learn) == 2.0 ** 13
    learn.rewind(2)
    learn.update = lambda name: Learner.update(learn, name) if name == "critic" else 1 / 0
    with pytest.raises(ZeroDivisionError): learn.step()
    del learn.update
    learn.step(2)
    assert all(map(torch.equal, weights(plain), weights(learn))) and scale(learn) == 2.0 ** 13
    before = weights(learn)
    overflow(learn.model.inner)
    learn.step()
    same = dict(zip(learn.model.state_dict(), map(torch.equal, before, weights(learn))))
    assert same["inner.weight"] and not same["outer.weight"] and scale(learn) == 2.0 ** 12
    with pytest.raises(InvalidOperation, match="bf16=True"): with_scale(lbfgs_in_a_step_of_its_own()).step()


def test_a_snapshot_holds_the_scale():
    learn = scaled(interval=2)
    learn.step(3)
    snap, then = learn.snapshot(), scale(learn)
    want = finish(learn)
    assert scale(learn) > then
    learn.restore(snap)
    assert scale(learn) == then
    assert unequal(want, finish(learn)) == []


def test_debug_step_shows_unscaled_gradients():
    plain, learn = hard_learner(), scaled()
    norms = []
    for one in (plain, learn):
        debug = one.debug_step()
        for _ in range(3): debug.forward(); debug.backward()
        norms.append([p.grad.clone() for p in one.model.parameters() if p.grad is not None])
        debug.update()
    assert all(map(torch.equal, *norms))
    assert unequal(outcome(plain), outcome(learn)) == ["scaler"]
