"""Override the training step in the middle of a run on several processes; prints the recorded losses as JSON.

    python -m torch.distributed.run --standalone --nproc_per_node 2 tests/programs/changed_step.py
"""
import json, types

import torch, torch.distributed as dist

from trainer_nb import Learner, TrainerCallback


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels): return {"loss": (self.layer(x) - labels).pow(2).mean()}


def whole(self, model, inputs, num_items_in_batch=None):
    "The same step, whose backward pass is its own."
    loss = self.compute_loss(model, self._prepare_inputs(inputs))
    loss.backward()
    return loss.detach()


def doubled(self, loss):
    "Records the loss, and trains with twice of it."
    self.run_state.device.backward(2 * loss)


def assigned(learn): learn.training_step = types.MethodType(whole, learn)
def defined(learn): type(learn).training_step = whole
def removed(learn): del type(learn).training_step
def other_backward(learn): type(learn).backward_move = doubled


class AfterTwo(TrainerCallback):
    "Changes the learner in the middle of a verb."
    def __init__(self, change): self.change = change

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2: self.change()


CASES = {"never": (None, None), "assigned": (None, assigned), "defined": (None, defined), "removed": (defined, removed), "in a callback": (None, assigned),
         "backward": (None, other_backward)}


def losses(case):
    torch.manual_seed(0)
    data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(64)]
    kind = type("Own", (Learner,), {})
    learn = kind(Net(), train_dataset=data, save_strategy="no", report_to="none", learning_rate=0.05, max_steps=20, per_device_train_batch_size=4,
                 logging_strategy="no", disable_tqdm=True, use_cpu=True, include_num_input_tokens_seen=True, optim="sgd")
    learn.model.main_input_name = "x"
    first, change = CASES[case]
    if first is not None: first(learn)
    if case == "in a callback":
        learn.add_callback(AfterTwo(lambda: change(learn)))
        learn.step(6)
    else:
        learn.step(2)
        if change is not None: change(learn)
        learn.step(4)
    # the loss of each step without its record
    return {"losses": [r.loss for r in learn.history], "tokens": learn.state.num_input_tokens_seen, "weights": [p.tolist() for p in learn.model.parameters()]}


def main():
    torch.set_num_threads(1)
    found = {case: losses(case) for case in CASES}
    if dist.get_rank() == 0: print("RESULT", json.dumps(found), flush=True)


if __name__ == "__main__": main()
