"The comparison of the layers that the processes of a sharded model run; threads stand for the processes."
import concurrent.futures, contextlib, datetime, time, uuid

import pytest, torch, torch.distributed as dist

from trainer_nb.device import desync
from trainer_nb.device.ddp import GradientMessage
from trainer_nb.device.desync import LayerOrder

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Ranks:
    "Stands for the processes: one of them has a model of its own."
    def __init__(self, size=2): self.size, self.key, self.orders = size, uuid.uuid4().hex, []

    def member(self, rank, **settings):
        model = Net()
        world = type("World", (), {"rank": rank, "size": self.size, "broadcast_object": lambda world, value: self.key})()
        # they exist, and report where they are, until all ranks have ended
        self.orders.append(order := LayerOrder(model, model.layers, world, **settings))
        return model, order

    @contextlib.contextmanager
    def released(self):
        "Release them at the end of the block."
        try: yield
        finally:
            while self.orders: self.orders.pop().release()

    def run(self, passes, **settings):
        "Run the passes of each rank, each a list of layers and of seconds to sleep; return the number of comparisons in each pass, by rank."
        def one(rank):
            model, order = self.member(rank, **settings)
            counts = []
            for layers in passes[rank]:
                comparisons.pop(rank, None)
                model(layers)
                counts.append(comparisons.get(rank, 0))
            return counts
        comparisons = {}
        compare = LayerOrder._compare
        def counted(order, name):
            comparisons[order._world.rank] = comparisons.get(order._world.rank, 0) + 1
            compare(order, name)
        with self.released(), pytest.MonkeyPatch.context() as patch, concurrent.futures.ThreadPoolExecutor(self.size) as pool:
            patch.setattr(LayerOrder, "_compare", counted)
            return [future.result() for future in [pool.submit(one, rank) for rank in range(self.size)]]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(4))

    def forward(self, order):
        x = torch.ones(1, 2)
        for number in order:
            if isinstance(number, float): time.sleep(number)
            else: x = self.layers[number](x)
        return x


def test_a_common_change_is_compared_once():
    "A layer that all processes run from some step on, or that they skipped in the first one: later passes are compared with that pass."
    passes = [[0, 2, 3]] * 2 + [[0, 1, 2, 3]] * 3 + [[1, 2]] * 3 + [[0, 2, 3]] * 2
    found = Ranks().run([passes, passes])
    assert found[0] == found[1] and found[0][:2] == [4, 0] and found[0][3:5] == [0, 0] and found[0][6:8] == [0, 0] and found[0][9] == 0


def test_a_slow_process_is_not_an_error(monkeypatch):
    "It compiles, reads data or writes a checkpoint while the others wait, for as long as `ddp_timeout` says."
    monkeypatch.setattr(desync, "PLACE_REPORT", 0.1)
    for passes in [], [[0, 1, 2, 3]]:
        Ranks().run([[*passes, [0, 2, 3], [0, 2, 3]], [*passes, [0, 1.0, 2, 3], [0, 2, 3]]], timeout=datetime.timedelta(seconds=30))


def test_a_layer_that_one_process_skips():
    "At once, also if only one process deviates from the first pass, and the other one waits for it in an exchange."
    with pytest.raises(ValueError, match=r"Rank 0 runs 'layers\.0' where rank 1 runs 'layers\.1': with fsdp, all processes have to run the same wrapped layers\. Switch off .*layerdrop"):
        Ranks().run([[[0, 1]], [[1]]])
    for late, message in (([1], r"runs 'layers\.1' where rank 0 runs 'layers\.0'"), ([0], r"ends the pass where rank 0 runs 'layers\.1'"), ([0, 1, 2], r"runs 'layers\.2' where rank 0 ends the pass")):
        with pytest.raises(ValueError, match=rf"Rank 1 {message}: .*layerdrop=0\.0"):
            Ranks().run([[[0, 1]] * 2, [[0, 1], late]])
    # the other one is in the next pass by now
    with pytest.raises(ValueError, match=r"Rank 1 runs 'layers\.1' where rank 0 runs 'layers\.0'"):
        Ranks().run([[[0, 1]] * 3, [[0, 1], [1]]])
    # the same layer, at another place
    with pytest.raises(ValueError, match="all processes have to run the same wrapped layers"):
        Ranks().run([[[0, 1], [1, 0]], [[0, 1], [0, 1, 1]]], timeout=datetime.timedelta(seconds=0.5))


def test_a_process_that_does_not_come():
    "An error after the timeout, with what is known."
    with pytest.raises(ValueError, match=r"Rank 1 runs 'layers\.1', and rank 0 has not reached it within 0\.3 s: .*layerdrop=0\.0.*If it is only late, ddp_timeout=\.\.\. gives it more time"):
        Ranks().run([[[0, 1], [2.0, 0, 1]], [[0, 1], [1]]], timeout=datetime.timedelta(seconds=0.3))


def test_another_error_of_the_store_is_raised_as_it_is(monkeypatch):
    "The process that has the store is gone: a consequence, which names no layer."
    model, order = Ranks().member(0)
    class Store:
        def set(self, *given): pass
        def wait(self, *given): raise dist.DistNetworkError("Connection reset by peer")
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", Store)
    with pytest.raises(dist.DistNetworkError, match="reset by peer"): model([0, 1])


# ---- the message with the gradients

def test_a_message_without_a_loss_is_on_the_device_of_the_model():
    "The model is moved after the message is made, and the first backward pass may be one within the loss. (\"meta\" stands for a GPU.)"
    message = GradientMessage(torch.nn.Linear(2, 2), 2)
    message.slot = torch.nn.Parameter(message.slot.to("meta"))
    message.send([])
    assert message.slot.grad.device.type == "meta"
