# SPDX-License-Identifier: GPL-2.0
"""What is measured: the rows of the benchmark, and the ratios that are asked for."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

PEERS = ("null", "hcablk", "nvme", "rnbd", "nbd")
SIZES = {"512": 512, "4k": 4 << 10, "16k": 16 << 10, "64k": 64 << 10, "128k": 128 << 10, "1m": 1 << 20}
PATTERNS = ("randread", "randwrite", "read", "write")
DEPTHS = (1, 8, 32, 64)
RDMA_PEERS = ("hcablk", "nvme", "rnbd")
# Peers with settings that a tuned installation has: nvmet that takes 16 KiB within a command, RTRS that leaves keys valid.
TUNED = {"nvme-16k": "nvme", "rnbd-trust": "rnbd"}
TUNED_PEERS = ("hcablk", "nvme", "nvme-16k", "rnbd", "rnbd-trust")
TUNED_SIZES = ("4k", "16k")
# Patterns whose requests are submitted and reaped one by one, whatever the depth.
SINGLE = "-single"
# No disk at all: single work requests, which everything else is made of. A message without data is 64 bytes.
VERBS = "verbs"
VERBS_SIZES = {"64": 64, **SIZES}
OPERATIONS = ("send", "rdmawrite", "rdmaread")
VERBS_DEPTHS = (1, 64)
# The ways of the target from an emulated NVMe drive to the wire, that drive without any network, and nvmet on it.
MODES = ("drive", "direct", "cached", "mixed", "mqcache", "p2p", "p2p-hca", "nvmet")
MODE_SIZES = ("4k", "128k")
MODE_PATTERNS = ("randread", "randwrite")
MODE_DEPTHS = (1, 32)
# Each way of a request's data by itself, for the sizes that it takes: where one becomes cheaper than another is where
# the initiator's default limits ought to be.
PATH_SIZES = {"512": 512, "4k": 4 << 10, "8k": 8 << 10, "16k": 16 << 10, "32k": 32 << 10, "64k": 64 << 10, "128k": 128 << 10}
SMALL_WRITE_MAX = 4 << 10
SMALL_READ_MAX = 64 << 10
PATHS = {
    "bounced": ("randread", SMALL_READ_MAX),
    "registered": ("randread", 128 << 10),
    "inline": ("randwrite", SMALL_WRITE_MAX),
    "eager": ("randwrite", 128 << 10),
    "fetched": ("randwrite", 128 << 10),
}
# The lengths of chunks (`--chunk-kib`) that a large request can move in: what they cost, and the time that they save.
CHUNKS = {"chunks-64k": 64, "chunks-128k": 128, "chunks-256k": 256, "chunks-512k": 512, "whole": 0}
CHUNK_SIZE = "1m"
CHUNK_PATTERNS = ("read", "write")
# Ways for a program to use a volume, and what of them the library for programs is. `disk` and `nvme-disk` are the kernel's drivers.
CLIENTS = ("disk", "library-poll", "library-event", "ublk", "nvme-disk")
LIBRARY = {"library-poll": "poll", "library-event": "event"}
CLIENT_DEPTHS = (1, 64)
# What a polling client may cost of what the disk's costs.
CLIENT_SHARE = 0.5
# All that is outstanding at the deeper one fits into the eager ring.
PATH_DEPTHS = (1, 8)


@dataclass(frozen=True)
class Load:
    """What fio is told to do."""

    size: str
    pattern: str
    depth: int

    @property
    def name(self) -> str:
        return f"{self.size}-{self.pattern}-qd{self.depth}"

    @property
    def bytes(self) -> int:
        return {**VERBS_SIZES, **PATH_SIZES}[self.size]


@dataclass(frozen=True)
class Row:
    """One measurement: a load on a peer's disk."""

    peer: str
    load: Load

    @property
    def name(self) -> str:
        return f"{self.peer}-{self.load.name}"


@dataclass(frozen=True)
class Figure:
    """A ratio to reach: the peer's instructions per I/O to ours."""

    peer: str
    size: str
    patterns: tuple[str, ...]
    wanted: float
    depths: tuple[int, ...] = (1, 64)

    def loads(self) -> Iterator[Load]:
        for pattern in self.patterns:
            for depth in self.depths:
                yield Load(self.size, pattern, depth)


