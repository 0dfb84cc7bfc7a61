# SPDX-License-Identifier: GPL-2.0
"""The measurement of a row: runs fio, and computes the time per I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

import peers
from machine import Machine
from rows import CLIENTS, LIBRARY, MODES, SINGLE, VERBS, Load, Row

# At this depth and above, fio submits and reaps BATCH requests at a time.
BATCH_DEPTH = 32
BATCH = 16

FIO = (
    "fio --ioengine=libaio --direct=1 --norandommap --randrepeat=1 --gtod_reduce=1 --thread --size=4g "
    "--clocksource=clock_gettime --invalidate=0 --exec_prerun=hcablk-mark --exec_postrun=hcablk-mark --minimal"
)


@dataclass(frozen=True)
class Result:
    """The cost of a row."""

    ios: int
    ns_per_io: float
    # Minimum and maximum of several boots; `ns_per_io` is then their median.
    span: tuple[float, float] | None = None
    # For a polling program: the cost of polls that found nothing. `ns_per_io` does not include it.
    empty: float = 0.0

    @property
    def iops(self) -> float:
        return 1e9 / self.ns_per_io


def median(results: list[Result]) -> Result:
    """Returns the median of several boots' results, with their span."""
    ordered = sorted(results, key=lambda result: result.ns_per_io)
    span = (ordered[0].ns_per_io, ordered[-1].ns_per_io) if len(ordered) > 1 else None
    return replace(ordered[len(ordered) // 2], span=span)


def counts(load: Load, mib: int = 24) -> tuple[int, int]:
    """Returns the number of I/Os to warm up, and of those to measure: at least 48, otherwise at most `mib` MiB."""
    measured = min(4096 if load.depth > 1 else 1536, (mib << 20) // load.bytes)
    return load.depth + 32, max(48, measured)


def command(load: Load, disk: str, warm: int, measured: int, mib: int = 0, engine: str = "libaio") -> str:
    """Returns the command for two jobs, one after the other: a short one, and one with `measured` more I/Os. Both cost
    the same to start and to end, so the difference does not include that. `mib`: the jobs use only the first `mib` MiB
    of the disk; 0: as in FIO."""
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
    """Measures a row."""
    load = row.load
    # On the HCA only the drivers' own instructions remain, so background work that falls into a row is a larger share of
    # them: use more I/Os.
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
    """Measures a row of a program with the library. There is one CPU, so a polling program has the lowest priority. The
    number of its polls that find nothing depends on the other tasks: their cost is subtracted."""
    load = row.load
    what = "write" if "write" in load.pattern else "read"
    idle = "chrt -i 0 " if LIBRARY[row.peer] == "poll" else ""
    script = f"{idle}hcablk-cost {machine.address} bench {what} {load.bytes} {load.depth} {warm} {ios} {LIBRARY[row.peer]}"
    begin, end, begin2, end2, short, long, each = (float(word) for word in machine.shell(machine.guest, script).split())
    # A program that waits for events makes a system call after an empty poll: that is part of its cost.
    empty = (long - short) * each / ios if idle else 0.0
    return Result(ios, ((end2 - begin2) - (end - begin)) / ios - empty, empty=empty)
