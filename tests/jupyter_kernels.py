"What several tests share: Kernel, paused."
import os, re, signal, textwrap, time
from jupyter_client import KernelManager


LIMIT = 60   # seconds that a cell may take

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

ENV = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "IPYTHONDIR": os.devnull + "-ipython"}

class Cell:
    "A cell that was sent, and what has come back so far."
    def __init__(self): self.reply, self.text, self.error, self.idle = None, "", [], False
    @property
    def status(self): return self.reply["status"]
    @property
    def ename(self): return self.reply.get("ename", "")
    @property
    def evalue(self): return self.reply.get("evalue", "")
    @property
    def shown(self): return ANSI.sub("", "\n".join(self.error))
    def __repr__(self): return f"Cell({self.reply and {k: self.reply.get(k) for k in ('status', 'ename', 'evalue')} }, {self.text[-1500:]!r})\n{self.shown[-3000:]}"

class Kernel:
    "A kernel, and the cells sent to it."
    def __init__(self, folder):
        self.manager, self.cells = KernelManager(kernel_name="python3"), {}
        self.manager.start_kernel(cwd=str(folder), env=ENV)
        self.client = self.manager.client()
        self.client.start_channels(hb=False)   # a heartbeat opens another socket whenever a busy kernel is late
        self.client.wait_for_ready(timeout=60)
        self.pid = self.manager.provisioner.pid

    def send(self, code) -> Cell:
        "Send a cell, and do not wait."
        cell = self.cells[self.client.execute(textwrap.dedent(code))] = Cell()
        return cell

    def _take_in(self):
        "Take in one message, if there is one."
        channel = next((o for o in (self.client.shell_channel, self.client.iopub_channel) if o.socket.poll(2)), None)
        if channel is None: return
        message = channel.get_msg(timeout=1)
        cell, kind, content = self.cells.get(message["parent_header"].get("msg_id")), message["msg_type"], message["content"]
        if cell is None: return
        if kind == "execute_reply": cell.reply = content
        elif kind == "stream": cell.text += content["text"]
        elif kind == "execute_result": cell.text += content["data"]["text/plain"]
        elif kind == "error": cell.error = content["traceback"]
        elif kind == "status": cell.idle = content["execution_state"] == "idle"

    def until(self, holds):
        "Take messages in until something holds."
        end = time.monotonic() + LIMIT
        while not holds():
            assert time.monotonic() < end, f"{LIMIT} s have passed: {list(self.cells.values())[-3:]}"
            self._take_in()

    def wait(self, *cells) -> Cell:
        "Wait until these cells are over."
        self.until(lambda: all(c.reply is not None and c.idle for c in cells))
        return cells[-1]

    def wait_for(self, cell, text):
        "Wait until a cell prints something."
        self.until(lambda: text in cell.text or cell.reply is not None)
        assert text in cell.text, cell

    def run(self, code) -> str:
        "Run a cell that must succeed; what it printed and showed."
        cell = self.taken(code)
        assert cell.status == "ok", cell
        return cell.text.strip()

    def taken(self, code) -> Cell:
        "Run a cell that is not part of a test's queue. For a moment after an error the kernel aborts whatever comes in; such a cell has not run, and is sent again."
        for _ in range(100):
            cell = self.wait(self.send(code))
            if cell.status != "aborted": break
            time.sleep(0.02)
        return cell

    def fails(self, code, ename) -> Cell:
        "Run a cell that must fail in this way."
        cell = self.taken(code)
        assert cell.status == "error" and cell.ename == ename, cell
        return cell

    def press(self, group=True):
        "The interrupt button: SIGINT to the kernel's process group, or to the kernel alone."
        self.manager.interrupt_kernel() if group else os.kill(self.pid, signal.SIGINT)

    def heard(self, seconds=5):
        "Wait until a press has reached the process: two that are both still on their way are one to the system."
        if not os.path.exists(status := f"/proc/{self.pid}/status"): return
        for _ in range(int(seconds / 0.005)):
            with open(status) as f: waiting = [int(line.split()[1], 16) for line in f if line.startswith(("SigPnd", "ShdPnd"))]
            if not any(signals >> (signal.SIGINT - 1) & 1 for signals in waiting): return
            time.sleep(0.005)

    def pressed(self, code, at="here", times=1, gap=0.05) -> Cell:
        "Run a cell and press the button when it has printed `at`; a cell queued behind it must not run."
        cell, queued = self.send(code), self.send("raise SystemError('this cell should not have run')")
        self.wait_for(cell, at)
        for i in range(times):
            if i: self.heard(); time.sleep(gap)
            self.press()
        began = time.monotonic()
        self.wait(cell, queued)
        cell.seconds = time.monotonic() - began
        assert cell.status == "error" and queued.status == "aborted", (cell, queued)
        return cell

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

def paused(cell, what="Paused after step"):
    "Is a cell shown as paused, in one line that says where the run stands and how it goes on?"
    assert cell.ename == "Paused" and len(cell.error) == 1 and cell.error[0] == cell.evalue, cell
    assert cell.evalue.startswith(what) and re.search(r"(step \d+ of \d+ \(epoch \d+\.\d\d\)|before the first step)\.", cell.evalue), cell
    assert cell.evalue.endswith("learn.train(), learn.run(...) or learn.step() continues."), cell
    return True
