"""A run in a notebook, written as a script: started in a fresh process it ends in the same bytes, or it is said why not.

A process that has only imported the libraries forks for each notebook and each script, since importing torch takes longer than
all the rest. The notebook is an IPython shell in such a fork.
"""
import json, os, re, shutil, socket, subprocess, sys, textwrap, types

import pytest
import torch
from safetensors.torch import load_file

from toys import Augmented, hard_learner
from trainer_nb import TrainerCallback

ENV = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


# --- what is run ----------------------------------------------------------------------------------------------------------

FORKS = """
import contextlib, io, json, os, random, runpy, socket, sys, traceback
import torch, safetensors.torch, accelerate, datasets, transformers, traitlets.config, IPython.core.interactiveshell as interactive
import trainer_nb.learner, trainer_nb.state.restore, trainer_nb.state.branch, trainer_nb.engine.settings

def run_script(path, folder):
    os.chdir("/")
    sys.argv, sys.path[0] = [path, "--output_dir", folder], os.path.dirname(path)
    runpy.run_path(path, run_name="__main__")

def run_cells(address):
    shell = interactive.InteractiveShell.instance(config=traitlets.config.Config({"HistoryManager": {"hist_file": ":memory:"}}))
    # Python seeds this generator anew in each fork
    random.setstate(trainer_nb.core.seeding.GENERATORS_AT_IMPORT[3])
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(address)
    stream = stream.makefile("rw")
    for line in stream:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            error = shell.run_cell(json.loads(line), store_history=True).error_in_exec
        print(json.dumps([printed.getvalue(), type(error).__name__, str(error)]), file=stream, flush=True)

for line in sys.stdin:
    what = json.loads(line)
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            run_script(*what) if isinstance(what, list) else run_cells(what)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stderr.flush()
        os._exit(code)
    if isinstance(what, list): print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Forks:
    "The process that forks."
    def __init__(self, folder):
        self.said = folder/"said"
        with open(self.said, "w") as err:
            self.process = subprocess.Popen([sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, env=ENV)
    def send(self, what):
        self.said.open("r+").truncate(0)
        print(json.dumps(what), file=self.process.stdin, flush=True)
    def __call__(self, path, folder):
        "Run a script; its exit code and what it said."
        self.send([str(path), str(folder)])
        code = next(int(line.split()[1]) for line in self.process.stdout if line.startswith("ended "))
        return code, self.said.read_text().replace("\0", "")


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    forks = Forks(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.process.stdin.close()
    forks.process.wait()


class Notebook:
    "A shell in a fork."
    def __init__(self, forks, folder):
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(folder/"s"))
            server.listen()
            forks.send(str(folder/"s"))
            self.connection = server.accept()[0]
        self.stream = self.connection.makefile("rw")
    def send(self, code):
        print(json.dumps(textwrap.dedent(code).strip()), file=self.stream, flush=True)
        return json.loads(self.stream.readline())
    def run(self, code):
        printed, kind, error = self.send(code)
        assert kind == "NoneType", (code, kind, error)
        return printed.strip()
    def fails(self, code, ename):
        _, kind, error = self.send(code)
        assert kind == ename, (kind, error)
        return error


def fresh(*command, env=ENV):
    "A process of its own, from another folder."
    return subprocess.run([str(c) for c in command], cwd="/", env=env, capture_output=True, text=True, timeout=200)


def same(one, other):
    "Are the weights in two folders the same, byte for byte?"
    a, b = (load_file(f/"model.safetensors") for f in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[k].reshape(-1).view(torch.uint8), b[k].reshape(-1).view(torch.uint8)) for k in a)


SETUP = """
import os, random, warnings
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from trainer_nb import Learner, Paused, TrainerCallback, TrainingArguments
torch.set_num_threads(1)"""

NET = """
hidden = 8
class Net(nn.Module):
    def __init__(self, drop=0.3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(drop))
        self.head = nn.Linear(hidden, 1)
        self.register_buffer("mean", torch.randn(4), persistent=False)
    def forward(self, x): return self.head(self.body(x - self.mean))"""

DATA = """
x = torch.randn(50, 4)
y = x.sum(1, keepdim=True)
train = TensorDataset(x, y)"""

SETTINGS = dict(learning_rate=0.01, num_train_epochs=3, per_device_train_batch_size=4, gradient_accumulation_steps=2, warmup_steps=2,
                use_cpu=True, disable_tqdm=True)   # 7 steps in an epoch


def learner(parts="net, train_dataset=train, loss_func=nn.functional.mse_loss", name="learn", **settings):
    "The cell that makes a learner."
    return f"{name} = Learner({parts}, {', '.join(f'{k}={v!r}' for k, v in (SETTINGS | settings).items())})"


class Session:
    "A notebook, its folder, and what runs scripts."
    def __init__(self, kernel, folder, forks): self.kernel, self.folder, self.forks = kernel, folder, forks
    def run(self, *cells):
        for cell in cells: said = self.kernel.run(cell)
        return said
    def fails(self, cell, ename, words):
        error = self.kernel.fails(cell, ename)
        assert re.search(words, error, re.S), error
    def export(self, more="") -> types.SimpleNamespace:
        "Export the learner; the script's text and the doubts. Its own weights are saved beside."
        said = self.run(f"""
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                out = learn.export_script("train.py"{more})
            learn.save_model("want")
            import json
            print(json.dumps([out.doubts, [str(w.message) for w in warned], [f.name for f in out.files]]))""")
        doubts, warned, files = json.loads(said.splitlines()[-1])
        return types.SimpleNamespace(text=(self.folder/"train.py").read_text(), doubts=doubts, warned=warned, files=files)
    def equal(self) -> bool:
        "Run the script; does it end in the same bytes?"
        code, said = self.forks(self.folder/"train.py", self.folder/"got")
        assert code == 0, (self.folder/"train.py").read_text() + said
        equal = same(self.folder/"want", self.folder/"got")
        assert equal != ("UserWarning: The weights are not those that the run had" in said), said   # the script knows it too
        return equal
    def exact(self) -> str:
        "Export without a doubt, run, compare; the script's text."
        out = self.export()
        assert out.doubts == [] and out.warned == [], out.doubts
        assert self.equal(), out.text
        return out.text


@pytest.fixture
def session(tmp_path, tmp_path_factory, forks):
    "A notebook that has just been opened, in a folder of its own."
    notebook = Notebook(forks, tmp_path_factory.mktemp("n"))
    notebook.run(f"%cd -q {tmp_path}\n{SETUP}")
    yield Session(notebook, tmp_path, forks)
    notebook.stream.close()
    notebook.connection.close()


# --- scripts that end in the same bytes -------------------------------------------------------------------------------------

def test_a_whole_notebook(session):
    "Everything that makes a run hard to repeat; and in a process that is really fresh."
    session.run("%env SOMETHING=1\n!true", NET, DATA, """
        class Drops(TrainerCallback):
            "Lowers the rate once."
            def on_step_end(self, args, state, control, learner, **kwargs):
                if state.global_step == 9: learner.set(lr=0.002)""", """
        net = Net()
        """ + learner("net, train_dataset=train, loss_func=nn.functional.mse_loss, eval_dataset=train, callbacks=[Drops()]", eval_strategy="steps", eval_steps=4),
        "learn.step(5)", "learn.set(lr=0.005)\nlearn.step(2)", "learn.freeze('body'); learn.snapshot('a'); learn.step(4); learn.rewind(3); learn.step(1)",
        "learn.unfreeze(); learn.set(weight_decay=0.1, per_device_train_batch_size=3)", "learn.step(3); learn.restore('a'); learn.step(3)", "learn.evaluate(); learn.set(max_steps=25)",
        "%%time\nlearn.train()")
    out = session.export()
    assert out.files == ["first.safetensors", "generators.safetensors"]
    assert [d for d in out.doubts if "evaluates by hand" not in d] == []
    assert "weight_decay" not in out.text and "lr=0.002" in out.text and "learn.rewind" not in out.text and "learn.restore" not in out.text
    done = fresh(sys.executable, session.folder/"train.py")
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    assert same(session.folder/"want", session.folder/"train_output")
    # the comparison, the last evaluation, and where the model is
    *_, compared, columns, values, saved = done.stdout.splitlines()
    assert columns.split() == ["step", "eval_loss", "epoch"] and values.split()[0] == "25"
    assert saved == f"The model is saved in {session.folder/'train_output'}." and compared.startswith("The weights are those of the run")


def test_a_run_that_a_script_finishes(session):
    "With train=True the script repeats the steps so far and trains to the end: as the notebook does when it goes on."
    session.run(NET, DATA, "net = Net()", learner(), "learn.step(4)", "learn.set(lr=0.002)", "learn.step(2)",
                "learn.step(3); learn.rewind(3); out = learn.export_script('train.py', train=True)", "learn.train(); learn.save_model('want')")
    text = (session.folder/"train.py").read_text()
    assert "repeats the steps and changes of the run so far, and then trains to its end" in session.run("print(out)")
    assert "up to step 6 of 21, and then to its end." in text
    assert text.index("learn.step(4)") < text.index("lr=0.002") < text.index("learn.step(2)") < text.index("learn.train()") < text.index("save_model")
    assert "check_weights" not in text
    code, said = session.forks(session.folder/"train.py", session.folder/"got")
    assert code == 0 and same(session.folder/"want", session.folder/"got"), said
    session.run("learn.export_script('train.py', train=True)")   # a finished run
    assert (session.folder/"train.py").read_text().count("learn.train()") == 1


def test_a_script_that_continues_from_its_checkpoint(session):
    """With resume=True: the weights of an undivided run; the steps before the newest checkpoint are not taken again. A function
    of the session with the name that the script imports keeps it."""
    session.run(NET, DATA, "def get_last_checkpoint(x): return x / 2", "def loss(out, y): return nn.functional.mse_loss(out, get_last_checkpoint(y))", "net = Net()",
                learner("net, train_dataset=train, loss_func=loss", output_dir="runs", save_steps=4), "learn.set(lr=0.02, weight_decay=0.1)\nlearn.freeze('head')", "learn.step(3)",
                "out = learn.export_script('train.py', train=True, resume=True)", "learn.train(); learn.save_model('want')")
    text = (session.folder/"train.py").read_text()
    assert "learn.step" not in text and "from trainer_nb import get_last_checkpoint as _get_last_checkpoint\n" in text
    assert text.count("learn.train(resume_from_checkpoint=_get_last_checkpoint(_output_dir))") == 1 == text.count("learn.train(")
    assert "continues from the newest checkpoint in its output folder, if there is one" in text and "was trained, to its end." in text
    assert session.run("print(out)").startswith("train.py is written, with first.safetensors, generators.safetensors in train_files. It trains to the end of the run, from the newest checkpoint")
    got = session.folder/"got"
    code, said = session.forks(session.folder/"train.py", got)
    assert code == 0 and same(session.folder/"want", got), said
    steps = sorted(int(path.name.partition("-")[2]) for path in got.glob("checkpoint-*"))
    assert steps == [4, 8, 12, 16, 20, 21]
    for step in (4, 12, 16, 20, 21): shutil.rmtree(got/f"checkpoint-{step}")
    (got/"model.safetensors").unlink()
    code, said = session.forks(session.folder/"train.py", got)
    assert code == 0 and same(session.folder/"want", got), said
    assert (got/"checkpoint-12").is_dir() and not (got/"checkpoint-4").exists()


def test_what_cannot_continue_from_a_checkpoint(session):
    "No checkpoints, no folder for them, or a change after the first step: an error with what to do; nothing is written."
    made = NET, DATA, "net = Net()"
    session.run(*made, learner())
    session.fails("learn.export_script('train.py', resume=True)", "ValueError", "resume=True. is for a script that trains to the end.*give train=True, too")
    for settings in ({}, {"output_dir": "runs", "save_strategy": "no"}, {"output_dir": "runs", "save_only_model": True}):
        session.run("net = Net()", learner(**settings))
        session.fails("learn.export_script('train.py', train=True, resume=True)", "ValueError", "give the Learner output_dir=, and neither")
    session.run("net = Net()", learner(output_dir="runs"), "learn.step(2)", "learn.set(lr=0.002)")
    session.fails("learn.export_script('train.py', train=True, resume=True)", "InvalidOperation", "line for 'set' after step 2.*learn.reset.*in a callback; or export without resume=True")
    assert not (session.folder/"train.py").exists()
    session.run("learn.rewind(2)", "learn.step(1)", "learn.export_script('train.py', train=True, resume=True)")   # the change was undone
    assert (session.folder/"train.py").exists()


def test_the_class_was_changed(session):
    "Cells that were run again with something else in them: before the learner was made, and after. The script repeats them in order."
    session.run(NET, NET.replace("nn.ReLU()", "nn.Tanh()"), DATA, "net = Net()", learner(), "learn.step(4)", NET.replace("nn.ReLU()", "nn.GELU()"),
                "net = None; hidden = 3; train = [1]; x = 'another'", "learn.train()")
    out = session.export()
    assert out.text.index("nn.ReLU()") < out.text.index("nn.Tanh()") < out.text.index("Learner(") < out.text.index("nn.GELU()")
    assert session.equal(), out.text


def test_changed_under_way(session):
    "What a function of the session looks up was bound anew while the run was under way: the script does it at the same step."
    session.run("scale = 1.0\ndef loss(out, y): return scale * nn.functional.mse_loss(out, y)", NET, DATA, "net = Net()", learner("net, train_dataset=train, loss_func=loss"),
                "learn.step(2)", "scale = 0.5", "learn.step(3)", "with torch.no_grad(): net.head.bias.zero_()", "learn.step(2)")
    text = session.exact()
    assert text.index("learn.step(2)") < text.index("scale = 0.5") < text.index("net.head.bias.zero_()")


def test_own_data(session):
    "A data set of a class of its own is made by its code, and what was drawn for it is stored; a loader function is called."
    rows = """
        class Rows(Dataset):
            def __init__(self, x, y): self.x, self.y = x, y
            def __len__(self): return len(self.x)
            def __getitem__(self, i): return {"x": self.x[i] + 0.1 * torch.randn(4), "labels": self.y[i]}"""
    net = """
        class Loss(Net):
            def forward(self, x, labels): return {"loss": (super().forward(x) - labels).pow(2).mean()}
        net = Loss()"""
    session.run(NET, rows, DATA, net, "x -= x.mean()   # in place\nrows = Rows(x, y)", learner("net, train_dataset=rows", dataloader_num_workers=2), "learn.train()")
    text = session.exact()
    assert "rows = Rows(x, y)" in text
    session.run("""
        def load(n):
            "The rows, as they are made each time."
            make = torch.Generator().manual_seed(n)
            x = torch.randn(n, 4, generator=make)
            return Rows(x, x.sum(1, keepdim=True)), x""", "size = 30\nrows, _ = load(size)", net, learner("net, train_dataset=rows"), "learn.train()")
    assert "load(size)" in session.exact()


def test_model_init(session):
    "Also a function that does not always make the same."
    session.run(NET, DATA, "def make(): return Net(drop=0.1)", learner("model_init=make, train_dataset=train, loss_func=nn.MSELoss()"), "learn.step(5); learn.set(lr=1e-3); learn.step(3)")
    session.exact()
    session.run("kept = {'n': 0}", """
        def make():
            kept["n"] += 1
            net = Net(drop=0.1)
            nn.init.constant_(net.head.bias, kept["n"])
            return net""", learner("model_init=make, train_dataset=train, loss_func=nn.MSELoss()"), "learn.step(5)")
    session.exact()


def test_branches_and_new_beginnings(session):
    session.run(NET, DATA, "net = Net()", learner(), "learn.step(5); other = learn.branch(lr=0.001); third = other.branch(max_grad_norm=0.1); fourth = other.branch(seed=3)",
                "learn.step(2); other.step(3); third.step(2); fourth.step(); first, learn = learn, third")
    assert "set(max_grad_norm=0.1)" in session.exact()
    session.fails("fourth.export_script('train.py')", "InvalidOperation", "cannot repeat branch.seed=.*make a new Learner with it")
    session.run("learn = other")
    assert "= learn.branch(" not in session.exact()
    session.run("learn = first; learn.set(max_grad_norm=0.2); learn.step(); learn.reset(); learn.step(3)")
    assert "max_grad_norm=0.2" in session.exact()
    session.run("learn.set(weight_decay=0.3, max_steps=6); learn.train(); learn.reset(); learn.train()")
    assert "max_steps=6" in session.exact()
    session.run("learn.train()")   # with the optimizer of the run before it
    session.fails("learn.export_script('train.py')", "InvalidOperation", "first weights.*a finished run that was trained again.*learn.reset")


def test_parts_of_all_kinds(session):
    "An optimizer, a loss with weights of its own, a teacher, a loader, an overridden move, a callback; functions that use the learner."
    session.run(NET, DATA, """
        class Centers(nn.Module):
            def __init__(self):
                super().__init__()
                self.center = nn.Parameter(torch.randn(1))
                self.register_buffer("seen", torch.zeros(1))
            def forward(self, out, y):
                self.seen += 1
                return (out - y - self.center).pow(2).mean() + soft(out)""", "teacher = Net()\nteacher.eval()\ndef soft(out): return 0.1 * teacher(x[:len(out)]).mean() + learn.state.global_step", """
        class Mine(Learner):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                loss = super().compute_loss(model, inputs, return_outputs)
                return (loss[0] * 2, loss[1]) if return_outputs else loss * 2""", """
        class Counts(TrainerCallback):
            def __init__(self, every): self.every, self.n = every, 0
            def on_step_end(self, args, state, control, learner, **kwargs):
                self.n += 1
                if self.n % self.every == 0: learner.set(max_grad_norm=0.5 / self.n)""", """
        net, loss = Net(), Centers()
        loader = DataLoader(train, batch_size=5, shuffle=True)
        opt = torch.optim.SGD([*net.parameters(), *loss.parameters()], lr=0.01, momentum=0.9)""",
        "net.body[1].eval(); net.body[0].bias.requires_grad_(False)",
        "learn = Mine(net, train_dataset=loader, loss_func=loss, optimizers=(opt, None), callbacks=[Counts(3)], max_steps=20, use_cpu=True)", "learn.step(7); learn.set(lr=0.005)", "learn.train()")
    assert """_files / "first.safetensors", "(loss).")""" in session.exact()


def test_what_was_brought_along(session):
    "Another data set and callbacks under way are found in the cells where they were given."
    session.run(NET, DATA, "net = Net()", learner(), "learn.step(3)", """
        class Slower(TrainerCallback):
            def on_step_end(self, args, state, control, learner, **kwargs): learner.set(lr=0.01 / state.global_step)
        slower = Slower()""", "learn.add_callback(slower)", "learn.step(2)", "more = TensorDataset(torch.randn(20, 4), torch.randn(20, 1))\nlearn.train_dataset = more", "learn.step(2); learn.remove_callback(Slower)", "learn.train()")
    text = session.exact()
    assert text.index("learn.add_callback(slower)") < text.index("learn.train_dataset = more") < text.index("learn.remove_callback(Slower)")


def test_what_a_function_has_brought_along(session):
    "The script calls it, too."
    session.run(NET, DATA, "net = Net()", learner(), "def attach(): learn.add_callback(TrainerCallback())\ndef give(): learn.train_dataset = TensorDataset(x[:20], y[:20])", "learn.step(2)",
                "attach(); give()\nnote = 1", "learn.step(2)")
    session.exact()


def test_replaced_functions(session):
    "The script begins with the first collator and loss, and assigns the others where the session did; also those that were a default."
    session.run(NET, DATA, "def first(rows): return tuple(torch.stack(o) for o in zip(*rows))\ndef second(rows): return tuple(torch.stack(o) * 1.1 for o in zip(*rows))",
                "net = Net()", learner("net, train_dataset=train, loss_func=nn.functional.mse_loss, data_collator=first"), "learn.step(3)", "learn.data_collator = second", "learn.step(2)",
                "learn.loss_func = nn.functional.l1_loss", "learn.train()")
    text = session.exact()
    assert text.index("data_collator=first") < text.index("learn.step(3)") < text.index("learn.data_collator = second") < text.index("learn.loss_func = nn.functional.l1_loss") < text.index("learn.train()")
    session.run("net = Net()", learner(), "learn.step(3)", "learn.data_collator = second", "learn.step(2)")
    text = session.exact()
    assert text.count("data_collator") == 1 and "learn.data_collator = second" in text
    session.run("net = Net()", learner(), "learn.step(3)", "learn.compute_loss = lambda model, inputs, **more: 2 * Learner.compute_loss(learn, model, inputs, **more)", "learn.step(2)")
    session.exact()


def test_cells_as_people_leave_them(session):
    "Failing cells, timed cells, several things in a line, strings of several lines, a name for a part, a star."
    session.run("%%time\n" + NET.strip(), "from math import *", "b = 3; note = '''two\n  lines'''; rate = sqrt(1e-4)")
    session.kernel.fails("hidden = 16\nraise KeyError('oh')\nhidden = 99", "KeyError")
    session.run("del hidden\n!echo nothing", "# sixteen\nhidden = 16", DATA)
    session.run("""
        net = Net()
        head = net.head
        with torch.no_grad():
            for p in head.parameters(): p.zero_()
        net.body.add_module("last", nn.Linear(hidden, hidden))
        class Says(TrainerCallback):
            def on_train_begin(self, args, state, control, **kwargs): assert note.count(chr(10)) == 1 and len(note) == 11""",
        learner("net, train_dataset=train, loss_func=nn.functional.mse_loss, callbacks=[Says()]").replace("learning_rate=0.01", "learning_rate=rate"))
    session.kernel.fails("learn.step(2); learn.oops()", "AttributeError")
    text = session.exact()
    assert "add_module" in text and "# sixteen" in text and "hidden = 99" not in text


SMALL = "class Rows(Dataset):\n    def __init__(self, x): self.x = x\n    def __len__(self): return len(self.x)\n    def __getitem__(self, i): return self.x[i], self.x[i, :1]"

EXACT = {   # cells after those with the model and the data
    "a model taken over": ["net = Net()", learner(), "learn.step(2)", learner("learn.model, train_dataset=train, loss_func=nn.functional.l1_loss", name="again"), "again.step(3); learn = again"],
    "steps in every way": ["net = Net()", learner(), "for rec in learn.steps():\n    if rec.step == 3: break", "s = learn.debug_step()", "s.forward(); s.backward(); s.forward(); s.backward(); s.update()", "learn.step()"],
    "an optimizer given later": ["net = Net()\n" + learner() + "\nlearn.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)", "learn.step(3)"],
    "before the first step": ["net = Net()\n" + learner(), "learn.add_callback(TrainerCallback())\nlearn.set(max_grad_norm=0.2)\nlearn.freeze('body')", "learn.step(3); learn.unfreeze(); learn.step()"],
    "layers in evaluation mode": ["net = Net(0.3)\n" + learner(), "learn.freeze('body', eval_mode=True)",
                                  "learn.step(2); learn.unfreeze('body', eval_mode=True); learn.step(); learn.unfreeze(); learn.step()"],
    "a callback from a future left behind": ["class C(TrainerCallback):\n    def on_step_end(self, args, state, control, learner, **kwargs): learner.set(lr=0.01 / (1 + state.global_step))", "net = Net()\n" + learner(),
                                             "learn.snapshot('a'); learn.step(6)", "learn.add_callback(C)", "learn.step(2); learn.restore('a'); learn.step(4)"],
    "a learner with an argument of its own": ["class Mine(Learner):\n    def __init__(self, model, alpha, **how):\n        self.alpha = alpha\n        super().__init__(model, **how)\n    def compute_loss(self, *a, **k): return super().compute_loss(*a, **k) * self.alpha",
                                              "net = Net()", learner("net, 3.0, train_dataset=train, loss_func=nn.functional.mse_loss").replace("Learner(", "Mine("), "learn.step(4)"],
    "our names": ["def main(): pass\nstored = torch.randn(3)\nFILES = 3\nparser = None\ndef load_weights(m): nn.init.ones_(m.head.bias)", "net = Net()\nload_weights(net)\nscale = stored.sum()\nclass Sc(nn.Module):\n    def forward(self, a, b): return (a-b).pow(2).mean() * scale",
                  learner("net, train_dataset=train, loss_func=Sc()"), "learn.step(4)"],
    "a run prolonged": ["net = Net()\nlearn = Learner(net, train_dataset=train, loss_func=nn.functional.mse_loss, max_steps=8, use_cpu=True)", "learn.train()", "learn.set(max_steps=12); learn.step(2)"],
    "a run in pieces": ["net = Net()", learner(), "learn.step(2); learn.fit(1, 0.02)", "learn.fit_one_cycle(1, pct_start=0.5)", "learn.plan(1, schedule='cosine'); learn.step(2)"],
    "a run that was ended": ["net = Net()", learner(), "learn.step(2); learn.stop()", "learn.set(num_train_epochs=2); learn.step(2)", "learn.stop()"],
    "an end without a step": ["class Ends(TrainerCallback):\n    def on_train_end(self, args, state, control, **kwargs): net.head.bias.data.add_(1)", "net = Net()", learner("net, train_dataset=train, loss_func=nn.functional.mse_loss, callbacks=[Ends()]"), "learn.step(5)", "learn.set(max_steps=5)", "learn.train()"],
    "a branch under the same name": ["net = Net()", learner(), "learn.step(2)", "learn = learn.branch(run_name='twin', max_grad_norm=0.5)", "learn.step(2)", "learn = learn.branch(lr=0.5); learn.step(1)"],
    "a branch without its parent": ["net = Net()", learner(), "learn.step(2)", "keep = learn.branch(weight_decay=0.3)", "del learn", "keep.step(3); learn = keep"],
    "optimizers and schedules by their names": [
        "net = Net()", learner("net, train_dataset=train, loss_func=nn.functional.mse_loss, eval_dataset=train", optim="muon", lr_scheduler_type="greedy", eval_strategy="steps",
                               eval_steps=2, lr_scheduler_kwargs=dict(patience=0, factor=0.8, min_lr=1e-4)), "learn.step(5); learn.set(lr=0.02); learn.step(2)",
        "learn = learn.branch(lr=0.05)", "learn.step(2)"],
    "a schedule of one's own": ["net = Net()", "opt = torch.optim.SGD(net.parameters(), lr=0.1)\nsched = torch.optim.lr_scheduler.StepLR(opt, 2)",
                                "learn = Learner(net, train_dataset=train, loss_func=nn.functional.mse_loss, max_steps=12, optimizers=(opt, sched), use_cpu=True)", "learn.step(5)"],
    "stopped by an evaluation": ["class Stops(TrainerCallback):\n    def on_evaluate(self, args, state, control, metrics, **kwargs):\n        if state.global_step >= 6 and 'eval_off' in metrics: control.should_training_stop = True\ndef off(out, y): return (out - y).abs().mean(1)", "net = Net()",
                                 learner("net, train_dataset=train, loss_func=nn.functional.mse_loss, callbacks=[Stops()], eval_dataset=train, metrics={'off': off}", eval_strategy="steps", eval_steps=3, bf16_full_eval=True),
                                 "learn.train(); learn.evaluate()"],
    "a running average": ["import copy\nnet = Net()\nema = copy.deepcopy(net)\nclass Averages(TrainerCallback):\n    def on_step_end(self, args, state, control, **kwargs):\n        for a, b in zip(ema.parameters(), net.parameters()): a.data.lerp_(b.data, 0.1)\n"
                          "    def on_train_end(self, args, state, control, **kwargs): net.load_state_dict(ema.state_dict())",
                          learner("net, train_dataset=train, loss_func=nn.functional.mse_loss, callbacks=[Averages()]", max_steps=6), "learn.train()"],
    "data in place": [SMALL + "\ndata = Rows(x)", "net = Net()", learner("net, train_dataset=data, loss_func=nn.functional.mse_loss"), "learn.step(2)", "x.mul_(2)", "learn.step(2)"],
    "a move patched on": ["net = Net()", learner(), "learn.step(2)", "from types import MethodType\nlearn.compute_loss_context_manager = MethodType(lambda self: torch.autocast('cpu', torch.bfloat16), learn)", "learn.step(2)"],
}
QUICK = ("data in place", "a model taken over", "steps in every way", "a callback from a future left behind", "our names", "a branch without its parent",
         "stopped by an evaluation", "a running average", "a run that was ended")   # the others are run with the slow ones


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in EXACT])
def test_exact(session, name):
    session.run(NET, DATA, *EXACT[name])
    session.exact()


# --- where it does not, and why ---------------------------------------------------------------------------------------------

def test_by_hand(session):
    "A change in the cell of a verb, of a setting and of the weights: the one is in the script, the other is named there and in a warning."
    session.run(NET, DATA, "net = Net()", learner(), "learn.step(2)", "for rec in learn.steps():\n    if rec.step == 4: break\n    with torch.no_grad(): net.head.bias.zero_()", "learn.step()",
                "learn.step(); learn.args.max_grad_norm = 0.3; learn.step()")
    out = session.export()
    assert len(out.doubts) == 1 and "changed: weights" in out.doubts[0] and "learn.set(max_grad_norm=0.3)" in out.text
    assert all(d in out.text for d in out.doubts)
    assert not session.equal()


def test_what_nobody_sees(session):
    "A script that comes to other weights says so, where nothing was found beforehand."
    session.run(NET, DATA, "scale = 1.0\ndef loss(out, y, **kwargs): return scale * nn.functional.mse_loss(out, y)",
                "net = Net()", learner("net, train_dataset=train, loss_func=loss", optim="sgd"), "for rec in learn.steps():\n    scale = 3.0\n    if rec.step == 4: break")
    session.export()
    assert not session.equal()


def test_random_data(session):
    "Data that cells draw, without a seed and with others drawn in between, also by a learner that the script does not train."
    rows = """
        class Rows(Dataset):
            def __init__(self, n): self.x = torch.randn(n, 4) + random.random() + np.random.rand()
            def __len__(self): return len(self.x)
            def __getitem__(self, i): return self.x[i], self.x[i].sum(0, keepdim=True)"""
    session.run(NET, rows, "print(torch.rand(3))", "rows = Rows(20)", "net = Net()", learner("net, train_dataset=rows, loss_func=nn.functional.mse_loss", name="first"), "first.step(2)",
                "more = Rows(20)", learner("Net(), train_dataset=more, loss_func=nn.functional.mse_loss"), "learn.step(2)")
    assert "first.step" not in session.exact()


def test_a_teacher_that_another_learner_has_trained(session):
    session.run(NET, DATA, "teacher = Net()", learner("teacher, train_dataset=train, loss_func=nn.functional.mse_loss", name="first"), "first.step(5)",
                "def loss(out, y): return nn.functional.mse_loss(out, y) + (out - teacher.eval()(x[:len(out)]).detach()).pow(2).mean()", "net = Net()", learner("net, train_dataset=train, loss_func=loss"), "learn.step(3)")
    assert "teacher.safetensors" in session.exact()


def test_changes_by_hand_that_cannot_be_repeated(session):
    "Of gradients in a debug step, of weights in steps that were undone, and what another session has done before a checkpoint."
    made = NET, DATA, "net = Net()", learner(output_dir="out"), "learn.step(2)"
    session.run(*made, "s = learn.debug_step()", "s.forward(); s.backward(); s.forward(); s.backward()\nnet.head.weight.grad.mul_(3)\ns.update()", "learn.step()")
    session.fails("learn.export_script('train.py')", "InvalidOperation", "change of gradients by hand .after step 2.*in a callback")
    session.run(*made, "with torch.no_grad(): net.head.weight.zero_()", "learn.step(2); learn.rewind(3)", "learn.step()")
    session.fails("learn.export_script('train.py')", "InvalidOperation", "change of weights by hand .after step 2.*in a callback")
    session.run(*made, "learn.save_checkpoint()", *made[2:4], "learn.load_checkpoint(); learn.step(2)")
    session.fails("learn.export_script('train.py')", "InvalidOperation", "another one .a checkpoint.*the session that began it")


def test_what_run_on_all_has_assigned(session):
    "Here and in launched processes; the script lacks it and says so."
    session.run(NET, DATA, """
        class Weighted(Learner):
            beta = 1.0
            def compute_loss(self, *args, **kwargs): return self.beta * super().compute_loss(*args, **kwargs)""")
    for launch in ("", "\nlearn.launch(2)"):
        session.run("net = Net()", learner(dataloader_drop_last=True).replace("Learner(", "Weighted(") + launch, "learn.step(2)",
                    "learn.run_on_all(lambda learn: setattr(learn, 'beta', 0.5))", "learn.step(2); learn.close()")
        out = session.export()
        assert len(out.doubts) == 1 and "After step 2 there was by hand changed: Weighted.beta" in out.doubts[0]
        assert not session.equal()


def test_refusals(session, tmp_path):
    "One sentence, with what to do, and nothing is written."
    session.run(NET, DATA)
    session.run("learners = [" + learner("Net(), train_dataset=train, loss_func=nn.functional.mse_loss").removeprefix("learn = ") + "]", "learners[0].step()")
    session.fails("learners[0].export_script('train.py')", "InvalidOperation", "none of them makes this learner.*Make it in a cell")
    session.run("old = " + learner().removeprefix("learn = ").replace("net,", "Net(),"), "mine = learners[0]")
    session.fails("mine.export_script('train.py')", "InvalidOperation", "none of them makes this learner.*Make it in a cell")   # another learner's is not shown
    session.run("labels = old.predict(train).predictions", "rows = [(x[i], torch.tensor(labels[i])) for i in range(9)]",
                learner("Net(), train_dataset=rows, loss_func=nn.functional.mse_loss"), "learn.step()")
    session.fails("learn.export_script('train.py')", "InvalidOperation", "cannot repeat what made `rows`")
    session.run("open('train.py', 'w').write('mine')", learner("Net(), train_dataset=train, loss_func=nn.functional.mse_loss"), "learn.step()")
    session.fails("learn.export_script('train.py')", "FileExistsError", "was not written by export_script; give another name")
    session.fails("learn.export_script('train')", "ValueError", "for example 'train.py'")
    session.run("step = learn.debug_step()")
    session.fails("learn.export_script('other.py')", "InvalidOperation", "a debug step is open")
    session.run("step.abort(); learn.free()")
    session.fails("learn.export_script('other.py')", "InvalidOperation", r"first weights, which free\(\) has released")
    assert sorted(os.listdir(tmp_path)) == ["train.py"]


# --- elsewhere ------------------------------------------------------------------------------------------------------------

def test_accelerate_launch(session, tmp_path):
    "With data workers that are started anew and import the script: they do nothing of what main does."
    session.run(NET, SMALL, DATA, "net = Net()", learner("net, train_dataset=Rows(x), loss_func=nn.functional.mse_loss", dataloader_num_workers=1), "learn.step(3); learn.set(lr=0.002); learn.step(2)")
    session.export()
    (tmp_path/"sitecustomize.py").write_text("import multiprocessing\nmultiprocessing.set_start_method('spawn', force=True)\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", session.folder/"train.py", "--output_dir", session.folder/"got"]
    done = fresh(*command, env=ENV | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    assert same(session.folder/"want", session.folder/"got")


SCRIPT = f"""{SETUP}
{NET}
if __name__ == "__main__":
{textwrap.indent(DATA.strip(), "    ")}
    net = Net()
    {learner()}
    learn.step(3)
    learn.set(lr=0.002)
    learn.step(2)
    print(learn.export_script("train.py"))
    learn.save_model("want")
    net = "nothing"
