# SPDX-License-Identifier: GPL-2.0
"""Prints the measurements of a run: tables, and the ratios that rows.FIGURES asks for.

    report.py RESULTS.json      prints the text of a results file again
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chunks
import counts
import load
import rows
import whose
from counting import Counted
from rows import Load, Row

Results = dict[str, Any]
# Instructions per I/O, by peer and load.
Costs = dict[tuple[str, Load], float]
# The prefixes of module names: those of each peer, and those of the modules that all peers use.
OWN_MODULES = {"hcablk": ("hcablk",), "nvme": ("nvme",), "rnbd": ("rnbd", "rtrs"), "nbd": ("nbd",)}
RDMA_MODULES = ("rdma_", "ib_")
# The driver of the tests' HCA: its name begins like those of our modules, but it is not one of them.
HCA_MODULE = "hcablk_hca"


def results(
    made: dict[str, object],
    found: dict[Row, load.Result],
    counted: dict[Row, Counted],
    timed: dict[Row, chunks.Timed],
) -> Results:
    """Returns the content of a results file."""

    def one(row: Row) -> dict[str, object]:
        result: dict[str, object] = {
            "peer": row.peer, "size": row.load.size, "pattern": row.load.pattern, "depth": row.load.depth,
        }  # fmt: skip
        # When QEMU counts instructions, its clock shows their number, except for rows that wait for a drive.
        if row.peer in rows.MODES:
            result |= {"ios": counted[row].cost.ios}
        elif cost := found.get(row) or (counted[row].cost if row in counted else None):
            result |= {"ios": cost.ios, "ns_per_io": round(cost.ns_per_io, 1), "iops": round(cost.iops, 1)}
            result |= {"span": [round(n, 1) for n in cost.span]} if cost.span else {}
        if time := timed.get(row):
            result["milliseconds"] = {
                "request": round(time.seconds * 1000, 1),
                "drive": round(time.drive * 1000, 1),
                "wire": round(time.wire * 1000, 1),
            }
        if row in counted:
            modules = {name: round(n, 1) for name, n in counted[row].modules.items() if n >= 0.5}
            parts = {name: round(n, 1) for name, n in counted[row].parts.items()}
            result |= {"verbs": counted[row].verbs, "instructions_by_module": modules, "instructions_by_part": parts}
            result |= {"dma_calls": counted[row].dma} if counted[row].dma else {}
            result |= {"calls": counted[row].calls} if counted[row].calls else {}
            if row.peer in rows.MODES:
                result |= {"instructions": round(counted[row].instructions, 1), "moved": counted[row].moved}
        return result

    everything = [row for row in rows.all_rows() if row in found or row in counted or row in timed]
    return {"version": 1, "made": made, "rows": [one(row) for row in everything]}


def name_of(row: dict[str, Any]) -> str:
    return f"{row['peer']}-{row['size']}-{row['pattern']}-qd{row['depth']}"


def costs(results: Results) -> Costs:
    return {
        (row["peer"], Load(row["size"], row["pattern"], row["depth"])): row["ns_per_io"]
        for row in results["rows"]
        if "ns_per_io" in row
    }


def loads(found: Costs) -> list[Load]:
    """Returns the loads with which any peer was measured, in the matrix's order."""
    present = {load for peer, load in found if peer in rows.PEERS}
    return list(dict.fromkeys(row.load for row in rows.matrix() if row.load in present))


def table(found: Costs, unit: str) -> Iterator[str]:
    """Yields the cost of an I/O for each peer, and the ratios of the other peers to hcablk."""
    peers = [peer for peer in rows.PEERS if any(peer == p for p, _ in found)]
    others = [peer for peer in peers if peer not in ("hcablk", "null")] if "hcablk" in peers else []
    if not peers:
        return
    heads = "".join(f"{peer:>12}" for peer in peers) + "".join(f"{peer + '/hcablk':>14}" for peer in others)
    yield f"{unit + ' per I/O':20}{heads}"
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


def tuned(found: Costs, unit: str) -> Iterator[str]:
    """Yields the cost of peers with the settings of a tuned installation, also with requests submitted one by one, and
    the ratios to hcablk."""
    measured = [load for load in rows.tuned_loads() if any((peer, load) in found for peer in rows.TUNED)]
    if not measured:
        return
    peers = rows.TUNED_PEERS
    yield from ("", f"{'tuned, ' + unit:26}" + "".join(f"{peer:>12}" for peer in peers) + "   to ours: " + ", ".join(peers[1:]))
    for load in measured:
        numbers = [found.get((peer, load)) for peer in peers]
        line = f"{load.name:26}" + "".join(f"{cost:12,.0f}" if cost else f"{'-':>12}" for cost in numbers)
        ratios = [f"{cost / numbers[0]:.3f}" if cost and numbers[0] else "-" for cost in numbers[1:]]
        yield f"{line}   {'  '.join(ratios)}"


