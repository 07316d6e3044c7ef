"The kernel's side of a live view: signs of life, the thread that updates all views, and views as widgets."
import threading, time

import pytest
import torch

from lab import eventually
from trainer_nb import Learner
from trainer_nb.live import dashboard
from trainer_nb.live.dashboard import ViewRefresher

pytestmark = pytest.mark.usefixtures("one_thread")


class Page:
    "Takes the place of a widget, and keeps its messages."
    def __init__(self): self.messages = []
    def send(self, content, buffers=None): self.messages.append(content)
    def close(self): pass
    def kinds(self): return [o["kind"] for o in self.messages]


def made(**settings):
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    return Learner(torch.nn.Linear(4, 2), train_dataset=data, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True,
                   max_steps=100, **settings)


def shown(learn):
    "A view, and the page that shows it."
    view, page = learn.dashboard(), Page()
    view.connection.widget = page
    view.connection.receive(page, {"kind": "hello", "page": "p1", "view": "v1"}, [])
    return view, page


def test_a_page_that_asks_is_answered():
    view, page = shown(made())
    view.connection.receive(page, {"kind": "ping"}, [])
    assert page.kinds() == ["all", "pong"]


def test_signs_of_life(monkeypatch):
    "While a step takes long nothing changes, and the page must not take the kernel for dead; at other times it is left alone."
    learn = made()
    view, page = shown(learn)
    view.send_changes()
    page.messages.clear()
    monkeypatch.setattr(dashboard, "SIGN_INTERVAL", 0.0)
    monkeypatch.setattr(view, "send_changes", lambda: None)
    view.refresh()
    assert page.kinds() == []                            # it does not train
    view.view_model.sent["status"]["state"] = "training"
    view.refresh()
    assert page.kinds() == ["pong"]
    monkeypatch.setattr(dashboard, "SIGN_INTERVAL", 60.0)
    view.refresh()
    assert page.kinds() == ["pong"]                      # one is enough


def test_a_changed_setting_says_its_first_step():
    learn = made()
    view, page = shown(learn)
    learn.step(7)
    view.connection.receive(page, {"kind": "do", "id": "v1-1", "verb": "set", "with": {"lr": 0.02}}, [])
    eventually(lambda: page.kinds()[-1] == "done")
    assert page.messages[-1] == {"kind": "done", "id": "v1-1", "text": "lr = 0.02 from step 8 on", "step": 8}
    assert learn.optimizer.param_groups[0]["lr"] == 0.02
