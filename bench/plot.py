# SPDX-License-Identifier: GPL-2.0
"""Pictures of a run's results.

    plot.py RESULTS.json    draws RESULTS-cost.svg and RESULTS-figures.svg
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import report
import rows
from report import Costs, Results
from rows import Load

COLORS = {"null": "#999999", "hcablk": "#c1272d", "nvme": "#0000a7", "rnbd": "#008176", "nbd": "#eecc16"}
PANEL = (300, 200)
FONT = "font-family='sans-serif' font-size='12'"


class Picture:
    """SVG, element by element."""

    def __init__(self, width: int, height: int) -> None:
        self._size = (width, height)
        self._parts = [f"<rect width='{width}' height='{height}' fill='white'/>"]

    def line(self, x1: float, y1: float, x2: float, y2: float, color: str = "#cccccc", width: float = 1) -> None:
        self._parts.append(
            f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{color}' stroke-width='{width}'/>"
        )

    def path(self, points: list[tuple[float, float]], color: str) -> None:
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f"<polyline points='{text}' fill='none' stroke='{color}' stroke-width='2'/>")
        self._parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{color}'/>" for x, y in points]

    def box(self, x: float, y: float, width: float, height: float, color: str) -> None:
        self._parts.append(f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' fill='{color}'/>")

    def text(self, x: float, y: float, text: str, anchor: str = "middle", weight: str = "normal") -> None:
        self._parts.append(f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-weight='{weight}'>{text}</text>")

    def write(self, path: Path) -> None:
        width, height = self._size
        head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' {FONT}>"
        path.write_text("\n".join([head, *self._parts, "</svg>", ""]), encoding="utf-8")


def short(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def panel(picture: Picture, found: Costs, pattern: str, depth: int, left: float, top: float) -> None:
    """The cost of an I/O over its size, both as logarithms: a line for each peer."""
    loads = [(n, Load(size, pattern, depth)) for n, size in enumerate(rows.SIZES)]
    lines = {peer: [(n, found[peer, load]) for n, load in loads if (peer, load) in found] for peer in COLORS}
    values = [cost for line in lines.values() for _, cost in line]
    if not values:
        return
    width, height = PANEL
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def at(n: float, cost: float) -> tuple[float, float]:
        share = (math.log10(cost) - low) / max(1, high - low)
        return left + width * (n + 0.5) / len(rows.SIZES), top + height * (1 - share)

    for power in range(low, high + 1):
        y = at(0, 10.0**power)[1]
        picture.line(left, y, left + width, y)
        picture.text(left - 6, y + 4, short(10.0**power), "end")
    for n, name in enumerate(rows.SIZES):
        picture.text(at(n, 10.0**low)[0], top + height + 16, name)
    picture.text(left + width / 2, top - 8, f"{pattern}, queue depth {depth}", weight="bold")
    for peer, line in lines.items():
        if line:
            picture.path([at(n, cost) for n, cost in line], COLORS[peer])


def cost_picture(found: Costs, unit: str, path: Path) -> None:
    """All patterns, at the smallest and the largest depth."""
    found = {key: cost for key, cost in found.items() if key[0] in COLORS}
    if len({load.size for _, load in found}) < 2:
        return
    depths = (rows.DEPTHS[0], rows.DEPTHS[-1])
    size, gap = PANEL, (70, 50)
    picture = Picture(2 * (size[0] + gap[0]) + 20, len(rows.PATTERNS) * (size[1] + gap[1]) + 70)
    picture.text(20, 24, f"{unit.capitalize()} per I/O, both ends and soft-RoCE included", "start", "bold")
    x = 20.0
    for peer in (peer for peer in COLORS if any(peer == p for p, _ in found)):
        picture.box(x, 36, 12, 12, COLORS[peer])
        picture.text(x + 18, 47, peer, "start")
        x += 90
    for y, pattern in enumerate(rows.PATTERNS):
        for x, depth in enumerate(depths):
            panel(picture, found, pattern, depth, gap[0] + x * (size[0] + gap[0]), 84 + y * (size[1] + gap[1]))
    picture.write(path)


def figures_picture(found: Costs, unit: str, path: Path) -> None:
    """The ratios that are asked for, and how far they are reached."""
    bars = [
        (f"{figure.peer} {load.name}", found[figure.peer, load] / found["hcablk", load], figure.wanted)
        for figure in rows.FIGURES
        for load in figure.loads()
        if (figure.peer, load) in found and ("hcablk", load) in found
    ]
    if not bars:
        return
    left, width, height = 190, 420, 22
    scale = width / max(1.6, *(max(ratio, wanted) for _, ratio, wanted in bars))
    picture = Picture(left + width + 70, 70 + height * len(bars))
    picture.text(20, 24, f"A competitor's {unit} per I/O to hcablk's (line: what is asked for)", "start", "bold")
    bottom = 44 + height * len(bars)
    picture.line(left + scale, 40, left + scale, bottom, "#888888")
    picture.text(left + scale, bottom + 16, "1.0")
    for n, (name, ratio, wanted) in enumerate(bars):
        y = 44 + n * height
        picture.text(left - 8, y + 13, name, "end")
        picture.box(left, y, ratio * scale, height - 6, "#008176" if ratio >= wanted else "#c1272d")
        picture.line(left + wanted * scale, y - 2, left + wanted * scale, y + height - 4, "black", 2)
        picture.text(left + max(ratio, wanted) * scale + 6, y + 13, f"{ratio:.2f}", "start")
    picture.write(path)


def draw(results: Results, place: Path) -> list[Path]:
    """Draw both; the files, whose names begin as told."""
    found = report.costs(results)
    cost = place.with_name(f"{place.name}-cost.svg")
    cost_picture(found, results["made"]["unit"], cost)
    figures = place.with_name(f"{place.name}-figures.svg")
    figures_picture(found, results["made"]["unit"], figures)
    return [path for path in (cost, figures) if path.exists()]


if __name__ == "__main__":
    file = Path(sys.argv[1])
    draw(json.loads(file.read_text(encoding="utf-8")), file.with_suffix(""))
