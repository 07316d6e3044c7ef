"""Measure what a live view costs the loop that it looks at, and how soon it is there.

    python benchmarks/views.py              # without a browser and with one (real JupyterLab, headless Chromium)
    python benchmarks/views.py --quick      # fewer and shorter rounds
    python benchmarks/views.py --only slow  # or: runs, peers, page, zoom

benchmarks/README.md describes how it is measured. What is measured runs in a real kernel, in rounds in which the contenders alternate.
A contender that is not installed is named and left out.
"""
from __future__ import annotations

import argparse, ast, json, os, random, statistics, subprocess, sys, tempfile, threading, time
from pathlib import Path

import harness

ROOT = Path(__file__).resolve().parents[1]

OURS = '''
import time, torch, warnings
from trainer_nb import Learner
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(4096, 32); y = (x.sum(1) > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
learn = Learner(model, train_dataset=torch.utils.data.TensorDataset(x, y), loss_func=torch.nn.functional.cross_entropy, per_device_train_batch_size=32, optim="adamw_torch_fused",
                max_steps=10_000_000, use_cpu=True, disable_tqdm=True)
def steps_per_second(seconds):
    "Of training in the background, the first moments left out."
    run = learn.start()
    time.sleep(0.3)
    began, first = time.perf_counter(), learn.state.global_step
    time.sleep(seconds)
    rate = (learn.state.global_step - first) / (time.perf_counter() - began)
    run.pause()
    return rate
steps_per_second(1)
views = []
def with_views(n):
    while len(views) > n: views.pop().close()
    while len(views) < n: views.append(learn.dashboard()); views[-1].show_here()
'''

LOOP = '''
import time, torch, warnings
warnings.simplefilter("ignore")
torch.set_num_threads(1)
x = torch.randn(4096, 32); y = (x.sum(1) > 0).long()
def plain(n, tick):
    "The same loop for all: n steps, and after each what shows it."
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    began = time.perf_counter()
    for i in range(n):
        at = i * 32 % 4096
        loss = torch.nn.functional.cross_entropy(model(x[at:at + 32]), y[at:at + 32])
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        if tick is not None: tick(i, loss)
    return n / (time.perf_counter() - began)
def bare(n): return plain(n, None)
'''

PEERS = {
    "fastai's progress bar (fastprogress)": '''
from fastprogress.fastprogress import master_bar, progress_bar
def shown(n):
    mb = master_bar(range(1)); bars = iter(mb); next(bars)
    pb = progress_bar(range(n), parent=mb); it = iter(pb); smooth = [0.0]
    def tick(i, loss):
        smooth[0] = 0.98 * smooth[0] + 0.02 * loss.item(); pb.comment = f"{smooth[0]:.4f}"; next(it, None)
    return plain(n, tick)
''',
    "transformers' NotebookProgressCallback": '''
from types import SimpleNamespace
from transformers.utils.notebook import NotebookProgressCallback
def shown(n):
    show = NotebookProgressCallback(); args = SimpleNamespace(eval_strategy="no", logging_steps=50); control = SimpleNamespace()
    state = SimpleNamespace(max_steps=n, global_step=0, epoch=0.0, num_train_epochs=1)
    show.on_train_begin(args, state, control)
    def tick(i, loss):
        state.global_step, state.epoch = i + 1, i / n; show.on_step_end(args, state, control)
        if i % 50 == 49: show.on_log(args, state, control, logs={"loss": loss.item()})
    return plain(n, tick)
''',
    "livelossplot, drawn every 500 steps": '''
from livelossplot import PlotLosses
def shown(n):
    plot = PlotLosses()
    def tick(i, loss):
        if i % 10 == 9: plot.update({"loss": loss.item()}, current_step=i)
        if i % 500 == 499: plot.send()
    return plain(n, tick)
''',
}

LOGS = '''
import math, random, sys
from trainer_nb import History
for k in range(int(sys.argv[2])):
    history, rate = History(f"run-{k:03d}"), 10 ** -(2 + k % 4 / 2)
    history.setup = {"settings": {"learning_rate": rate, "seed": k % 5, "per_device_train_batch_size": 2 ** (k % 3 + 3)}}
    history.open_log(sys.argv[1])
    for i in range(2000):
        fall = math.exp(-i / 900 - k / 200)
        history.append(i + 1, i / 100, rate * (1 - i / 2000), 16, i / 20 + random.random() / 100, 2 * fall + random.random() / 10, random.random())
        if i % 100 == 99: history.note("evaluate", i + 1, eval_loss=2 * fall, eval_accuracy=1 - fall / 2)
    history.note("log", 2000, train_runtime=100.0)
    history.close_log()
'''

