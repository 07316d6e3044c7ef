"""Processes that are started from here, obey, and leave nothing behind; by fork and by spawn.

Nothing is stood in for: the deaths are signals, the collectives are gloo's. After each test the
process is as it was before: no child, no thread, no open file, no folder, no shared memory, no variable in the environment."""
import ctypes, gc, glob, hashlib, multiprocessing, os, shutil, signal, subprocess, sys, tempfile, textwrap, threading, time, warnings
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trainer_nb.launch import serialization as carry
from trainer_nb.launch.serialization import SharedTensors, pack_values, unpack_values
from trainer_nb.launch.worker_pool import WorkerPool
from trainer_nb.launch.outcomes import find_root_failure
from trainer_nb.launch.outcomes import Died, Done, Failed, RemoteError
from trainer_nb.launch.worker import LineStream

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
LIMIT = 60   # seconds; every wait has an end, none is expected to be reached
both = pytest.mark.parametrize("start", ["fork", "spawn"])


# --- what is left behind ------------------------------------------------------------------------------------------------

def children(pid="self") -> set:
    "The processes that a process has started, multiprocessing's resource tracker aside: a kernel has one for good."
    found = set()
    for task in glob.glob(f"/proc/{pid}/task/*/children"):
        try: found.update(map(int, Path(task).read_text().split()))
        except OSError: pass   # the thread has ended meanwhile
    return {p for p in found if b"resource_tracker" not in Path(f"/proc/{p}/cmdline").read_bytes()}

