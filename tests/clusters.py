"A cluster of Ray with nodes on this machine: two_nodes, Nodes."
import os, socket
import pytest


def free_ports(n):
    "Ports that nobody uses at the moment."
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets: s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets: s.close()
    return ports


class Nodes:
    "A cluster of several nodes with a CPU each; the first has no CPU that a run could use unless it is asked for."
    def __init__(self, *cpus):
        import ray
        from ray.cluster_utils import Cluster
        self.ray = ray
        self._start_quickly()
        self.cluster = Cluster()
        self.nodes = [self.add(n) for n in cpus]

    def add(self, cpus):
        names = ("metrics_agent_port", "runtime_env_agent_port", "dashboard_agent_listen_port", "metrics_export_port")
        return self.cluster.add_node(num_cpus=cpus, num_gpus=0, object_store_memory=80_000_000, include_dashboard=False, **dict(zip(names, free_ports(4))))

    def connect(self): self.ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")

    def remove(self, index): self.cluster.remove_node(self.nodes[index], allow_graceful=False)

    def close(self):
        self.ray.shutdown()
        self.cluster.shutdown()

    def _start_quickly(self):
        "A node waits some seconds for an agent of the dashboard, which there is none of: on a slow machine it gives up."
        from ray import _raylet
        from ray._private.node import Node
        if hasattr(Node, "starts_slowly"): return
        Node.starts_slowly = Node.start_ray_processes
        def start(node):
            _raylet.persist_port(node._session_dir, node._node_id, _raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME, node._ray_params.dashboard_agent_listen_port)
            node.starts_slowly()
        Node.start_ray_processes = start


@pytest.fixture(scope="module")
def two_nodes():
    "A cluster of two nodes, to which this process is connected."
    pytest.importorskip("ray")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    nodes = Nodes(1, 1)
    nodes.connect()
    yield nodes
    nodes.close()
