# SPDX-License-Identifier: GPL-2.0
"""One row: fio, and how long it took per I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

import peers
from machine import Machine
from rows import CLIENTS, LIBRARY, MODES, SINGLE, VERBS, Load, Row

# Submissions and completions come in batches at this depth and above.
BATCH_DEPTH = 32
BATCH = 16

FIO = (
    "fio --ioengine=libaio --direct=1 --norandommap --randrepeat=1 --gtod_reduce=1 --thread --size=4g "
    "--clocksource=clock_gettime --invalidate=0 --exec_prerun=hcablk-mark --exec_postrun=hcablk-mark --minimal"
)


@dataclass(frozen=True)
class Result:
    """What a row has cost."""

    ios: int
    ns_per_io: float
    # The least and the most of several boots; the cost is their median then.
    span: tuple[float, float] | None = None
    # Of a program that polls: what polls that found nothing have cost, which is none of the above.
    empty: float = 0.0

    @property
    def iops(self) -> float:
        return 1e9 / self.ns_per_io


def median(results: list[Result]) -> Result:
    """Returns the middle one of several boots' results, with their span."""
    ordered = sorted(results, key=lambda result: result.ns_per_io)
    span = (ordered[0].ns_per_io, ordered[-1].ns_per_io) if len(ordered) > 1 else None
    return replace(ordered[len(ordered) // 2], span=span)


def counts(load: Load, mib: int = 24) -> tuple[int, int]:
    """How many I/Os a row takes, of so many MiB at most: to warm up, and after that."""
    measured = min(4096 if load.depth > 1 else 1536, (mib << 20) // load.bytes)
    return load.depth + 32, max(48, measured)


def command(load: Load, disk: str, warm: int, measured: int, mib: int = 0, engine: str = "libaio") -> str:
    """Two jobs, one after the other: a short one, and one that is longer by what is measured. What it takes to begin
    and to end a job is the same in both, and goes with the difference. `mib`: use so much of the disk only."""
    fio = FIO.replace("libaio", engine)
    options = f"{fio} --filename={disk} --rw={load.pattern.removesuffix(SINGLE)} --bs={load.bytes} --iodepth={load.depth}"
    if mib:
        options += f" --size={mib}m"
    if load.depth >= BATCH_DEPTH and SINGLE not in load.pattern:
        options += f" --iodepth_batch={BATCH} --iodepth_batch_complete_min={BATCH}"
    jobs = f"--name=short --number_ios={warm} --name=long --stonewall --number_ios={warm + measured}"
    return (
        f"{options} {jobs} > fio.out || {{ cat fio.out >&2; exit 1; }}; "
        "cat short.prerun.txt short.postrun.txt long.prerun.txt long.postrun.txt"
    )


def measure(machine: Machine, row: Row, disk: str) -> Result:
    """Run one row."""
    load = row.load
    # Where all that is counted is the drivers' own, what falls into a row by chance is much of it.
    warm, ios = counts(load, 96 if machine.kind.hca else 24)
    mib = peers.DRIVE_MIB if row.peer in MODES else 0
    if row.peer == VERBS:
        script = f"hcablk-verbs {load.pattern} {load.bytes} {load.depth} {ios}"
        return Result(ios, float(machine.shell(machine.guest, script)))
    if row.peer in LIBRARY:
        return measure_library(machine, row, warm, ios)
    engine = "io_uring" if row.peer in CLIENTS else "libaio"
    output = machine.shell(machine.guest, f"cd /tmp && {command(load, disk, warm, ios, mib, engine)}").split()
    begin, end, begin2, end2 = (int(word) for word in output)
    return Result(ios, ((end2 - begin2) - (end - begin)) / ios)


def measure_library(machine: Machine, row: Row, warm: int, ios: int) -> Result:
    """Run one row of a program with the library. While it polls all else goes first, since there is one CPU: what it has polled
    for nothing depends on who else runs, and is taken off."""
    load = row.load
    what = "write" if "write" in load.pattern else "read"
    idle = "chrt -i 0 " if LIBRARY[row.peer] == "poll" else ""
    script = f"{idle}hcablk-cost {machine.address} bench {what} {load.bytes} {load.depth} {warm} {ios} {LIBRARY[row.peer]}"
    begin, end, begin2, end2, short, long, each = (float(word) for word in machine.shell(machine.guest, script).split())
    # Of those who wait for events each ends with a system call.
    empty = (long - short) * each / ios if idle else 0.0
    return Result(ios, ((end2 - begin2) - (end - begin)) / ios - empty, empty=empty)
