# SPDX-License-Identifier: GPL-2.0
"""Draws pictures of a run's results.

    plot.py RESULTS.json    draws RESULTS-SIZE.svg, the instructions of an I/O of this size by part of the system, and
                            RESULTS-ratios.svg, the instructions of peers for each instruction of ours
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

import report
import rows
from report import Costs, Results
from rows import Load
from whose import PARTS

COLORS = dict(zip(PARTS, ("#b8b8b8", "#8c9fb5", "#c1272d", "#f08a4b", "#2a7f9e", "#6aa56e", "#dddddd"), strict=True))
# The loads of the picture of a size, in the order of its panels.
DEPTHS = (1, 64)
PATTERNS = ("randread", "randwrite")

matplotlib.use("svg")
# The same results always give the same bytes; text is stored as text.
matplotlib.rcParams |= {"svg.hashsalt": "hcablk", "svg.fonttype": "none", "font.size": 9}


def save(figure: Figure, path: Path) -> Path:
    """Writes a picture, without the time at which it was drawn."""
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path


def divided(row: dict[str, Any]) -> dict[str, float]:
    """Returns the instructions of a row's I/O by part of the system, or nothing if the row was not counted."""
    return {part: row["instructions_by_part"].get(part, 0.0) for part in PARTS} if "instructions_by_part" in row else {}


def bars(axes: Axes, found: list[dict[str, Any]]) -> None:
    """Draws a bar for each peer, from the program at the bottom to the rest of the kernel at the top."""
    places = range(len(found))
    bottoms = [0.0] * len(found)
    for part in PARTS:
        heights = [divided(row)[part] for row in found]
        axes.bar(places, heights, 0.68, bottoms, color=COLORS[part], label=part, edgecolor="white", linewidth=0.4)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
    for place, total in zip(places, bottoms):
        axes.text(place, total, f"{total:,.0f}", ha="center", va="bottom", fontsize=8)
    axes.set_xticks(list(places), [row["peer"] for row in found])
    axes.set_ylim(0, max(bottoms) * 1.1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def whose_picture(results: Results, size: str, path: Path) -> Path | None:
    """Draws the instructions of an I/O of a size by part of the system: a panel for each load, a bar for each peer."""
    by_load = {
        (pattern, depth): [
            row
            for peer in rows.RDMA_PEERS
            for row in results["rows"]
            if (row["peer"], row["size"], row["pattern"], row["depth"]) == (peer, size, pattern, depth) and divided(row)
        ]
        for depth in DEPTHS
        for pattern in PATTERNS
    }
    by_load = {load: found for load, found in by_load.items() if len(found) > 1}
    if not by_load:
        return None
    figure, panels = plt.subplots(1, len(by_load), figsize=(2.3 * len(by_load) + 2.4, 4.2), layout="constrained", squeeze=False)
    for axes, ((pattern, depth), found) in zip(panels[0], by_load.items()):
        bars(axes, found)
        axes.set_title(f"{pattern}, depth {depth}", fontsize=9)
    panels[0][0].set_ylabel("instructions per I/O")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False)
    figure.suptitle(f"Instructions of an I/O of {size}, by part of the system\n{results['made']['measured']}", fontsize=10)
    return save(figure, path)


def heat(axes: Axes, found: Costs, peer: str) -> None:
    """Draws the ratios of one peer to hcablk, over all rows that both have."""
    columns = [(pattern, depth) for pattern in rows.PATTERNS for depth in rows.DEPTHS]
    columns = [column for column in columns if any((peer, Load(size, *column)) in found for size in rows.SIZES)]
    sizes = [size for size in rows.SIZES if any((peer, Load(size, *column)) in found for column in columns)]
    table = []
    for size in sizes:
        pairs = [(found.get((peer, Load(size, *column))), found.get(("hcablk", Load(size, *column)))) for column in columns]
        table.append([theirs / ours if theirs and ours else float("nan") for theirs, ours in pairs])
    axes.imshow(table, cmap="RdBu", norm=TwoSlopeNorm(1, 0.5, 2), aspect="auto")
    for y, line in enumerate(table):
        for x, ratio in enumerate(line):
            if ratio == ratio:
                dark = ratio > 1.75 or ratio < 0.62
                axes.text(x, y, f"{ratio:.2f}", ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(range(len(columns)), [f"{pattern}\nqd{depth}" for pattern, depth in columns], fontsize=7)
    axes.set_yticks(range(len(sizes)), sizes)
    axes.set_title(f"{peer} / hcablk", fontsize=9)


def ratios_picture(results: Results, path: Path) -> Path | None:
    """Draws the instructions of nvme-rdma and of RNBD for each instruction of ours, over all rows, as heat maps."""
    found = report.costs(results)
    peers = [peer for peer in rows.RDMA_PEERS if peer != "hcablk" and len([1 for p, _ in found if p == peer]) > 1]
    if not peers or not any(p == "hcablk" for p, _ in found):
        return None
    wide = max(len({(load.pattern, load.depth) for p, load in found if p == peer}) for peer in peers)
    high = len({load.size for p, load in found if p in peers})
    size = (0.62 * max(wide, 6) + 1.2, len(peers) * (0.32 * high + 0.9) + 0.6)
    figure, panels = plt.subplots(len(peers), 1, figsize=size, layout="constrained", squeeze=False)
    for axes, peer in zip(panels[:, 0], peers):
        heat(axes, found, peer)
    figure.suptitle(f"{results['made']['unit'].capitalize()} per I/O, the peer's divided by ours: blue where ours are fewer", fontsize=10)
    return save(figure, path)


def draw(results: Results, place: Path) -> list[Path]:
    """Draws all pictures for which the results have enough rows. Returns their files, whose names begin with `place`."""
    pictures = [whose_picture(results, size, place.with_name(f"{place.name}-{size}.svg")) for size in rows.SIZES]
    pictures.append(ratios_picture(results, place.with_name(f"{place.name}-ratios.svg")))
    return [path for path in pictures if path]


if __name__ == "__main__":
    file = Path(sys.argv[1])
    print(*draw(json.loads(file.read_text(encoding="utf-8")), file.with_suffix("")), sep="\n")
