"""The Slurm file of the page on clusters, with stand-ins for Slurm's commands: what each machine executes; and the script of a run
that is longer than the time limit of a job."""
import json, os, re, signal, subprocess, sys, time

import torch
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
    assert done.stdout.splitlines() == [f"8 110 --nnodes 2 --node_rank {node} --nproc_per_node 4 --master_addr node1 --master_port 24567 job.py --output_dir out"
                                        for node in (0, 1)]


SLOW = """
class Slow(torch.utils.data.Dataset):
    def __init__(self, data): self.data, self.num_read, self.limit = data, 0, int(os.environ.get("LIMIT", 800))
    def __len__(self): return 800
    def __getitem__(self, i):
        # from the limit on a step takes a third of a second, so that the signal arrives within the next steps
        time.sleep(0.01 if self.limit <= self.num_read < self.limit + 320 else 0.001)
        self.num_read += 1
        if self.num_read == self.limit: Path(os.environ["REACHED"]).touch()   # each of two processes reads 32 samples per step
        return self.data[i]
"""


def printed_main():
    "The function `main` of the resumable script, as the page prints it: its output is compared with that of the present code."
    cells = json.loads((ROOT/"nbs"/"tutorials"/"clusters.ipynb").read_text())["cells"]
    [out] = ["".join(o["text"]) for c in cells for o in c.get("outputs", ()) if "resume_from_checkpoint" in "".join(o.get("text", ""))]
    return out


def test_a_run_that_is_divided_among_jobs_ends_with_the_weights_of_an_undivided_one(tmp_path):
    """The script as the page has it is interrupted twice by SIGTERM: early, where a script that repeats manual steps would still be at
    those of the page (15), and later. The third job ends the run, and one job too many takes no step."""
    imports, *others = page_cells("code")
    [definitions] = [cell for cell in others if "def digits(" in cell]
    definitions = "\n\n".join(part for part in definitions.split("\n\n") if part.startswith("def "))
    for old, new in (("digits(slice(200, None))", "Slow(digits(slice(200, None)))"), ("output_dir=home.name", 'output_dir="runs"'), ("num_train_epochs=15", "num_train_epochs=6")):
        assert definitions.count(old) == 1
        definitions = definitions.replace(old, new)
    (tmp_path/"job.py").write_text("\n\n".join(["import time", imports, "from trainer_nb import get_last_checkpoint", SLOW, definitions, printed_main(),
                                                'if __name__ == "__main__": main(sys.argv[1])']))
    env = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "60"}

    def submit(output_dir, name, limit=0):
        return subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "job.py", output_dir],
                                cwd=tmp_path, env=env | {"REACHED": name, "LIMIT": str(limit)}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def checkpoints(): return sorted(int(path.name.removeprefix("checkpoint-")) for path in (tmp_path/"out").glob("checkpoint-*"))

    def interrupted(name, limit):
        "Submit a job, end it by SIGTERM after it has read some samples, and return the step of its checkpoint."
        job = submit("out", name, limit)
        deadline = time.monotonic() + 120
        while not (tmp_path/name).exists():
            assert job.poll() is None and time.monotonic() < deadline, job.communicate()[0] if job.poll() is not None else name
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        said = job.communicate(timeout=120)[0]
        assert job.returncode and not (tmp_path/"out"/"model.safetensors").exists(), said
        return checkpoints()[-1]

    assert 0 < interrupted("early", 4 * 32) < 10
    assert 15 < interrupted("late", 25 * 32) < 78
    for output_dir in ("out", "whole"):
        job = submit(output_dir, output_dir + "-ended")
        said = job.communicate(timeout=120)[0]
        assert job.returncode == 0, said
    want, got = (load_file(tmp_path/o/"model.safetensors") for o in ("whole", "out"))
    assert all(torch.equal(want[name], got[name]) for name in want)
    before = checkpoints()
    job = submit("out", "too-many", 1)
    said = job.communicate(timeout=120)[0]
    assert job.returncode == 0 and not (tmp_path/"too-many").exists() and checkpoints() == before, said
    got = load_file(tmp_path/"out"/"model.safetensors")
    assert all(torch.equal(want[name], got[name]) for name in want)