RANDOM = ("randread", "randwrite")
FIGURES = (
    Figure("nvme", "4k", ("randread",), 1.30),
    Figure("nvme", "4k", ("randwrite",), 1.25),
    Figure("nvme", "16k", RANDOM, 1.25),
    Figure("nvme", "128k", ("randread",), 1.15),
    Figure("nvme", "128k", ("randwrite",), 1.20),
    Figure("rnbd", "4k", RANDOM, 1.35),
    Figure("rnbd", "128k", RANDOM, 1.05),
)


def matrix() -> list[Row]:
    """Every row there is, peer by peer."""
    disks = itertools.product(PEERS, SIZES, PATTERNS, DEPTHS)
    verbs = itertools.product((VERBS,), VERBS_SIZES, OPERATIONS, VERBS_DEPTHS)
    return [Row(peer, Load(size, pattern, depth)) for peer, size, pattern, depth in (*disks, *verbs)]


def mode_rows() -> list[Row]:
    """Every row on an emulated drive."""
    loads = [Load(*load) for load in itertools.product(MODE_SIZES, MODE_PATTERNS, MODE_DEPTHS)]
    return [Row(peer, load) for peer in MODES for load in loads]


def path_rows() -> list[Row]:
    """Every way by itself."""
    return [
        Row(path, Load(size, pattern, depth))
        for path, (pattern, most) in PATHS.items()
        for depth in PATH_DEPTHS
        for size, count in PATH_SIZES.items()
        if count <= most
    ]


def chunk_rows() -> list[Row]:
    """Every length of chunks."""
    return [Row(chunks, Load(CHUNK_SIZE, pattern, 1)) for chunks in CHUNKS for pattern in CHUNK_PATTERNS]


def tuned_loads() -> list[Load]:
    """What peers with the settings of a tuned installation are measured with."""
    return [
        Load(size, pattern, depth)
        for size in TUNED_SIZES
        for depth in (1, 64)
        for pattern in (*RANDOM, *(f"{name}{SINGLE}" for name in RANDOM if depth > 1))
    ]


def tuned_rows() -> list[Row]:
    """Rows of peers with the settings of a tuned installation, and those that submit one by one."""
    return [Row(peer, load) for peer in TUNED_PEERS for load in tuned_loads() if peer in TUNED or SINGLE in load.pattern]


def client_rows() -> list[Row]:
    """Every way for a program to use a volume."""
    loads = [Load("4k", pattern, depth) for pattern in RANDOM for depth in CLIENT_DEPTHS]
    return [Row(client, load) for client in CLIENTS for load in loads]


def all_rows() -> list[Row]:
    """Everything that can be asked for."""
    return [*matrix(), *tuned_rows(), *path_rows(), *chunk_rows(), *mode_rows(), *client_rows()]


def figure_rows() -> list[Row]:
    """The rows that the figures need."""
    wanted = {Row(peer, load) for figure in FIGURES for load in figure.loads() for peer in ("hcablk", figure.peer)}
    return [row for row in matrix() if row in wanted]


def select(words: list[str], quick: bool) -> list[Row]:
    """The rows that are asked for: by peer, by name, or by a glob of names."""
    everything = all_rows()
    if not words:
        return figure_rows() if quick else everything
    for word in words:
        if not any(matches(row, word) for row in everything):
            name = everything[0].name
            raise SystemExit(f"no row is called {word}; they are called PEER-SIZE-PATTERN-qdN, such as {name}")
    return [row for row in everything if any(matches(row, word) for word in words)]


def matches(row: Row, word: str) -> bool:
    all_groups = (("modes", MODES), ("paths", PATHS), ("chunks", CHUNKS), ("clients", CLIENTS))
    groups = [name for name, peers in all_groups if row.peer in peers]
    if row.peer in TUNED_PEERS and row.load in tuned_loads():
        groups.append("tuned")
    return word in (row.peer, row.load.name, *groups) or fnmatch.fnmatch(row.name, word)
