"""The gradient scaler of fp16, in the transaction, the schedule and the snapshot.

On a CPU these tests put a scaler of torch where Accelerate's would be. test_gpu.py has the rest."""
import math, pytest, torch

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