OPEN = '''
import sys, time
from trainer_nb import runs
wall, cpu = time.perf_counter(), time.process_time()
runs(sys.argv[1]).view.view_model.message(full=True)
print(time.perf_counter() - wall, time.process_time() - cpu)
'''


class Kernel:
    "A kernel, and what comes out of it, counted."
    def __init__(self):
        from jupyter_client import KernelManager
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=tempfile.mkdtemp(), stderr=-3)
        self.client = self.manager.blocking_client()
        self.client.start_channels(hb=False, iopub=False)
        self.listen()
        self.run("1", 60)

    def listen(self):
        "Count what the kernel publishes, as a front end would get it."
        import zmq
        info, self.bytes = self.manager.get_connection_info(), 0
        socket = zmq.Context.instance().socket(zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(f"tcp://{info['ip']}:{info['iopub_port']}")
        def count():
            while True: self.bytes += sum(map(len, socket.recv_multipart()))
        threading.Thread(target=count, daemon=True).start()

    def run(self, code, timeout=600):
        reply = self.client.execute(code, reply=True, timeout=timeout)["content"]
        if reply["status"] != "ok": raise RuntimeError(f"{reply['ename']}: {reply['evalue']}")

    def value(self, expression):
        "The value of an expression, computed as a cell of its own."
        reply = self.client.execute(f"_value = {expression}", user_expressions={"o": "repr(_value)"}, reply=True, timeout=600)["content"]
        if reply["status"] != "ok": raise RuntimeError(f"{reply['ename']}: {reply['evalue']}")
        return ast.literal_eval(ast.literal_eval(reply["user_expressions"]["o"]["data"]["text/plain"]))

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def measure_rates(kernel, rounds, seconds, numbers=(0, 1, 3)):
    "Return, by number of views, the steps per second and the bytes per second of each round; the numbers alternate."
    rates, sent = {n: [] for n in numbers}, {n: [] for n in numbers}
    for _ in range(rounds):
        for n in random.sample(numbers, len(numbers)):
            kernel.run(f"with_views({n})")
            before = getattr(kernel, "bytes", 0)
            rates[n].append(kernel.value(f"steps_per_second({seconds})"))
            sent[n].append((getattr(kernel, "bytes", 0) - before) / (seconds + 0.3))
    return rates, sent


def slow(kernel, rounds, seconds):
    "Return the figures of the same loop with no view, one and three."
    rates, sent = measure_rates(kernel, rounds, seconds)
    figures = {"rate": statistics.median(rates[0])}
    for n in (1, 3):
        figures[str(n)] = {"ratio": harness.quotients(rates[0], rates[n])}
        if hasattr(kernel, "bytes"): figures[str(n)]["kB/s"] = statistics.median(sent[n]) / 1e3
    pairs = list(zip(rates[0][::2], rates[0][1::2]))
    if pairs: figures["0"] = {"ratio": harness.quotients(*zip(*pairs))}
    return figures


def peers(rounds, n):
    "Return what others add to a hand-written loop, each in a kernel of its own, and which ones are left out."
    figures, left_out = {}, {}
    for name, code in PEERS.items():
        kernel = Kernel()
        try:
            kernel.run(LOOP + code)
            kernel.value("bare(200)"), kernel.value("shown(200)")
            ratios, sent = [], []
            for _ in range(rounds):
                pair = {}
                for which in random.sample(["bare", "shown"], 2):
                    before, began = kernel.bytes, time.perf_counter()
                    pair[which] = kernel.value(f"{which}({n})")
                    if which == "shown": sent.append((kernel.bytes - before) / (time.perf_counter() - began))
                ratios.append(pair["bare"] / pair["shown"])
            figures[name] = {"ratio": harness.median_with_interval(ratios), "kB/s": statistics.median(sent) / 1e3}
        except RuntimeError as error: left_out[name] = str(error)
        finally: kernel.close()
    return figures, left_out


def many_runs(rounds, number):
    "Return the seconds that `runs(folder)` and its first message take in a new process, with an empty index and a full one."
    figures = {"number": number}
    with tempfile.TemporaryDirectory() as folder:
        def run(code, cache, *words):
            env = os.environ | {"XDG_CACHE_HOME": f"{folder}/{cache}"}
            return subprocess.run([sys.executable, "-c", code, f"{folder}/logs", *words], env=env, capture_output=True, text=True, check=True).stdout
        run(LOGS, "none", str(number))
        every = [[run(OPEN, f"cache{i}").split() for i in range(rounds)] for _ in range(2)]
        for name, times in zip(("the first time", "with the index"), every):
            wall, cpu = ([float(o[k]) for o in times] for k in (0, 1))
            figures[name] = {"s": harness.median_with_interval(wall), "cpu": harness.median_with_interval(cpu)}
    return figures


def on_a_page(rounds, seconds):
    "In real JupyterLab: how soon a view is there, and what it costs with a browser that draws."
    sys.path.insert(0, str(ROOT/"tests"))
    from conftest import find_chromium
    from lab import Lab
    from playwright.sync_api import sync_playwright
    with sync_playwright() as p:
        lab = Lab(p.chromium.launch(executable_path=find_chromium(), headless=True, args=["--no-sandbox", "--disable-gpu"]))
        try: return {"times": times(lab, max(3, rounds // 3)), "drawn": drawn(lab, rounds, seconds)}
        finally: lab.close()


def times(lab, rounds):
    "From running the cell to numbers and controls, and to the first curve."
    cells = [OURS + "\nlearn.start(); time.sleep(2); learn.pause()", *["learn.dashboard()"] * rounds]
    page = lab.notebook(cells, "times.ipynb").run(0)
    found = {"numbers and controls": [], "the first curve": []}
    ready = {"numbers and controls": "v => v && v.querySelector('.tnb-fact-value') && v.querySelector('.tnb-button') && v.querySelector('.tnb-button').offsetParent",
             "the first curve": "v => { const c = v && v.querySelector('.tnb-plot canvas'); return c && c.width && c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(o => o) }"}
    for i in range(1, rounds + 1):
        page.cell(i).scroll_into_view_if_needed()
        began = time.perf_counter()
        page.start(i)
        for name, test in ready.items():
            while not page.tab.evaluate(f"i => ({test})(document.querySelectorAll('.jp-Notebook .jp-Cell')[i].querySelector('.tnb'))", i): time.sleep(0.005)
            found[name].append(time.perf_counter() - began)
        page.tab.wait_for_timeout(500)
    page.close(), lab.pages.remove(page), lab.stop_kernels()
    return {name: {"s": harness.median_with_interval(values), "first": values[0]} for name, values in found.items()}


def drawn(lab, rounds, seconds):
    "The cost with a browser that draws each view."
    cells = [OURS, *["with_views(0)", "with_views(1)", "with_views(3)"]]
    page = lab.notebook(cells, "drawn.ipynb").run(0)
    class Here:
        def run(self, code): page.run(1 + cells[1:].index(code)); page.tab.wait_for_timeout(300)
        def value(self, expression): return page.ask(expression)
    figures = slow(Here(), rounds, seconds)
    page.close(), lab.pages.remove(page), lab.stop_kernels()
    return figures


ZOOM = """async frames => {
  const gaps = [], script = [], draw = view.draw.bind(view);
  view.draw = () => { const began = performance.now(); draw(); script.push(performance.now() - began); };
  await new Promise(done => {
    let last = 0, i = 0;
    const next = now => {
      if (last) gaps.push(now - last);
      last = now;
      const middle = 10000 + 4000 * Math.sin(i / 31), half = 3000 + 2500 * Math.sin(i / 20);
      view.zoomTo([middle - half, middle + half]);
      if (i++ < frames) requestAnimationFrame(next); else done();
    };
    requestAnimationFrame(next);
  });
  return [gaps, script];
}"""


def frames(number):
    "Return [median, 95 %] of the frames per second, and of the script in a frame, of a page that zooms many runs in each frame."
    import numpy as np
    sys.path[:0] = [str(ROOT/"tests"), str(ROOT/"tests"/"live")]
    from conftest import find_chromium
    from playwright.sync_api import sync_playwright
    from test_page import CSS, SOURCE, Page, a_run, blocks, everything, packed
    noise = np.random.default_rng(0)
    def run(i):
        made = blocks(4000, 5)
        made[:, 3:6] = np.exp(-made[:, :1] / (5000 + 500 * i)) + 0.1 * noise.random((4000, 3))
        return made
    def points(): return [[step, step / 100, step / 60, noise.random()] for step in range(80, 20001, 80)]
    names = [f"r{i}" for i in range(20)]
    row = {"state": "finished", "about": "", "baseline": False, "single": True, "texts": [], "values": []}
    table = {"columns": [], "groups": [], "group": None, "results": [], "result": "", "drawn": 20, "metrics": [], "rows": [{"run": o, "name": o, **row} for o in names]}
    content = everything(runs=[a_run(name, i, width=5, color=i + 2) for i, name in enumerate(names)], smoothing=160, table=table, controls=False, metrics={o: {f"metric_{k}": points() for k in range(50)} for o in names})
    with sync_playwright() as p:
        tab = p.chromium.launch(executable_path=find_chromium(), headless=True, args=["--no-sandbox"]).new_page(viewport={"width": 1300, "height": 1000})
        tab.set_content((ROOT/"tests"/"page.html").read_text("utf-8"))
        tab.evaluate("([source, css]) => start(source, css)", [SOURCE, CSS])
        page = Page(tab)
        page.js("([text, buffers]) => feed(JSON.parse(text), buffers)", [json.dumps(content), [packed(run(i)) for i in range(20)]])
        page.settle()
        tab.locator(".tnb-big").scroll_into_view_if_needed()
        page.js(ZOOM, 30)
        devtools = tab.context.new_cdp_session(tab)
        devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        def processor(): return {o["name"]: o["value"] for o in devtools.send("Performance.getMetrics")["metrics"]}["ScriptDuration"]
        before = processor()
        gaps, script = page.js(ZOOM, number)
        each = (processor() - before) * 1000 / len(script)
    return {"rate": [float(1000 / np.quantile(gaps, o)) for o in (0.5, 0.95)], "script": [float(np.quantile(script, o)) for o in (0.5, 0.95)], "processor": each}


def tables(found: dict) -> dict:
    "Return the tables of a stored result by name."
    figures, rows = found["figures"], []
    def add(label, figure, bold=False):
        rows.append([label, harness.with_interval(figure["ratio"], 3, bold=bold),
                     f"{figure['kB/s']:.0f}" if "kB/s" in figure else ""])
    for part, note in (("slow", "no browser"), ("drawn", "drawn by a browser")):
        of_part = figures.get(part)
        if not of_part: continue
        add(f"one view, {of_part['rate']:,.0f} steps/s, {note}", of_part["1"], bold=part == "slow")
        add(f"three views, {note}", of_part["3"])
        if "0" in of_part: add(f"no view against no view, neighbouring rounds, {note}", of_part["0"])
    for name, figure in figures.get("peers", {}).items(): add(f"{name}, in a cell", figure)
    made = {"views": harness.table(["time of a step, without a view = 1", "", "sent, kB/s"], rows)} if rows else {}
    if figures.get("times"):
        rows = [[name, harness.with_interval(figure["s"]), f"{figure['first']:.2f}"]
                for name, figure in figures["times"].items()]
        made["times"] = harness.table(["from running the cell to", "s", "the first view of a page, s"], rows)
    opened = figures.get("runs")
    if opened:
        rows = [[name, harness.with_interval(opened[name]["s"]), harness.with_interval(opened[name]["cpu"], bold=True)] for name in list(opened)[1:]]
        made["runs"] = harness.table([f"opening {opened['number']} runs of 2,000 steps", "s", "of the processor, s"], rows)
    drawn = figures.get("zoom")
    if drawn:
        made["zoom"] = harness.table(["20 runs of 20,000 steps and 50 metrics, zoomed in each frame", "median", "95 %"],
                                     [["frames per second", f"{drawn['rate'][0]:.0f}", f"{drawn['rate'][1]:.0f}"], ["script in a frame, ms", *(f"{o:.1f}" for o in drawn["script"])],
                                      ["of the processor, the mean, ms", f"{drawn['processor']:.1f}", ""]])
    notes = [f"{harness.INTERVALS} {harness.describe(found)}", *harness.missing_lines(found, {})]
    return made | {"notes": "\n".join(notes)}


def main(argv=None):
    "Measure what was asked for and print the tables."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["slow", "runs", "peers", "page", "zoom"])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--json", metavar="FILE", help="write the summary to this file")
    opts = parser.parse_args(argv)
    harness.use_checkout()
    if opts.quick: opts.rounds = min(6, opts.rounds)
    seconds, n = (1.0, 1000) if opts.quick else (3.0, 3000)
    figures, left_out = {}, {}
    if opts.only in (None, "slow"):
        kernel = Kernel()
        kernel.run(OURS)
        figures["slow"] = slow(kernel, opts.rounds, seconds)
        kernel.close()
    if opts.only in (None, "runs"): figures["runs"] = many_runs(max(3, opts.rounds // 2), 50 if opts.quick else 500)
    if opts.only in (None, "peers"): figures["peers"], left_out = peers(opts.rounds, n)
    if opts.only in (None, "page"):
        try: figures |= on_a_page(opts.rounds, seconds)
        except ImportError as error: left_out["JupyterLab with a browser"] = str(error)
    if opts.only in (None, "zoom"):
        try: figures["zoom"] = frames(600 if not opts.quick else 120)
        except ImportError as error: left_out["a browser"] = str(error)
    packages = ["jupyterlab", "ipykernel", "fastprogress", "livelossplot"]
    found = harness.result("views", opts, ["rounds"], figures, left_out, packages)
    harness.print_result(found, tables(found))
    harness.write_json(opts.json, found)


if __name__ == "__main__": main()
