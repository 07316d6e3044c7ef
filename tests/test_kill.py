"A training process that is killed at random moments, saves included, and resumed, again and again, until the run is done."
import json, subprocess, sys
from pathlib import Path

import pytest

from killing import CASES


def killed(folder, case, seed, kills):
    "Runs of a case under fire until there were so many kills; how many there were, and where lives began."
    out = subprocess.run([sys.executable, Path(__file__).with_name("killing.py"), folder, case, str(seed), str(kills)], text=True, stdout=subprocess.PIPE,
                         stderr=open(folder / "err", "w"), timeout=1500)
    found = [json.loads(line) for line in out.stdout.splitlines()]
    assert out.returncode == 0 and all(o["different"] == [] for o in found), (found, (folder / "err").read_text()[-3000:])
    return sum(o["kills"] for o in found), {step for o in found for step in o["lives"]}


@pytest.mark.parametrize("case", CASES)
def test_kills_at_random_moments(tmp_path, case):
    "At least 60 of them in all; the run that comes to the end is the undisturbed one, byte for byte."
    kills, begun = killed(tmp_path, case, 1, 15)
    assert kills >= 15 and len(begun) > 3   # lives that went on from several places


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_very_many_kills(tmp_path, case):
    "Five hundred, with new seeds."
    kills, begun = killed(tmp_path, case, 1000 + len(case), 125)
    assert kills >= 125 and len(begun) > 8