def open_files() -> list:
    "What the file descriptors of this process lead to."
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try: found.append(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except OSError: pass
    return found

def until(holds, seconds=LIMIT):
    "Wait for something that is to come about by itself."
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it has not come about"
        time.sleep(0.01)

def alive(pid) -> bool:
    "Whether a process is there and no zombie."
    try: return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError: return False

def environment() -> dict: return {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}

class Trace:
    "What this process has: to be the same before and after."
    def __init__(self):
        gc.collect()
        self.children, self.threads, self.files, self.environment = children(), set(threading.enumerate()), set(open_files()), environment()
        self.folders = set(os.listdir(tempfile.gettempdir()))
        self.signals = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def check(self):
        until(lambda: set(threading.enumerate()) <= self.threads)
        now = Trace()
        assert now.children <= self.children
        assert len(now.files) <= len(self.files), now.files - self.files
        assert now.environment == self.environment and now.signals == self.signals
        assert now.folders <= self.folders

@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    "A temp folder of our own: it has to be empty after each test."
    tmp_path_factory.getbasetemp()
    before, tempfile.tempdir = tempfile.tempdir, tempfile.mkdtemp(prefix="t")
    multiprocessing.resource_tracker.ensure_running()
    WorkerPool(2, itself).kill()   # what libraries open once, and never again, is not ours
    gc.freeze()   # each collection would otherwise look at all that is imported
    yield tempfile.tempdir
    gc.unfreeze()
    os.rmdir(tempfile.tempdir)
    tempfile.tempdir = before

made = []   # all pools of the test that is running

def make(num_workers=2, entry=None, payload=None, **kwargs):
    "A pool that the test need not close."
    pool = WorkerPool(num_workers, entry or itself, payload, **kwargs)
    made.append(pool)
    return pool

@pytest.fixture(autouse=True)
def nothing_left(request, folder):
    "Each test leaves the process as it was."
    if "pool" in request.fixturenames: yield; return   # one pool for many tests
    before = Trace()
    made.clear()
    yield
    stems = [pool.settings["stem"] for pool in made]
    for pool in made: pool.kill()
    made.clear()
    before.check()
    assert not [o for stem in stems for o in glob.glob(f"/dev/shm/{stem}*")]


# --- what workers do ----------------------------------------------------------------------------------------------------

told = []   # of the pools that many tests share

def itself(worker): return worker

@pytest.fixture(scope="module", params=["fork", "spawn"])
def pool(request):
    "A pool of two for the tests that leave it whole."
    pool = WorkerPool(2, itself, {"scale": 10}, start=request.param, on_event=lambda *said: told.append(said))
    yield pool
    pool.close()

def results(call):
    "The results of a call, by rank; all of them have to be there."
    assert call.wait(LIMIT)
    assert all(isinstance(o, Done) for o in call.outcomes.values()), call.outcomes
    return [call.outcomes[rank].result for rank in sorted(call.outcomes)]

def outcomes(call):
    assert call.wait(LIMIT)
    return [call.outcomes[rank] for rank in sorted(call.outcomes)]

def said(kind): return [(rank, data) for rank, what, data in told if what == kind]

def who(worker): return worker.rank, worker.local_rank, worker.world, worker.payload

def test_what_they_find_in_their_environment(pool):
    def look(worker):
        names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "ACCELERATE_USE_CPU", "OMP_NUM_THREADS"
        return [os.environ[name] for name in names], torch.get_num_threads(), os.getppid(), os.getpgid(0) == os.getpid()
    n = str(pool.threads)
    assert results(pool.call(look)) == [([str(rank), str(rank), "2", "127.0.0.1", "1", n], pool.threads, os.getpid(), True) for rank in (0, 1)]

def test_closures_and_classes_of_this_place_go_along(pool):
    class Adder:
        def __init__(self, by): self.by = by
        def __call__(self, worker, x): return x + self.by * worker.rank
    assert results(pool.call(Adder(10), 1)) == [1, 11]
    assert results(pool.call(partial(lambda worker, x, y: x * y, y=3), 2)) == [6, 6]

def test_an_error_is_that_of_the_rank(pool):
    def fail(worker, on):
        if worker.rank != on: return "fine"
        error = LookupError("no such label")
        error.add_note("a note of its own")
        raise error from KeyError("label")
    for on in (0, 1):
        found = outcomes(pool.call(fail, on))
        assert found[1 - on] == Done("fine")
        error = find_root_failure(found).error
        assert type(error) is LookupError and error.args == ("no such label",)
        own, ours = error.__notes__
        assert own == "a note of its own" and f"rank {on}" in ours and "KeyError: 'label'" in ours and "raise error from" in ours
        assert "worker.py" not in ours   # the frames in between are nobody's business

@pytest.mark.parametrize("cause, follow", [
    (Failed(1, "ValueError", "no such label", ""), Failed(0, "RuntimeError", "[/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer", "")),
    (Failed(1, "ConnectionResetError", "Connection reset by peer", ""), Failed(0, "DistBackendError", "NCCL error", "")),
    (Failed(1, "OSError", "the disk is full", ""), Failed(0, "MainProcessFailed", "The first process could not go on (OSError: the disk is full).", "")),
    (Failed(1, "OSError", "no such picture", ""), Died(0, -signal.SIGKILL)), (Died(1, -signal.SIGKILL), Died(0, -signal.SIGTERM)), (Died(1, 3), Died(0, None)),
    (Died(1, -signal.SIGKILL), Failed(0, "KeyboardInterrupt", "", "")), (Died(1, None), Failed(0, "RuntimeError", "Timed out waiting 1800000ms", "")),
    (Failed(1, "RuntimeError", "shapes do not fit", ""), Failed(0, "Interrupted", "", ""))])
def test_the_cause_is_told_from_what_follows(cause, follow):
    "In whichever order they are heard of, with others that have done well; of two equals the first."
    for found in ([cause, follow], [follow, cause], {0: Done(1), 2: follow, 1: cause}): assert find_root_failure(found) is cause
    assert find_root_failure([Done(1)]) is None is find_root_failure({}) and find_root_failure([follow, follow]) is follow
    also = Failed(3, "ValueError", "another", "")
    assert find_root_failure([also, Failed(1, "ValueError", "no such label", "")]) is also

class Picky(Exception):
    def __init__(self, a, b): super().__init__(f"{a} and {b}")

def test_errors_that_cannot_be_carried_or_end_a_process(pool):
    def raise_that(worker, make): raise make()
    class Holding(Exception):
        def __init__(self): self.lock = threading.Lock()
        def __str__(self): return "it holds something"
    for make_error, words in ((lambda: Picky(1, 2), "Picky: 1 and 2"), (Holding, "Holding: it holds something"), (lambda: SystemExit(3), "SystemExit: 3"),
                              (KeyboardInterrupt, "KeyboardInterrupt: ")):
        found = outcomes(pool.call(raise_that, make_error))
        assert all(type(o.error) is RemoteError and str(o.error) == words for o in found)
    assert results(pool.call(who))   # they go on

def test_a_result_that_cannot_come_is_an_error(pool):
    found = outcomes(pool.call(lambda worker: {"lines": (o for o in "abc")}))
    assert all("the lines cannot be sent there: it is a generator" in o.message for o in found)
    with pytest.raises(ValueError, match="the arguments cannot be sent there: its part `.0..0.` is a lock"): pool.call(who, [threading.Lock()])

@pytest.mark.parametrize("where", ["argument", "result"])
def test_tensors_arrive_byte_for_byte(pool, where):
    payloads = torch.tensor([0x7f800001, 0x7fc12345, -1, 0x7f8fffff], dtype=torch.int32).view(torch.float32)
    sent = {"nan": payloads.repeat(10_000), "bf16": torch.randn(40_000).bfloat16(), "big": torch.randn(300, 500), "small": torch.randn(3),
            "turned": torch.randn(300, 500).T, "holes": torch.randn(400, 500)[:, ::3], "half": torch.randn(1000, 100).half(), "empty": torch.empty(0, 5),
            "one": torch.tensor(7), "complex": torch.randn(20_000, dtype=torch.complex64).conj(), "bool": torch.randn(100_000) > 0}
    if where == "argument": assert results(pool.call(lambda worker, sent: {k: digest(v) for k, v in sent.items()}, sent))[1] == {k: digest(v) for k, v in sent.items()}
    else:
        for arrived in results(pool.call(lambda worker, sent: sent, sent)):
            assert {k: digest(v) for k, v in arrived.items()} == {k: digest(v) for k, v in sent.items()}
            arrived["big"].zero_()   # it is nobody else's

def digest(t) -> tuple:
    "What has to be equal in a tensor, bytes and all."
    raw = t.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return str(t.dtype), tuple(t.shape), hashlib.sha256(raw).hexdigest()

def test_tied_weights_stay_tied_and_strides_stay(pool):
    net = torch.nn.Linear(300, 300)
    net.other, net.image = net.weight, torch.randn(1, 8, 64, 64).to(memory_format=torch.channels_last)
    def look(worker, net): return net.other is net.weight, isinstance(net.weight, torch.nn.Parameter), net.weight.requires_grad, net.image.stride()
    assert results(pool.call(look, net)) == [(True, True, True, net.image.stride())] * 2
    w, d = results(pool.call(lambda worker, net: (net.weight, net.weight.detach()), net))[1]
    assert isinstance(w, torch.nn.Parameter) and torch.equal(w, net.weight) and not d.requires_grad

# --- what they say ------------------------------------------------------------------------------------------------------

def test_what_is_told_comes_in_order_and_before_the_answer(pool):
    def tell(worker, n):
        def more(): [worker.send_event("thread", i) for i in range(n)]
        thread = threading.Thread(target=more)
        thread.start()
        for i in range(n): worker.send_event("main", i)
        thread.join()
        return worker.flush()
    told.clear()
    assert results(pool.call(tell, 500)) == [True, True]
    for kind in ("main", "thread"):
        for rank in (0, 1): assert [data for r, data in said(kind) if r == rank] == list(range(500))

def test_what_is_told_is_what_it_was(pool):
    class Mine:
        def __eq__(self, other): return type(other) is Mine
    def tell(worker, mine):
        row = {"loss": 1.0, "own": mine}
        worker.send_event("row", row)
        row["loss"] = 2.0
    told.clear()
    results(pool.call(tell, Mine()))
    assert said("row")[0][1] == {"loss": 1.0, "own": Mine()}   # and the class is the one of this process

def test_prints_of_the_first_rank_come_in_whole_lines(pool):
    def speak(worker):
        for i in range(3): print("rank", worker.rank, end=" "); print("line", i, flush=True)
        for i in range(1000): print(f"\r{i} of 1000", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        sys.stderr.writelines(["take ", "care\n"])
        sys.stdout.write("no newline")
    told.clear()
    results(pool.call(speak))
    assert said("out") == [*[(0, f"rank 0 line {i}\n") for i in range(3)], (0, "no newline\n")]
    err = "".join(text for rank, text in said("err"))
    assert err == "999 of 1000\ntake care\n" and not any(rank for rank, _ in said("err"))

def test_whose_prints_are_told():
    def speak(worker): print("to out"); print("to err", file=sys.stderr)
    for output, ranks in (("all", {0, 1}), ((1,), {1})):
        told.clear()
        results(make(2, output=output, on_event=lambda *said: told.append(said)).call(speak))
        assert {rank for rank, _ in said("out")} == ranks == {rank for rank, _ in said("err")}

def test_a_thread_that_prints_does_not_tear_lines():
    given = []
    stream = LineStream(1, given.append)
    def speak(name): [print(name, i, "end", file=stream) for i in range(2000)]
    threads = [threading.Thread(target=speak, args=(name,)) for name in "ab"]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert sorted("".join(given).splitlines()) == sorted(f"{name} {i} end" for name in "ab" for i in range(2000))

# --- asides -------------------------------------------------------------------------------------------------------------

def hang(worker): worker.busy = True; time.sleep(LIMIT * 10)

def aside(pool, rank, function, *args, timeout=10):
    "What a function returns that a worker runs beside its commands."
    outcome = pool.ask([rank], function, *args, timeout=timeout).get(rank)
    if outcome is None: raise TimeoutError(f"Rank {rank} has not answered")
    if isinstance(outcome, Done): return outcome.result
    raise outcome.error

def join_in(worker): dist.init_process_group("gloo")

def test_an_aside_is_done_although_the_main_thread_is_stuck_in_a_collective():
    pool = make()
    results(pool.call(join_in))
    call = pool.call(lambda worker: worker.rank == 0 and dist.barrier() or "back")
    until(lambda: 1 in call.outcomes)
    assert call.outcomes == {1: Done("back")} and not call.wait(0.3)
    assert aside(pool, 0, who)[0] == 0 and aside(pool, 1, lambda worker, x: x, 5) == 5
    with pytest.raises(ZeroDivisionError) as raised: aside(pool, 0, lambda worker: 1 / 0)
    assert "rank 0" in raised.value.__notes__[0]
    with pytest.raises(TimeoutError, match="Rank 0 has not answered"): aside(pool, 0, hang, timeout=0.2)
    os.kill(pool.workers[1].pid, signal.SIGKILL)   # gloo lets the other go when its peer is gone
    assert call.wait(LIMIT) and isinstance(call.outcomes[0], Failed)
    with pytest.raises(RemoteError, match="rank 1 was killed by SIGKILL"): aside(pool, 1, who)
    assert aside(pool, 0, who)[0] == 0

# --- deaths -------------------------------------------------------------------------------------------------------------

def die(worker, how):
    print("last words", file=sys.stderr)
    if how == "exit": os._exit(3)
    if how == "segfault": ctypes.string_at(0)
    if how == "abort": os.abort()
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.parametrize("how, words", [("exit", "ended with exit code 3"), ("segfault", "was killed by SIGSEGV"), ("abort", "SIGABRT"), ("kill", "SIGKILL (perhaps")])
def test_a_death_is_known_with_its_cause(how, words):
    pool = make()
    call = pool.call(lambda worker: die(worker, how) if worker.rank == 1 else "alive")
    assert outcomes(call)[0] == Done("alive") and words in call.outcomes[1].how
    assert pool.deaths == {1: call.outcomes[1]}
    assert "last words" in call.outcomes[1].lines and ("Fatal Python error: Segmentation fault" in call.outcomes[1].lines) == (how == "segfault")
    later = pool.call(who)
    assert outcomes(later)[1] == pool.deaths[1] and later.outcomes[0].result[0] == 0   # the others go on

def test_a_death_is_known_while_nobody_asks_and_while_others_are_busy():
    pool = make(3)
    call = pool.call(lambda worker: worker.rank == 2 and time.sleep(LIMIT))
    for rank in (0, 2):   # idle, busy
        os.kill(pool.workers[rank].pid, signal.SIGKILL)
        until(lambda: rank in pool.deaths, 5)
    assert outcomes(call)[1] == Done(False) and call.outcomes[2].code == -signal.SIGKILL and pool.deaths[0].how.startswith("was killed by SIGKILL")

def test_the_first_of_two_deaths_is_the_cause():
    "The others live on; and whoever is told something later hears first of who died first."
    pool = make(3)
    for rank in (2, 0):
        os.kill(pool.workers[rank].pid, signal.SIGKILL)
        until(lambda: pool.workers[rank].is_disconnected, 5)
    assert aside(pool, 1, who)[0] == 1 and list(pool.deaths) == [2, 0]
    call = pool.call(who)
    assert outcomes(call)[1] == Done((1, 1, 3, None)) and find_root_failure(call.outcomes).rank == 2

def test_what_a_dead_worker_had_started_ends_with_it():
    def start(worker):
        worker.process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(LIMIT,), daemon=True)
        worker.process.start()
        worker.other = subprocess.Popen(["sleep", str(LIMIT)])
        return [worker.process.pid, worker.other.pid]
    pool = make()
    pids = results(pool.call(start))
    os.kill(pool.workers[1].pid, signal.SIGKILL)
    until(lambda: 1 in pool.deaths, 5)
    until(lambda: not any(map(alive, pids[1])), 5)
    assert all(map(alive, pids[0]))
    pool.close()
    until(lambda: not any(map(alive, pids[0])), 5)

# --- starting -----------------------------------------------------------------------------------------------------------

def start_badly(worker):
    if worker.rank != worker.payload["on"]: return time.sleep(LIMIT)
    print("last words", file=sys.stderr)
    if worker.payload["how"] == "raise": raise LookupError("no such file")
    die(worker, worker.payload["how"])

@both
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_start_that_fails_raises_the_ranks_own_error(start, how):
    with pytest.raises(LookupError if how == "raise" else RemoteError) as raised: make(2, start_badly, {"on": 1, "how": how}, start=start)
    notes = "\n".join(raised.value.__notes__)
    if how == "raise": assert "no such file" in str(raised.value) and "rank 1" in notes and "start_badly" in notes
    else: assert "rank 1 was killed by SIGKILL" in str(raised.value) and "last words" in notes

@pytest.mark.parametrize("where", ["replace_streams", "set_multiprocessing_dir"])
def test_a_worker_that_fails_at_its_very_beginning(monkeypatch, where):
    "Before it has come in nobody hears it; it has left its last output in a file."
    from trainer_nb.launch import worker
    def fail(*args):
        if os.environ["RANK"] == "1": raise LookupError("no such file")
        return act(*args)
    act = getattr(worker, where)
    monkeypatch.setattr(worker, where, fail)
    with pytest.raises(Exception) as raised: make(start="fork")
    said = "\n".join([str(raised.value), *raised.value.__notes__])
    assert "no such file" in said and "rank 1" in said and "test_worker_pool.py" in said

def test_what_a_fresh_process_prints_before_anything_else_is_its_last_output(monkeypatch):
    monkeypatch.setattr("trainer_nb.launch.local_workers.SPAWNED_PROGRAM", "import nowhere")
    with pytest.raises(RemoteError) as raised: make(start="spawn")
    assert "No module named 'nowhere'" in "\n".join(raised.value.__notes__)

def test_a_start_that_takes_too_long_or_is_interrupted():
    with pytest.raises(TimeoutError, match="After 1 s, [01] of 2 workers were ready"): WorkerPool(2, lambda worker: worker.rank and time.sleep(LIMIT), timeout=1)
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt): WorkerPool(2, hang)

