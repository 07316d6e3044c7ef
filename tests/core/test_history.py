import json, math, os, pickle, random, subprocess, sys, textwrap, threading, time, warnings
from pathlib import Path
import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from trainer_nb.core.history import RESERVED_KINDS, History, Place, is_ancestor, read_history
from trainer_nb.core.records import Record, Records
from trainer_nb.core.columns import COLUMN_NAMES, to_host
from trainer_nb.core.log_file import LOG_WRITER, LogFile, encode_non_finite


class Transfers(TorchFunctionMode):
    "Counts what would wait for a device."
    waits = {"item", "cpu", "tolist", "numpy", "to", "cuda", "__float__", "__int__", "__bool__", "__array__", "isnan", "isfinite"}
    def __init__(self): super().__init__(); self.seen = []
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in self.waits: self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def fill(h, n, start=1, loss=lambda i: 1.0 / i, norm=lambda i: float(i)):
    for i in range(start, start + n): h.append(i, i / 10, 1e-3, 32, i * 0.02, loss(i), norm(i))
    return h


def same(a, b):
    for name in COLUMN_NAMES: np.testing.assert_array_equal(a.column(name), b.column(name))
    assert a.rows.view("unknown").tolist() == b.rows.view("unknown").tolist()
    assert (a.run_id, a.parent, a.name, a.started) == (b.run_id, b.parent, b.name, b.started)
    assert encode_non_finite(a.events) == encode_non_finite(b.events) and encode_non_finite([*map(list, a.metrics.items())]) == encode_non_finite([*map(list, b.metrics.items())])


# ---- in memory

def test_nothing_is_fetched_until_asked_and_then_once(on_device):
    h = History()
    with Transfers() as t:
        for i in range(1, 1001): h.append(i, i / 10, torch.tensor(1e-3), 32, i * 0.02, torch.tensor(1.0 / i), torch.tensor(2.0))
        h[3], h[5:9], len(h), h.place(), h[3].step, h[3].seconds, h[3].samples_per_second, h[-1].epoch
        h.note("set", 4, lr=0.1)
        assert t.seen == []
        h[3].loss
        assert t.seen == ["cpu", "numpy"]      # one transfer; numpy() is on the host
        t.seen.clear()
        h.mean_loss(), h.column("loss"), h[900].grad_norm, h[:].loss, repr(h), h.frame()
        assert t.seen == []
    assert h[9].loss == pytest.approx(0.1) and h[9].learning_rate == pytest.approx(1e-3)


def test_numbers_on_the_host_are_stored_at_once():
    "A row of CPU tensors is complete: nothing is kept for a transfer, and reading a record transfers nothing."
    h = History()
    for i in range(1, 101): h.append(i, i / 10, torch.tensor(1e-3), 32, i * 0.02, torch.tensor([1.0 / i]), torch.tensor(2.0, dtype=torch.bfloat16))
    assert not h.rows.pending and h.rows.fetched == h.rows.whole() == 100
    with Transfers() as t: found = h[99].loss, h[99].grad_norm
    assert t.seen == [] and found == (torch.tensor(1.0 / 100).item(), 2.0)
    with pytest.raises(ValueError, match="loss.mean"): h.append(101, 10.1, 1e-3, 32, 2.02, torch.ones(2))
    assert len(h) == 100


def test_reading_old_rows_does_not_fetch_new_ones(on_device):
    h = fill(History(), 5)
    h.fetch()
    h.append(6, 0.6, 1e-3, 32, 0.2, torch.tensor(1.0))
    assert h[2].loss == 1 / 3 and h.rows.pending
    assert h[-1].loss == 1.0 and not h.rows.pending


def test_a_failing_device_loses_nothing(monkeypatch, on_device):
    h = fill(History(), 100, loss=lambda i: torch.tensor(float(i)))
    def broken(self): raise RuntimeError("CUDA error: device-side assert")
    with monkeypatch.context() as m:
        m.setattr(torch.Tensor, "cpu", broken)
        with pytest.raises(RuntimeError, match="device-side"): h.fetch()
        with pytest.raises(RuntimeError, match="device-side"): h[0].loss
        h.append(101, 10.1, 1e-3, 32, 3.0, torch.tensor(101.0))
    assert h.column("loss").tolist() == [float(i) for i in range(1, 102)]


