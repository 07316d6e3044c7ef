"The Slurm file of the page on clusters, with stand-ins for Slurm's commands: what each machine executes."
import json, os, re, subprocess

from conftest import ROOT

STAND_INS = {
    "scontrol": "printf 'node1\\nnode2\\n'",
    "srun": 'for node in 0 1; do SLURM_NODEID=$node "$@"; done',
    "torchrun": 'echo "$OMP_NUM_THREADS $TORCH_ELASTIC_SHUTDOWN_TIMEOUT $@"',
}


def test_each_machine_starts_the_launcher_with_its_rank(tmp_path):
    cells = json.loads((ROOT/"nbs"/"tutorials"/"clusters.ipynb").read_text())["cells"]
    [job] = re.findall(r"```bash\n(#!.*?)```", "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"), re.S)
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
