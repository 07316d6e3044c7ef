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


def test_run_notebook_goes_on_after_an_error_that_belongs_to_the_page(start, tmp_path):
    expected = code("raise KeyboardInterrupt('paused after step 3')")
    expected.metadata["tags"] = ["raises-exception"]
    done = start([expected, code("print('and on')")])
    text = (tmp_path/"out"/"a.html").read_text("utf-8")
    assert done.returncode == 0 and "paused after step 3" in done.stdout and "and on" in done.stdout and "Traceback" not in done.stdout
    assert "paused after step 3" in text and "Traceback" not in text and '<div class="page-failed">' not in text


def test_a_page_says_how_it_was_made(start, tmp_path):
    "Title, versions and duration, the sections; no plumbing, no directive, no widget, no prompt."
    start([*CELLS, code("# a comment that stays\nNone")])
    text = (tmp_path/"out"/"a.html").read_text("utf-8")
    assert "<title>A title</title>" in text and 'prefers-color-scheme: dark' in text
    assert re.search(r"Ran on \d+ \w+ \d{4} after \d+ s, \d+ CPU cores?; Python 3\.[\d.]+, ipython [\d.]+, ipywidgets [\d.]+\.", text)
    assert '<a href="#Count">Count</a> <a href="#Show">Show</a>' in text
    body = text[text.index("<main>"):]
    assert "plumbing" not in body and "#|" not in body and "IntSlider(" not in body and "In&nbsp;[" not in body and "a comment that stays" in body


def test_the_page_of_a_failure(start, tmp_path):
    "One sentence, the traceback folded up, no colour codes of terminals."
    start([prose("## Divide"), code("a, b = '<i>', 0\n1 / b")])
    text = (tmp_path/"out"/"a.html").read_text("utf-8")
    assert "<b>ZeroDivisionError</b>: division by zero" in text and "<details><summary>Traceback</summary>" in text
    assert "\x1b[" not in text and "Stopped by an error on" in text and "&lt;i&gt;" in text


def test_links_of_a_page_lead_out_of_the_repository():
    import importlib.util
    spec = importlib.util.spec_from_file_location("run_notebook", ROOT/"scripts"/"run_notebook.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    home, folder = "https://github.com/trainer-nb/trainer_nb/blob/main", ROOT/"nbs"/"tutorials"
    assert script.absolute("[a](live.ipynb#x) [b](../index.ipynb)", folder) == f"[a]({home}/nbs/tutorials/live.ipynb#x) [b]({home}/nbs/index.ipynb)"
    for kept in ("![a](images/b.png)", "[a](https://b.c)", "[a](#b)", "[a](../../../../b.md)"): assert script.absolute(kept, folder) == kept
    assert script.absolute("[a](b.ipynb)", ROOT.parent) == "[a](b.ipynb)"


def test_a_view_is_said_where_it_stands(start):
    "A view that later cells change, such as the dashboard, is not said again below them."
    done = start([prose("## Show"), code("from IPython.display import display\nh = display('first', display_id=True)"),
                  prose("## Change"), code("h.update('second')\nh.update('third')")])
    assert "'first'" in done.stdout and "'second'" not in done.stdout and "'third'" not in done.stdout


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_has_the_browsers_colours(start, tmp_path, browser, theme):
    "Text and background are apart in both themes, and nothing is wider than a narrow window."
    start([prose("# A title"), code("x = '" + "long " * 60 + "'\nprint(x)"), code("from IPython.display import HTML\nHTML('<table><tr>' + '<td>wide cell</td>' * 30 + '</tr></table>')")])
    context = browser.new_context(offline=True, color_scheme=theme, viewport={"width": 700, "height": 900})
    page = context.new_page()
    page.goto((tmp_path/"out"/"a.html").as_uri())
    def light(what, css): return sum(map(float, re.findall(r"[\d.]+", page.evaluate(f"getComputedStyle(document.querySelector('{what}')).{css}"))[:3])) / 765
    assert (light("body", "backgroundColor") > 0.8) == (theme == "light") and (light("h1", "color") > 0.5) == (theme == "dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    context.close()


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


def test_a_page_contains_the_pictures_of_its_text(start, tmp_path):
    "One file: pictures beside the notebook and in other folders are in it, from wherever the script is called."
    images = tmp_path.parent/f"{tmp_path.name}_images"
    images.mkdir()
    (tmp_path/"a.png").write_bytes(b"picture")
    (images/"b.gif").write_bytes(b"recording")
    assert start([prose(f"# A\n\n![what it shows](a.png) ![another](../{images.name}/b.gif) ![c](https://d.e/f.png)"), code("1")]).returncode == 0
    text = (tmp_path/"out"/"a.html").read_text("utf-8")
    assert 'src="data:image/png;base64,cGljdHVyZQ=="' in text and 'src="data:image/gif;base64,cmVjb3JkaW5n"' in text
    assert 'src="https://d.e/f.png"' in text and text.count("<img ") == 3
