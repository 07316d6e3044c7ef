"""DeepSpeed: ZeRO 1, 2 and 3 train as DDP does, and every verb works as without them."""

import pytest
import torch

pytest.importorskip("deepspeed")

import sharded

AUTO = {"gradient_clipping": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "train_batch_size": "auto"}
ACCUMULATED = dict(gradient_accumulation_steps=2, num_train_epochs=2)


def config(stage, **more):
    "A configuration whose weights are divided, however small they are."
    return AUTO | {"zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20} | more.pop("zero", {})} | more


def model(drop=0.1):
    "Tied weights, a buffer that changes, rows that do not divide evenly; DeepSpeed takes no parameter without dimensions."
    torch.manual_seed(0)
    net = sharded.Net(drop)
    net.scale = torch.nn.Parameter(torch.ones(1))
    return net


def make(stage=None, net=None, **settings):
    settings = {"fsdp": None} | ({} if stage is None else {"deepspeed": config(stage)}) | ACCUMULATED | settings
    return sharded.make(model=net or model(), **settings)


def losses(learn): return [float(r.loss) for r in learn.history if not r.abandoned]
def norms(learn): return [float(r.grad_norm) for r in learn.history if not r.abandoned]
def weights(learn): return torch.cat([p.detach().reshape(-1) for p in learn.model.parameters()])


def close(one, other): assert one == pytest.approx(other, rel=1e-5, abs=1e-6)


@pytest.fixture(scope="module")
def like():
    "An undisturbed run of two processes with DDP."
    learn = make()
    learn.launch(2, train=True)
    return learn


@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.slow), 2, 3])
def test_stages_train_as_ddp(like, stage, tmp_path):
    """Losses, norms, evaluations and weights are DDP's, over accumulation, a short last group, a snapshot and a rewind; the
    saved model and the checkpoint are whole, and the run goes on without DeepSpeed."""
    learn = make(stage, output_dir=str(tmp_path / "out"), save_strategy="no")
    learn.launch(2)
    learn.step(2)
    learn.snapshot("here")
    learn.run(steps=2)
    before = losses(learn)
    learn.restore("here")
    learn.step(2)
    assert losses(learn) == before
    learn.rewind(2)
    learn.step(1)
    folder = learn.save_checkpoint()
    learn.save_model(tmp_path / "model")
    learn.train()
    close(losses(learn), losses(like))
    close(norms(learn), norms(like))
    close(learn.evaluate()["eval_loss"], like.evaluate()["eval_loss"])
    learn.close()
    assert torch.allclose(weights(learn), weights(like), atol=1e-5)
    # a checkpoint has the form of any other: DDP and one process read it, and it has no pickle
    assert {p.suffix for p in folder.iterdir()} <= {".json", ".safetensors", ".jsonl"}
    other = make()
    with pytest.warns(UserWarning): other.load_checkpoint(folder)
    assert other.optimizer.state_dict()["state"].keys() == like.optimizer.state_dict()["state"].keys()
    from safetensors.torch import load_file
    saved = load_file(next((tmp_path / "model").glob("*.safetensors")))
    assert torch.equal(saved["inward.weight"], other.model.inward.weight)
