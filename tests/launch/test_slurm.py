"""The Slurm file of the page on clusters, with stand-ins for Slurm's commands: what each machine executes; and the script of a job
that is longer than its time limit."""
import json, os, re, signal, subprocess, sys, time

import pytest, torch
from conftest import ROOT
from safetensors.torch import load_file

STAND_INS = {
    "scontrol": "printf 'node1\\nnode2\\n'",
    "srun": 'for node in 0 1; do SLURM_NODEID=$node "$@"; done',
    "torchrun": 'echo "$OMP_NUM_THREADS $TORCH_ELASTIC_SHUTDOWN_TIMEOUT $@"',
}


def page_cells(kind):
    "The cells of the page, as texts."
    cells = json.loads((ROOT/"nbs"/"tutorials"/"clusters.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def test_each_machine_starts_the_launcher_with_its_rank(tmp_path):
    [job] = re.findall(r"```bash\n(#!.*?)```", "\n".join(page_cells("markdown")), re.S)
    (tmp_path/"job.sh").write_text(job)
    for name, text in STAND_INS.items():
        (tmp_path/name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path/name).chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "32", "SLURM_JOB_NODELIST": "node[1-2]",
                        "SLURM_JOB_ID": "1234567"}
    done = subprocess.run(["bash", "-eu", "job.sh"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"8 110 --nnodes 2 --node_rank {node} --nproc_per_node 4 --master_addr node1 --master_port 24567 train.py --output_dir out"
                                        for node in (0, 1)]


SLOW = """
class Slow(torch.utils.data.Dataset):
    def __init__(self, data): self.data, self.num_read = data, 0
    def __len__(self): return 800
    def __getitem__(self, i):
        time.sleep(0.001)
        self.num_read += 1
        if self.num_read == 800: Path("halfway").touch()   # in this process: at step 25 or so of 78
        return self.data[i]
"""


@pytest.mark.slow
def test_a_job_that_has_reached_its_limit_is_continued_by_the_next(tmp_path):
    "The script as the page has it: after SIGTERM the next job goes on from that step, and ends with the weights of an uninterrupted one."
    imports, definitions = page_cells("code")[:2]
    definitions = "\n\n".join(part for part in definitions.split("\n\n") if part.startswith("def "))
    [main] = re.findall(r"```python\n(from trainer_nb import get_last_checkpoint.*?)```", "\n".join(page_cells("markdown")), re.S)
    [given] = re.findall(r"`(save_steps=1000, .*?)`", "\n".join(page_cells("markdown")))
    for old, new in (("digits(slice(200, None))", "Slow(digits(slice(200, None)))"), ("output_dir=home.name", f'output_dir="runs", {given}'), ("num_train_epochs=15", "num_train_epochs=6")):
        assert definitions.count(old) == 1
        definitions = definitions.replace(old, new)
    (tmp_path/"job.py").write_text("\n\n".join(["import time", imports, SLOW, definitions, main, 'if __name__ == "__main__": main(sys.argv[1])']))
    env = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "60"}
    def submit(output_dir): return subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "job.py", output_dir],
                                                    cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    first = submit("out")
    deadline = time.monotonic() + 120
    while not (tmp_path/"halfway").exists():
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    said = first.communicate(timeout=120)[0]
    assert not (tmp_path/"out"/"model.safetensors").exists(), said
    [checkpoint] = [path.name for path in (tmp_path/"out").glob("checkpoint-*")]
    assert 15 < int(checkpoint.removeprefix("checkpoint-")) < 78
    for output_dir in ("out", "whole"):
        job = submit(output_dir)
        said = job.communicate(timeout=120)[0]
        assert job.returncode == 0, said
    want, got = (load_file(tmp_path/o/"model.safetensors") for o in ("whole", "out"))
    assert all(torch.equal(want[name], got[name]) for name in want)