def test_values_that_nothing_fetches_take_bounded_memory(monkeypatch, on_device):
    "After many rows they are fetched, and a device that fails then does not stop the steps."
    monkeypatch.setattr("trainer_nb.core.columns.MAX_DEFERRED_ROWS", 64)
    def broken(*a, **k): raise RuntimeError("out of memory")
    for fails in (False, True):
        h = History()
        with monkeypatch.context() as m:
            if fails: m.setattr(torch, "stack", broken)
            fill(h, 200, loss=lambda i: torch.tensor(float(i)))
            assert len(h.rows.pending) == (200 if fails else 7)
        assert h.column("loss").tolist() == [float(i) for i in range(1, 201)]


def test_kinds_of_tensors():
    h, w = History(), torch.ones(3, requires_grad=True)
    losses = [w.sum(), torch.tensor([2.0]), torch.tensor(3, dtype=torch.int64), torch.tensor(1.5, dtype=torch.bfloat16),
              torch.tensor(math.pi, dtype=torch.float64), torch.nn.Parameter(torch.tensor(4.0)), np.float32(0.5), 7, torch.tensor(math.nan)]
    for i, loss in enumerate(losses, 1): h.append(i, 0.1, 1e-3, 1, i, loss)
    assert not any(o.requires_grad for o in h.rows.pending.values())
    assert h.column("loss")[:-1].tolist() == [3.0, 2.0, 3.0, 1.5, math.pi, 4.0, 0.5, 7.0] and math.isnan(h[-1].loss)
    for bad in (torch.ones(2), torch.ones(0), "x"):
        with pytest.raises((ValueError, TypeError)): h.append(10, 0.1, 1e-3, 1, 10, bad)
    with pytest.raises(TypeError): h.append(10, None, 1e-3, 1, 10, 1.0)
    assert len(h) == len(losses) and not h.rows.pending


def test_several_devices_have_a_transfer_each():
    with Transfers() as t: assert [o.tolist() for o in to_host([torch.tensor(1.0), torch.ones(2), torch.tensor(3.0)])] == [[1.0], [1.0, 1.0], [3.0]]
    assert t.seen == ["cpu", "numpy"]
    with pytest.raises(NotImplementedError, match="meta"): to_host([torch.tensor(1.0), torch.tensor(2.0, device="meta")])


