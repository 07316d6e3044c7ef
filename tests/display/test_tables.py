"Tables: the same rows as text, as HTML and as a frame; nothing from outside reaches a page unescaped."
import math, re, sys
from html.parser import HTMLParser

import numpy as np
import pytest, torch

from trainer_nb.display.tables import (Table, escape_html, column_headings, format_duration, html_table, is_number, format_number, format_setting, format_value, text_table,
                                       head_and_tail, to_frame)

ROWS = [{"layer": "body", "size": 1200, "norm": 0.25}, {"layer": "head.first", "size": 33, "norm": None, "note": "<b>"}]


class Page(HTMLParser):
    "The cells of a table with their tag and alignment; anything that should not be there fails."
    def __init__(self, page):
        super().__init__()
        self.rows, self.open = [], []
        self.feed(page)
        assert not self.open
    def handle_starttag(self, tag, attrs):
        assert tag in ("table", "thead", "tbody", "tr", "th", "td", "i"), tag
        assert all(k == "style" and re.fullmatch(r"text-align:(left|right)", v) for k, v in attrs), attrs
        if tag == "tr": self.rows.append([])
        if tag in ("th", "td"): self.rows[-1].append([tag, attrs[0][1].split(":")[1], ""])
        self.open.append(tag)
    def handle_endtag(self, tag): assert self.open.pop() == tag
    def handle_data(self, data):
        if self.rows: self.rows[-1][-1][2] += data


# what number() of static/10_words.js shows of each, with a minus sign of typesetters
NUMBERS = {0.0: "0", 0.9949: "0.995", 0.5: "0.500", 1.0: "1.00", 99.96: "100", 12.34: "12.3", 999.4: "999", 999.6: "1,000", 1050.4: "1,050", 9999999.0: "9,999,999",
           1e7: "1e7", 1.234e9: "1.23e9", 0.01: "0.0100", 0.0025: "2.5e-3", 1e-05: "1e-5", 0.00999: "9.99e-3", -1 / 3: "-0.333", -1234.5: "-1,234"}


def test_numbers_are_those_of_the_page_and_unknown_is_a_dash():
    assert {value: format_number(value) for value in NUMBERS} == NUMBERS == {value: format_value(value) for value in NUMBERS}
    assert format_number(0.33333, 2) == "0.33" and format_number(123.4, 2) == "123" and format_number(100.0) == "100"
    values = [1 / 3, np.float64(1 / 3), np.float32(1 / 3), torch.tensor(1 / 3), np.array(1 / 3), 12, 123456789, -1050, np.int64(1050), torch.tensor(1050), True, None, math.nan, -math.inf]
    assert [format_value(o) for o in values] == ["0.333"] * 5 + ["12", "123,456,789", "-1,050", "1,050", "1,050", "True", "—", "nan", "-inf"]
    assert [is_number(o) for o in (1, 1.5, math.nan, np.float32(1), np.int8(1), torch.tensor(1), np.array(2.0))] == [True] * 7
    assert [is_number(o) for o in (True, np.bool_(True), torch.tensor(True), None, "1", [1], np.zeros(2), torch.zeros(1))] == [False] * 8


def test_a_setting_is_as_one_would_type_it():
    values = [4800, 3.0, 0.01, 0.0123, 1e-3, 1.23e-3, 1.41724e-3, 2.5e-5, 0.000123456, 1 / 3, 1e6, 1234567.5, 1e20, np.float32(0.5), True, None, math.nan, "cosine", "a\nb"]
    assert [format_setting(o) for o in values] == ["4800", "3", "0.01", "0.0123", "1e-3", "1.23e-3", "1.417e-3", "2.5e-5", "1.235e-4", "0.333333", "1000000", "1234570", "1e20", "0.5", "True",
                                                   "None", "nan", "cosine", "a b"]
    assert all(math.isclose(float(format_setting(o)), o, rel_tol=1e-3) for o in NUMBERS)


def test_frames_have_all_digits():
    pytest.importorskip("pandas")
    assert Table([{"n": 1 / 3}]).frame()["n"][0] == 1 / 3