def test_a_start_that_is_given_up_leaves_nothing():
    "At once, or a little later."
    for looks in (0, 1):
        left = iter(range(looks))
        with pytest.raises(KeyboardInterrupt): make(should_abort=lambda: next(left, None) is None)

def test_twenty_launches_leave_nothing():
    "Each test looks for what is left; here also at memory."
    def resident(): return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    data = torch.randn(500_000)
    for i in range(20):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pool = make(2, itself, {"data": data})
        assert all(torch.equal(o, data + 1) for o in results(pool.call(lambda worker: worker.payload["data"] + 1)))
        pool.close() if i % 2 else pool.kill()
        made.clear()
        if i == 9: gc.collect(); before = resident()
    gc.collect()
    assert resident() - before < 20e6   # ten times 2 MB, twice, came home

def test_the_kernels_environment_and_accelerators_are_as_they_were(capfd):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState
    try:
        mine = Accelerator(cpu=True)
        before, states = dict(os.environ), [dict(o._shared_state) for o in (AcceleratorState, PartialState)]
        def inside(worker):
            from accelerate import Accelerator
            Accelerator()
            return str(PartialState().distributed_type), PartialState().num_processes
        pool = make()
        assert dict(os.environ) == before and [dict(o._shared_state) for o in (AcceleratorState, PartialState)] == states and mine.num_processes == 1
        assert results(pool.call(inside)) == [("DistributedType.MULTI_CPU", 2)] * 2
        os.environ["MASTER_PORT"] = "of the user"
        pool.close()
        assert os.environ.pop("MASTER_PORT") == "of the user" and dict(os.environ) == before
    finally: AcceleratorState._reset_state(reset_partial_state=True)
    out, err = capfd.readouterr()
    assert "Launching" not in out and "signal" not in err and "elastic" not in err

