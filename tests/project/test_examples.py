"The examples of examples/, each in a process of its own, in an empty folder, from a copy of its file alone."
import os, re, shutil, subprocess, sys

import nbformat, pytest

from conftest import ROOT
from forked_kernels import execute
from forking import Forks

EXAMPLES = ROOT/"examples"
PYTHON = [sys.executable, "-W", "ignore"]
LAUNCHED = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]

# Commands that run one after the other in the same folder, and what they print.
CASES = {
    "image_classification": ([[*PYTHON, "image_classification.py", "--quick"]], r"^accuracy 0\.[4-9]"),
    "text_classification": ([[*PYTHON, "text_classification.py", "--quick", "true", "--max_length", "32"]], r"eval_accuracy +="),
    "language_modelling": ([[*PYTHON, "language_modelling.py", "--quick"]], r"^loss 6\.9\d+ -> [56]\."),
    "lora": ([[*PYTHON, "lora.py", "--quick"]], r"^saved \['adapter_config.json', 'adapter_model.safetensors'\]"),
    "dpo": ([[*PYTHON, "dpo.py", "--quick"]], r"^loss 0\.693 -> 0\.[0-6]"),
    "tabular_regression": ([[*PYTHON, "tabular_regression.py", "--quick"]], r"'eval_r2': 0\.[2-9]"),
    "gan": ([[*PYTHON, "gan.py", "--quick"]], r"^radius of the drawn points \d"),
    "several_processes": ([[*PYTHON, "several_processes.py", "--quick"], [*LAUNCHED, "several_processes.py", "--quick"]], r"^accuracy (0\.[89]\d*)"),
    "fsdp": ([[*PYTHON, "fsdp.py", "--quick"], [*LAUNCHED, "fsdp.py", "--quick"]], r"^each process holds 5\d%"),
    "streaming": ([[*PYTHON, "streaming.py", "--quick"]], r"differences after resuming: \[\]"),
    "resume_after_kill": ([[*PYTHON, "resume_after_kill.py", "--quick", "--output_dir", "undisturbed"],
                           [*PYTHON, "resume_after_kill.py", "--quick", "--kill_at", "25"],
                           [*PYTHON, "resume_after_kill.py", "--quick"]], r"^weights (\w{64})"),
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(command, folder):
    "Run a command in a folder, as a user's shell would; return its exit status and what it printed."
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONSTARTUP", "IN_TEST")}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=550)
    return done.returncode, done.stdout + done.stderr


def test_each_example_is_here_and_in_the_readme():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    listed = re.findall(r"^\| \[([\w.]+)\]\(\1\)", (EXAMPLES/"README.md").read_text(encoding="utf-8"), re.M)
    assert scripts == set(CASES)
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb"))


@pytest.mark.parametrize("name", CASES)
def test_example(name, tmp_path):
    "It ends without an error, and prints what it promises; each way to start it, the same numbers."
    commands, promised = CASES[name]
    shutil.copy(EXAMPLES/f"{name}.py", tmp_path)
    found = []
    for command in commands:
        code, printed = run(command, tmp_path)
        if "--kill_at" in command:
            assert code == -9, printed[-3000:]
            continue
        assert code == 0, printed[-3000:]
        said = re.findall(promised, printed, re.M)
        assert said, f"{' '.join(command[1:])} did not print {promised}\n{printed[-3000:]}"
        found.append(said)
    assert all(o == found[0] for o in found), found


def test_notebook(tmp_path):
    "It runs from top to bottom, and its stored outputs leave a picture of the dashboard."
    notebook = nbformat.read(EXAMPLES/"dashboard.ipynb", 4)
    stored = next(c.outputs for c in notebook.cells if c.source.startswith("learn.dashboard()"))
    assert any(word in stored[0].data["text/html"] for word in ("<svg", "<img"))
    with Forks() as forks: execute(notebook, forks, tmp_path, tmp_path, 300)