"""


def test_from_a_script(tmp_path, forks):
    "Without a notebook it is the script's own text that is read, up to the line where it stands."
    (tmp_path/"here.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "here.py"], cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("the script checks them at its end.")
    code, said = forks(tmp_path/"train.py", tmp_path/"got")
    assert code == 0 and same(tmp_path/"want", tmp_path/"got"), said


# --- what is noted for it -----------------------------------------------------------------------------------------------------

def test_who_did_it():
    "The journal says what a callback has asked for; a debug step and data that is given anew are not taken for work by hand."
    class Asks(TrainerCallback):
        def on_step_end(self, args, state, control, learner, **kwargs):
            if state.global_step == 2: learner.set(lr=0.02), learner.freeze("inner")
    learn = hard_learner(callbacks=[Asks()], num_train_epochs=10, gradient_accumulation_steps=1)
    learn.step(3)
    learn.set(lr=[0.03] * len(learn.optimizer.param_groups))
    learn.train_dataset = Augmented(40)
    learn.snapshot()
    with learn.debug_step() as debug: debug.forward(), debug.backward(), debug.update()
    with learn.debug_step() as debug: debug.forward()
    learn.add_callback(Asks), learn.remove_callback(Asks), learn.step()
    assert [(o["step"], o["act"], o["by"]) for o in learn.journal] == [
        (2, "set", "callback"), (2, "freeze", "callback"), (3, "set", ""), (3, "train_dataset", ""), (4, "add_callback", ""), (4, "remove_callback", "")]
    assert learn.history.events[[e["kind"] for e in learn.history.events].index("train_dataset") - 1]["data"]["lr"] == [0.03] * len(learn.optimizer.param_groups)
    assert "callback" in repr(learn.journal)
