"What workers with GPUs need: tensors on their own device, and variables for cards that do not reach each other. Stand-ins where there is no GPU."
import io, os

import pytest, torch

from trainer_nb.launch import local_workers
from trainer_nb.launch.serialization import pack_values, storage_reader, unpack_values
from trainer_nb.launch.worker import own_device

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("launch")]


def test_a_storage_of_a_gpu_is_read_onto_the_rank_s_own(monkeypatch):
    "Its bytes name the first GPU; every rank would load it there. What was on the host stays on the host."
    file = io.BytesIO()
    torch.save(torch.arange(4.).untyped_storage(), file)
    seen = []
    def restore(storage, location):
        seen.append(location)
        return storage
    monkeypatch.setattr(torch.serialization, "default_restore_location", restore)
    read = storage_reader(lambda: torch.device("cuda", 3))
    assert read(file.getvalue()).nbytes() == 16 and seen == ["cpu"]
    monkeypatch.setattr(torch, "load", lambda data, map_location, weights_only: map_location(data.read(), "cuda:0"))
    assert read(b"weights") == b"weights" and seen == ["cpu", "cuda:3"]


def test_tensors_in_data_sets_and_closures_are_read_that_way():
    "Only where a device is given: results for the notebook stay where they were."
    asked = []
    def device():
        asked.append(True)
        return torch.device("cpu")
    weight = torch.randn(5)
    class Data:
        rows = torch.randn(3)
        def __init__(self): self.table = torch.arange(3)
    data = pack_values({"data": Data(), "function": lambda x: x + weight})
    for given in (device, None):
        found = unpack_values(data, last=False, device=given)
        assert torch.equal(found["function"](torch.zeros(5)), weight) and found["data"].table.tolist() == [0, 1, 2]
    assert not asked   # nothing was on a GPU


def test_the_device_of_a_worker(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert own_device() == torch.device("cuda", 1)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    assert own_device() == torch.device("cpu")


@pytest.mark.parametrize("supported", [True, False])
def test_variables_for_cards_that_do_not_reach_each_other(supported, monkeypatch):
    "As Accelerate's launcher sets them, which asks the driver; what the user has set stays."
    import accelerate.utils
    monkeypatch.setattr(accelerate.utils, "check_cuda_p2p_ib_support", lambda: supported)
    environment = {"NCCL_IB_DISABLE": "0"}
    local_workers.disable_unsupported_links(environment)
    assert environment == {"NCCL_IB_DISABLE": "0"} | ({} if supported else {"NCCL_P2P_DISABLE": "1"})


def test_spawned_workers_have_these_variables(monkeypatch):
    "Set while they start, and gone from the notebook's environment afterwards."
    import accelerate.utils
    from trainer_nb.launch.worker_pool import WorkerPool
    monkeypatch.setattr(accelerate.utils, "check_cuda_p2p_ib_support", lambda: False)
    pool = WorkerPool(1, lambda worker: worker, None, "spawn", cpu=True)
    try:
        call = pool.call(lambda worker: [__import__("os").environ.get(name) for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")])
        assert call.wait(60) and call.outcomes[0].result == ["1", "1"]
    finally: pool.close()
    assert "NCCL_P2P_DISABLE" not in os.environ


@pytest.mark.parametrize("variables, wanted", [({"CUDA_VISIBLE_DEVICES": "0,1"}, ["1", "0"]), ({"CUDA_VISIBLE_DEVICES": "0", "ACCELERATE_USE_CPU": "1"}, [None, "0"])])
def test_workers_on_nodes_have_these_variables(variables, wanted, monkeypatch, tmp_path):
    "Each node asks for its own cards: the notebook's machine may have others, or none."
    import accelerate.utils
    from types import SimpleNamespace
    from trainer_nb.launch.ray_agent import NodeAgent
    found = []
    for name in ("NCCL_P2P_DISABLE", "CUDA_VISIBLE_DEVICES", "ACCELERATE_USE_CPU"): monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(accelerate.utils, "check_cuda_p2p_ib_support", lambda: False)
    monkeypatch.setattr(local_workers.LocalWorkers, "start_processes", lambda self, settings, environments, init, receiver: [SimpleNamespace(pid=1, got=found.extend(environments))])
    monkeypatch.chdir(tmp_path)
    NodeAgent().start({"stem": "stem"}, {"NCCL_IB_DISABLE": "0", "NODE_ADDRESS": "none"} | variables, str(tmp_path))
    assert [found[0].get(name) for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")] == wanted
