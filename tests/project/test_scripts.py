"The scripts that run the tutorial in a terminal and make the README."
import re, shutil, subprocess, sys

import nbformat, pytest
from nbformat.v4 import new_code_cell as code, new_markdown_cell as prose, new_notebook

from conftest import ROOT

CELLS = [prose("# A title\n\n> one line"), code("#| hide\nplumbing = 1"),
         prose("## Count"), code("import sys\nfor i in range(3): print(f'\\r{i}/3', end='', file=sys.stderr)\nprint('counted')"),
         prose("## Show"), code("from IPython.display import HTML, display\n"
                                "h = display('before', display_id=True)\nh.update('after')\nHTML('<b id=seen>bold</b>')"),
         code("import ipywidgets\nipywidgets.IntSlider()"),
         code("#| slow\n1/0"), code("#| summary\nprint('accuracy', 0.97)")]


@pytest.fixture
def start(tmp_path):
    "Run cells as `make quickstart` runs the tutorial."
    def start(cells):
        nb = new_notebook(cells=cells, metadata=dict(kernelspec=dict(name="python3", language="python", display_name="python3")))
        nbformat.write(nb, tmp_path/"a.ipynb")
        return subprocess.run([sys.executable, ROOT/"scripts"/"run_notebook.py", tmp_path/"a.ipynb", "--out", tmp_path/"out"],
                              capture_output=True, text=True, timeout=120)
    return start


def test_run_notebook_says_what_it_does(start, tmp_path):
    "Numbers, headings, output, the summary again at the end; hidden cells unsaid, slow ones left out, widgets not kept."
    done = start(CELLS)
    assert done.returncode == 0, done.stderr
    said = re.sub(r" +[\d.]+ s\n", "\n", done.stdout)
    assert "cell  1/4  ## Count\n" in said and "cell  2/4  ## Show\n" in said and "hide" not in said
    assert "  counted\n" in said and "  'after'\n" in said
    assert said.count("accuracy 0.97") == 2 and said.rstrip().endswith("a.html")
    assert "jupyter.widget" not in (tmp_path/"out"/"a.ipynb").read_text()


def test_run_notebook_fails_with_the_cell(start, tmp_path):
    done = start([prose("## Divide"), code("a, b = 1, 0\na / b"), code("print('never')")])
    assert done.returncode == 1
    assert "ZeroDivisionError: division by zero" in done.stdout and "a / b" in done.stdout and "\nnever" not in done.stdout
    assert (tmp_path/"out"/"a.html").exists()


@pytest.mark.browser
def test_page_needs_no_network(start, tmp_path, browser):
    "The page draws itself from its own file."
    start(CELLS)
    context, asked, errors = browser.new_context(offline=True), [], []
    page = context.new_page()
    page.on("request", lambda o: asked.append(o.url))
    page.on("pageerror", lambda o: errors.append(str(o)))
    address = (tmp_path/"out"/"a.html").as_uri()
    page.goto(address)
    assert page.locator("#seen").inner_text() == "bold"
    assert page.locator("h1").inner_text().startswith("A title")
    page.wait_for_timeout(500)
    assert [o for o in asked if o != address and not o.startswith("data:")] == [] and errors == []
    context.close()


def test_make_readme(tmp_path):
    "Text for tables, files for pictures, links from the top; and --check sees a change."
    make = [sys.executable, ROOT/"scripts"/"make_readme.py", "--root", tmp_path]
    table = nbformat.v4.new_output("execute_result", {"text/plain": "   a\n0  1", "text/html": "<table>"})
    svg = nbformat.v4.new_output("display_data", {"text/plain": "<SVG>", "image/svg+xml": "<svg/>"})
    (tmp_path/"nbs").mkdir()
    nbformat.write(new_notebook(cells=[prose("# T\n\n[a](tutorials/b.ipynb) [c](https://d.e)"), code("#| hide\nhidden"),
                                       code("x", outputs=[table]), code("#| echo: false\ny", outputs=[svg])]), tmp_path/"nbs"/"index.ipynb")
    assert subprocess.run([*make, "--check"], capture_output=True).returncode == 1
    subprocess.run(make, check=True)
    text = (tmp_path/"README.md").read_text()
    assert "[a](nbs/tutorials/b.ipynb) [c](https://d.e)\n\n```python\nx\n```\n\n```text\n   a\n0  1\n```\n\n![](README_files/3-0.svg)\n" in text
    assert "hidden" not in text and "table" not in text and (tmp_path/"README_files"/"3-0.svg").read_text() == "<svg/>"
    subprocess.run([*make, "--check"], check=True)


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
def test_make_refuses_an_old_python(tmp_path):
    "One sentence, with what to type instead."
    old = tmp_path/"python3.9"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = subprocess.run(["make", "quickstart", f"PYTHON={old}", f"VENV={tmp_path}/venv"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode and "needs Python 3.11 or newer" in done.stderr and "make quickstart PYTHON=" in done.stderr
    assert not (tmp_path/"venv").exists()


def test_live_views_are_taken_out_of_stored_outputs(tmp_path):
    "Of a live view nothing is stored; the still beside it stays, and a notebook without one is not touched."
    view, state = "application/vnd.jupyter.widget-view+json", {"widgets": {"application/vnd.jupyter.widget-state+json": {}}}
    def out(**data): return nbformat.v4.new_output("display_data", data)
    cell = code("learn.dashboard()", outputs=[out(**{view: {"model_id": "1"}, "text/html": "", "text/plain": ""}), out(**{"text/html": "<img>", "text/plain": "a run"}),
                                              out(**{view: {"model_id": "2"}, "text/plain": "Figure"}), nbformat.v4.new_output("stream", text="said")])
    for name, cells, metadata in (("a", [prose("# é"), cell], state), ("b", [code("1", outputs=[out(**{"text/plain": ""})])], {})): nbformat.write(new_notebook(cells=cells, metadata=metadata), tmp_path/f"{name}.ipynb")
    untouched = (tmp_path/"b.ipynb").read_bytes()
    def drop(): return subprocess.run([sys.executable, ROOT/"scripts"/"drop_views.py", tmp_path/"a.ipynb", tmp_path/"b.ipynb"], capture_output=True, text=True, check=True).stdout
    assert drop().count("taken out") == 1 and drop() == ""
    nb = nbformat.read(tmp_path/"a.ipynb", 4)
    assert [o.get("data", o.get("text")) for o in nb.cells[1].outputs] == [{"text/html": "<img>", "text/plain": "a run"}, {"text/plain": "Figure"}, "said"]
    assert nb.metadata == {} and nb.cells[0].source == "# é" and (tmp_path/"b.ipynb").read_bytes() == untouched