# --- closing ------------------------------------------------------------------------------------------------------------

def test_closing_lets_them_finish_and_killing_does_not():
    told = []
    pool = make(on_event=lambda *said: told.append(said))
    calls = [pool.call(lambda worker, i: (time.sleep(0.1), worker.send_event("done", i)), i) for i in range(3)]
    pool.close()
    assert all(call.wait(0) for call in calls) and len(told) == 6 and not pool.deaths
    with pytest.raises(RemoteError, match="have ended"): pool.call(who)
    pool = make()
    call = pool.call(hang)
    began = time.monotonic()
    pool.close(timeout=0.3)
    assert time.monotonic() - began < 20 and [type(o) for o in outcomes(call)] == [Died, Died]
    pool.close()
    pool.kill()

def test_a_worker_that_stands_still_holds_up_nobody():
    pool = make()
    os.kill(pool.workers[1].pid, signal.SIGSTOP)
    call = pool.call(lambda worker, data: len(data), bytes(50_000_000))   # more than goes into a socket
    until(lambda: 0 in call.outcomes)
    assert not call.wait(0.2) and call.outcomes[0] == Done(50_000_000)
    with pytest.raises(TimeoutError): aside(pool, 1, who, timeout=0.2)
    pool.close(timeout=0.2)
    assert isinstance(call.outcomes[1], Died)

