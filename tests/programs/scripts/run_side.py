"""Run programs of this folder, with transformers or with trainer_nb, and pickle their variable `found`.

    python run_side.py transformers|trainer_nb FOLDER PLAN.json

The plan is a list of [case, program, arguments]; OUT in an argument stands for the case's folder.
"""
import contextlib
import io
import json
import logging
import pickle
import runpy
import sys
import time
import traceback
from pathlib import Path

import torch

side, folder, plan = sys.argv[1], Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text())
torch.set_num_threads(1)
logging.captureWarnings(True)

for case, name, arguments in plan:
    from accelerate.state import AcceleratorState
    AcceleratorState._reset_state(reset_partial_state=True)
    out = folder / case
    text = (Path(__file__).parent / f"{name}.py").read_text()
    first, rest = text.split("\n", 1)
    assert first.startswith("from transformers import "), first
    program = folder / f"{case}.{name}.py"
    program.write_text(first.replace("from transformers ", f"from {side} ") + "\n" + rest)
    sys.argv = [str(program), *(a.replace("OUT", str(out)) for a in arguments)]
    said, warned, began = io.StringIO(), io.StringIO(), time.time()
    result = {}
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(warned):
        try:
            result = runpy.run_path(str(program), run_name="__main__")["found"]
        except BaseException:
            result = {"error": traceback.format_exc()}
    result |= {"stdout": said.getvalue(), "stderr": warned.getvalue(), "seconds": time.time() - began}
    with open(folder / f"{case}.pickle", "ab") as file: pickle.dump(result, file)