def test_threads_read_while_the_loop_appends():
    h, stop, errors = History(), threading.Event(), []
    def look():
        try:
            while not stop.is_set(): h.mean_loss(); h[-5:].loss; h.column("seconds"); repr(h)
        except Exception as e: errors.append(e)
    threads = [threading.Thread(target=look) for _ in range(2)]
    for o in threads: o.start()
    fill(h, 20_000, loss=lambda i: torch.tensor(float(i)))
    stop.set()
    for o in threads: o.join(30)
    assert not errors and h.column("loss").tolist() == [float(i) for i in range(1, 20_001)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_is_not_synchronised():
    h, x = History(), torch.ones(1000, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try: fill(h, 1000, loss=lambda i: (x * i).mean(), norm=lambda i: x.norm())
    finally: torch.cuda.set_sync_debug_mode("default")
    assert h.column("loss").tolist() == [float(i) for i in range(1, 1001)]


# ---- records

def test_records():
    h = fill(History(), 30)
    assert isinstance(h[0], Record) and isinstance(h[2:4], Records) and isinstance(h[:][3:5], Records)
    assert h[-1].step == 30 and [o.step for o in h] == list(range(1, 31)) and h[2:5].loss == [1/3, 1/4, 1/5]
    for i in (30, -31):
        with pytest.raises(IndexError): h[i]
    assert not hasattr(h[0], "__dict__") and Record.__slots__ == ("history", "index")
    h.note("evaluate", 30, eval_loss=0.5)
    assert h[-1].metrics == {"eval_loss": 0.5} and h[0].metrics == {}
    d = h[-1].as_dict()
    assert d["samples_per_second"] == pytest.approx(32 / 0.02) and d["abandoned"] is False and json.dumps(d)
    assert History()[:].loss == [] and repr(History()[:]) == "no rows" and "no rows" in History()._repr_html_()


def test_rates():
    h = History()
    for step, seconds in [(1, 0.5), (2, 1.0), (3, 1.0), (4, math.nan), (5, 2.0), (9, 3.0), (10, 4.0)]: h.append(step, 0, 1e-3, 8, seconds, 1.0)
    found = h.column("samples_per_second")
    np.testing.assert_array_equal(found, [16, 16, math.nan, math.nan, math.nan, math.nan, 8])
    np.testing.assert_array_equal([o.samples_per_second for o in h], found)
    later = History()
    later.append(101, 0, 1e-3, 8, 50.0, 1.0)
    assert math.isnan(later[0].samples_per_second)


def test_tables():
    h = fill(History(), 40, loss=lambda i: 1.23456 * i, norm=lambda i: None if i < 40 else math.nan)
    lines = repr(h[:]).splitlines()
    assert len(lines) == 12 and "…" in lines[6] and len({len(o) for o in lines}) == 1
    assert lines[1].split()[0] == "1" and lines[-1].split()[0] == "40"
    assert "1.23" in lines[1] and "—" in lines[1] and "nan" not in lines[1] and lines[-1].split()[4] == "nan"
    assert len(repr(h[:12]).splitlines()) == 13 and "…" not in repr(h[:12])
    assert h[:]._repr_html_().count("<tr>") == 12 and h._repr_html_() == h[:]._repr_html_()
    assert h[0]._repr_html_() == h[:1]._repr_html_() and repr(h[0]) == repr(h[:1])


HOSTILE = ["<script>alert(1)</script>", "a\nb\x1b[31m", "\u202eeval", 'x"onload="y', "self", "kind", "step", "epoch", "loss", "x" * 500, "\udc80", "é", "NaN"]

def test_hostile_metric_names():
    h = fill(History(), 3)
    h.note("evaluate", 3, **{o: 0.5 for o in HOSTILE}, eval_runtime=1.0)
    for table in (h[:], h[2], h.evaluations(), h):
        page, plain_text = table._repr_html_(), repr(table)
        assert "<script" not in page and "&lt;script&gt;" in page and 'x"onload' not in page
        assert "\x1b" not in plain_text + page and "\u202e" not in plain_text and "eval_runtime" not in page and len(plain_text) < 5000
    assert h[2].metrics["eval_runtime"] == 1.0 and h[2].loss == 1 / 3 and h.frame().loss[2] == 1 / 3 and h.frame()["metrics.loss"][2] == 0.5


def test_frame():
    pd = pytest.importorskip("pandas")
    h = fill(History(), 2)
    h.note("evaluate", 2, acc=0.5)
    place = h.place()
    fill(h, 2, start=3)
    h.abandon(place)
    fill(h, 1, start=3, loss=lambda i: 9.0)
    f = h.frame()
    assert f.step.tolist() == [1, 2, 3] and f.loss.tolist() == [1, 0.5, 9] and f.acc[1] == 0.5 and "abandoned" not in f
    f = h.frame(all=True)
    assert f.step.tolist() == [1, 2, 3, 4, 3] and f.abandoned.tolist() == [False, False, True, True, False]
    assert h[1:3].frame().acc.isna().tolist() == [False, True] and h.evaluations().frame().acc.tolist() == [0.5]
    assert isinstance(History().frame(), pd.DataFrame)
    assert pd.DataFrame(h)[[*h.frame(all=True)]].equals(h.frame(all=True))
    # the best of the rows that count
    assert [h.best("loss").step, h.best("loss", greater_is_better=True).loss, h.current.best("acc").step, h[1]["acc"], dict(h[1])["acc"]] == [2, 9, 2, 0.5, 0.5]
    h.note("evaluate", 3, f1=math.nan)
    for name in ("f1", "accuracy"):
        with pytest.raises(KeyError): h.best(name)


def test_mean_loss():
    h = fill(History(), 10, loss=float)
    place = len(h)
    fill(h, 10, start=11, loss=lambda i: torch.tensor(float(i)))
    assert h.mean_loss() == 10.5 and h.mean_loss(place) == 15.5 and h.mean_loss(0, place) == 5.5 and math.isnan(h.mean_loss(20))
    h.append(21, 2.1, 1e-3, 32, 1.0)
    assert h.mean_loss() == 10.5                       # unknown is not nan
    h.append(22, 2.2, 1e-3, 32, 1.1, math.inf)
    assert h.mean_loss() == math.inf
    h.append(23, 2.3, 1e-3, 32, 1.2, -math.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(h.mean_loss())


# ---- events

def test_abandon():
    h = fill(History(), 4)
    beginning = History().place()
    h.note("evaluate", 4, acc=0.1)
    four = h.place()
    fill(h, 2, start=5)
    h.note("evaluate", 6, acc=0.2)
    h.abandon(four)
    assert h.column("abandoned").tolist() == [0, 0, 0, 0, 1, 1] and [o["abandoned"] for o in h.events] == [False, True]
    fill(h, 1, start=5)
    h.note("evaluate", 4, late=1)
    five = h.place()
    fill(h, 1, start=6)
    h.note("evaluate", 6, acc=0.9)
    assert [o.metrics for o in h] == [{}, {}, {}, {"acc": 0.1, "late": 1}, {}, {"acc": 0.2}, {}, {"acc": 0.9}]
    h.abandon(five)
    assert h.column("abandoned").tolist() == [0, 0, 0, 0, 1, 1, 0, 1]
    assert list(h.evaluations()) == [{"step": 4, "acc": 0.1}, {"step": 4, "late": 1}] and len(h.evaluations(all=True)) == 4
    assert "discarded" in repr(h[:]) and "discarded" not in repr(h[:3])
    assert h[:].discarded == h[:].abandoned == [record.discarded for record in h[:]] and True in h[:].discarded
    h.abandon(beginning)
    assert h.column("abandoned").all() and math.isnan(h.mean_loss())


def test_the_rows_in_force():
    "`current` leaves out what a rewind has discarded, is read like a history, and follows the run."
    h = fill(History("a"), 6)
    assert h.current[:].step == [1, 2, 3, 4, 5, 6] and "discarded" not in repr(h)
    now = h.current
    h.abandon(Place(3, 0, 0))
    assert len(now) == 3 and now[-1].step == 3 and [o.step for o in now] == [1, 2, 3] and now["loss"].tolist() == [1, 1/2, 1/3]
    fill(h, 1, start=4, loss=lambda i: 9.0)
    assert now[-2:].step == [3, 4] and now[-1].loss == 9.0 and now[-1].index == 6 and type(now[1:]) is Records
    h.note("evaluate", 4, eval_loss=0.5)
    assert now["eval_loss"][-1] == 0.5 and now.frame().equals(h.frame()) and "0.500" in repr(now) and "discarded" not in repr(now)
    assert repr(now).startswith(f"Current rows of run {h.run_id} (a), 4 rows\n") and "<table" in now._repr_html_()
    # the history itself tells that it has others
    assert repr(h).startswith(f"History of run {h.run_id} (a), 7 rows, 3 of them discarded (history.current leaves them out)\n")
    assert "3 of them discarded" in h._repr_html_() and "discarded (" not in fill(History(), 2)._repr_html_()
    with pytest.raises(IndexError, match="no row 4: there are 4"): now[4]
    with pytest.raises(IndexError, match="no row -5"): now[-5]
    with pytest.raises(TypeError, match="not by 1.5"): now[1.5]
    with pytest.raises(KeyError, match="no column 'los'.*Did you mean"): now["los"]
    with pytest.raises(AttributeError, match=r"history.current\['loss'\]"): now.loss
    assert not History().current and repr(History("b").current[:]) == repr(Records())


def test_the_rows_in_force_wait_for_no_device(on_device):
    h = History()
    for i in range(1, 5): h.append(i, i / 10, 1e-3, 32, i * 0.02, torch.tensor(1.0 / i), torch.tensor(1.0))
    h.abandon(Place(2, 0, 0))
    for i in range(3, 5): h.append(i, i / 10, 1e-3, 32, i * 0.02, torch.tensor(1.0 / i), torch.tensor(1.0))
    with Transfers() as transfers: assert len(h.current) == 4 and h.current[-1].step == 4
    assert transfers.seen == []


@pytest.mark.parametrize("seed", range(20))
def test_going_back_and_forth_between_places(tmp_path, seed):
    "Against a model that knows no flags: what counts at a place is the path that led to it."
    draw, h = random.Random(seed), History()
    h.open_log(tmp_path)
    path, places = [], [(h.place(), [])]               # path: what counts now, in order; places: with the path that led there
    for _ in range(60):
        what = draw.choice(["row", "row", "event", "place", "back"])
        if what == "row": path = [*path, ("row", len(h))]; fill(h, 1, start=draw.randint(1, 9), loss=lambda i: torch.tensor(1.0))
        elif what == "event": path = [*path, ("event", len(h.events))]; h.note("evaluate", 3, acc=0.5)
        elif what == "place": places.append((h.place(), path))
        else:
            place, path = draw.choice(places)
            h.abandon(place)
            assert is_ancestor(h, place)
        assert [o.index for o in h if not o.abandoned] == [i for kind, i in path if kind == "row"]
        assert [i for i, e in enumerate(h.events) if not e["abandoned"]] == [i for kind, i in path if kind == "event"]
        for place, then in places: assert is_ancestor(h, place) == (path[:len(then)] == then)
    h.flush()
    same(h, read_history(h.path))


def test_events_hold_no_tensors():
    h, big = History(), torch.ones(3)
    h.note("log", 0, a=big, b={"c": [torch.tensor(1.0), np.arange(2)]}, kind="x", self=1)
    assert h.events[0]["data"] == {"a": [1.0, 1.0, 1.0], "b": {"c": [1.0, [0, 1]]}, "kind": "x", "self": 1}
    for kind in RESERVED_KINDS:
        with pytest.raises(ValueError, match="another kind"): h.note(kind, 0)


# ---- the file

def test_round_trip(tmp_path):
    h = History("a \"name\"\n\u2028 NaN", parent="0123")
    h.note("train_begin", 0, epochs=3)
    h.open_log(tmp_path)
    fill(h, 100, loss=lambda i: torch.tensor([math.nan, math.inf, -math.inf, 0.1][i % 4]), norm=lambda i: [None, math.nan, 1e-300][i % 3])
    h.note("evaluate", 90, **{o: v for o, v in zip(HOSTILE, [math.nan, math.inf, "NaN", "\\Infinity", "-Infinity", None, True, 2**70, -0.0, [1, [2]], {"é\udc80": 1}, 1e308, ""])})
    h.abandon(Place(95, 1, 0))
    fill(h, 3000, start=96)
    h.note("exception", 3000, error="<b>\x00", where=Path("x"), value=torch.tensor(2.0))
    h.abandon(Place(3055, 3, 1))
    h.flush()
    same(h, read_history(h.path))
    h.close_log()
    for line in h.path.read_text("utf-8").splitlines(): json.loads(line, parse_constant=lambda o: pytest.fail(o))
    for place in (h.path, h.path.parent, tmp_path, str(tmp_path)): same(h, read_history(place))
    assert read_history(tmp_path).path == h.path


def test_rows_reach_the_file_without_a_fetch_when_they_are_floats(tmp_path):
    h = History(); h.open_log(tmp_path)
    fill(h, 64)
    LOG_WRITER.wait(10)
    assert len(read_history(tmp_path)) == 64
    h.close_log()


class Asked(torch.Tensor):
    "A number that remembers which threads have fetched it."
    threads = []
    def cpu(self):
        Asked.threads.append(threading.current_thread().name)
        return super().cpu()


def test_rows_that_wait_are_fetched_by_the_thread_that_writes(tmp_path):
    "The loop asks the device for nothing; who follows the file waits for two seconds of training."
    h = History(); h.open_log(tmp_path)
    Asked.threads.clear()
    for i in range(10): h.append(i + 1, 0.1, 1e-3, 8, 0.1 * i, torch.tensor(1.0).as_subclass(Asked), 1.0)
    LOG_WRITER.wait(10)
    first = len(read_history(tmp_path))
    assert first <= 1                                 # asked once, with the first row or before
    for i in range(10, 30): h.append(i + 1, 0.1, 1e-3, 8, 0.1 * i, torch.tensor(1.0).as_subclass(Asked), 1.0)
    LOG_WRITER.wait(10), LOG_WRITER.wait(10)
    assert first < len(read_history(tmp_path)) <= 30
    assert set(Asked.threads) == {"trainer_nb-log"}
    h.close_log()
    same(h, read_history(tmp_path))


def test_late_close_and_open_again(tmp_path):
    h = fill(History(), 5000)
    h.note("log", 5, x=1)
    first = h.open_log(tmp_path, name="late")
    assert h.open_log(tmp_path) == first
    h.close_log()
    fill(h, 10, start=5001); h.abandon(Place(5005, 1, 0)); h.note("log", 5005)
    h.open_log(tmp_path)
    h.close_log()
    same(h, read_history(tmp_path))
    back = read_history(tmp_path)                              # a run that is read may go on in its file
    back.append(5006, 1.0, 1e-3, 32, 200.0, 0.5)
    back.open_log(tmp_path); back.close_log()
    same(back, read_history(tmp_path))
    with pytest.warns(UserWarning, match="another run"): assert h.open_log(tmp_path) is None
    assert h.open_log(tmp_path / "other") and h.flush()
    same(h, read_history(tmp_path / "other"))


def test_ids_do_not_touch_or_follow_the_seeds(tmp_path):
    import random
    ids = set()
    for _ in range(3):
        random.seed(0); np.random.seed(0); torch.manual_seed(0)
        ids.add(History().run_id)
        assert torch.rand(()) == torch.rand((), generator=torch.Generator().manual_seed(0))
    assert len(ids) == 3
    for bad in ("../x", "a/b", "", "a" * 65, "é"):
        if bad:
            with pytest.raises(ValueError, match="run's id"): History(run_id=bad)


def written(tmp_path, n=10):
    h = fill(History(), n); h.open_log(tmp_path)
    h.note("log", n, x=1)
    h.close_log()
    return h, h.path, h.path.read_bytes().splitlines(keepends=True)


def test_truncated_at_every_byte(tmp_path):
    h, path, lines = written(tmp_path)
    whole, head = b"".join(lines), len(lines[0])
    for cut in range(head, len(whole)):
        path.write_bytes(whole[:cut])
        back = read_history(path)
        assert len(back) in (0, 10)
    for cut in (0, 5, head - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="empty"): read_history(path)
    path.write_bytes(whole + b"\0" * 100)
    same(read_history(path), h)
    path.write_bytes(whole[:-5])                       # going on after half a line
    h.open_log(tmp_path); h.close_log()
    same(read_history(path), h)


@pytest.mark.parametrize("bad", [b"nonsense\n", b"[]\n", b"{}\n", b'{"kind":"rows","first":0,"step":[1]}\n', b'{"kind":"log","step":NaN}\n', b'{"kind":"log","step":1,"time":1,"rows":"x","data":{}}\n', b'{"kind":"abandon","to":[0,0,0],"time":1,"rows":0.5,"events":0}\n', b'{"kind":"abandon","to":[1,0,0],"time":1,"rows":0,"events":0}\n', b'{"kind":"abandon","to":[0,0,1],"time":1,"rows":0,"events":0}\n', b'{"kind":"abandon","to":[0,0],"time":1,"rows":0,"events":0}\n', b'{"kind":"log","step":1,"time":1,"rows":0,"data":3}\n', b"\xff\xfe\n", b"[" * 5000 + b"\n",
    b'{"kind":"rows","first":0,"step":[1],"epoch":[1],"loss":[1,2],"learning_rate":[1],"grad_norm":[1],"samples":[1],"seconds":[1]}\n',
    b'{"kind":"rows","first":7,"step":[],"epoch":[],"loss":[],"learning_rate":[],"grad_norm":[],"samples":[],"seconds":[]}\n',
    b'{"kind":"rows","first":0,"step":["x"],"epoch":[1],"loss":[1],"learning_rate":[1],"grad_norm":[1],"samples":[1],"seconds":[1]}\n'])
def test_damage_in_the_middle_names_file_and_line(tmp_path, bad):
    h, path, lines = written(tmp_path)
    path.write_bytes(lines[0] + bad + b"".join(lines[1:]))
    with pytest.raises(ValueError, match="Line 2 of .*run-.*damaged"): read_history(path)


def test_headers(tmp_path):
    h, path, lines = written(tmp_path)
    head = json.loads(lines[0])
    for change, said in [({"schema": 4}, "Install a newer"), ({"run": "../../x"}, "Line 1 .*damaged"), ({"kind": "log"}, "Line 1 .*damaged"), ({"started": None}, "Line 1")]:
        path.write_text(json.dumps(head | change) + "\n")
        with pytest.raises(ValueError, match=said): read_history(path)
    with pytest.raises(FileNotFoundError, match="output_dir"): read_history(tmp_path / "nowhere")


def test_disk_errors_warn_once_and_training_goes_on(tmp_path):
    import shutil
    h = History(); h.open_log(tmp_path / "out")
    fill(h, 10); h.flush()
    shutil.rmtree(tmp_path / "out")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for i in range(11, 500): fill(h, 1, start=i); h.fetch()
        h.note("log", 499, x=1)
        assert h.flush() and h.flush()
        h.close_log()
    assert len(said) == 1 and "run-" in str(said[0].message) and "No such file" in str(said[0].message)
    assert len(h) == 499 and not (tmp_path / "out").exists()
    h.open_log(tmp_path / "out"); h.close_log()
    same(read_history(tmp_path / "out"), h)
    blocked = tmp_path / "file"; blocked.write_text("")
    with pytest.warns(UserWarning, match="cannot be written"): assert h.open_log(blocked) is None


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk(tmp_path):
    h = History(); h.open_log(tmp_path)
    h.log.path = "/dev/full"
    fill(h, 10)
    with pytest.warns(UserWarning, match="/dev/full.*No space"): h.flush()
    fill(h, 10, start=11)
    h.open_log(tmp_path); h.close_log()
    same(read_history(tmp_path), h)


def test_a_slow_disk_does_not_hold_up_the_loop(tmp_path, monkeypatch):
    go = threading.Event()
    h = History(); h.open_log(tmp_path)
    monkeypatch.setattr(LogFile, "write", lambda self, items, write=LogFile.write: (go.wait(30), write(self, items)))
    start = time.perf_counter()
    fill(h, 1000); h.note("log", 1)
    assert not h.flush(timeout=0.1) and time.perf_counter() - start < 10
    go.set()
    h.close_log()
    same(read_history(tmp_path), h)


def test_a_broken_device_still_closes_the_log(tmp_path, monkeypatch, on_device):
    h = History(); h.open_log(tmp_path)
    fill(h, 10)
    h.fetch()
    h.append(11, 1.1, 1e-3, 32, 0.3, torch.tensor(1.0))
    h.note("exception", 11)
    def broken(self): raise RuntimeError("CUDA error")
    with monkeypatch.context() as m:
        m.setattr(torch.Tensor, "cpu", broken)
        with pytest.raises(RuntimeError, match="CUDA"): h.close_log()
        h.close_log()
        assert len(read_history(tmp_path)) == 10 and len(read_history(tmp_path).events) == 1
        assert h.open_log(tmp_path)
    h.close_log()
    same(read_history(tmp_path), h)


def test_a_line_written_twice_counts_once(tmp_path):
    h, path, lines = written(tmp_path)
    path.write_bytes(lines[0] + lines[1] * 3 + lines[2])
    same(read_history(path), h)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_neither_writes_nor_hangs(tmp_path):
    h = fill(History(), 100); h.open_log(tmp_path); h.flush()
    size = h.path.stat().st_size
    with h.rows.lock, h.rows.fetching:                         # as if another thread held them
        done = []
        held = threading.Thread(target=lambda: done.append(os.fork()) or (done[0] == 0 and child(h, tmp_path)))
        held.start(); held.join()
    for _ in range(300):
        pid, status = os.waitpid(done[0], os.WNOHANG)
        if pid: break
        time.sleep(0.1)
    else: os.kill(done[0], 9); pytest.fail("the child hangs")
    assert status == 0 and h.path.stat().st_size == size
    fill(h, 100, start=101); h.close_log()
    same(read_history(h.path), h)


def child(h, tmp_path):
    code = 1
    try:
        fill(h, 200, start=101)
        h.note("log", 1); h.flush(); h.close_log()
        h.open_log(tmp_path); h.close_log()            # going on with it is another run
        if len(read_history(h.path)) != 300 or len(list((tmp_path / "runs").iterdir())) != 2: os._exit(3)
        own = fill(History(), 10); own.open_log(tmp_path / "child"); own.close_log()   # a log of its own works
        code = 0 if len(read_history(tmp_path / "child")) == 10 else 2
    finally: os._exit(code)


def run(code, *args):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, args)], capture_output=True, text=True, timeout=120)


