"Pictures: the PNGs are PNGs, the guesses about arrays are the right ones, nothing from outside reaches a page unescaped."
import base64, re, struct, zlib
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from trainer_nb.core.history import History
from trainer_nb.display.panels import Heatmap, LineSeries, Marker, Panel, axis_range, log_ticks, suits_log_axis
from trainer_nb.display.pictures import thin_panels
from trainer_nb.display.svg import MAX_LABEL_CHARS, HtmlDisplay, draw_panel, image_grid, text_width, matrix_table, image_tag, encode_png, render_svg, short_row_names, to_uint8_image
from trainer_nb.display.tables import escape_html, html_table
from trainer_nb.live.curves import plot_histories

NASTY = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a\x00b\x1b[31mc\u202e", "'&quot;<b>", "x" * 10_000, "</td></table>"]
VOID = {"img", "br"}


def decode(data):
    "The pixels of a PNG that png() wrote, every chunk checked."
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, []
    while at < len(data):
        size, = struct.unpack(">I", data[at:at + 4])
        name, body = data[at + 4:at + 8], data[at + 8:at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0] == zlib.crc32(name + body)
        chunks.append((name, body))
        at += 12 + size
    assert [name for name, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, bits, kind, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    assert (bits, rest) == (8, [0, 0, 0]) and kind in (0, 2, 6)
    rows = np.frombuffer(zlib.decompress(chunks[1][1]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape((height, width) if kind == 0 else (height, width, 3 if kind == 2 else 4))


class Checked(HTMLParser):
    "Tags are balanced, known and harmless."
    allowed = {"div", "span", "table", "thead", "tbody", "tr", "th", "td", "img", "br", "b", "i"}
    def __init__(self): super().__init__(); self.open, self.text, self.images = [], "", []
    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        assert tag in self.allowed and not any(k.startswith("on") for k in attrs), (tag, attrs)
        assert "url(" not in attrs.get("style", "")
        if tag == "img":
            assert attrs["src"].startswith("data:image/png;base64,")
            self.images.append(decode(base64.b64decode(attrs["src"].split(",")[1])))
        if tag not in VOID: self.open.append(tag)
    def handle_endtag(self, tag): assert self.open.pop() == tag
    def handle_data(self, data): self.text += data


def checked(html):
    "The page as read by a parser, found to be whole and static."
    page = Checked()
    page.feed(html)
    page.close()
    assert page.open == []
    return page


# ---- PNG

@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (28, 28), (3, 5, 3), (1, 1, 3), (64, 40, 3), (5, 9, 4)])
def test_png_holds_its_pixels(shape):
    a = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(decode(encode_png(a)), a)
    np.testing.assert_array_equal(decode(encode_png(a[::-1])), a[::-1])   # not contiguous


def test_png_is_what_other_programs_read():
    Image = pytest.importorskip("PIL.Image")
    import io
    for channels in (3, 4):
        a = np.random.default_rng(0).integers(0, 256, (9, 5, channels), dtype=np.uint8)
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encode_png(a)))), a)


@pytest.mark.parametrize("wrong", [np.zeros((2, 2)), np.zeros((2, 2, 5), np.uint8), np.zeros(4, np.uint8), np.zeros((0, 3), np.uint8)])
def test_png_refuses_what_is_no_image(wrong):
    with pytest.raises(ValueError, match=r"^encode_png\(\) got .*to_uint8_image\(array\) converts most arrays"): encode_png(wrong)


# ---- arrays

@pytest.mark.parametrize("shape, wanted", [((5, 7), (5, 7)), ((1, 5, 7), (5, 7)), ((5, 7, 1), (5, 7)), ((3, 5, 7), (5, 7, 3)), ((5, 7, 3), (5, 7, 3)),
                                           ((3, 3, 3), (3, 3, 3)), ((1, 1, 3), (1, 3))])