def spans(results: Results) -> Iterator[str]:
    """Yields the spread of a row's results over several boots."""
    apart = [(name_of(row), row["ns_per_io"], *row["span"]) for row in results["rows"] if "span" in row]
    if not apart:
        return
    yield from ("", "Several boots: the median, the minimum and the maximum.")
    for name, middle, least, most in apart:
        yield f"{name:30}{middle:12,.0f}{least:12,.0f}{most:12,.0f}{(most - least) / middle:8.1%}"


def raw(found: Costs) -> Iterator[str]:
    """Yields the cost of single work requests."""
    columns = [(operation, depth) for operation in rows.OPERATIONS for depth in rows.VERBS_DEPTHS]
    lines = []
    for size in rows.VERBS_SIZES:
        numbers = [found.get((rows.VERBS, Load(size, operation, depth))) for operation, depth in columns]
        if any(numbers):
            lines.append(f"{size:20}" + "".join(f"{cost:16,.0f}" if cost else f"{'-':>16}" for cost in numbers))
    if lines:
        heads = "".join(f"{f'{operation} qd{depth}':>16}" for operation, depth in columns)
        yield from ("", f"{'raw verbs':20}{heads}", *lines)


def paths(found: Costs) -> Iterator[str]:
    """Yields the cost of each data path; the cheapest for a load has a star."""
    for pattern in rows.MODE_PATTERNS:
        listed = [path for path, (of, _) in rows.PATHS.items() if of == pattern and any(path == p for p, _ in found)]
        if not listed:
            continue
        yield from ("", f"{pattern + ', by way':20}" + "".join(f"{path:>13}" for path in listed))
        for depth in rows.PATH_DEPTHS:
            for size in rows.PATH_SIZES:
                costs = {p: found[p, Load(size, pattern, depth)] for p in listed if (p, Load(size, pattern, depth)) in found}
                if not costs:
                    continue
                line = f"{f'{size} qd{depth}':20}"
                for path in listed:
                    star = "*" if len(costs) > 1 and costs.get(path) == min(costs.values()) else " "
                    line += f"{costs[path]:12,.0f}{star}" if path in costs else f"{'-':>12} "
                yield line.rstrip()


def ratios(found: Costs) -> Iterator[tuple[rows.Figure, Load, float]]:
    """Yields each wanted ratio that was measured."""
    for figure in rows.FIGURES:
        for load in figure.loads():
            theirs, ours = found.get((figure.peer, load)), found.get(("hcablk", load))
            if theirs and ours:
                yield figure, load, theirs / ours


def figures(found: Costs) -> Iterator[str]:
    """Yields whether each wanted ratio is reached."""
    for figure, load, ratio in ratios(found):
        verdict = "reached" if ratio >= figure.wanted else "NOT reached"
        yield f"{figure.peer}/hcablk  {load.name:18} {ratio:6.3f}  wanted {figure.wanted:.2f}  {verdict}"


def share(modules: dict[str, float], *prefixes: str) -> float:
    """Returns the instructions of the modules whose names begin with `prefixes`, and of the HCA's driver only if
    `prefixes` has its whole name."""
    return sum(n for name, n in modules.items() if name.startswith(prefixes) and (name != HCA_MODULE or name in prefixes))


def breakdown(results: Results, found: Costs) -> Iterator[str]:
    """Yield, for ratios that are not reached, which code runs, and the ratio that would be left without our own code."""
    modules = {
        (row["peer"], Load(row["size"], row["pattern"], row["depth"])): row["instructions_by_module"]
        for row in results["rows"]
        if "instructions_by_module" in row and row["peer"] not in rows.MODES
    }
    lines = []
    for figure, load, ratio in ratios(found):
        if ratio >= figure.wanted or ("hcablk", load) not in modules or (figure.peer, load) not in modules:
            continue
        for peer in ("hcablk", figure.peer):
            total, parts = found[peer, load], modules[peer, load]
            own = share(parts, *OWN_MODULES[peer])
            rdma = share(parts, *RDMA_MODULES)
            line = f"{load.name if peer == 'hcablk' else '':20}{peer:8}{total:12,.0f}{own:12,.0f}{rdma:12,.0f}{total - own - rdma:14,.0f}"
            if peer == "hcablk":
                wanted = found[figure.peer, load] / figure.wanted
                best = found[figure.peer, load] / (total - own)
                line += f"{wanted:12,.0f}{total - wanted:12,.0f}{best:14.3f}"
            lines.append(line)
    if lines:
        yield from ("", "Figures that are not reached: whose instructions they are. At best: the ratio if our modules had none at all.")
        yield f"{'per I/O':20}{'':8}{'all':>12}{'own':>12}{'RDMA':>12}{'kernel, rest':>14}{'wanted':>12}{'too many':>12}{'at best':>14}"
        yield from lines


