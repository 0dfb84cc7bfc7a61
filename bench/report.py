# SPDX-License-Identifier: GPL-2.0
"""What a run has measured, as text: tables, and the ratios that are asked for.

    report.py RESULTS.json      prints it again
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rows
from rows import Load

Results = dict[str, Any]
# Instructions per I/O, by peer and load.
Costs = dict[tuple[str, Load], float]


def costs(results: Results) -> Costs:
    return {
        (row["peer"], Load(row["size"], row["pattern"], row["depth"])): row["ns_per_io"] for row in results["rows"]
    }


def loads(found: Costs) -> list[Load]:
    """The loads that any peer was measured with, in the matrix's order."""
    present = {load for _, load in found}
    return list(dict.fromkeys(row.load for row in rows.matrix() if row.load in present))


def table(found: Costs) -> Iterator[str]:
    """Instructions per I/O, and the ratios of the others to ours."""
    peers = [peer for peer in rows.PEERS if any(peer == p for p, _ in found)]
    others = [peer for peer in peers if peer not in ("hcablk", "null")] if "hcablk" in peers else []
    yield f"{'instructions per I/O':20}" + "".join(f"{p:>12}" for p in peers) + "".join(f"{p + '/hcablk':>14}" for p in others)
    for load in loads(found):
        line = f"{load.name:20}"
        for peer in peers:
            cost = found.get((peer, load))
            line += f"{cost:12,.0f}" if cost else f"{'-':>12}"
        ours = found.get(("hcablk", load))
        for peer in others:
            cost = found.get((peer, load))
            line += f"{cost / ours:14.3f}" if cost and ours else f"{'-':>14}"
        yield line


def figures(found: Costs) -> Iterator[str]:
    """Each ratio that is asked for, and whether it is reached."""
    for figure in rows.FIGURES:
        for load in figure.loads():
            theirs, ours = found.get((figure.peer, load)), found.get(("hcablk", load))
            if not theirs or not ours:
                continue
            ratio = theirs / ours
            verdict = "reached" if ratio >= figure.wanted else "NOT reached"
            yield f"{figure.peer}/hcablk  {load.name:18} {ratio:6.3f}  wanted {figure.wanted:.2f}  {verdict}"


def report(results: Results) -> Iterator[str]:
    """The whole of it."""
    made = results["made"]
    yield f"kernel {made['kernel']}, hcablk {made['commit']}, {made['qemu']}, {made['date']}"
    yield ""
    found = costs(results)
    yield from table(found)
    lines = list(figures(found))
    if lines:
        yield from ("", "Figures asked for (the peer's instructions per I/O to ours):", *lines)


if __name__ == "__main__":
    print("\n".join(report(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
