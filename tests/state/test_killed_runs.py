"A training process that is killed at random moments, saves included, and resumed, again and again, until the run is done."
import json, subprocess, sys
from pathlib import Path

import pytest

from killing import CASES


def killed(folder, case, seed, kills):
    "Runs of a case under fire until there were so many kills; how many there were, and where lives began."
    with open(folder / "out", "w") as out, open(folder / "err", "w") as err:
        code = subprocess.run([sys.executable, Path(__file__).parents[1].joinpath("killing.py"), folder, case, str(seed), str(kills)], stdout=out, stderr=err).returncode
    found = [json.loads(line) for line in (folder / "out").read_text().splitlines() if line.startswith('{"')]   # among the logs
    assert code == 0 and all(o["different"] == [] for o in found), (found, (folder / "err").read_text()[-3000:])
    return sum(o["kills"] for o in found), {step for o in found for step in o["lives"]}


@pytest.mark.parametrize("case", [case if case == "plain" else pytest.param(case, marks=pytest.mark.slow) for case in CASES])
def test_kills_at_random_moments(tmp_path, case):
    "At least 30 of them, and as many in each of the slow cases; the run that comes to the end is the undisturbed one, byte for byte."
    kills, begun = killed(tmp_path, case, 1, 15)
    assert kills >= 15 and len(begun) > 3   # lives that went on from several places


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", CASES)
def test_very_many_kills(tmp_path, case):
    "Five hundred, with new seeds."
    kills, begun = killed(tmp_path, case, 1000 + len(case), 125)
    assert kills >= 125 and len(begun) > 8


def test_no_data_worker_outlives_a_kill(tmp_path):
    "Two of them wait to hand over batches when their parent is killed."
    import signal, textwrap, time
    code = f"""
        import os, sys, time; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from toys import hard_learner
        learn = hard_learner(dataloader_num_workers=2, num_train_epochs=100, logging_strategy="no")
        learn.step(2)
        print(*[p.pid for p in __import__("multiprocessing").active_children()], flush=True)
        time.sleep(60)"""
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    workers = [int(o) for o in process.stdout.readline().split()]
    assert len(workers) == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    def alive(pid):
        try: return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
        except OSError: return False
    end = time.monotonic() + 20
    while any(map(alive, workers)) and time.monotonic() < end: time.sleep(0.1)
    assert not any(map(alive, workers))