def test_shapes(shape, wanted):
    for make in (np.zeros, torch.zeros, lambda s: torch.zeros(s, dtype=torch.bfloat16), lambda s: np.zeros(s, np.uint8), lambda s: np.zeros(s, bool)):
        image = to_uint8_image(make(shape))
        assert image.shape == wanted and image.dtype == np.uint8


@pytest.mark.parametrize("values, wanted", [
    ([0.0, 0.25, 1.0], [0, 64, 255]),              # 0 to 1
    ([0.1, 0.2, 0.3], [26, 51, 76]),               # a dark one stays dark
    ([0.0, 100.0, 200.0], [0, 100, 200]),          # 0 to 255
    ([0, 8, 16], [0, 128, 255]),                   # stretched
    ([-2.0, 0.0, 2.0], [0, 128, 255]),
    ([-1e308, 0.0, 1e308], [0, 128, 255]),
    ([7.0, 7.0, 7.0], [0, 0, 0]),
    ([float("nan")] * 3, [0, 0, 0]),
    ([float("-inf"), float("nan"), 2.0, 4.0, float("inf")], [0, 0, 0, 255, 255]),
    (np.array([0, 255], np.uint8), [0, 255]),
    ([True, False], [255, 0]),
])
def test_ranges(values, wanted):
    with np.errstate(all="raise"): assert to_uint8_image([values])[0].tolist() == wanted


def test_tensors_of_any_kind():
    t = torch.linspace(0, 1, 12).reshape(3, 4).requires_grad_()
    assert to_uint8_image(t).tolist() == to_uint8_image(t.detach().numpy()).tolist() == to_uint8_image(t.detach().T.contiguous().T).tolist()


@pytest.mark.parametrize("wrong", [np.zeros(3), np.zeros((2, 3, 4, 5)), np.zeros((4, 5, 6)), np.zeros((0, 3)), np.zeros((4, 5, 4))])
def test_what_is_no_image_is_named(wrong):
    with pytest.raises(ValueError, match=re.escape(str(wrong.shape))): to_uint8_image(wrong)


# ---- pages

@pytest.mark.parametrize("shape, shown", [((8, 8), (128, 128)), ((28, 28), (112, 112)), ((64, 64), (128, 128)), ((100, 50), (100, 50)), ((1000, 500, 3), (125, 62, 3)), ((3000, 2), (3000, 2))])
def test_images_are_fitted(shape, shown):
    page = checked(image_tag(np.random.default_rng(0).random(shape)))
    assert page.images[0].shape == shown


def test_the_longer_side_has_the_size():
    assert 'width="64" height="32"' in image_tag(np.zeros((10, 20)))
    assert 'width="32" height="64"' in image_tag(np.zeros((20, 10)))
    assert 'width="64" height="1"' in image_tag(np.zeros((1, 900)))


def test_enlarged_pixels_keep_hard_edges():
    shown = checked(image_tag(np.array([[0.0, 1.0]]))).images[0]
    assert set(np.unique(shown)) == {0, 255} and shown.shape == (64, 128)


def test_grid():
    page = checked(image_grid(torch.zeros(5, 1, 8, 8), [f"{i}\nsecond" for i in range(5)], columns=3))
    assert len(page.images) == 5 and "0second" in page.text
    assert checked(image_grid([])).images == []
    with pytest.raises(ValueError, match="2 images and 1 captions"): image_grid(np.zeros((2, 4, 4)), ["a"])


def test_a_picture_is_a_cell_of_a_table():
    page = checked(html_table([{"a": 1 / 3, "p": HtmlDisplay(image_tag(np.zeros((4, 4))), "")}, {"a": 1234567}]))
    assert page.text == "ap0.3331,234,567—" and len(page.images) == 1


def test_heat_table():
    page = checked(matrix_table([[5, 0], [2, 3]], ["cat", "dog"], ["cat", "dog"]))
    assert "actual" in page.text and "predicted" in page.text and page.text.endswith("cat5·dog23")
    assert checked(matrix_table(torch.zeros(2, 3), ["a", "b"], ["x", "y", "z"], "from", "to")).text.count("·") == 6
    with pytest.raises(ValueError, match="3 row and 2 column"): matrix_table(np.zeros((2, 2)), [1, 2, 3], [1, 2])


