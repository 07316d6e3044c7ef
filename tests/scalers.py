"What several tests share: overflow, scale, scaled."
import math
import torch
from toys import hard_learner


def scaled(hook=None, scale=2.0 ** 10, interval=4, **given):
    "A learner with a scaler, before its first step; the scale grows every `interval` steps."
    learn = hard_learner(**({} if hook is None else {"hook": hook}), **given)
    debug = learn.debug_step()   # makes the device
    debug.abort()
    learn.run_state.device.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    return learn

def scale(learn): return learn.run_state.device.scaler.get_scale()

def overflow(model):
    "Let the next backward give an infinite gradient, once."
    p = next(model.parameters())
    def once(grad): hook.remove(); return torch.full_like(grad, math.inf)
    hook = p.register_hook(once)
