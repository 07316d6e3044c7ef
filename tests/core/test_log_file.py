"The log file by itself: what may be written, by whom, and what is read back."
import json, math, os, threading, time
from pathlib import Path

import numpy as np
import pytest, torch

from trainer_nb.core import log_file
from trainer_nb.core.log_file import LogFile, prepare_log_file, dump_line, find_log, log_path, to_plain_data, encode_non_finite, decode_non_finite


def opened(folder, run="abc", **head):
    path = log_path(folder, run)
    prepare_log_file(path, dict(run=run, started=0.0) | head)
    return LogFile(path)


def lines(path):
    log_file.LOG_WRITER.wait_or_warn(60)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_plain():
    loop = []; loop.append(loop)
    class Rude(dict):
        def items(self): raise SystemError("no")
    class Word(str):
        def __str__(self): raise RuntimeError("no")
    odd = [loop, Rude(a=1), Word("w"), 10**9999, 1j, np.longdouble(1), np.complex64(1), np.datetime64("2020-01-01"), torch.ones(1, device="meta"), b"x",
           {1: 2, None: {3}}, range(3), Path("a/b"), torch.float16, object, math.nan, np.bool_(True), torch.ones(2000), torch.tensor(True)]
    found = to_plain_data(odd)
    assert decode_non_finite(json.loads(json.dumps(encode_non_finite(found), allow_nan=False)))[:15] == found[:15]
    assert found[2] == "w" and found[10] == {"1": 2, "None": [3]} and found[12] == os.path.join("a", "b") and found[16] is True and "2000" in found[17]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "NaN", "\\NaN", "\\\\-Infinity", "x", "", None, True, [1, [math.nan]], {"NaN": math.inf}, -0.0])
def test_strict_and_back(value):
    text = dump_line({"value": value})
    json.loads(text, parse_constant=lambda o: pytest.fail(o))
    assert repr(decode_non_finite(json.loads(text))) == repr({"value": value}) and text.count("\n") == 1


def test_lines_come_out_as_they_went_in(tmp_path):
    log = opened(tmp_path, parent=None, name="a \u2028 b")
    for i in range(5000): log.put({"kind": "n", "i": i} if i % 2 else lambda i=i: {"kind": "n", "i": i})
    assert log.wait(30)
    head, *rest = lines(log.path)
    assert head == {"kind": "run", "schema": 3, "run": "abc", "started": 0.0, "parent": None, "name": "a \u2028 b"}
    assert [o["i"] for o in rest] == list(range(5000)) and log.error is None


def test_many_threads_and_logs_keep_lines_whole(tmp_path):
    logs = [opened(tmp_path, f"run{i}") for i in range(3)]
    def put(k):
        for i in range(500): logs[i % 3].put({"kind": "n", "thread": k, "i": i, "x": "y" * 500})
    threads = [threading.Thread(target=put, args=(k,)) for k in range(4)]
    for o in threads: o.start()
    for o in threads: o.join()
    assert logs[0].wait(30)
    found = [o for log in logs for o in lines(log.path)[1:]]
    assert sorted((o["thread"], o["i"]) for o in found) == [(k, i) for k in range(4) for i in range(500)]


def test_begin_again_cuts_half_a_line(tmp_path):
    log = opened(tmp_path)
    log.put({"kind": "n"}); log.wait()
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + b'{"kind":"ha')
    assert prepare_log_file(log.path, dict(run="abc")) is False and log.path.read_bytes() == whole
    log.path.write_bytes(b'{"kind":"r')                                   # not even the head was whole
    assert prepare_log_file(log.path, dict(run="abc", started=1.0)) is True and lines(log.path)[0]["started"] == 1.0


def test_the_first_error_ends_a_log_and_no_other(tmp_path):
    broken, fine = opened(tmp_path, "broken"), opened(tmp_path, "fine")
    broken.path.unlink()
    broken.put({"kind": "n"}); fine.put({"kind": "n"})
    assert fine.wait(30) and isinstance(broken.error, FileNotFoundError) and len(lines(fine.path)) == 2
    prepare_log_file(broken.path, dict(run="broken"))                                   # the file is back; this log stays ended
    broken.put({"kind": "n"})
    assert broken.wait(30) and len(lines(broken.path)) == 1


