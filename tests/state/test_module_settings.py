"""Settings of modules of torch and of packages: dropout, norms, active and merged adapters go back with the run, and come with a
checkpoint."""

import pytest
import torch
from torch import nn

from trainer_nb import Learner

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::FutureWarning")]


def data(n=64):
    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(0))
    return [(a, (a[0] > a[1]).long()) for a in x]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.blocks, self.norm, self.out = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.BatchNorm1d(8), nn.Linear(8, 2)
    def forward(self, x): return self.out(self.norm(self.blocks(x[:, None])[:, 0]))


def learner(folder, **given):
    torch.manual_seed(0)
    return Learner(Encoder(), train_dataset=data(), loss_func=nn.functional.cross_entropy, output_dir=str(folder), **dict(
        use_cpu=True, disable_tqdm=True, per_device_train_batch_size=8, num_train_epochs=2, learning_rate=0.01, report_to="none",
        save_strategy="no") | given)


def weights(learn): return b"".join(t.detach().numpy().tobytes() for t in learn.model.state_dict().values())


def edit(model):
    "Change the settings of some modules."
    layer = model.blocks.layers[0]
    layer.dropout.p, layer.self_attn.dropout, layer.norm1.eps, model.norm.momentum, model.norm.track_running_stats = 0.5, 0.4, 0.1, None, False


def settings(model):
    layer = model.blocks.layers[0]
    return layer.dropout.p, layer.self_attn.dropout, layer.norm1.eps, model.norm.momentum, model.norm.track_running_stats


BACK = {"restore": lambda learn: learn.restore("a"), "rewind": lambda learn: learn.rewind(4), "reset": lambda learn: (learn.reset(), learn.step(3))}


@pytest.mark.parametrize("verb", BACK)
def test_settings_go_back(verb, tmp_path):
    straight, learn = learner(tmp_path), learner(tmp_path, rewind_every=1)
    straight.train()
    learn.step(3)
    learn.snapshot("a")
    edit(learn.model)
    learn.step(3)
    BACK[verb](learn)
    learn.train()
    assert settings(learn.model) == settings(straight.model) and weights(learn) == weights(straight)


def test_a_checkpoint_has_the_settings_that_the_run_has_changed_and_those_of_the_script_give_way(tmp_path):
    one = learner(tmp_path)
    one.step(3)
    edit(one.model)
    one.step(2)
    folder = one.save_checkpoint()
    one.train()
    two = learner(tmp_path)
    two.model.blocks.layers[0].dropout.p = 0.3
    with pytest.warns(UserWarning, match=r"dropout\.p \(0\.3 here\)"): two.load_checkpoint(folder)
    two.train()
    assert settings(two.model) == settings(one.model) and weights(two) == weights(one)


def test_a_snapshot_has_the_values_at_its_time(tmp_path):
    "Descriptions that snapshots share are not those of later values, also where a list is changed in place."
    class Listed(nn.Linear): pass
    Listed.__module__ = "torch.nn.modules.listed"
    torch.manual_seed(0)
    learn = learner(tmp_path)
    learn.model.out = Listed(8, 2)
    learn.model.out.names, learn.model.out.table = ["a"], {"x": [1]}
    learn.step(1)
    a = learn.snapshot()
    learn.model.out.names.append("b")
    learn.model.out.table["x"].append(2)
    names = learn.model.out.names
    b = learn.snapshot()
    learn.model.out.names = ["c"]
    learn.restore(a)
    assert learn.model.out.names == ["a"] and learn.model.out.table == {"x": [1]}
    learn.restore(b)
    assert learn.model.out.names == ["a", "b"] and learn.model.out.table == {"x": [1, 2]} and names == ["a", "b"]
    learn.model.out.names[0] = "z"
    learn.restore(b)
    assert learn.model.out.names == ["a", "b"]