def test_only_the_kernel_itself_ends_it():
    "A fork of the kernel has the pool's exit handler and may collect the garbage that it was; neither is to end it."
    pool = make()
    process = os.fork()
    if process == 0:
        try: pool.kill(); pool.close()
        finally: os._exit(0)
    os.waitpid(process, 0)
    assert results(pool.call(who))[1][0] == 1

def test_the_garbage_collector_may_end_it_anywhere():
    "Threads of the pool's own cannot wait for themselves."
    class Owner:
        def __init__(self, pool): self.pool = pool
        def __del__(self): self.pool.kill()
    owners = []
    pool = make(on_event=lambda rank, kind, data: owners.clear())
    owners.append(Owner(pool))
    pool.call(lambda worker: worker.send_event("end")).wait(LIMIT)
    until(lambda: not any(alive(member.pid) for member in pool.workers.values()), 5)

def test_a_callback_may_end_it_and_may_fail():
    pool = None
    def on_event(rank, kind, data):
        if kind == "wrong": raise ValueError("of the callback")
        if kind == "end": pool.kill()
        if kind == "ask": answers.append(aside(pool, rank, who)[0])
    answers = []
    pool = make(on_event=on_event)
    with pytest.warns(UserWarning, match="The event 'wrong' of rank 0 could not be processed .ValueError: of the callback"):
        results(pool.call(lambda worker: worker.rank == 0 and worker.send_event("wrong")))
    results(pool.call(lambda worker: worker.send_event("ask")))
    assert sorted(answers) == [0, 1]
    call = pool.call(lambda worker: (worker.send_event("end"), time.sleep(LIMIT)))
    assert [type(o) for o in outcomes(call)] == [Died, Died]