def luminance(rgb):
    "Relative luminance (WCAG 2)."
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (o / 255 for o in rgb)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_numbers_can_be_read_on_every_shade():
    html = matrix_table([[90, 10, 0], [100, 0, 0], [0, 50, 50]], "abc", "abc")
    shades = re.findall(r"rgba\((\d+),(\d+),(\d+),([\d.]+)\)", html)
    assert len(shades) == 5
    for *rgb, alpha in shades:
        for ground, ink in ((255, 33), (17, 255)):
            mixed = [float(alpha) * int(c) + (1 - float(alpha)) * ground for c in rgb]
            light, dark = sorted((luminance(mixed), luminance([ink] * 3)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 4.5, (rgb, alpha, ground)


@pytest.mark.parametrize("nasty", NASTY, ids=lambda o: o[:10])
def test_nothing_from_outside_is_markup(nasty):
    pages = [image_grid(np.zeros((1, 4, 4)), [nasty]), html_table([{nasty: nasty, "n": 1}]), matrix_table([[1]], [nasty], [nasty], nasty, nasty), escape_html(nasty)]
    for page in map(checked, pages):
        assert "\x00" not in page.text and "\x1b" not in page.text and "\u202e" not in page.text
        assert len(page.text) < 2000 and not page.images[1:]


@pytest.mark.browser
def test_a_browser_shows_them_without_asking_anybody(browser, tmp_path):
    from trainer_nb.live.screens import ProgressView, view_html as progress
    rng = np.random.default_rng(0)
    html = image_grid(rng.random((6, 3, 8, 8)), [f"no. {i}" for i in range(6)]) + matrix_table(rng.integers(0, 9, (4, 4)), "abcd", "abcd") \
        + html_table([{"loss": 0.1}]) + progress(ProgressView(step=30, total=40, evaluations=[{"step": 10, "eval_loss": 1.0}]))
    (tmp_path/"page.html").write_text(f"<!doctype html><meta charset=utf-8>{html}")
    tab, asked = browser.new_page(), []
    tab.on("request", lambda r: asked.append(r.url))
    tab.on("pageerror", lambda e: asked.append(str(e)))
    tab.goto(f"file://{tmp_path}/page.html")
    sizes = tab.evaluate("[...document.images].map(o => [o.complete, o.naturalWidth, o.width])")
    assert sizes == [[True, 128, 64]] * 6
    assert [o for o in asked if not o.startswith(("file:", "data:"))] == []
    inner, outer = tab.evaluate("(o => [o.offsetWidth, o.parentElement.offsetWidth])([...document.querySelectorAll('div')].find(o => o.style.width == '75%' || o.style.width == '75.0%'))")
    assert abs(inner / outer - 0.75) < 0.01
    tab.close()


def test_a_batch_of_sound_a_table_and_a_way_of_ones_own():
    from trainer_nb.diagnostics.interpret import BatchPreview, find_sounds
    sound = {"input_values": torch.randn(3, 800), "labels": torch.tensor([0, 1, 0])}
    html = BatchPreview(sound, sound["labels"], names=["yes", "no"])._repr_html_()
    assert html.count("<svg") == 3 and "no" in html and find_sounds({"x": torch.randn(3, 1, 28, 28)}) is None and find_sounds({"x": torch.randn(8, 512)}) is None
    table = {"age": torch.tensor([31.0, 54.0]), "labels": torch.tensor([1, 0])}
    html = BatchPreview(table, table["labels"], names=["<ill>", "well"])._repr_html_()
    assert "age" in html and "well" in html and "&lt;ill&gt;" in html and "<ill>" not in html
    assert "0.1" not in BatchPreview({"x": torch.randn(4, 300)}, None)._repr_html_().split("first values")[0]   # too wide for a table
    assert "<b>mine</b>" in BatchPreview(table, None, show=lambda batch, n: f"<b>mine</b> {n}")._repr_html_()
    assert "&lt;object" in BatchPreview(table, None, show=lambda batch, n: object())._repr_html_()


def test_labels_of_moments_do_not_overlap():
    "Each has a line of its own as long as there is one; every moment keeps its dotted line."
    marks = [Marker(at, f"{word} {at}") for at, word in enumerate(["launch on 2 processes", "restart, new processes", "rewind", "close"] * 3, 40)]
    text = render_svg([Panel("loss", [LineSeries(np.arange(100), np.arange(100.0), "loss"), *marks])])
    labels = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(start|end)"[^>]*>((?:launch|restart|rewind|close)[^<]*)<', text)
    def span(x, anchor, word): return (float(x), float(x) + 5 * len(word)) if anchor == "start" else (float(x) - 5 * len(word), float(x))
    placed = [(y, *span(x, anchor, word)) for x, y, anchor, word in labels]
    assert len(placed) >= 4 and text.count('stroke-dasharray="2 3"') == len(marks)
    for i, (y, a, b) in enumerate(placed):
        assert all(y != other or b <= c or d <= a for other, c, d in placed[:i])


def test_no_line_of_a_moment_runs_through_the_label_of_another():
    words = ["launch", "restart", "restart", "rewind 7 steps back", "restart", "set learning_rate=0.5", "close"]
    marks = [Marker(at, word) for at, word in zip([20, 48, 50, 55, 100, 120, 132], words)]
    text = draw_panel(Panel("loss", [LineSeries(np.arange(133), np.arange(133.0), "loss"), *marks]), width=430)
    found = re.findall(r'<line x1="([\d.]+)" x2="[\d.]+" y1="([\d.]+)" y2="([\d.]+)"[^>]*stroke-dasharray="2 3"', text)
    lines = [(float(x), min(float(y1), float(y2))) for x, y1, y2 in found]
    labels = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(start|end)"[^>]*>((?:launch|restart|rewind|set|close)[^<]*)<', text)
    assert len(lines) == len(labels) == len(marks)
    for x, y, anchor, word in labels:
        a, b = (float(x), float(x) + 5.4 * len(word)) if anchor == "start" else (float(x) - 5.4 * len(word), float(x))
        assert not [at for at, top in lines if a < at < b and top < float(y) - 3], word


def test_labels_of_moments_are_above_the_curves():
    "The curve has its room below them."
    marks = [Marker(at, f"set learning_rate={at}") for at in (20, 24, 28, 32, 36)]
    text = draw_panel(Panel("loss", [LineSeries(np.arange(100), np.arange(100.0), "loss"), *marks]))
    curve = [float(point.split(",")[1]) for point in re.search(r'<polyline points="([^"]+)"', text)[1].split()]
    labels = [float(y) for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>set ', text)]
    assert labels and max(labels) <= min(curve) and min(labels) > 34
    assert max(curve) - min(curve) > 80 and text.count('stroke-dasharray="2 3"') == len(marks)
    # lines without a word need no room
    plain = Panel("loss", [LineSeries(np.arange(100), np.arange(100.0), "loss")])
    bare = draw_panel(Panel("loss", [*plain.things, Marker(20, ""), Marker(24, "")]))
    assert re.search(r"<polyline [^>]+>", bare)[0] == re.search(r"<polyline [^>]+>", draw_panel(plain))[0]
    assert bare.count('stroke-dasharray="2 3"') == 2


def test_acts_at_one_step_share_a_label():
    "A launch, a restart and a return are named by one word; a label that would be cut begins anew."
    history = History("a")
    for step in range(1, 9): history.append(step, step / 10, 0.1, 8, 0.1 * step, loss=1 / step)
    for step, kind, data in [(2, "launch", {"num_processes": 2, "keep_global_batch": True}), (5, "restart", {}), (6, "rewind", {"steps": 2}), (6, "close", {}),
                             (6, "launch", {"num_processes": 2}), (7, "set", {"learning_rate": 0.5}), (7, "set", {"weight_decay": 0.1}), (8, "close", {})]:
        history.note(kind, step, **data)
    marks = plot_histories([history], ["loss"]).panels()[0].of(Marker)
    assert [(mark.x, mark.word) for mark in marks] == [
        (2, "launch"), (5, "restart"), (6, "rewind 2 steps back, close, launch"), (7, "set learning_rate=0.5"), (7, "set weight_decay=0.1"), (8, "close")]


def test_names_of_a_hundred_layers_stand_once_and_within_their_panel():
    "Of 60 characters, shortened to what differs; each layer has its point, however many there are."
    parts = ("self_attention.query_projection.linear_layer", "self_attention.output.LayerNorm", "intermediate_act_fn", "attention.output.dense")
    names = [f"model.encoder.layers.{i}.{part}"[:60] + " (Linear)" for i in range(25) for part in parts]
    short = short_row_names(names)
    assert len(set(short)) == 100 and max(map(len, short)) <= MAX_LABEL_CHARS and short[1] == "0…output.LayerNorm"
    points = Panel("a", [LineSeries(np.ones(100), np.arange(100), "std", style="points")], rows=names)
    for panel in (points, Panel("a", [Heatmap([1, 2], names, np.ones((100, 2)))])):
        assert (text := render_svg([panel, panel])).count(f">{short[0]}<") == 1
        assert all(float(x) >= text_width(name, 10) for x, name in re.findall(r'<text x="([\d.]+)"[^>]*text-anchor="end"[^>]*>([^<]*…[^<]*)<', text))
    assert [len(line.x) for line in thin_panels([points], 30)[0].of(LineSeries)] == [100]


def test_an_axis_is_logarithmic_where_a_linear_one_would_show_only_the_largest_values():
    falling = np.exp(-np.linspace(0, 9, 100))
    assert suits_log_axis([falling]) and suits_log_axis([np.ones(50), [80.0]]) and suits_log_axis([[*falling, np.nan, 0.0]])
    assert not suits_log_axis([np.linspace(2.3, 0, 50)]) and not suits_log_axis([falling, [-1.0]])
    assert not suits_log_axis([]) and not suits_log_axis([[np.nan]]) and not suits_log_axis([np.zeros(9), [5.0]])
    history = History("a")
    for step, loss in enumerate(falling): history.append(step + 1, step / 10, 0.1, 8, 0.1 * step, loss=float(loss))
    def axes(**given): return [panel.ylog for panel in plot_histories([history], ["loss", "learning_rate"], **given).panels()]
    assert axes() == [True, False] and axes(log=False) == [False, False] and axes(log=True) == [True, True]
    assert axes(log="learning_rate") == [False, True]


def test_the_ticks_of_a_short_logarithmic_axis():
    "At least two, also where only one of 1, 2, 5 fits."
    assert log_ticks(0.0243, 0.0655) == [0.03, 0.04, 0.05, 0.06] and log_ticks(0.11, 0.19) == [0.12, 0.14, 0.16, 0.18]
    assert log_ticks(0.3, 4) == [0.5, 1, 2] and log_ticks(3, 3) == []


@pytest.mark.parametrize("names, short", [
    (["vit.embeddings", "vit.layers.0.attention.q_proj", "vit.embeddings.patch_embeddings.projection", "a" * 40], ["vit.embeddings", "vit…0.attention.q_proj", "vit…projection", "…" + "a" * 27]),
    ([f"{part}coder.block.1.self_attention.query_projection" for part in ("en", "de")], ["enco…1…query_projection", "deco…1…query_projection"]),
    ([f"vit.layers.{i}.mlp.activation_fn (ReLU)" for i in range(2)], ["0.mlp.activation_fn", "1.mlp.activation_fn"])])
def test_names_of_rows_are_cut_between_their_parts(names, short): assert short_row_names(names) == short


def test_an_axis_of_zeros_has_no_negative_values():
    assert axis_range([[0.0, 0.0]]) == (0.0, 1.0) and axis_range([[2.0]]) == (1.8, 2.2)
