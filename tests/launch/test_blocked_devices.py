"Recovery where a GPU is blocked by a message that never comes; the device is a stand-in here, and what has to be asked of it is the same."
import os, signal, threading
from types import SimpleNamespace

import pytest, torch

from trainer_nb.device import accelerator
from trainer_nb.launch.replica import SettledState, abort_exchange, count_steps, settle_device
from trainer_nb.launch.telemetry import DeviceProgress, SpeedReporter
from launched import counted, make

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("launch")]


class Event:
    "An event of a device that has come as far as `Event.reached`; its time is the moment at which it was recorded."
    reached, made, clock = 0, 0, 0.0
    def record(self):
        Event.made += 1
        self.at, self.time = Event.made, Event.clock
    def query(self): return self.at <= Event.reached
    def elapsed_time(self, other): return 1000 * (other.time - self.time)


@pytest.fixture(autouse=True)
def at_the_start(): Event.reached, Event.made, Event.clock = 0, 0, 0.0


def test_a_step_is_finished_when_the_device_has_finished_it():
    progress = DeviceProgress(Event)
    for step in (1, 2, 3): progress.record(step)
    assert progress.finished(3) == 0
    Event.reached = 2
    assert progress.finished(3) == 2
    progress.record(4)
    assert [step for step, _ in progress.pending] == [3, 4] and progress.finished(4) == 2   # no list of all steps
    Event.reached = 4
    assert progress.finished(4) == 4
    assert DeviceProgress().finished(7) == 7   # on a CPU


def replica(counted, finished, phase="step", kept=()):
    "A replica whose device has finished fewer steps than the host counts."
    Event.made = 0
    progress = DeviceProgress(Event)
    for step in range(1, counted + 1): progress.record(step)
    Event.reached = finished
    run = SimpleNamespace(state=SimpleNamespace(global_step=counted), verb=SimpleNamespace(phase=phase), parts=SimpleNamespace(rewind_buffer=SimpleNamespace(kept=list(kept))))
    return SimpleNamespace(speed_reporter=SimpleNamespace(progress=progress), learner=SimpleNamespace(run_state=run))


def test_a_process_that_waits_for_its_device_says_so():
    "The steps that it counts beyond are nothing to continue from, and neither are snapshots that are copied after the message that never comes."
    stuck = replica(5, 3, kept=[SimpleNamespace(step=2, is_copied=True), SimpleNamespace(step=4, is_copied=False)])
    assert count_steps(stuck) == 3
    assert settle_device(stuck, 0.05) == SettledState(False, [2])
    late = replica(5, 4)
    threading.Timer(0.1, lambda: setattr(Event, "reached", 5)).start()
    assert settle_device(late, 5) == SettledState(True, [])   # slow, not stuck


def test_messages_are_aborted_before_the_memory_of_a_device_is_read(monkeypatch):
    "With NCCL alone: gloo blocks no device. The step that an aborted message has ended is taken back first."
    assert not abort_exchange(replica(1, 1))
    done = []
    stuck = replica(1, 1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "nccl")
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_abort_process_group", lambda: done.append("aborted"))
    def synchronize():
        done.append("synchronized")
        threading.Timer(0.1, lambda: (done.append("taken back"), setattr(stuck.learner.run_state, "phase", "idle"))).start()
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert abort_exchange(stuck) and done == ["aborted", "synchronized", "taken back"]


def test_a_program_that_ends_with_an_error_does_not_wait_for_messages(monkeypatch):
    "At the exit of a process whose others wait in a message of NCCL."
    import sys
    done = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: done.append("destroyed"))
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_abort_process_group", lambda: done.append("aborted"))
    for backend, error, expected in (("nccl", ValueError(), "aborted"), ("nccl", None, "destroyed"), ("cpu:gloo,cuda:nccl", ValueError(), "aborted"), ("gloo", ValueError(), "destroyed")):
        monkeypatch.setattr(torch.distributed, "get_backend", lambda: backend)
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        accelerator.leave_process_group()
        assert done.pop() == expected and not done


def stick(learner):
    "From here on, the device of rank 0 finishes no step."
    if learner.run_state.device.world.rank: return
    reporter = next(c for c in learner.callback_handler.callbacks if isinstance(c, SpeedReporter))
    reporter.progress.make_event = Never


class Never:
    def record(self): pass
    def query(self): return False


def test_a_state_that_no_device_has_finished_is_not_used():
    "Rank 1 dies; rank 0 counts steps that its device never finishes. The run continues from a snapshot from before."
    learn = make(max_steps=12, rewind_every=2)
    with learn.launch(2):
        learn.step(4)
        learn.run_on_all(stick)
        learn.step(1)
        os.kill(learn.processes[1]["pid"], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="killed by SIGKILL.* after step 5; the run continues from its last known state, after step 4"): learn.train()
        learn.train()
    other = make(max_steps=12)
    other.launch(2, train=True)
    assert counted(learn) == counted(other)
