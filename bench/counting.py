# SPDX-License-Identifier: GPL-2.0
"""A second run of rows, on a QEMU that counts: the instructions of each function, and the use of verbs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import counts
import load
import whose
from counts import Cost
from machine import Machine
from rows import CLIENTS, LIBRARY, MODES, RDMA_PEERS, TUNED, Row

# The number of functions that a profile prints, in addition to all of the peer's own.
PRINTED = 100


@dataclass
class Counted:
    """The measured parts of an I/O of a row."""

    cost: load.Result
    verbs: dict[str, dict[str, float]]
    functions: list[Cost]
    # Calls of the DMA API, on an RDMA device that maps memory.
    dma: dict[str, float] = field(default_factory=dict)
    # For a client, per I/O: its system calls, those that are doorbells of soft-RoCE, and events.
    calls: dict[str, float] = field(default_factory=dict)
    # For each counter of our target, its bytes per byte served.
    moved: dict[str, float] = field(default_factory=dict)

    @property
    def instructions(self) -> float:
        return sum(cost.instructions for cost in self.functions)

    @property
    def modules(self) -> dict[str, float]:
        result: dict[str, float] = {}
        for cost in self.functions:
            result[cost.module] = result.get(cost.module, 0) + cost.instructions
        return dict(sorted(result.items(), key=lambda item: -item[1]))

    @property
    def parts(self) -> dict[str, float]:
        return whose.parts([(cost.module, cost.name, cost.instructions) for cost in self.functions])


def median(boots: list[Counted]) -> Counted:
    """Returns the counts of the boot with the median cost, with the span of all costs."""
    cost = load.median([boot.cost for boot in boots])
    middle = next(boot for boot in boots if boot.cost.ns_per_io == cost.ns_per_io)
    return replace(middle, cost=cost)


def watch(machine: Machine) -> None:
    """Makes the plugin watch the calls of the RDMA device's driver."""
    for letter, function in (counts.WATCHED_HCA if machine.kind.hca else counts.WATCHED).items():
        machine.shell(
            machine.guest,
            f"address=$(sed -n 's/ [tT] {function}\\t.*//p' /proc/kallsyms) && [ -n \"$address\" ] && "
            f"hcablk-mark watch {letter} $address",
        )


# The functions of the DMA API through which the kernel maps and unmaps, for all callers.
DMA = {
    "map": ("dma_map_phys", "__dma_map_sg_attrs"),
    "unmap": ("dma_unmap_phys", "dma_unmap_sg_attrs"),
    "sync": ("__dma_sync_single_for_cpu", "__dma_sync_single_for_device", "__dma_sync_sg_for_cpu", "__dma_sync_sg_for_device"),
}


def dma(functions: list[Cost]) -> dict[str, float]:
    """Returns how often the functions of the DMA API are called, per I/O."""
    return {name: round(sum(cost.calls for cost in functions if cost.name in names), 4) for name, names in DMA.items()}


# Counters of the target, and their names here.
MOVED = {
    "ram_bytes": "RAM", "cache_bytes": "page cache", "bytes_from_cache": "own cache", "p2p_bytes": "PCI memory",
    "p2p_bounce_bytes": "bounced", "copied_bytes": "copied",
}  # fmt: skip


def moved(before: dict[str, int], after: dict[str, int]) -> dict[str, float]:
    """Returns which memory the bytes crossed that were served between two readings of the counters, per byte served."""
    gone = {name: after[name] - before.get(name, 0) for name in after}
    served = gone.get("read_bytes", 0) + gone.get("written_bytes", 0)
    return {text: round(gone[name] / served, 4) for name, text in MOVED.items() if served and gone[name]}


# In user space a doorbell of soft-RoCE is a system call, and a program reads the event of a completion queue from a file
# descriptor.
DOORBELL = "ib_uverbs_post_send"
EVENT = "ib_uverbs_comp_handler"


def calls(functions: list[Cost], verbs: dict[str, dict[str, float]]) -> dict[str, float]:
    """Returns the system calls of a client, and the events that it gets from the kernel, per I/O."""

    def of(name: str) -> float:
        return sum(cost.calls for cost in functions if cost.name == name)

    system = sum(cost.calls for cost in functions if cost.name.startswith("__x64_sys_"))
    events = verbs["initiator"].get("events", 0.0) if verbs else of(EVENT)
    return {"system calls": round(system, 4), "doorbells": round(of(DOORBELL), 4), "events": round(events, 4)}


def without(functions: list[Cost], empty: float) -> list[Cost]:
    """Returns the functions without the instructions of polls that found nothing."""
    return [replace(cost, instructions=cost.instructions - empty) if cost.module == "user space" else cost for cost in functions]


def run(machine: Machine, wanted: list[Row], results: dict[Row, Counted], say: Callable[[str], None]) -> None:
    """Runs the rows, peer by peer, on a machine that counts."""
    assert machine.counts is not None
    place = 0
    watch(machine)
    for peer, group in itertools.groupby(wanted, lambda row: row.peer):
        with machine.disk(peer) as disk:
            known = counts.symbols(machine)
            for row in group:
                started = time.monotonic()
                before = machine.counters(peer)
                result = load.measure(machine, row, disk)
                sections, place = counts.read(machine.counts, place)
                section = counts.difference(sections[3], sections[1])
                in_kernel = peer in (*RDMA_PEERS, *TUNED, "disk", "nvme-disk")
                verbs = counts.verbs(section, result.ios) if in_kernel else {}
                went = moved(before, machine.counters(peer))
                total = section.instructions.total() / result.ios
                if machine.kind.hca:
                    # The clock is that of all processors.
                    result = load.Result(result.ios, total)
                functions = counts.profile(section, result.ios, known)
                if peer in LIBRARY:
                    functions, total = without(functions, result.empty), total - result.empty
                results[row] = Counted(
                    result,
                    verbs,
                    functions,
                    dma=dma(functions) if machine.kind.hca else {},
                    calls=calls(functions, verbs) if peer in CLIENTS else {},
                    moved=went,
                )
                # The clock of a machine that counts instructions has no other value to print.
                of = f" of {result.ns_per_io:12,.0f}" if peer not in MODES and not machine.kind.hca else ""
                seen = f"counted {total:12,.0f}{of} instructions per I/O"
                say(f"[{len(results):3}/{len(wanted)}] {row.name:28} {seen} {time.monotonic() - started:6.1f} s")


def profile_text(row: Row, counted: Counted) -> Iterator[str]:
    """Yields the instructions of a row, by module, part and function."""
    total = sum(cost.instructions for cost in counted.functions)
    yield f"{row.name}: {total:,.0f} instructions per I/O"
    yield ""
    for module, n in counted.modules.items():
        if n >= total / 1000:
            yield f"{n:12,.0f} {n / total:7.1%}  {module}"
    yield ""
    for part, n in counted.parts.items():
        yield f"{n:12,.0f} {n / total:7.1%}  {part}"
    yield ""
    yield f"{'instructions':>12} {'':>7} {'calls':>8}  function and part"
    for n, cost in enumerate(counted.functions):
        if n >= PRINTED and (whose.part(cost.module, cost.name) != whose.OWN or cost.instructions < 0.5):
            continue
        where = "" if cost.module in ("kernel", cost.name) else f" [{cost.module}]"
        yield f"{cost.instructions:12,.0f} {cost.instructions / total:7.1%} {cost.calls:8.2f}  {cost.name}{where} ({whose.part(cost.module, cost.name)})"
