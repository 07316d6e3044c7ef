"A notebook that a program has executed, as a web page without a kernel and without a network: every picture is interactive."
import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

pytestmark = pytest.mark.browser

SETUP = '''
import torch
from trainer_nb import Learner, compare
torch.manual_seed(0)
x = torch.randn(400, 8); y = (x[:, :3].sum(1) > 0).long()
data, other = torch.utils.data.TensorDataset(x[:320], y[:320]), torch.utils.data.TensorDataset(x[320:], y[320:])
def make(**settings):
    torch.manual_seed(0)
    return Learner(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)), train_dataset=data, eval_dataset=other, loss_func=torch.nn.functional.cross_entropy,
                   use_cpu=True, per_device_train_batch_size=8, max_steps=1200, eval_strategy="steps", eval_steps=150, save_strategy="no", output_dir="out", **settings)
learn = make()
'''
CELLS = [SETUP, "view = learn.dashboard()\nview", "run = learn.start(steps=1100)", "run.wait()", "learn.set(lr=1e-3); learn.watch(); learn.step(50)", "learn.plot()", "make().lr_find()", "learn.inspect()",
         "branch = learn.branch(learning_rate=1e-2); branch.step(30); compare(learn, branch)", "learn.watched"]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    "A notebook with a dashboard and the results of other verbs."
    folder = tmp_path_factory.mktemp("executed")
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(o) for o in CELLS])
    NotebookClient(nb, timeout=120, store_widget_state=False, resources={"metadata": {"path": str(folder)}}).execute()
    return nb


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [700, 1300])
def test_every_picture_is_interactive(executed, browser, tmp_path, theme, width):
    "The dashboard's picture is of the end; each picture shows its values and leaves nothing outside the page."
    (tmp_path/"page.html").write_text(HTMLExporter(theme=theme).from_notebook_node(executed)[0], "utf-8")
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
    tab, errors = context.new_page(), []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(f"file://{tmp_path}/page.html", wait_until="domcontentloaded")
    tab.wait_for_selector(".tnb-picture svg path", state="attached")
    # the dashboard, two plots, the learning rates, the layers
    pictures = tab.locator(".tnb-picture")
    assert pictures.count() >= 5 and tab.locator("img[data-trainer-nb-image]").count() == 0
    assert "paused after step 1150" in tab.locator("[data-trainer-nb-still]").inner_text().replace(",", "")
    for i in range(pictures.count()):
        plot = pictures.nth(i).locator(".plot").first
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box["width"] > 150 and box["x"] + box["width"] <= width
        # the page may still be scrolling
        for attempt in range(40):
            box = plot.bounding_box()
            tab.mouse.move(box["x"] + box["width"] * 0.6 + attempt % 2, box["y"] + box["height"] / 2)
            if shown := pictures.nth(i).locator(".tip").inner_text().strip(): break
            tab.wait_for_timeout(50)
        assert shown, f"picture {i} shows nothing"
    titles = tab.locator(".tnb-picture").first.locator(".head b").all_text_contents()
    # set(lr=1e-3) near the end of the decay: a factor of 200, which only a logarithmic axis shows
    assert titles[:3] == ["Loss", "Learning rate (log)", "Gradient norm"] and "gradient norm" in titles
    context.close()
    assert errors == []


def test_the_notebook_stays_small(executed):
    "The picture of the dashboard is stored once, however often it was drawn."
    stills = [o for o in executed.cells[1].outputs if "trainer_nb still" in str(o.get("data", {}).get("text/html"))]
    assert len(stills) == 1 and len(stills[0]["data"]["text/html"]) < 130_000
