"A node of a Ray cluster that is lost while it trains."
import threading, time
import pytest

from clusters import Nodes
from launched import make, pids
from trainer_nb import TrainerCallback

pytest.importorskip("ray")
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("ray")]


class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs): time.sleep(0.02)


def lose_a_node(nodes, learn):
    "Remove the node of a process a second from now; not the first, which holds the cluster together."
    lost = next(node for node in map(nodes.node_of, pids(learn)) if node is not nodes.nodes[0])
    threading.Timer(1, lambda: nodes.cluster.remove_node(lost, allow_graceful=False)).start()


def test_a_lost_node():
    "Its process is replaced where there is room; without room the run is back here. Nothing but the named steps is lost."
    nodes = Nodes(1, 1, 1)
    nodes.connect()
    try:
        learn = make(callbacks=[Slow()], num_train_epochs=400, eval_strategy="no")
        learn.launch(2, cluster="ray")
        learn.step(2)
        lose_a_node(nodes, learn)
        with pytest.raises(RuntimeError, match=r"rank . was lost with its node .* after step \d+(\.|;).*the processes are running again"): learn.train()
        at = learn.state.global_step
        assert learn.step(1)[0].step == at + 1
        lose_a_node(nodes, learn)
        with pytest.raises(ValueError, match="room for 1 process with 1 CPU each, and 2 were requested") as raised: learn.train()
        assert "was lost with its node" in raised.value.__notes__[0] and "back in this process" in raised.value.__notes__[0]
        assert learn.processes is None and learn.step(1)
    finally:
        nodes.close()
