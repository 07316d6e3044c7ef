"""The Jupyter kernel that `interrupts.py --kernel` presses: the same rounds, cell by cell, with a cell queued behind each.

A press may also strike ipykernel's own code around a cell. There it ends the kernel, or cuts a message, in a kernel that has never
imported the package as well (4 of 5,250 presses aimed at the ends of cells did); such rounds are counted as `gone`."""
import json, os, signal, time
from pathlib import Path

from jupyter_client import KernelManager

from interrupts import MANY, Gone, Late, children

SETUP = """
import faulthandler, signal, sys
sys.path.insert(0, {here!r})
faulthandler.register(signal.SIGUSR1, file=open({stacks!r}, "a"), all_threads=True)
import interrupts
ran = 0
"""


class Kernel:
    "A kernel that trains; it is pressed while its cells run."
    def __init__(self, stacks: Path, runs: Path, limit: float):
        self.stacks, self.limit, self.cells = stacks, limit, {}
        self.manager = KernelManager(kernel_name="python3")
        env = os.environ | {"OMP_NUM_THREADS": "1", "SOAK_RUNS": str(runs), "IPYTHONDIR": os.devnull + "-ipython", "PYTHONWARNINGS": "ignore"}
        self.errors = open(stacks.with_suffix(".err"), "w")
        self.manager.start_kernel(cwd=str(runs), env=env, stderr=self.errors)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)
        self.pid = self.manager.provisioner.pid
        self.run(SETUP.format(here=str(Path(__file__).parent), stacks=str(stacks)))

    def send(self, code: str) -> dict:
        "Send a cell, and do not wait."
        cell = self.cells[self.client.execute(code)] = {"reply": None, "idle": False, "text": ""}
        return cell

    def until(self, holds, limit=None):
        "Take messages in until something holds; Late if that takes too long."
        end = time.monotonic() + (limit or self.limit)
        while not holds():
            if time.monotonic() > end:
                # with status 0: the press reached ipykernel's event loop, which ends the kernel without an error
                if self.manager.provisioner.process.poll() == 0: raise Gone("ipykernel's event loop was interrupted")
                raise Late(f"{'no answer' if self.manager.is_alive() else 'the kernel has ended'} to {list(self.cells.values())[-2:]}"[:2000])
            channel = next((o for o in (self.client.shell_channel, self.client.iopub_channel) if o.socket.poll(2)), None)
            if channel is None: continue
            try: message = channel.get_msg(timeout=1)
            except ValueError as error: raise Gone(f"ipykernel was interrupted while it sent a message ({error})") from None
            cell, kind, content = self.cells.get(message["parent_header"].get("msg_id")), message["msg_type"], message["content"]
            if cell is None: continue
            if kind == "execute_reply": cell["reply"] = content
            elif kind == "stream": cell["text"] += content["text"]
            elif kind == "execute_result": cell["text"] += content["data"]["text/plain"]
            elif kind == "status": cell["idle"] = content["execution_state"] == "idle"

    def run(self, code: str) -> str:
        "Run a cell that has to succeed; a cell that the kernel aborts, for a moment after an error, is sent again."
        for _ in range(200):
            cell = self.send(code)
            self.until(lambda: cell["reply"] is not None and cell["idle"], 120)
            if cell["reply"]["status"] != "aborted": break
            time.sleep(0.02)
        if cell["reply"]["status"] != "ok": raise Late(f"{code!r} ended with {cell['reply'].get('ename', cell['reply'])}")
        return cell["text"].strip()

    def round(self, rng, seed: int, counts: dict):
        "One round: press each cell, until the run is finished."
        self.run(f"round = interrupts.Round({seed})")
        for _ in range(MANY):
            if self.run("round.finished") == "True": break
            self.cells.clear()
            cell, queued = self.send("print('here', flush=True); round.cell()"), self.send("ran += 1")
            self.until(lambda: "here" in cell["text"] or cell["reply"] is not None)
            times, began = rng.choice([1, 1, 2, 2, 3]), time.monotonic()
            time.sleep(rng.choice([0, 0.01, 0.05, 0.15]) * rng.random())
            for i in range(times):
                if i: time.sleep(rng.choice([0.0002, 0.002, 0.01, 0.05]) * rng.random())
                os.killpg(self.pid, signal.SIGINT) if rng.random() < 0.5 else os.kill(self.pid, signal.SIGINT)
                counts["presses"] += 1
            self.until(lambda: cell["idle"] and queued["idle"])
            end = time.monotonic() + 0.5   # a press that strikes the kernel behind a cell loses the reply; the next `run` shows that it goes on
            self.until(lambda: (cell["reply"] and queued["reply"]) or time.monotonic() > end)
            counts["slowest"] = max(counts["slowest"], round(time.monotonic() - began, 2))
            how = "no reply" if cell["reply"] is None else cell["reply"].get("ename", "ok")
            if how not in ("ok", "no reply", "Paused", "KeyboardInterrupt", "Interrupted"): how += ": " + cell["reply"].get("evalue", "")[:200]
            if queued["reply"] is None: how += ", and none to the queued cell"
            elif how != "ok" and queued["reply"]["status"] == "ok": how += ", and the queued cell ran"
            counts["answers"][how] = counts["answers"].get(how, 0) + 1
        else: raise Late(f"the run is not finished after {MANY} cells: {counts['answers']}")
        ended = json.loads(self.run("import json; print(json.dumps(round.end()))"))
        if not ended["same"]: counts["different"].append(seed)
        counts["rounds"] += 1

    def dump(self):
        "Have the stacks of the kernel and of its workers written."
        for pid in [self.pid, *children(self.pid)]:
            try: os.kill(pid, signal.SIGUSR1)
            except ProcessLookupError: continue
            time.sleep(0.3)

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
