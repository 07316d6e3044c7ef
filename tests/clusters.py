"A cluster of Ray with nodes on this machine: Nodes, free_ports."
import os, socket

# a token that Ray has left in the home folder belongs to another cluster
os.environ.setdefault("RAY_AUTH_MODE", "disabled")


def free_ports(n):
    "Ports that nobody uses at the moment."
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets: s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets: s.close()
    return ports


class Nodes:
    "A cluster whose nodes have so many CPUs; with a server for clients elsewhere on its first node."
    def __init__(self, *cpus, client_port=None):
        import ray
        from ray.cluster_utils import Cluster
        self.ray = ray
        self._start_quickly()
        self.cluster = Cluster()
        self.nodes = [self.add(cpus[0], **({"ray_client_server_port": client_port} if client_port else {})), *map(self.add, cpus[1:])]

    def add(self, cpus, **more):
        names = ("metrics_agent_port", "runtime_env_agent_port", "dashboard_agent_listen_port", "metrics_export_port")
        return self.cluster.add_node(num_cpus=cpus, num_gpus=0, object_store_memory=80_000_000, include_dashboard=False, **more, **dict(zip(names, free_ports(4))))

    def connect(self): self.ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")

    def remove(self, index): self.cluster.remove_node(self.nodes[index], allow_graceful=False)

    def node_of(self, pid):
        "The node that has started a process: one of its ancestors is the node's raylet."
        raylets = {o.process.pid: node for node in self.nodes for o in node.all_processes.get("raylet", ())}
        while pid > 1 and pid not in raylets:
            with open(f"/proc/{pid}/stat") as f: pid = int(f.read().rsplit(")", 1)[1].split()[1])
        return raylets[pid]

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
