# SPDX-License-Identifier: GPL-2.0
"""The duration of a large request, depending on the length of its chunks, where drive and wire are equally fast.

Both are throttled so much that the emulated processors do not matter. The compared cases are measured in turn, in one
run, so that the load of the host affects all of them. The times are real time, so this takes medians, and only ratios
are meaningful.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from machine import Machine
from rows import CHUNKS, Row

# The number of requests of each kind; they have 1 MiB, and run one at a time.
ROUNDS = 5
# The drive carries out one command after the other, each of up to COMMAND_KIB in COMMAND_NS: 2.5 MB/s. COMMAND_KIB is
# the length of the shortest chunk, so that all commands have the same length.
COMMAND_KIB, COMMAND_NS = 64, 26_214_400
# The rate of either end of the wire.
RATE = "20mbit"

SERVE = f"""
set -e
modprobe null_blk nr_devices=0
drive() {{
	mkdir /sys/kernel/config/nullb/$1 && cd /sys/kernel/config/nullb/$1
	echo 64 > size && echo 1 > submit_queues && echo 1 > hw_queue_depth && echo {COMMAND_KIB * 2} > max_sectors
	[ $2 = 0 ] || {{ echo 2 > irqmode && echo $2 > completion_nsec; }}
	echo 1 > power
	[ -b /dev/$1 ]
}}
drive slow {COMMAND_NS}
drive instant 0
hcablk target export wire /dev/instant --insecure --chunk-kib 0 --allow {{host}}
"""
THROTTLE = f"set -e; modprobe sch_netem; tc qdisc replace dev eth0 root netem limit 10000 rate {RATE}"
# "1048576 bytes (1.0 MB, 1.0 MiB) copied, 0.25 s, 4.0 MB/s"
TIME = "2>&1 | sed -n 's/.* copied, \\([0-9.]*\\) s.*/\\1/p'"
DD = {
    "read": f"dd bs=1M count=1 if=$disk of=/dev/null iflag=direct {TIME}",
    "write": f"dd bs=1M count=1 if=/dev/zero of=$disk oflag=direct conv=notrunc {TIME}",
}


@dataclass(frozen=True)
class Timed:
    """Medians in seconds: of a request, and of the drive's and the wire's part alone."""

    seconds: float
    drive: float
    wire: float


def run(machine: Machine, wanted: list[Row], found: dict[Row, Timed], say: Callable[[str], None]) -> None:
    """Measures the rows, one pattern after the other."""
    host = machine.shell(machine.guest, "cat /etc/hcablk/host_id").strip()
    machine.shell(machine.target, SERVE.replace("{host}", host))
    peers = list(dict.fromkeys(row.peer for row in wanted))
    for peer in peers:
        script = f"hcablk target export {peer} /dev/slow --insecure --chunk-kib {CHUNKS[peer]} --allow {host}"
        machine.shell(machine.target, script)
    address = machine.target.spec.address
    disks = {name: machine.shell(machine.guest, f"hcablk connect {address} {name}").strip() for name in ("wire", *peers)}
    for guest in machine.guests:
        machine.shell(guest, THROTTLE)
    for pattern in dict.fromkeys(row.load.pattern for row in wanted):
        times: dict[str, list[float]] = {name: [] for name in ("drive", *disks)}
        for _ in range(ROUNDS):
            times["drive"].append(float(machine.shell(machine.target, f"disk=/dev/slow; {DD[pattern]}")))
            for name, disk in disks.items():
                times[name].append(float(machine.shell(machine.guest, f"disk={disk}; {DD[pattern]}")))
        middle = {name: statistics.median(all_times) for name, all_times in times.items()}
        for row in wanted:
            if row.load.pattern == pattern:
                found[row] = Timed(middle[row.peer], middle["drive"], middle["wire"])
                say(f"{row.name:28} {middle[row.peer] * 1000:10.1f} ms")
