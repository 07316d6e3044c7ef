"A real JupyterLab (or Notebook 7) with a headless Chromium in front of it, and a second line to the kernel."
import ast, json, os, shutil, socket, subprocess, sys, tempfile, time, urllib.request
from pathlib import Path

import nbformat
from jupyter_client import BlockingKernelClient

ENV = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
SETTINGS = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
            "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}, "@jupyterlab/docmanager-extension:plugin": {"autosave": False}}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def eventually(holds, what="it", seconds=30):
    "Wait until something holds, and return what it gives."
    end, last = time.monotonic() + seconds, None
    while time.monotonic() < end:
        try:
            if last := holds(): return last
        except Exception as error: last = error
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {seconds} s: {last!r}")


class Lab:
    "A server, and pages of a browser that show its notebooks."
    def __init__(self, browser, dark=False, kind="lab", comms="perCommTarget"):  # kind: "lab" or "notebook"; comms: "disabled" as in front ends without subshells
        self.root, self.port, self.kind, self.pages = Path(tempfile.mkdtemp()), free_port(), kind, []
        app = self.root/"app"
        app.mkdir()
        (app/"overrides.json").write_text(json.dumps(SETTINGS | {"@jupyterlab/apputils-extension:themes": {"theme": f"JupyterLab {'Dark' if dark else 'Light'}"},
                                                                   "@jupyterlab/apputils-extension:kernels-settings": {"commsOverSubshells": comms}}))
        self.env = ENV | {"JUPYTER_RUNTIME_DIR": str(self.root/"runtime"), "JUPYTER_CONFIG_DIR": str(self.root/"config"), "IPYTHONDIR": str(self.root/"ipython")}
        places = [f"--notebook-dir={self.root}", f"--LabApp.app_settings_dir={app}"] if kind == "lab" else [f"--notebook-dir={self.root}", f"--LabApp.app_settings_dir={app}", f"--JupyterNotebookApp.app_settings_dir={app}"]
        self.server = subprocess.Popen([sys.executable, "-m", "jupyter", kind, "--no-browser", "--ip=127.0.0.1", "--allow-root", f"--port={self.port}", "--IdentityProvider.token=t",
                                        "--ServerApp.disable_check_xsrf=True", *places], env=self.env, stdout=subprocess.DEVNULL, stderr=open(self.root/"server.log", "w"))
        self.browser = browser
        eventually(lambda: urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api?token=t"), "the server", 60)

    def api(self, what):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/{what}?token=t") as f: return json.load(f)

    def write(self, cells, name):
        nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
        nb.metadata = {"kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}}
        nbformat.write(nb, self.root/name)

    def notebook(self, cells, name="x.ipynb", **kwargs):
        "A page with a new notebook of these cells."
        self.write(cells, name)
        return self.open(name, **kwargs)

    def open(self, name="x.ipynb", width=1200, height=1000):
        "A page with a notebook that is there; a second one is another browser."
        tab = self.browser.new_context(viewport={"width": width, "height": height}).new_page()
        tab.goto(f"http://127.0.0.1:{self.port}/{'doc/tree' if self.kind == 'lab' else 'notebooks'}/{name}?token=t{'&reset' if self.kind == 'lab' else ''}")
        self.pages.append(Page(self, tab, name))
        return self.pages[-1].ready()

    def stop_kernels(self):
        for kernel in self.api("kernels"):
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/api/kernels/{kernel['id']}?token=t", method="DELETE")
            urllib.request.urlopen(request)

    def close(self):
        for page in self.pages:
            page.close()
            if page.client is not None: page.client.stop_channels()   # its heartbeat would open another socket every second
        self.server.terminate()
        self.server.wait(20)
        shutil.rmtree(self.root, ignore_errors=True)


class Page:
    "A notebook in a browser."
    def __init__(self, lab, tab, name):
        self.lab, self.tab, self.name, self.client, self.errors = lab, tab, name, None, []
        tab.on("pageerror", lambda error: self.errors.append(str(error)))

    def ready(self):
        self.tab.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60000)
        eventually(lambda: any(k["execution_state"] == "idle" for k in self.lab.api("kernels")), "an idle kernel", 60)
        self.tab.wait_for_timeout(1500)
        return self

    def cell(self, i): return self.tab.locator(".jp-Notebook .jp-Cell").nth(i)
    def output(self, i): return self.cell(i).locator(".jp-OutputArea").inner_text()

    def start(self, i):
        "Run a cell; do not wait."
        self.cell(i).locator(".jp-InputArea-editor").click()
        self.tab.keyboard.press("Control+Enter")

    def run(self, i, seconds=60):
        "Run a cell and wait for its end."
        before = self.cell(i).locator(".jp-InputArea-prompt").inner_text()
        self.start(i)
        def over():
            now = self.cell(i).locator(".jp-InputArea-prompt").inner_text()
            return "*" not in now and now != before and any(c.isdigit() for c in now)
        eventually(over, f"the end of cell {i}", seconds)
        return self

    def run_all(self):
        "Run all cells; do not wait."
        self.tab.locator(".lm-MenuBar-itemLabel:text-is('Run')").click()
        self.tab.locator(".lm-Menu-itemLabel:text-is('Run All Cells')").click()

    def ask(self, code):
        "The value of an expression in the kernel, on a line of our own."
        if self.client is None:
            kernel = next(s["kernel"]["id"] for s in self.lab.api("sessions") if s["path"] == self.name)
            self.client = BlockingKernelClient(connection_file=str(self.lab.root/"runtime"/f"kernel-{kernel}.json"))
            self.client.load_connection_file()
            self.client.start_channels()
        reply = self.client.execute("", silent=True, user_expressions={"o": f"repr({code})"}, reply=True, timeout=60)["content"]["user_expressions"]["o"]
        assert reply["status"] == "ok", reply
        return ast.literal_eval(ast.literal_eval(reply["data"]["text/plain"]))

    # the dashboard
    def board(self, nth=0): return self.tab.locator(".tnb").nth(nth)
    def button(self, name, nth=0): return self.board(nth).locator(".tnb-button", has=self.tab.locator(f".tnb-label:text-is('{name}')"))
    def press(self, name, nth=0): self.button(name, nth).click()
    def step(self):
        "The number of steps on the page."
        return int(self.board().locator(".tnb-fact-value").first.inner_text().split("/")[0].replace(",", "").replace("–", "0"))
    def says(self, words, nth=0, seconds=30):
        "Wait until the dashboard says something."
        eventually(lambda: words in self.board(nth).inner_text(), f"{words!r} on the page", seconds)
        return self
    def state(self, nth=0): return self.board(nth).locator(".tnb-pill").inner_text().strip().lower()
    def stands(self, state, nth=0):
        def there():
            assert self.state(nth) == state, f"the page says: {self.board(nth).inner_text()}"
            return True
        eventually(there, f"the state {state!r}")

    def save(self, keys=False):  # keys: with the keyboard, wherever the focus is; else from the menu
        "Save the notebook and read it."
        path = self.lab.root/self.name
        before = path.stat().st_mtime_ns
        if keys: self.tab.keyboard.press("Control+s")
        else:
            self.tab.locator(".lm-MenuBar-itemLabel:text-is('File')").click()
            self.tab.locator(".lm-Menu-itemLabel:text-is('Save Notebook')").click()
        eventually(lambda: path.stat().st_mtime_ns != before, "saving")
        self.tab.wait_for_timeout(200)
        return eventually(lambda: nbformat.read(path, 4), "a whole notebook")     # the server may be writing it still

    def reload(self):
        "Save, and load the page anew."
        self.save()
        self.tab.reload()
        return self.ready()

    def close(self):
        "Close the browser's side; the kernel goes on, and can be asked."
        self.tab.context.close()
