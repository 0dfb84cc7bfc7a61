# SPDX-License-Identifier: GPL-2.0
"""Reads the counts of the QEMU plugin for a row: instructions by function, and the use of verbs."""

from __future__ import annotations

import bisect
import gzip
import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from machine import Machine

# The functions of soft-RoCE that the plugin watches, and those of the tests' HCA; see plugin/count.c for the letters.
WATCHED = {"Q": "rxe_create_qp", "S": "rxe_post_send", "R": "rxe_post_recv", "C": "rxe_cq_post"}
WATCHED_HCA = {"Q": "hca_create_qp", "S": "hca_post_send", "R": "hca_post_recv", "C": "hca_cq_announce"}
SIGNALED = 256
# enum ib_wr_opcode, for the opcodes that storage uses.
OPCODES = {
    0: "RDMA_WRITE", 1: "RDMA_WRITE_WITH_IMM", 2: "SEND", 3: "SEND_WITH_IMM", 4: "RDMA_READ", 9: "SEND_WITH_INV",
    10: "LOCAL_INV", 0x20: "REG_MR",
}  # fmt: skip
# Operations that send no message.
LOCAL = ("LOCAL_INV", "REG_MR")
SIDES = ("initiator", "target")


class CountError(Exception):
    """The plugin's file reports an error, or does not have the expected counts."""


@dataclass
class Section:
    """The counts between two marks."""

    instructions: Counter[int] = field(default_factory=Counter)  # by a block's address
    times: Counter[int] = field(default_factory=Counter)
    calls: Counter[tuple[str, int, int]] = field(default_factory=Counter)  # by kind, object and argument
    pairs: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # order, send CQ and receive CQ


def read(path: Path, since: int) -> tuple[list[Section], int]:
    """Returns the sections of the file from offset `since` on, and the offset of its end."""
    sections: list[Section] = []
    with open(path, encoding="ascii") as file:
        file.seek(since)
        for line in file:
            match line.split():
                case ["mark"]:
                    sections.append(Section())
                case ["b", address, instructions, times]:
                    sections[-1].instructions[int(address, 16)] += int(instructions) * int(times)
                    sections[-1].times[int(address, 16)] += int(times)
                case ["q", pair, order, send, receive]:
                    sections[-1].pairs[int(pair, 16)] = (int(order), int(send, 16), int(receive, 16))
                case [kind, thing, what, times]:
                    sections[-1].calls[kind, int(thing, 16), int(what)] += int(times)
                case ["error", *what]:
                    raise CountError(" ".join(what))
        return sections, file.tell()


def difference(long: Section, short: Section) -> Section:
    """Returns the counts of a long run minus those of a short one."""
    result = Section(Counter(long.instructions), Counter(long.times), Counter(long.calls), long.pairs)
    result.instructions.subtract(short.instructions)
    result.times.subtract(short.times)
    result.calls.subtract(short.calls)
    return result


def verbs(section: Section, ios: int) -> dict[str, dict[str, float]]:
    """Returns the doorbells, work requests, messages, completions and events per I/O, for each side."""
    posted: Counter[int] = Counter()
    for (kind, thing, _), n in section.calls.items():
        posted[thing] += n if kind == "w" else 0
    # Queue pairs with few work requests only carry probes, such as keep-alives.
    active = [pair for pair, n in posted.items() if n * 50 > ios]
    # The initiator creates its queue pair before it connects, the target when it receives the connection request.
    ordered = sorted(active, key=lambda pair: section.pairs[pair][0])
    if len(ordered) != len(SIDES):
        raise CountError(f"{len(ordered)} queue pairs are active, instead of one on each side")
    result: dict[str, dict[str, float]] = {}
    for side, pair in zip(SIDES, ordered):
        queues = set(section.pairs[pair][1:])
        found: Counter[str] = Counter()
        for (kind, thing, what), n in section.calls.items():
            if thing == pair and kind == "w":
                opcode = OPCODES.get(what % SIGNALED, f"opcode {what % SIGNALED}")
                found["work requests"] += n
                found["signaled"] += n if what >= SIGNALED else 0
                found["messages"] += n if opcode not in LOCAL else 0
                found[opcode] += n
            elif thing == pair and kind in "srv":
                found[{"s": "doorbells", "r": "receive doorbells", "v": "receives posted"}[kind]] += n
            elif thing in queues and kind in "ce":
                found[{"c": "completions", "e": "events"}[kind]] += n
        result[side] = {name: round(n / ios, 4) for name, n in found.items()}
    return result


class Symbols:
    """The guest's functions, sorted to be found from an address."""

    def __init__(self, table: str) -> None:
        entries = []
        for line in table.splitlines():
            address, kind, name, *module = line.split()
            if kind in "tTwW":
                entries.append((int(address, 16), name, module[0].strip("[]") if module else "kernel"))
        entries.sort(key=lambda entry: entry[0])
        names = [name for _, name, _ in entries]
        filtered = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
        # Rust's crates have hashes in their names.
        plain = re.sub(r"\[[0-9a-f]{8,16}\]", "", filtered.stdout).splitlines()
        self._addresses = [address for address, _, _ in entries]
        self._names = [(name, module) for name, (_, _, module) in zip(plain, entries)]

    def at(self, address: int) -> tuple[str, str, bool]:
        """Returns the function at an address, its module, and whether the address is its beginning."""
        if address < 1 << 63:
            return "user space", "user space", False
        n = bisect.bisect_right(self._addresses, address) - 1
        if n < 0:
            return "?", "kernel", False
        return *self._names[n], self._addresses[n] == address


def symbols(machine: Machine) -> Symbols:
    """Returns the symbols of a running machine, whose modules must be loaded."""
    return Symbols(gzip.decompress(machine.output(machine.guest, "gzip -c < /proc/kallsyms")).decode())


@dataclass
class Cost:
    """A function's share of an I/O."""

    name: str
    module: str
    instructions: float
    calls: float


def profile(section: Section, ios: int, known: Symbols) -> list[Cost]:
    """Returns the cost of an I/O in each function, the most expensive first."""
    costs: dict[tuple[str, str], Cost] = {}
    for address, n in section.instructions.items():
        name, module, begins = known.at(address)
        cost = costs.setdefault((name, module), Cost(name, module, 0, 0))
        cost.instructions += n / ios
        if begins:
            cost.calls += section.times[address] / ios
    return sorted(costs.values(), key=lambda cost: -cost.instructions)
