# SPDX-License-Identifier: GPL-2.0
"""Measures hcablk and its competitors (called by bench/run.sh, inside the build root)."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import TypeVar

import chunks
import counting
import load
import plot
import report
import rows
from counts import CountError
from machine import COUNTING, DRIVES, EXACT, HCA, HCA_IOMMU, LINK, THROTTLED, GuestError, Kind, Machine, Parts


T = TypeVar("T")


def say(text: str = "") -> None:
    print(text, flush=True)


def terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def run(machine: Machine, wanted: list[rows.Row], results: dict[rows.Row, load.Result]) -> None:
    """Measures all rows, peer by peer."""
    for peer, group in itertools.groupby(wanted, lambda row: row.peer):
        with machine.disk(peer) as disk:
            for row in group:
                started = time.monotonic()
                result = results[row] = load.measure(machine, row, disk)
                cost = f"{result.ns_per_io:12,.0f} {machine.kind.unit} per I/O"
                seconds = time.monotonic() - started
                say(f"[{len(results):3}/{len(wanted)}] {row.name:28} {cost} {result.iops:12,.0f} IOPS {seconds:6.1f} s")


def by_row(boots: list[dict[rows.Row, T]]) -> dict[rows.Row, list[T]]:
    """Returns the results of each row, one from each boot that measured it."""
    return {row: [boot[row] for boot in boots if row in boot] for boot in boots for row in boot}


def origin(kind: Kind) -> dict[str, object]:
    """Returns the origin of the results: programs, options and commit."""

    def first_line(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]

    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "kernel": os.environ["HCABLK_KREL"],
        "commit": os.environ["HCABLK_COMMIT"],
        "qemu": first_line("qemu-system-x86_64", "--version"),
        "fio": first_line("fio", "--version"),
        "measured": kind.name,
        "unit": kind.unit,
        "qemu_options": [f"-accel {kind.accel}", *kind.arguments] if kind.accel else [],
        "kernel_options": kind.append,
        "connect_options": os.environ.get("CONNECT", ""),
        "fio_options": load.FIO,
    }


@contextmanager
def booted(parts: Parts, kind: Kind) -> Iterator[Machine]:
    """Runs a machine until the context ends. Raises an error at the end if a kernel has logged a complaint."""
    machine = Machine(parts, kind)
    complaints: list[str] = []
    try:
        say(f"booted in {machine.start():.1f} s")
        try:
            yield machine
        finally:
            # Also after a failure: a complaint may be the reason.
            complaints = machine.trouble()
            for line in complaints:
                say(f"complaint: {line}")
    finally:
        machine.close()
    if complaints:
        raise GuestError("a kernel has logged a complaint: the measurements cannot be trusted")


def merged(results: report.Results, path: Path) -> report.Results:
    """Returns the results, with the other rows of an older file if that has the same origin."""
    if not path.exists():
        return results
    older = json.loads(path.read_text(encoding="utf-8"))
    if {**older["made"], "date": ""} != {**results["made"], "date": ""}:
        return results
    known = {(row["peer"], row["size"], row["pattern"], row["depth"]): row for row in older["rows"]}
    for row in results["rows"]:
        known.setdefault((row["peer"], row["size"], row["pattern"], row["depth"]), {}).update(row)
    order = [(row.peer, row.load.size, row.load.pattern, row.load.depth) for row in rows.all_rows()]
    return {**results, "rows": [known[key] for key in order if key in known]}


def save(results: report.Results, path: Path) -> None:
    """Writes a results file, and next to it the same results as text and as pictures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text = path.with_suffix(".txt")
    text.write_text("\n".join(report.report(results)) + "\n", encoding="utf-8")
    say(f"results: {' '.join(str(p) for p in [path, text, *plot.draw(results, path.with_suffix(''))])}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", action="store_true", help="only count, and print the instructions of each function")
    parser.add_argument("--quick", action="store_true", help="only the rows that the wanted ratios need")
    parser.add_argument("--no-count", action="store_true", help="only measure, do not count")
    parser.add_argument("--repeat", type=int, default=1, help="the number of boots in which each row is measured")
    parser.add_argument("--link", choices=("one", "two", "hca", "hca-iommu"), default="one", help="the link between initiator and target")
    parser.add_argument("--save", help="another file for the results; its rows of the same origin are kept")
    parser.add_argument("rows", nargs="*", help="peers, loads, or globs of rows' names")
    args = parser.parse_args()
    env = os.environ
    wanted = rows.select([word for arg in args.rows for word in arg.split()], args.quick)
    on_hca = {"hca": HCA, "hca-iommu": HCA_IOMMU}.get(args.link)
    if args.link == "two":
        # null and verbs have no target; chunks boot two guests of their own.
        wanted = [row for row in wanted if row.peer not in ("null", rows.VERBS, *rows.CHUNKS)]
    elif on_hca:
        # The HCA has no provider for user space; the other peers are not measured on it.
        wanted = [row for row in wanted if row.peer in (*rows.RDMA_PEERS, *rows.TUNED, *rows.PATHS)]

    signal.signal(signal.SIGTERM, terminated)
    signal.signal(signal.SIGHUP, terminated)
    modules = [*Path(env["HCABLK_MODDIR"]).glob("hcablk*.ko"), *Path(env["HCABLK_RNBD"]).glob("*.ko")]
    parts = Parts(
        cache=Path(env["HCABLK_CACHE"]),
        kernel=Path("/usr/lib/modules", env["HCABLK_KREL"]),
        modules=sorted(modules),
        command=Path(env["HCABLK_BIN"]),
        logs=Path(env["HCABLK_LOGS"]),
    )
    kind = on_hca or (LINK if args.link == "two" else EXACT)
    # Unless rows are named, only the rows of the wanted ratios are counted.
    on_drives = [row for row in wanted if row.peer in rows.MODES]
    wanted = [row for row in wanted if row.peer not in rows.MODES]
    to_count = [row for row in wanted if row.peer != rows.VERBS and (args.rows or row in rows.figure_rows())]
    to_count = [row for row in to_count if row.peer not in rows.CHUNKS]
    if on_hca:
        # There only counting gives a result: every row is counted.
        to_count = wanted
    # Rows of clients are only counted, too: the clock does not show which part executes the instructions.
    of_clients = [row for row in wanted if row.peer in rows.CLIENTS]
    wanted = [row for row in wanted if row.peer not in rows.CLIENTS]
    to_count = [row for row in to_count if row.peer not in rows.CLIENTS]
    in_chunks = [row for row in wanted if row.peer in rows.CHUNKS]
    # One for each boot. On soft-RoCE a counted row only repeats a measured one, so one boot is enough for counting.
    boots: list[dict[rows.Row, load.Result]] = [{} for _ in range(args.repeat)]
    countings: list[dict[rows.Row, counting.Counted]] = [{} for _ in range(args.repeat if on_hca else 1)]
    timed: dict[rows.Row, chunks.Timed] = {}
    counted: dict[rows.Row, counting.Counted] = {}
    code = 0
    try:
        if in_chunks and not args.profile:
            say("\nmeasuring the time that chunks save when drive and wire are equally fast")
            with booted(parts, THROTTLED) as machine:
                chunks.run(machine, in_chunks, timed, say)
        if wanted and not args.profile and not on_hca:
            for results in boots:
                with booted(parts, kind) as machine:
                    run(machine, wanted, results)
        if to_count and args.link != "two" and (on_hca or not args.no_count):
            say("\ncounting the instructions and verbs of an I/O")
            for results in countings:
                with booted(parts, on_hca or COUNTING) as machine:
                    counting.run(machine, to_count, results, say)
        if of_clients and args.link == "one":
            say("\ncounting the cost of an I/O for a program")
            with booted(parts, COUNTING) as machine:
                counting.run(machine, of_clients, counted, say)
        if on_drives and args.link == "one":
            say("\ncounting the cost of an I/O on an emulated NVMe drive")
            with booted(parts, DRIVES) as machine:
                counting.run(machine, on_drives, counted, say)
    except (GuestError, CountError) as err:
        say(str(err))
        code = 1
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        code = int(end.code or 0)
    # A run that ended early has results, too.
    found = {row: load.median(results) for row, results in by_row(boots).items()}
    counted |= {row: counting.median(results) for row, results in by_row(countings).items()}
    write_results(args, parts, report.results(origin(kind), found, counted, timed), counted)
    return code


def write_results(
    args: argparse.Namespace, parts: Parts, results: report.Results, counted: dict[rows.Row, counting.Counted]
) -> None:
    """Saves the results, and prints them."""
    if args.profile:
        profiles = [(*counting.profile_text(row, count), "") for row, count in counted.items()]
        text = "\n".join(line for profile in profiles for line in profile)
        (parts.logs / "profile.txt").write_text(text, encoding="utf-8")
        say(f"\n{text}")
    save(results, parts.logs / "results.json")
    if args.save:
        results = merged(results, Path(args.save))
        save(results, Path(args.save))
    say()
    for line in report.report(results):
        say(line)


sys.exit(main())
