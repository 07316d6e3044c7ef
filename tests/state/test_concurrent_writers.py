"Several who write to one place: names of their own, turns, what a kill leaves, and who is told what."
import os, signal, subprocess, sys, textwrap, threading
from pathlib import Path

import pytest

from checkpoints import Gate, quiet_learner, resumed, steps
from toys import Augmented
from trainer_nb import differences, get_last_checkpoint
from trainer_nb.state.checkpoint import read_checkpoint
from trainer_nb.state.checkpoint_dirs import verify_checkpoint, lock, clean_leftovers, temporary_path
from trainer_nb.state.async_save import SaveFailed, is_own_checkpoint
from writers import write   # noqa: F401


def names(folder): return sorted(p.name.partition(".")[0] for p in folder.iterdir())


# --- folders ------------------------------------------------------------------------------------------------------------

def test_many_writers_of_one_place(tmp_path):
    "Threads and processes of one run, all at the same place: at the end it is whole, and nothing else is there."
    errors = []
    def many(who):
        try:
            for i in range(30): write(tmp_path / "checkpoint-4", f"{who} {i}")
        except BaseException as error: errors.append(error)
    code = f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from pathlib import Path
        from writers import write
        print("here", flush=True)
        for i in range(60): write(Path({str(tmp_path)!r}) / "checkpoint-4", str(i))"""
    other = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "here\n"
    threads = [threading.Thread(target=many, args=(f"thread {i}",)) for i in range(3)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert other.wait(100) == 0 and errors == []
    write(tmp_path / "checkpoint-4", "the last one")
    assert verify_checkpoint(tmp_path / "checkpoint-4")["text"] == "the last one" and os.listdir(tmp_path) == ["checkpoint-4"]


@pytest.mark.parametrize("left", ["half", "sealed", "set aside"])
def test_what_a_writer_leaves_when_it_is_killed(tmp_path, left):
    "While it is alive nobody touches it, though a data worker of its own goes on; afterwards it is cleared away, or gets its name."
    code = f"""
        import os, shutil, sys, time; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from pathlib import Path
        from writers import write
        from trainer_nb.state.checkpoint_dirs import lock, move_aside, temporary_folder, write_manifest
        place = Path({str(tmp_path)!r}) / "checkpoint-4"
        write(place, "old")
        with lock(place), temporary_folder(place, "a1b2") as folder:
            started, start = os.pipe()
            if os.fork() == 0: os.write(start, b"!"); time.sleep(60)   # a child that outlives it
            os.read(started, 1)   # until it runs it has the lock: the hook that lets go of it is the first thing that it does
            if {left!r} != "half": write_manifest(folder, {{"run": "a1b2", "text": "new", "written": 2.0, "place": [0, 0, 0]}})
            if {left!r} == "sealed": shutil.rmtree(place)
            if {left!r} == "set aside": move_aside(place, "a1b2"); (folder / "manifest.json").unlink()
            print(os.listdir(place.parent), flush=True)
            time.sleep(60)"""
    writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert "checkpoint-4.tmp-a1b2" in writer.stdout.readline()
        before = sorted(os.listdir(tmp_path))
        clean_leftovers(tmp_path, "a1b2"); clean_leftovers(tmp_path)
        assert sorted(os.listdir(tmp_path)) == before
        with pytest.warns(UserWarning, match="is being written or removed by another process"): get_last_checkpoint(tmp_path)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        clean_leftovers(tmp_path)
        assert len(os.listdir(tmp_path)) == len(before)   # reading removes nothing
        clean_leftovers(tmp_path, "another")
        assert os.listdir(tmp_path) == ["checkpoint-4"] and verify_checkpoint(tmp_path / "checkpoint-4")["text"] == ("new" if left == "sealed" else "old")
    finally: os.killpg(writer.pid, signal.SIGKILL)


def test_without_locks(tmp_path, monkeypatch):
    "As on Windows: nobody is known to be at work, and everything else holds."
    monkeypatch.setattr("trainer_nb.state.checkpoint_dirs.fcntl", None)
    write(tmp_path / "checkpoint-4", "one"); write(tmp_path / "checkpoint-4", "two")
    temporary_path(tmp_path / "checkpoint-8", "a1b2").mkdir()
    with lock(tmp_path) as mine, lock(tmp_path / "nothing") as none: assert mine and not none
    write(tmp_path / "checkpoint-12", "three")
    assert names(tmp_path) == ["checkpoint-12", "checkpoint-4"] and verify_checkpoint(tmp_path / "checkpoint-4")["text"] == "two"


# --- learners -----------------------------------------------------------------------------------------------------------

def test_two_learners_of_one_run_save_at_once(tmp_path):
    "They take turns: the second waits for the first, both checkpoints are whole, and the later one stays."
    given = dict(save_strategy="steps", save_steps=4)
    one = quiet_learner(tmp_path, **given)
    one.step(6); one.run_state.parts.saver.wait()
    other = resumed(tmp_path, **given)
    gate = Gate()
    other.processing_class = gate
    other.step(4)                                       # at 8 it begins to write
    assert gate.entered.wait(20)
    threading.Timer(0.5, gate.open.set).start()
    one.step(2)                                         # at 8, too
    one.run_state.parts.saver.wait(); other.run_state.parts.saver.wait()
    assert gate.open.is_set() and steps(tmp_path) == [4, 8] and not list(tmp_path.glob("*.tmp-*"))
    assert is_own_checkpoint(tmp_path / "checkpoint-8", one.history.run_id)
    assert not [d for d in differences(read_checkpoint(tmp_path / "checkpoint-8"), one.snapshot()) if "/" in d]


def test_two_live_runs_of_two_processes_in_one_folder(tmp_path):
    "The second raises an error when it would take the name of the first one's checkpoint."
    first = quiet_learner(tmp_path, save_strategy="steps", save_steps=4)
    first.step(5); first.run_state.parts.saver.wait(); first.history.close_log()
    hold = "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", hold, next(tmp_path.glob("runs/*.jsonl"))], stdout=subprocess.PIPE)
    try:
        other.stdout.readline()
        second = quiet_learner(tmp_path, save_strategy="steps", save_steps=4)
        with pytest.raises(SaveFailed, match="another process writes .* output_dir of its own"): second.step(5), second.save_checkpoint()
        assert steps(tmp_path) == [4] and not list(tmp_path.glob("retired*"))
    finally: other.kill()


def test_a_folder_by_another_name(tmp_path):
    "It is not open in another process if it was moved, or is reached by a link, in this one."
    learn = quiet_learner(tmp_path / "a", save_strategy="steps", save_steps=4)
    learn.step(5); learn.run_state.parts.saver.wait()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert quiet_learner(tmp_path / "link").load_checkpoint().step == 4
    (tmp_path / "a").rename(tmp_path / "moved")
    assert quiet_learner(tmp_path / "moved").load_checkpoint().step == 4


def test_reading_waits_for_what_is_written(tmp_path):
    gate = Gate()
    quiet_learner(tmp_path, processing_class=gate, save_strategy="steps", save_steps=2).step(3)
    assert gate.entered.wait(20)
    threading.Timer(0.5, gate.open.set).start()
    assert get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")


# --- on the disk, and back -------------------------------------------------------------------------------------------------

def test_the_disk_has_everything_before_the_name(tmp_path, monkeypatch):
    "Each file and the folder are flushed, and the log that they go on from; then the folder is renamed, and its place is flushed."
    done, fsync, rename = [], os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd))[1])
    monkeypatch.setattr(os, "rename", lambda a, b: (done.append(("renamed", str(b))), rename(a, b))[1])
    learn = quiet_learner(tmp_path)
    learn.step(2)
    folder = learn.save_checkpoint()
    at = done.index(("renamed", str(folder)))
    before = [Path(o).name for o in done[:at]]
    assert {p.name for p in folder.iterdir()} <= set(before) and any(n.startswith("checkpoint-2.tmp-") for n in before) and learn.history.path.name in before
    assert done[at + 1:] == [str(tmp_path)]


@pytest.mark.parametrize("workers", [0, 2])
def test_going_on_within_an_epoch_reads_nothing_that_was_read(tmp_path, workers):
    "Of data that has places, however far the epoch has gone."
    class Noted(Augmented):
        def __getitem__(self, i):
            with open(tmp_path / "reads", "a") as f: f.write(f"{i}\n")
            return super().__getitem__(i)
    def reads(): return sorted(int(o) for o in (tmp_path / "reads").read_text().split())
    given = dict(train_dataset=Noted(120), dataloader_num_workers=workers, num_train_epochs=1)
    learn = quiet_learner(tmp_path / "out", **given)
    learn.step(7)
    learn.save_checkpoint(); learn.free()
    (tmp_path / "reads").write_text("")
    resumed(tmp_path / "out", **given).train()
    assert len(reads()) == 120 - 7 * 12 == len(set(reads()))


# --- what is given to resume from ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("where, words", [
    (5, "not from 5"), (0, "not from 0"), (2.5, "not from 2.5"), ("", "not from ''"), (["a"], "not from"), (b"out", "not from b'out'"),
    ("nowhere", "valid checkpoint at .*nowhere: there is no such folder; in .*out there are checkpoint-2, checkpoint-4"),
    (Path("out/checkpoint-3"), "valid checkpoint at .*checkpoint-3: there is no such folder; in .*out there are checkpoint-2, checkpoint-4"),
    ("out", "out is no checkpoint but a folder of them; in .*out there are checkpoint-2, checkpoint-4"),
    ("out/checkpoint-4/run.json", "run.json is a file; .*out there are checkpoint-2, checkpoint-4")])
def test_what_is_no_checkpoint(tmp_path, monkeypatch, where, words):
    monkeypatch.chdir(tmp_path)
    learn = quiet_learner("out", save_strategy="steps", save_steps=2)
    learn.step(4); learn.run_state.parts.saver.wait()
    other = quiet_learner("out")
    with pytest.raises(ValueError, match=words): other.train(resume_from_checkpoint=where)
    assert other.state.global_step == 0 and not other.history.events


# --- where a warning points to -------------------------------------------------------------------------------------------

def test_warnings_name_the_users_line(tmp_path):
    "Not a line of this package: the call of the verb, however deep it was found."
    learn = quiet_learner(tmp_path, save_strategy="steps", save_steps=4)
    learn.step(5); learn.run_state.parts.saver.wait()
    (tmp_path / "checkpoint-8").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning) as said:
        quiet_learner(tmp_path, learning_rate=0.5).load_checkpoint()    # passed over, edited
        quiet_learner(tmp_path / "file").step(1)                        # no log
        get_last_checkpoint(tmp_path)
    assert len(said) >= 4 and {w.filename for w in said} == {__file__}
