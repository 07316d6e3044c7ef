"A program ends when gloo's threads have released their tensors."
import ctypes, sys, threading, time

import pytest

from trainer_nb.device.collectives import wait_for_gloo_threads

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are observed in /proc")
_SET_NAME = 15   # PR_SET_NAME


@pytest.fixture
def as_gloo():
    "Runs a function in a thread with the name of gloo's; the function it gets ends the thread's work, in which it sleeps afterwards."
    ends = []
    def start(work):
        ready, end = threading.Event(), threading.Event()
        def run():
            ctypes.CDLL(None).prctl(_SET_NAME, b"pt_gloo_runloop", 0, 0, 0)
            ready.set()
            work()
            end.wait()
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        ends.append((end, thread))
        assert ready.wait(5)
    yield start
    for end, thread in ends:
        end.set()
        thread.join()


def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: sum(range(1000))


def seconds_of_waiting(**options):
    start = time.monotonic()
    return wait_for_gloo_threads(**options), time.monotonic() - start


def test_nothing_to_wait_for():
    assert seconds_of_waiting()[0] is True


def test_a_thread_that_sleeps(as_gloo):
    as_gloo(lambda: None)
    done, seconds = seconds_of_waiting()
    assert done and seconds < 1


@pytest.mark.parametrize("work", [compute, lambda seconds: [time.sleep(0.004) for _ in range(int(seconds/0.004))]], ids=["computes", "wakes up"])
def test_a_thread_that_works(as_gloo, work):
    "One that waits for the interpreter's lock wakes up every 5 ms."
    as_gloo(lambda: None)
    as_gloo(lambda: work(0.4))
    done, seconds = seconds_of_waiting()
    assert done and seconds > 0.35


def test_a_thread_that_never_rests(as_gloo):
    as_gloo(lambda: compute(0.6))
    done, seconds = seconds_of_waiting(timeout=0.2)
    assert not done and 0.2 <= seconds < 0.6