def test_a_function_that_fails_is_an_error_of_its_log(tmp_path):
    log = opened(tmp_path)
    log.put(lambda: 1 / 0)
    assert log.wait(30) and isinstance(log.error, ZeroDivisionError)


def test_waiting_gives_up_in_time(tmp_path, monkeypatch):
    go, log = threading.Event(), opened(tmp_path)
    monkeypatch.setattr(LogFile, "write", lambda self, items, write=LogFile.write: (go.wait(30), write(self, items)))
    log.put({"kind": "n"})
    start = time.perf_counter()
    assert not log.wait(0.1) and time.perf_counter() - start < 5
    go.set()
    assert log.wait(30) and len(lines(log.path)) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_lines_are_collected_until_they_are_awaited(tmp_path, monkeypatch):
    "One write for many lines, which waiting for them does not delay; later ones follow without it."
    monkeypatch.setattr(log_file, "COLLECT_SECONDS", 1000.0)
    log, batches = opened(tmp_path), []
    write = log.write
    log.write = lambda items: (batches.append(len(items)), write(items))
    for i in range(20): log.put({"kind": "log", "step": i})
    assert not batches and log.wait(60) and sum(batches) == 20 and len(batches) <= 2
    log.put({"kind": "log", "step": 20})
    # who reads a file in this process waits for them, too
    assert [line["step"] for line in lines(log.path)[1:]] == list(range(21))
    def written(kind, step):
        log.put({"kind": kind, "step": step})
        until = time.monotonic() + 60
        while f'"step":{step}' not in log.path.read_text() and time.monotonic() < until: time.sleep(0.01)
        return lines(log.path)[-1]["step"] == step
    assert written("abandon", 21)   # changes what the others mean, and is not collected
    monkeypatch.setattr(log_file, "COLLECT_SECONDS", 0.01)
    assert log.wait(60) and written("log", 22)


def test_many_lines_are_not_collected_again_while_they_are_awaited(tmp_path, monkeypatch):
    "Those of a branch of a long run, for example: more than one write takes."
    monkeypatch.setattr(log_file, "COLLECT_SECONDS", 1000.0)
    log = opened(tmp_path)
    for i in range(3500): log.put({"kind": "log", "step": i})
    assert log.wait(60) and [line["step"] for line in lines(log.path)[1:]] == list(range(3500))


def test_a_log_that_is_not_written_in_time_is_reported(tmp_path, monkeypatch):
    "At the end of the process, and before a log is read: the lines would be missing without a message."
    go, log = threading.Event(), opened(tmp_path)
    monkeypatch.setattr(LogFile, "write", lambda self, items, write=LogFile.write: (go.wait(30), write(self, items)))
    log.put({"kind": "n"})
    with pytest.warns(UserWarning, match="was not written within 0.1 s, so its last lines may be missing"): log_file.LOG_WRITER.wait_or_warn(0.1)
    go.set()
    assert log.wait(30)


def test_only_the_process_that_opened_a_log_writes_to_it(tmp_path):
    log = opened(tmp_path)
    log.put({"kind": "n"}); log.wait()
    if (pid := os.fork()) == 0:
        try:
            log.put({"kind": "child"})
            own = opened(tmp_path, "child")
            own.put({"kind": "n"})
            os._exit(0 if own.wait(20) and len(lines(own.path)) == 2 else 1)
        finally: os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    log.put({"kind": "n"}); log.wait()
    assert [o["kind"] for o in lines(log.path)] == ["run", "n", "n"]


def test_find_log(tmp_path):
    for run, started in (("a", 1.0), ("c", 3.0), ("b", 2.0)): opened(tmp_path, run, started=started)
    (tmp_path / "runs" / "run-empty.jsonl").write_text("")
    (tmp_path / "runs" / "notes.txt").write_text("not a log")
    assert find_log(tmp_path) == find_log(tmp_path / "runs") == log_path(tmp_path, "c") and find_log(str(log_path(tmp_path, "a"))) == log_path(tmp_path, "a")
    with pytest.raises(FileNotFoundError, match="output_dir"): find_log(tmp_path / "nowhere")
    for bad in ("", "../x", "a/b", "a" * 65, "\u00e9", "a\n"):
        with pytest.raises(ValueError, match="run's id"): log_path(tmp_path, bad)
