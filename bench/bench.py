# SPDX-License-Identifier: GPL-2.0
"""Measure hcablk and its competitors (called by bench/run.sh, inside the build root)."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType

import load
import report
import rows
from machine import EXACT, EXACT_ACCEL, EXACT_APPEND, GuestError, Machine, Parts


def say(text: str = "") -> None:
    print(text, flush=True)


def terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def run(machine: Machine, wanted: list[rows.Row]) -> dict[rows.Row, load.Result]:
    """All rows, peer by peer."""
    results: dict[rows.Row, load.Result] = {}
    for peer, group in itertools.groupby(wanted, lambda row: row.peer):
        with machine.disk(peer) as disk:
            for row in group:
                started = time.monotonic()
                result = results[row] = load.measure(machine, row.load, disk)
                say(
                    f"[{len(results):3}/{len(wanted)}] {row.name:28} {result.ns_per_io:12,.0f} instructions per I/O "
                    f"{result.iops:12,.0f} IOPS {time.monotonic() - started:6.1f} s"
                )
    return results


def as_json(row: rows.Row, result: load.Result) -> dict[str, object]:
    return {
        "peer": row.peer,
        "size": row.load.size,
        "pattern": row.load.pattern,
        "depth": row.load.depth,
        "ios": result.ios,
        "ns_per_io": round(result.ns_per_io, 1),
        "iops": round(result.iops, 1),
    }


def origin() -> dict[str, object]:
    """What the results come from."""

    def first_line(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]

    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "kernel": os.environ["HCABLK_KREL"],
        "commit": os.environ["HCABLK_COMMIT"],
        "qemu": first_line("qemu-system-x86_64", "--version"),
        "fio": first_line("fio", "--version"),
        "machine": [f"-accel {EXACT_ACCEL}", *EXACT],
        "kernel_options": EXACT_APPEND,
        "fio_options": load.FIO,
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="only the rows that the figures need")
    parser.add_argument("--save", action="append", default=[], help="another file for the results")
    parser.add_argument("rows", nargs="*", help="peers, loads, or globs of rows' names")
    args = parser.parse_args()
    env = os.environ
    wanted = rows.select([word for arg in args.rows for word in arg.split()], args.quick)

    signal.signal(signal.SIGTERM, terminated)
    signal.signal(signal.SIGHUP, terminated)
    modules = [*Path(env["HCABLK_MODDIR"]).glob("hcablk*.ko"), *Path(env["HCABLK_RNBD"]).glob("*.ko")]
    machine = Machine(
        Parts(
            cache=Path(env["HCABLK_CACHE"]),
            kernel=Path("/usr/lib/modules", env["HCABLK_KREL"]),
            modules=sorted(modules),
            command=Path(env["HCABLK_BIN"]),
            logs=Path(env["HCABLK_LOGS"]),
        )
    )
    try:
        started = time.monotonic()
        machine.start()
        say(f"booted in {time.monotonic() - started:.1f} s")
        found = run(machine, wanted)
        results = {"version": 1, "made": origin(), "rows": [as_json(row, result) for row, result in found.items()]}
        text = json.dumps(results, indent=1) + "\n"
        for place in [Path(env["HCABLK_LOGS"], "results.json"), *(Path(path) for path in args.save)]:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
            say(f"results: {place}")
        say()
        for line in report.report(results):
            say(line)
        for line in machine.trouble():
            say(f"the guest's kernel: {line}")
    except GuestError as err:
        say(str(err))
        return 1
    finally:
        machine.close()
    return 0


sys.exit(main())
