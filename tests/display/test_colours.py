"The colours of curves can be told apart by everybody: simulated for three kinds of colour blindness."
import re

import numpy as np
import pytest

from conftest import ROOT
from trainer_nb.display.svg import DASHES, PALETTE, run_colors, series_color, series_dash

# G. Machado, M. Oliveira, L. Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009), severity 1, on linear RGB
SEEN = {"all three": np.eye(3),
        "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
        "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
        "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]])}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color):
    c = np.array([int(color[i:i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    "CIE L*a*b* of linear RGB, D65."
    xyz = XYZ @ np.clip(rgb, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def page_palettes():
    text = (ROOT/"trainer_nb/static/20_theme.js").read_text("utf-8")
    def found(name): return re.findall(r"#[0-9a-f]{6}", re.search(rf"\b{name}(?:: | = )\[([^\]]*)\]", text)[1])
    return {name: found(name) + found("MANY") for name in ("light", "dark")}


def test_more_runs_than_colours():
    "Each further twenty have a pattern, here and in the page, and keep it in other charts."
    ids = [f"run {i}" for i in range(60)]
    colors = run_colors(["", *ids])[1:]
    assert len({(series_color(o), series_dash(o)) for o in colors}) == 60 and len({series_color(o) for o in colors}) == 20
    assert run_colors(["", *ids[50:]])[1:] == colors[50:]
    assert f"const DASHES = {[[int(o) for o in dash.split()] for dash in DASHES]};" in (ROOT/"trainer_nb/static/20_theme.js").read_text("utf-8")


@pytest.mark.parametrize("name,paper", [("light", 1.0), ("dark", 0.01), ("pictures", None)])
def test_told_apart(name, paper):
    "Any two of a palette are at least 20 apart, the first six however they are seen; and none is lost on its paper."
    colors = list(PALETTE) if name == "pictures" else page_palettes()[name]
    assert len(colors) == 22
    for how, seen in SEEN.items():
        told = colors if how == "all three" else colors[:6]
        places = [lab(seen @ linear(c)) for c in told]
        gaps = {(a, b): np.linalg.norm(p - q) for i, (a, p) in enumerate(zip(told, places)) for b, q in list(zip(told, places))[:i]}
        assert min(gaps.values()) > 20, (how, min(gaps, key=gaps.get))
    for color in colors:
        bright = linear(color) @ XYZ[1]
        for p in ([1.0, 0.01] if paper is None else [paper]):
            assert (max(bright, p) + 0.05) / (min(bright, p) + 0.05) > 2.2, color
