"A node of a Ray cluster that is lost while it trains."
import threading
import pytest

from clusters import Nodes
from launched import make, pids

pytest.importorskip("ray")
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("ray")]


@pytest.mark.slow
def test_a_lost_node():
    "Its process is replaced where there is room; without room the run is back here. Nothing but the named steps is lost."
    nodes = Nodes(1, 1, 1)
    nodes.connect()
    try:
        learn = make(num_train_epochs=40, eval_strategy="no")
        learn.launch(2, cluster="ray")
        learn.step(2)
        lost = nodes.node_of(pids(learn)[1])
        threading.Timer(1, lambda: nodes.cluster.remove_node(lost, allow_graceful=False)).start()
        with pytest.raises(RuntimeError, match=r"rank 1 was lost with its node .* after step \d+(\.|;).*the processes are running again"): learn.train()
        at = learn.state.global_step
        assert learn.step(1)[0].step == at + 1
        lost = nodes.node_of(pids(learn)[1])
        threading.Timer(1, lambda: nodes.cluster.remove_node(lost, allow_graceful=False)).start()
        with pytest.raises(ValueError, match="room for 1 process with 1 CPU each, and 2 were requested") as raised: learn.train()
        assert "was lost with its node" in raised.value.__notes__[0] and "back in this process" in raised.value.__notes__[0]
        assert learn.processes is None and learn.step(1)
    finally:
        nodes.close()