def on_hca(results: Results) -> Iterator[str]:
    """Yields the cost of an I/O on the tests' HCA, by module, and the counts of the work that real hardware would do."""
    of_hca = [row for row in results["rows"] if "dma_calls" in row]
    if not of_hca:
        return
    yield from ("", "On the tests' HCA, both sides; own: the peer's modules and ib_core. Doorbells are those of sends and receives.")
    yield "Copies: a read's out of its slot by byte; a whole page behind an IOMMU, hcablk's writes of 4 KiB, with 1,348 instructions."
    heads = ("all", "own", "of that ib_core", "HCA's driver", "kernel, rest", "doorbells", "interrupts", "DMA maps", "unmaps")
    yield f"{'per I/O':28}" + "".join(f"{head:>17}" for head in heads)
    for row in of_hca:
        modules = row["instructions_by_module"]
        everything, core = row["ns_per_io"], share(modules, "ib_core")
        peer = rows.TUNED.get(row["peer"], row["peer"])
        own = share(modules, *OWN_MODULES[peer if peer in OWN_MODULES else "hcablk"], "ib_core")
        driver = share(modules, HCA_MODULE)
        sides = row["verbs"].values()
        rung = sum(side.get(name, 0) for side in sides for name in ("doorbells", "receive doorbells"))
        events = " + ".join(f"{side.get('events', 0):.3f}" for side in sides)
        calls = [row["dma_calls"].get(name, 0) for name in ("map", "unmap")]
        name = name_of(row)
        numbers = "".join(f"{n:17,.0f}" for n in (everything, own, core, driver, everything - own - driver))
        yield f"{name:28}{numbers}{rung:17.3f}{events:>17}" + "".join(f"{n:17.3f}" for n in calls)


VERBS = ("doorbells", "work requests", "messages", "signaled", "completions", "events", "receives posted")


def verbs(results: Results) -> Iterator[str]:
    """Yields the use of verbs per I/O, on either side."""
    sides = [
        (name_of(row), side, numbers)
        for row in results["rows"]
        for side, numbers in row.get("verbs", {}).items()
    ]
    if not sides:
        return
    present = [name for name in counts.OPCODES.values() if any(name in numbers for _, _, numbers in sides)]
    yield from ("", f"{'per I/O':38}" + "".join(f"{name:>17}" for name in VERBS) + "   work requests are")
    for name, side, numbers in sides:
        kinds = ", ".join(f"{numbers[kind]:.2f} {kind}" for kind in present if numbers.get(kind, 0) >= 0.005)
        yield f"{name:27} {side:10}" + "".join(f"{numbers.get(column, 0):17.3f}" for column in VERBS) + f"   {kinds}"


def client_cost(row: dict[str, Any], polled: dict[str, Any] | None) -> float | None:
    """Returns the instructions of the client alone, without soft-RoCE and changes between threads: those in user space,
    and those of the kernel for system calls, in block layer, drivers and RDMA core. The kernel's include those of the
    target, which this subtracts: they are all the kernel's instructions of a run in which a program polls, since the
    kernel then executes only soft-RoCE's doorbells for the client. `None`: not known, or the target is not ours."""
    if polled is None or row["peer"] == "nvme-disk":
        return None
    user = row["instructions_by_module"].get("user space", 0.0)
    if row["peer"] == "library-poll":
        return float(user)
    parts, targets = row["instructions_by_part"], polled["instructions_by_part"]
    kernel = sum(parts[part] - targets[part] for part in (whose.BLOCK, whose.OWN, whose.CORE))
    calls = parts[whose.PROGRAM] - user
    if row["peer"] in rows.LIBRARY:
        # Doorbells do not count as the library's system calls either.
        calls -= targets[whose.PROGRAM] - polled["instructions_by_module"].get("user space", 0.0)
    return float(user + calls + kernel)