# --- torch --------------------------------------------------------------------------------------------------------------

def test_a_collective_and_another_one(pool):
    "The workers meet where the launcher says."
    def sum_up(worker):
        if not dist.is_initialized(): join_in(worker)
        t = torch.tensor([worker.rank + 1.0, 10.0])
        dist.all_reduce(t)
        return t.tolist()
    for _ in range(2): assert results(pool.call(sum_up)) == [[3.0, 20.0]] * 2

def test_data_workers_of_workers(pool):
    def load(worker):
        from torch.utils.data import DataLoader
        loader = DataLoader(list(range(20)), batch_size=4, num_workers=2, persistent_workers=True)
        return [sum(batch.sum().item() for batch in loader) for _ in range(2)]
    assert results(pool.call(load)) == [[190, 190]] * 2


# --- in a process of its own --------------------------------------------------------------------------------------------

SCRIPT = """
import os, sys, time, signal, threading, multiprocessing, torch
from trainer_nb.launch.worker_pool import WorkerPool
def check(call):
    assert call.wait(60), call
    return [call.outcomes[rank].result for rank in sorted(call.outcomes)]
def itself(worker): return worker
"""

def script(tmp_path, code, *args, ok=True, **env):
    "Run a script; what it printed."
    path = tmp_path/"script.py"
    path.write_text(SCRIPT + textwrap.dedent(code))
    done = subprocess.run([sys.executable, path, *map(str, args)], capture_output=True, text=True, timeout=2 * LIMIT, env=os.environ | {"TMPDIR": tempfile.tempdir} | env)
    if ok: assert done.returncode == 0, done.stdout + done.stderr
    return done

