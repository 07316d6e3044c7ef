"What the tests share: where the repository is, a copy of it to work on, and a browser."
import gc, os, shutil, signal, subprocess, sys, tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Started in the background by a shell, processes ignore the interrupt button, and so would those that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN: signal.signal(signal.SIGINT, signal.default_int_handler)


def tracked(root=ROOT):
    "The files that git tracks or would add, relative to `root`, in order."
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                         cwd=root, check=True, capture_output=True, text=True).stdout
    names = [Path(o) for o in sorted(set(out.split("\0"))) if o]
    return [o for o in names if (root/o).is_symlink() or (root/o).is_file()]   # not those deleted but not committed


def copy_tree(to, root=ROOT):
    "A copy of the repository's files in `to`, without what git ignores: no developer's tree is ever altered."
    for name in tracked(root):
        (to/name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root/name, to/name, follow_symlinks=False)
    return to


@pytest.fixture
def tree(tmp_path):
    "A copy of the repository, of this test's own."
    return copy_tree(tmp_path/"trainer_nb")


@pytest.fixture
def on_device(monkeypatch):
    "Tensors are treated as those of a GPU: reading one would wait."
    monkeypatch.setattr("trainer_nb.core.columns.is_on_host", lambda value: False)


def find_chromium():
    "The path of a Chromium, or None: the system's, or the one that `playwright install chromium` brings."
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name): return path
    found = sorted(Path.home().glob(".cache/ms-playwright/chromium-*/*/chrome"))
    return str(found[-1]) if found else None


@pytest.fixture(scope="module")
def browser():
    "A headless Chromium, driven by playwright, that asks for nothing by itself. Tests that use it are marked `browser`."
    from playwright.sync_api import sync_playwright
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]
    with sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=find_chromium(), headless=True, args=quiet)
        yield chromium
        chromium.close()


TRAINER = (5, 23)   # the version of transformers whose Trainer the tests compare with


def trainer_is_older():
    "Whether transformers is there in an older version than the one that is compared with."
    try: return tuple(int(o) for o in version("transformers").split(".")[:2]) < TRAINER
    except PackageNotFoundError: return False


def pytest_runtest_setup(item):
    """With an older transformers, tests marked `trainer` are skipped. Without a browser, tests marked `browser` are skipped; in CI
    they fail, so that nobody takes silence for success."""
    if item.get_closest_marker("trainer") is not None and trainer_is_older(): pytest.skip("compares with a newer transformers")
    if item.get_closest_marker("browser") is None or find_chromium(): return
    why = "no Chromium here: apt-get install chromium, or playwright install chromium"
    (pytest.fail if os.environ.get("CI") else pytest.skip)(why)


SLOW = tomllib.loads((ROOT/"tests"/"slow.toml").read_text(encoding="utf-8"))


def mark_slow(items):
    "Mark the tests of slow.toml as slow; of a table of cases, all but some that are evenly spread."
    slow = {f"tests/{file}::{name}" for file, names in SLOW["slow"].items() for name in names}
    tables = {}
    for item in items: tables.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in tables.items():
        most = 0 if name in slow else SLOW["cases"].get(name.removeprefix("tests/"), len(cases))
        # a single case that somebody names is run
        kept = {i*len(cases)//most for i in range(most)} if len(cases) > most else range(len(cases))
        for i, item in enumerate(cases):
            if i not in kept: item.add_marker("slow")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    "With several workers a file's tests stay together, except those marked as a group of their own."
    mark_slow(items)
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_finish():
    "What the test modules have imported stays: the garbage collector, which many tests call, need not look at it each time."
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node, ids):
    "Stop with a pytest in which xdist's groups have no effect: each worker would make each module's fixtures."
    if ids and node.config.getoption("dist") == "loadgroup" and not any("@" in o for o in ids):
        pytest.exit("this pytest ignores the groups of pytest-xdist, as 9.2.0 does: pip install -c constraints.txt pytest", 4)


@pytest.fixture(scope="module")
def one_thread():
    "Numbers are summed up in the same order everywhere; for a module, by pytestmark."
    import torch
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def no_process_group():
    "A run with DeepSpeed in one process makes a process group, which lasts; tests of other modules fork this process."
    yield
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized(): return
    # DeepSpeed's own function also forgets the group
    forget = sys.modules.get("deepspeed.comm", distributed)
    forget.destroy_process_group()


@pytest.fixture
def hasty(monkeypatch):
    "Processes that do not answer are not waited for as long as usual."
    from trainer_nb.launch import process_group
    monkeypatch.setattr(process_group, "GRACE_SECONDS", 0.3)
    monkeypatch.setitem(process_group.ProcessGroup.ask.__kwdefaults__, "timeout", 0.5)