def clients(results: Results) -> Iterator[str]:
    """Yields the cost of an I/O for a program, for each way to use a volume."""
    of_clients = [row for row in results["rows"] if "calls" in row]
    if not of_clients:
        return
    yield from ("", "Each way for a program to use a volume. client: without soft-RoCE, the target and changes between threads (bench/README.md).")
    heads = ("all", "client", "user space", "system calls", "but doorbells", "interrupts")
    yield f"{'per I/O':34}" + "".join(f"{head:>15}" for head in heads)
    polled = {(row["pattern"], row["depth"]): row for row in of_clients if row["peer"] == "library-poll"}
    found: dict[tuple[str, str, int], float] = {}
    for row in of_clients:
        load = (row["pattern"], row["depth"])
        calls, user = row["calls"], row["instructions_by_module"].get("user space", 0.0)
        cost = client_cost(row, polled.get(load))
        if cost is not None:
            found[row["peer"], *load] = cost
        line = f"{name_of(row):34}{row['ns_per_io']:15,.0f}" + (f"{cost:15,.0f}" if cost is not None else f"{'-':>15}")
        others = abs(calls["system calls"] - calls["doorbells"])
        yield f"{line}{user:15,.0f}{calls['system calls']:15.3f}{others:15.3f}{calls['events']:15.3f}"
    yield ""
    for pattern, depth in polled:
        ours, disks = found.get(("library-poll", pattern, depth)), found.get(("disk", pattern, depth))
        if ours and disks:
            verdict = "reached" if ours < disks * rows.CLIENT_SHARE else "NOT reached"
            yield f"library-poll/disk, client  4k-{pattern}-qd{depth:<4} {ours / disks:6.3f}  wanted below {rows.CLIENT_SHARE:.2f}  {verdict}"


def modes(results: Results) -> Iterator[str]:
    """Yields the cost of the target's modes on an emulated drive, and the memory that the bytes crossed."""
    of_modes = [row for row in results["rows"] if "instructions" in row]
    if not of_modes:
        return
    yield from ("", f"{'on an NVMe drive':24}{'instructions per I/O':>22}{'to mode direct':>16}   bytes per byte served")
    alike = {(row["size"], row["pattern"], row["depth"]): row["instructions"] for row in of_modes if row["peer"] == "direct"}
    for row in of_modes:
        direct = alike.get((row["size"], row["pattern"], row["depth"]))
        ratio = f"{row['instructions'] / direct:16.3f}" if direct else f"{'-':>16}"
        where = ", ".join(f"{n:g} {name}" for name, n in row["moved"].items())
        name = name_of(row)
        yield f"{name:24}{row['instructions']:22,.0f}{ratio}   {where}".rstrip()


def chunk_lengths(results: Results) -> Iterator[str]:
    """Yields the duration and cost of a request of 1 MiB, for each length of chunks. The ideal is the time of the slower
    one of drive and wire, plus the time of the faster one for the first chunk."""
    for pattern in rows.CHUNK_PATTERNS:
        found = {row["peer"]: row for row in results["rows"] if row["peer"] in rows.CHUNKS and row["pattern"] == pattern}
        timed = {peer: row["milliseconds"] for peer, row in found.items() if "milliseconds" in row}
        if not timed:
            continue
        # All lengths have the same times of drive and wire.
        alone = next(iter(timed.values()))
        drive, wire = alone["drive"], alone["wire"]
        whole, whole_cost = timed.get("whole", {}).get("request"), found.get("whole", {}).get("ns_per_io")
        yield from ("", "time: two guests with a throttled drive and wire; cost: instructions per I/O in one guest")
        yield f"{rows.CHUNK_SIZE + ' ' + pattern:20}{'ms':>10}{'ideal ms':>10}{'to whole':>10}{'instructions':>14}{'to whole':>10}"
        yield f"{'drive alone':20}{drive:10.1f}"
        yield f"{'wire alone':20}{wire:10.1f}"
        for peer, kib in rows.CHUNKS.items():
            if peer not in timed:
                continue
            took, cost = timed[peer]["request"], found[peer].get("ns_per_io")
            ideal = max(drive, wire) + min(drive, wire) * (kib / 1024 if kib else 1)
            line = f"{peer:20}{took:10.1f}{ideal:10.1f}"
            line += f"{took / whole:10.3f}" if whole else f"{'-':>10}"
            line += f"{cost:14,.0f}" if cost else f"{'-':>14}"
            line += f"{cost / whole_cost:10.3f}" if cost and whole_cost else f"{'-':>10}"
            yield line


def report(results: Results) -> Iterator[str]:
    """Yields the whole report."""
    made = results["made"]
    yield f"{made['measured']}; kernel {made['kernel']}, hcablk {made['commit']}, {made['qemu']}, {made['date']}"
    yield ""
    found = costs(results)
    yield from table(found, made["unit"])
    yield from raw(found)
    yield from tuned(found, made["unit"])
    yield from spans(results)
    yield from paths(found)
    yield from chunk_lengths(results)
    lines = list(figures(found)) if made["unit"] == "instructions" else []
    if lines:
        yield from ("", f"Ratios asked for, the peer's {made['unit']} per I/O to ours:", *lines)
        yield from breakdown(results, found)
    yield from on_hca(results)
    yield from verbs(results)
    yield from modes(results)
    yield from clients(results)


if __name__ == "__main__":
    print("\n".join(report(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