def test_after_work_with_many_threads(tmp_path):
    "A fork of a process whose main thread has a team of threads would hang in its first parallel operation; one made by a fresh thread does not."
    found = script(tmp_path, """
        import datasets, tokenizers
        def work():
            a = torch.randn(700, 700)
            torch.nn.functional.conv2d(torch.randn(2, 3, 64, 64), torch.randn(8, 3, 3, 3))
            return (a @ a).sum().item() + torch.randn(1 << 20).sum().item()
        torch.set_num_threads(2)
        work()
        other = threading.Thread(target=work); other.start(); other.join()
        data = datasets.Dataset.from_dict({"x": list(range(1000))}).map(lambda row: {"y": [x + 1 for x in row["x"]]}, batched=True)
        tokens = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
        tokens.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokens.encode_batch(["a b"] * 1000)
        pool = WorkerPool(2, itself, (data, tokens), threads=2)
        print(pool.method, check(pool.call(lambda worker: (torch.get_num_threads(), work() is not None, sum(worker.payload[0]["y"]), len(worker.payload[1].encode("b b").ids)))))
        pool.close()
        work()
        """, OMP_NUM_THREADS="2", TOKENIZERS_PARALLELISM="true")
    assert found.stdout == f"fork {[(2, True, sum(range(1, 1001)), 2)] * 2}\n", found

def test_a_script_is_not_run_again_and_what_it_defines_goes_along(tmp_path):
    "No guard is needed, whatever the start."
    found = script(tmp_path, """
        print("run", flush=True)
        class Net(torch.nn.Linear):
            def twice(self, x): return scale * self(x)
        scale = 2.0
        net = Net(3, 1)
        pool = WorkerPool(2, itself, {"net": net}, start="spawn")
        back = check(pool.call(lambda worker: (worker.payload["net"].twice(torch.ones(3)).item(), worker.payload["net"])))
        print([o == net.twice(torch.ones(3)).item() for o, _ in back], [isinstance(o, Net) for _, o in back])
        """)   # it does not close it, either
    assert found.stdout == "run\n[True, True] [True, True]\n" and found.stderr == ""

