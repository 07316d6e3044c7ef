"""When the digest of a packed weight on a GPU is computed again."""
from types import SimpleNamespace

import torch

from trainer_nb.device import weight_storage
from trainer_nb.device.weight_storage import WeightDigests


def test_another_weight_in_the_same_memory_has_its_own_digest(monkeypatch):
    "As a stand-in for tensors on a GPU: parts with the same address and version."
    computed = []
    part = SimpleNamespace(is_cuda=True, data_ptr=lambda: 4096, _version=0)
    monkeypatch.setattr(weight_storage, "_offloaded", lambda o: None)
    monkeypatch.setattr(weight_storage, "weight_parts", lambda o: ({"": part}, "packed"))
    monkeypatch.setattr(weight_storage, "weight_digest", lambda o: computed.append(o) or str(len(computed)))
    digests = WeightDigests()
    def weight(): return SimpleNamespace(name="base", module=None, weight=torch.nn.Parameter(torch.ones(3), requires_grad=False))
    first = weight()
    assert [digests.digest(first), digests.digest(first)] == ["1", "1"]
    # the first one is still there
    second = weight()
    assert digests.digest(second) == "2"
    del first, second
    computed[:] = computed[:0] + [None] * len(computed)
    assert digests.digest(weight()) == "3"
    part._version = 1
    assert digests.digest(third := weight()) == "4" and digests.digest(third) == "4"
