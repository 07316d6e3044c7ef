"""A script that may be killed at any moment: started again with the same command, it continues exactly where it was.

    python resume_after_kill.py --quick --kill_at 25; python resume_after_kill.py --quick"""
import argparse
import hashlib
import os
import signal

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainer_nb import Learner, TrainerCallback, get_last_checkpoint, set_seed


class Kill(TrainerCallback):
    "Ends the process without any warning, as a machine that is switched off."
    # attributes of callbacks are part of the run and come back with it; this one is an argument of the present process
    not_state = ("step",)

    def __init__(self, step: int | None): self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step: os.kill(os.getpid(), signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="train for a moment, to see that everything works")
    parser.add_argument("--kill_at", type=int, help="the step at which the process is killed")
    parser.add_argument("--output_dir", default="resumable")
    given = parser.parse_args()

    set_seed(0)
    x = torch.randn(512, 8)
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    # enable_jit_checkpoint: a cluster that announces the end by SIGTERM gets a checkpoint of the last step
    learn = Learner(network, train_dataset=TensorDataset(x, x.sum(1, keepdim=True)), loss_func=nn.functional.mse_loss, learning_rate=1e-2,
                    max_steps=40 if given.quick else 2000, save_steps=10, save_total_limit=2, enable_jit_checkpoint=True,
                    output_dir=given.output_dir, logging_steps=10, callbacks=[Kill(given.kill_at)])
    last = get_last_checkpoint(given.output_dir)
    print("continues from", last)
    learn.train(resume_from_checkpoint=last)
    weights = b"".join(p.detach().cpu().numpy().tobytes() for p in learn.model.parameters())
    print("weights", hashlib.sha256(weights).hexdigest())


if __name__ == "__main__": main()