@both
def test_a_kernel_that_is_killed_leaves_nobody(tmp_path, start):
    code = """
        from torch.utils.data import DataLoader
        def start(worker):
            worker.loader = iter(DataLoader(list(range(100)), num_workers=1))
            next(worker.loader)
            return [os.getpid(), *(p.pid for p in multiprocessing.active_children())]
        pool = WorkerPool(2, itself, start=sys.argv[1])
        pids = [pid for pids in check(pool.call(start)) for pid in pids]
        pool.call(lambda worker: worker.rank and time.sleep(600))
        print(*pids, flush=True)
        time.sleep(600)
        """
    (tmp_path/"script.py").write_text(SCRIPT + textwrap.dedent(code))
    before = set(os.listdir(tempfile.tempdir))
    with subprocess.Popen([sys.executable, tmp_path/"script.py", start], stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": tempfile.tempdir}) as kernel:
        pids = [int(pid) for pid in kernel.stdout.readline().split()]
        assert len(pids) == 4 and all(map(alive, pids))
        kernel.kill()
    until(lambda: not any(map(alive, pids)), 5)
    [folder] = set(os.listdir(tempfile.tempdir)) - before   # the kernel cannot remove it any more
    shutil.rmtree(os.path.join(tempfile.tempdir, folder))

# --- in a kernel --------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    from jupyter_kernels import Kernel
    before, tempfile.tempdir = tempfile.tempdir, None   # Jupyter's own files
    try: kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    finally: tempfile.tempdir = before
    kernel.run(SCRIPT + "\ntold = []")
    yield kernel
    kernel.close()

@both
def test_in_a_notebook(kernel, start):
    "Cells define what goes along; a press of the button ends the wait, not the workers; what they print is printed here by whoever wants to."
    kernel.run(f"""
        told.clear()
        class Net(torch.nn.Linear): pass
        def entry(worker):
            print("begun", worker.rank, worker.payload["net"].__class__.__name__)
            return worker
        pool = WorkerPool(2, entry, {{"net": Net(2, 2)}}, start="{start}", on_event=lambda *said: told.append(said))""")
    assert kernel.run("print(told); told.clear()") == r"[(0, 'out', 'begun 0 Net\n')]"
    kernel.pressed("call = pool.call(lambda worker: (time.sleep(1.5), worker.rank)[1])\nprint('here'); call.wait()")
    assert kernel.run("print(check(call), pool.deaths)") == "[0, 1] {}"
    kernel.run("def wrong(worker):\n    return [][worker.rank]")
    found = kernel.fails("call = pool.call(wrong)\ncall.wait()\nraise call.outcomes[1].error", "IndexError")
    assert "return [][worker.rank]" in found.shown and "rank 1" in found.shown
    assert kernel.run("import IPython\nprint(check(pool.call(lambda worker: str(IPython.get_ipython()))))") == "['None', 'None']"
    bar = "(__import__('tqdm.notebook').notebook.tqdm(range(3), desc='bar'), print('after'))[1]"
    assert kernel.run(f"told.clear(); check(pool.call(lambda worker: {bar})); print(told[-1])") == r"(0, 'out', 'after\n')"
    assert kernel.run("pool.close(); print(len(multiprocessing.active_children()), pool)") == f"0 WorkerPool(2 workers by {start}, closed)"


# --- what is carried ----------------------------------------------------------------------------------------------------

def test_what_cannot_be_carried_is_named():
    class Reader:
        def __init__(self): self.by, self.count = {"train": [1, open(os.devnull, "rb")]}, 3
    class Careful(Reader):
        def __getstate__(self): return {"count": self.count}
    lock, numbers = threading.Lock(), (i for i in range(3))
    for words, parts in {
        "the train_dataset cannot be sent there: its attribute `by.'train'..1.` is a BufferedReader .*Open it when it is first used": {"n": 1, "train_dataset": Reader()},
        "the data_collator .*: its part `→ lock` is a lock": {"data_collator": lambda o: (lock, o)},
        "the loss_func .*: its part `→ 0` is a generator.*whose __iter__": {"loss_func": partial(print, numbers)},
        "the train_dataset .*: it is a generator": {"payload": {"train_dataset": numbers}},
        "the hook .*: its part `→ self.by": {"hook": Reader().__init__},
    }.items():
        with pytest.raises(ValueError, match=f"They are fresh, and {words}"): pack_values(parts, "They are fresh")
    assert unpack_values(pack_values({"reader": Careful()}))["reader"].count == 3

def test_the_temp_folder_where_shared_memory_is_missing_or_too_small(monkeypatch, tmp_path):
    weights = {"w": torch.randn(1000)}
    for places in (["/nowhere"], ["/proc"], []):
        monkeypatch.setattr(carry, "SHARED_DIRS", places)
        shared = SharedTensors.write(weights, "trainer_nb-test")
        assert os.path.dirname(shared.path) == tempfile.gettempdir() and os.stat(shared.path).st_mode & 0o777 == 0o600
        assert torch.equal(shared.tensors()["w"], weights["w"]) and not os.path.exists(shared.path)

def test_several_may_read_what_is_shared():
    shared = SharedTensors.write({"w": torch.zeros(1000)}, "trainer_nb-test")
    one, other = shared.tensors(last=False)["w"], shared.tensors(last=False)["w"]
    one += 1
    assert other.sum() == 0 and shared.tensors()["w"].sum() == 0 and one.untyped_storage().nbytes() == 4000

@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.uint16, torch.float8_e4m3fn])
def test_every_kind_of_tensor_is_shared(dtype):
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (6, 4, dtype.itemsize), dtype=torch.uint8).view(dtype).squeeze(-1)
    tensors = {"plain": raw, "turned": raw.T, "part": raw[1:, 1:3], "scalar": raw[0, 0], "none": raw[:0], "wide": raw[:1].expand(5, 4)}
    found = SharedTensors.write(tensors, "trainer_nb-test").tensors()
    assert {k: digest(v) for k, v in found.items()} == {k: digest(v) for k, v in tensors.items()}
    assert found["turned"].stride() == raw.T.stride()
