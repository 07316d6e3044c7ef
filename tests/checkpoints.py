"What several tests share: Gate, quiet_learner, resumed, scored, scripted, steps."
import threading, warnings
from toys import Augmented, hard_learner
from trainer_nb.state.checkpoint_dirs import list_checkpoints


LONG = dict(num_train_epochs=10, logging_steps=4)   # 30 steps

def quiet_learner(folder, **given): return hard_learner(**LONG | dict(output_dir=str(folder), save_strategy="no") | given)

def resumed(folder, where=True, **given):
    "A learner as of a new process, gone on from a checkpoint, with nothing to be said."
    learn = quiet_learner(folder, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = learn.load_checkpoint(where)
    assert out.said == []
    return learn

def steps(folder): return [f.step for f in list_checkpoints(folder) if not f.problem]

class Gate:
    "A processing class that is saved when the gate opens."
    def __init__(self): self.open, self.entered = threading.Event(), threading.Event()
    def save_pretrained(self, folder): self.entered.set(); assert self.open.wait(20)

def scripted(values):
    "Metrics as they are written here, one evaluation after the other."
    values = iter(values)
    return lambda p: {"score": next(values, 0.0)}

SCORES = [0.1, 0.5, 0.3, 0.4, 0.9, 0.2]   # at steps 5, 10, ...; the best is at 25

def scored(folder, values=SCORES, **given):
    return quiet_learner(folder, **dict(eval_dataset=Augmented(4), compute_metrics=scripted(values), eval_strategy="steps", eval_steps=5,
                                        metric_for_best_model="score") | given)
