"Gates: processes stop after the same step, also where answers are late or missing."
import threading

import pytest

from trainer_nb.launch.telemetry import NEVER_STEP, BoundaryGate, GateBarrier


class Network:
    "Call the gates of some processes; `lost` of the next calls of a rank get no answer, and are delivered later."
    def __init__(self, n):
        self.gates = [BoundaryGate() for _ in range(n)]
        self.lost = {}
        self.late = []
        self.dead = set()
        self.barrier = GateBarrier(n, self.ask, lambda rank: rank not in self.dead)

    def ask(self, ranks, name, *arguments):
        return {rank: self.call(rank, name, *arguments) for rank in ranks}

    def call(self, rank, name, *arguments):
        if rank in self.dead: return None
        function = getattr(self.gates[rank], name)
        if self.lost.get((rank, name), 0):
            self.lost[rank, name] -= 1
            self.late.append(lambda: function(*arguments))
            return None
        return function(*arguments)

    def begin(self, step):
        self.barrier.start_from(step)
        for gate in self.gates: gate.begin(step)

    def stop(self):
        self.barrier.request_stop()
        self.barrier._thread.join(10)
        assert not self.barrier._thread.is_alive()

    def stopping_step(self, rank, step):
        "Return the step after which a process stops that has completed a step; -1: it waits forever."
        found = []
        def train():
            now = step
            while not self.gates[rank].should_stop(now): now += 1
            found.append(now)
        thread = threading.Thread(target=train, daemon=True)
        thread.start()
        thread.join(5)
        return found[0] if found else -1


def test_all_stop_after_the_same_step():
    net = Network(3)
    net.begin(10)
    for rank, step in enumerate((12, 13, 12)): assert not net.gates[rank].should_stop(step)
    net.stop()
    assert [net.stopping_step(rank, 12) for rank in range(3)] == [14] * 3


@pytest.mark.parametrize("rank", [0, 1])
def test_an_answer_that_is_late_counts(rank):
    net = Network(2)
    net.begin(10)
    net.gates[rank].should_stop(15)
    # the process that is ahead does not answer the first two times
    net.lost[rank, "close_gate"] = 2
    net.stop()
    assert [net.stopping_step(r, 14) for r in range(2)] == [16, 16]


def test_a_call_to_open_that_is_not_confirmed_is_repeated():
    net = Network(2)
    net.begin(10)
    net.lost[1, "open_gate"] = 3
    net.stop()
    assert [net.stopping_step(r, 10) for r in range(2)] == [11, 11]


def test_a_late_request_does_not_close_a_gate():
    net = Network(2)
    net.begin(10)
    net.lost[1, "close_gate"] = 1
    net.stop()
    for call in net.late: call()
    assert net.stopping_step(1, 10) == 11
    net.begin(11)
    for call in net.late: call()
    assert not net.gates[1].should_stop(12)
    net.stop()
    assert [net.stopping_step(r, 12) for r in range(2)] == [13, 13]


def test_a_late_call_to_open_does_not_let_a_process_pass():
    net = Network(2)
    net.begin(10)
    net.lost[1, "open_gate"] = 1
    net.stop()
    net.begin(11)
    net.barrier.request_stop()
    net.barrier._thread.join(10)
    for call in net.late: call()
    assert [gate.last_step for gate in net.gates] == [12, 12]


def test_boundaries_of_a_former_command_do_not_count():
    net = Network(2)
    net.begin(198)
    for gate in net.gates:
        assert not gate.should_stop(200)
        gate.end()
    # the run went back; the stop arrives before the processes begin
    net.barrier.start_from(100)
    net.stop()
    for gate in net.gates: gate.begin(100)
    assert [net.stopping_step(rank, 101) for rank in range(2)] == [101, 101]


def test_a_dead_process_is_not_waited_for():
    net = Network(3)
    net.begin(10)
    net.gates[0].should_stop(11)
    net.dead.add(1)
    net.stop()
    assert [net.stopping_step(rank, 11) for rank in (0, 2)] == [12, 12]
    net.barrier.start_from(12)
    assert net.gates[0].last_step == net.gates[2].last_step == NEVER_STEP
