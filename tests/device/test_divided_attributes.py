"""Attributes of modules are state of the run where FSDP or DeepSpeed wraps these modules, too; those of FSDP and DeepSpeed are not."""
import pytest
import torch
from torch import nn

from trainer_nb import Learner
from trainer_nb.device.strategy import module_class


class Counting(nn.Module):
    "Counts its passes; every third one is different."
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.out = nn.Linear(8, 8), nn.Linear(8, 1)
        self.gain = nn.Parameter(torch.ones(1))
        self.passes = 0

    def forward(self, x, labels):
        self.passes += self.training
        hidden = self.first(x).tanh() * (3 if self.passes % 3 == 0 else 1)
        return {"loss": (self.out(hidden).squeeze(-1) * self.gain - labels).square().mean()}


ZERO_3 = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 10}, "train_micro_batch_size_per_gpu": "auto",
          "gradient_accumulation_steps": "auto", "train_batch_size": "auto", "gradient_clipping": "auto"}
STRATEGIES = {
    "ddp": {},
    "fsdp": {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["Linear"]}},
    "zero 3": {"deepspeed": ZERO_3},
}


def passes(learn): return learn.model.passes


def run(strategy, folder):
    "A run that goes back, comes home and is launched again: losses, and the counter at these places."
    made = torch.Generator().manual_seed(0)
    rows = [{"x": torch.randn(8, generator=made), "labels": torch.randn((), generator=made)} for _ in range(48)]
    learn = Learner(Counting(), train_dataset=rows, output_dir=str(folder), per_device_train_batch_size=2, max_steps=9, learning_rate=0.1, optim="sgd",
                    save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, **STRATEGIES[strategy])
    own = set(vars(learn.model)) | {"_is_full_backward_hook"}
    found = []
    learn.launch(2)
    learn.step(4)
    learn.rewind(2)
    found.append(learn.run_on_all(passes))
    learn.step(2)
    learn.snapshot("here")
    learn.step(1)
    learn.restore("here")
    found.append(learn.run_on_all(passes))
    learn.close()
    found.append(learn.model.passes)
    assert set(vars(learn.model)) <= own
    learn.launch(2)
    found.append(learn.run_on_all(passes))
    learn.train()
    learn.close()
    return [r.loss for r in learn.history if not r.abandoned], found


@pytest.fixture(scope="module")
def by_ddp(tmp_path_factory): return run("ddp", tmp_path_factory.mktemp("ddp"))


@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("zero 3", marks=pytest.mark.slow)])
def test_attributes_go_back_and_come_home(strategy, by_ddp, tmp_path):
    if strategy != "fsdp": pytest.importorskip("deepspeed")
    losses, found = run(strategy, tmp_path)
    assert found == by_ddp[1] == [[2, 2], [4, 4], 4, [4, 4]]
    assert losses == pytest.approx(by_ddp[0], rel=1e-5)


def test_the_class_of_a_module():
    class Linear(nn.Linear): pass
    assert module_class(Linear(2, 2)) is Linear and module_class(nn.Linear(2, 2)) is nn.Linear
