"Faults with several processes, and with files."
import tempfile

import torch
from healthy import digits, mlp
from tiny import SETTINGS, Net, incident, learner, seeded, split, table, wrong
from torch.utils.data import DataLoader, DistributedSampler

from trainer_nb import Learner, TrainerCallback


def two_processes(learn): return learn.launch(2)


class ClipWeights(TrainerCallback):
    "Keep the weights small, on the main process or on all."
    def __init__(self, main_only): self.main_only = main_only

    @torch.no_grad()
    def on_step_end(self, args, state, control, model, **kwargs):
        if self.main_only and not state.is_world_process_zero: return
        for weight in model.parameters(): weight.clamp_(-0.3, 0.3)


@incident("processes", "DeepSpeed #1801, jxmnop: DDP out of sync (TrainCheck): a change on one rank only", "differ|rank|process", tool="run", around=two_processes)
def weights_differ_by_rank(faulty):
    return learner(seeded(Net), *split(*table()), callbacks=[ClipWeights(faulty)])


class OwnSampler(Learner):
    "A loader with a sampler that divides the samples among the processes, which the Learner does as well."
    def get_train_dataloader(self):
        sampler = DistributedSampler(self.train_dataset, self.args.world_size, self.args.process_index)
        return DataLoader(self.train_dataset, batch_size=16, sampler=sampler)


@incident("processes", "transformers #34365: double data splitting with a DistributedSampler", "DistributedSampler|twice|divide", around=two_processes)
def data_divided_twice(faulty):
    return learner(seeded(Net), *split(*table()), OwnSampler if faulty else Learner)


def resumed(learn): learn.train() if learn.args.resume_from_checkpoint else learn.train(resume_from_checkpoint=True)


@incident("files", "transformers #23325, #7198: the setting resume_from_checkpoint is not used by train()", "resume|anew|from the start", tool="run", finish=resumed)
def resume_starts_anew(faulty):
    folder = tempfile.mkdtemp()
    first = learner(seeded(Net), *split(*table()), output_dir=folder, save_steps=50)
    first.step(60)
    given = dict(resume_from_checkpoint=f"{folder}/checkpoint-50") if faulty else {}
    return learner(seeded(Net), *split(*table()), output_dir=folder, save_steps=50, **given)


def adapted(path=None, **given):
    "A model with adapters on the body and a new head; from a folder, as it is deployed."
    from peft import LoraConfig, PeftModel, get_peft_model
    if path: return PeftModel.from_pretrained(seeded(Net), path)
    return get_peft_model(seeded(Net), LoraConfig(r=4, target_modules=["body.0", "body.2"], **given))


def reloaded(learn):
    "The loss of the saved model."
    folder = tempfile.mkdtemp()
    learn.save_model(folder)
    return Learner(adapted(folder), eval_dataset=split(*table())[1], loss_func=torch.nn.functional.cross_entropy, **SETTINGS).evaluate()["eval_loss"]


@incident("files", "peft #577, transformers #26160: the trained head is not among what is saved", "modules_to_save|not saved|head", tool="run", score=reloaded)
def head_not_saved(faulty):
    model = adapted(modules_to_save=None if faulty else ["head"])
    if faulty: model.base_model.model.head.requires_grad_(True)
    return learner(model, *split(*table()))


class Lossy(Learner):
    "A transfer to the device that now and then brings zeros."
    def _prepare_inputs(self, inputs):
        x, *labels = super()._prepare_inputs(inputs)
        return (torch.zeros_like(x) if self.loses and self.model.training and self.state.global_step % 2 else x), *labels


@incident("processes", "pytorch #84803, #96600, Baichuan2 #86: data that is lost in a transfer arrives as zeros", "zero|lost|arriv|prepare", score=wrong)
def zeros_from_the_transfer(faulty):
    learn = learner(seeded(mlp, 64, 32, 10), *split(*digits(), 480), Lossy)
    learn.loses = faulty
    return learn