def test_text_from_outside_is_cut_and_cleaned():
    assert format_value("a\nb\x1b[31m\u202e\udc80") == "a b [31m  " and format_value("x" * 500) == "x" * 31 + "…" and len(format_value("x" * 500, 7)) == 7
    assert format_value("x" * 32) == "x" * 32 and format_value(["<b>"]) == "['<b>']" and escape_html(["<b>"]) == "[&#x27;&lt;b&gt;&#x27;]"


def test_both_forms_show_the_same_and_align_alike():
    page, lines = Page(html_table(ROWS)).rows, text_table(ROWS).splitlines()
    assert [[o[2] for o in row] for row in page] == [re.split(r"\s{2,}", line.strip()) for line in lines]
    assert [o[:2] for o in page[0]] == [["th", "left"], ["th", "right"], ["th", "right"], ["th", "left"]]
    assert all(o[1] == head[1] for row in page[1:] for o, head in zip(row, page[0]))
    assert lines == ["layer        size   norm  note", "body        1,200  0.250  —", "head.first     33      —  <b>"]
    assert text_table([]) == "no rows" and "no rows" in html_table([])
    assert column_headings([{"a": None}, None, {"b": "1"}]) == {"a": True, "b": False}


def test_hostile_cells_and_headings():
    nasty = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a\x00b\x1b[31mc\u202e", "x" * 10_000, "</td></table>"]
    rows = [{o: o for o in nasty} | {"n": 1.0}]
    page, plain = html_table(rows), text_table(rows)
    Page(page)
    assert len(page) < 6000 and len(plain) < 1500 and len(plain.splitlines()) == 2 and not set("\x00\x1b\u202e") & set(page + plain)


def test_a_sentence_is_whole(): assert "y" * 500 in html_table([{"seen": "y" * 500}])


def test_thinned():
    assert head_and_tail(range(12)) == list(range(12)) and head_and_tail(range(13)) == [0, 1, 2, 3, 4, None, 8, 9, 10, 11, 12] and head_and_tail([]) == []
    class Long(Table): thin = True
    class Never:
        def __getattr__(self, name): raise AssertionError(name)
    shown = Long([{"i": i} for i in range(1000)])
    assert [o.strip() for o in repr(shown).splitlines()] == ["i", *"01234", "…", *map(str, range(995, 1000))]
    assert len(Page(shown._repr_html_()).rows) == 12 and len(repr(Table(shown)).splitlines()) == 1001


def test_a_table_is_a_list():
    t = Table(ROWS)
    assert t == ROWS and t[0] is ROWS[0] and t[-1:] == ROWS[-1:] and type(t[:1]) is Table and len(t) == 2 and list(t) == ROWS
    class Words(Table):
        def _cells(self, word): return {"word": word, "letters": len(word)}
    words = Words(["one", "three"])
    assert repr(words) == "word   letters\none          3\nthree        5" and type(words[1:]) is Words and repr(words[1:]).endswith("three        5")


def test_a_cell_may_have_a_look_of_its_own():
    class Picture:
        def _repr_html_(self): return "<i>seen</i>"
        def __repr__(self): return "told"
    t = Table([{"p": Picture()}])
    assert "<i>seen</i>" in t._repr_html_() and repr(t) == "p\ntold"


def test_in_a_kernel_both_forms_are_ours():
    format_display_data = pytest.importorskip("IPython").core.formatters.format_display_data
    class Sub(Table): pass
    data, _ = format_display_data(Sub(ROWS))
    assert data["text/plain"] == text_table(ROWS) and data["text/html"] == html_table(ROWS)


def test_frame(monkeypatch):
    pd = pytest.importorskip("pandas")
    assert Table(ROWS).frame().shape == (2, 4) and isinstance(to_frame({"a": [1]}), pd.DataFrame)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"): Table(ROWS).frame()


@pytest.mark.parametrize("seconds, text", [(0, "0.0 s"), (2e-4, "0.0 s"), (0.0278, "28 ms"), (0.0994, "99 ms"), (0.0996, "0.1 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min 0 s"), (4020, "1 h 7 min")])
def test_durations(seconds, text): assert format_duration(seconds) == text