def test_written_at_exit(tmp_path):
    done = run("""
        import sys, torch; from trainer_nb.core.history import History
        h = History(); h.open_log(sys.argv[1])
        for i in range(1, 101): h.append(i, i / 10, 1e-3, 32, i, torch.tensor(1.0))
        raise ValueError("the cell failed")
        """, tmp_path)
    assert "the cell failed" in done.stderr and len(read_history(tmp_path)) == 100


def test_a_killed_process_leaves_a_readable_file(tmp_path):
    done = run("""
        import sys, os; from trainer_nb.core.history import History
        h = History(); h.open_log(sys.argv[1])
        for i in range(1, 100001): h.append(i, i / 10, 1e-3, 32, i, 1.0)
        os.kill(os.getpid(), 9)
        """, tmp_path)
    assert done.returncode == -9 and 0 <= len(read_history(tmp_path)) <= 100_000


def test_fork_and_exit_says_nothing(tmp_path):
    done = run("""
        import sys, os; from trainer_nb.core.history import History
        h = History(); h.open_log(sys.argv[1]); h.append(1, 0.1, 1e-3, 32, 1.0, 1.0); h.flush()
        if os.fork() == 0: h.append(2, 0.2, 1e-3, 32, 2.0, 1.0); sys.exit(0)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        """, tmp_path)
    assert done.stdout == "0\n" and done.stderr == "" and len(read_history(tmp_path)) == 1


def test_a_history_is_let_go():
    import gc, weakref
    h = fill(History(), 5); held = weakref.ref(h)
    del h; gc.collect()
    assert held() is None


def test_import_is_light():
    done = run("import sys, trainer_nb.core.history as h, threading; print([o for o in ('pandas', 'accelerate', 'torch._dynamo', 'fastcore') if o in sys.modules], threading.active_count())")
    assert done.stdout.strip() == "[] 1"


def test_a_pickled_record_has_values_of_its_own():
    "Those of its step, also what is computed from the step before, without the history."
    h = fill(History(), 200, loss=lambda i: torch.tensor(1.0 / i))
    h.append(201, 20.1, 1e-3, 32, 4.02)   # without a loss and a norm
    h.metrics[1] = {"eval_loss": 3.0}
    h.rows.abandoned[1] = 1
    for records in (h[:3], h[-2:]):
        found = pickle.loads(pickle.dumps(records))
        assert type(found) is Records and repr(found) == repr(records) and found._repr_html_() == records._repr_html_()
        assert str([r.as_dict() for r in found]) == str([r.as_dict() for r in records]) and found.frame().equals(records.frame())
    assert len(pickle.dumps(h[150])) < 1000
