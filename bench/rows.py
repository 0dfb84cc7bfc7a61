# SPDX-License-Identifier: GPL-2.0
"""The rows of the benchmark, and the wanted ratios."""

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
# Peers with the settings of a tuned installation: nvmet accepts 16 KiB of inline data, RTRS leaves keys valid.
TUNED = {"nvme-16k": "nvme", "rnbd-trust": "rnbd"}
TUNED_PEERS = ("hcablk", "nvme", "nvme-16k", "rnbd", "rnbd-trust")
TUNED_SIZES = ("4k", "16k")
# The suffix of patterns whose requests are submitted and reaped one by one at any depth.
SINGLE = "-single"
# No disk: single work requests, of which all I/O over RDMA consists. 64 bytes are the size of a message without data.
VERBS = "verbs"
VERBS_SIZES = {"64": 64, **SIZES}
OPERATIONS = ("send", "rdmawrite", "rdmaread")
VERBS_DEPTHS = (1, 64)
# The target's modes on an emulated NVMe drive, that drive without any network, and nvmet on it.
MODES = ("drive", "direct", "cached", "mixed", "mqcache", "p2p", "p2p-hca", "nvmet")
MODE_SIZES = ("4k", "128k")
MODE_PATTERNS = ("randread", "randwrite")
MODE_DEPTHS = (1, 32)
# Each data path alone, for the sizes that it supports. The initiator's default limits should be the sizes at which one
# path becomes cheaper than another.
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
# The lengths of chunks (`--chunk-kib`) in which a large request can move. Rows measure their cost, and the time saved.
CHUNKS = {"chunks-64k": 64, "chunks-128k": 128, "chunks-256k": 256, "chunks-512k": 512, "whole": 0}
CHUNK_SIZE = "1m"
CHUNK_PATTERNS = ("read", "write")
# Ways for a program to use a volume. Those in LIBRARY use our library; `disk` and `nvme-disk` are kernel drivers.
CLIENTS = ("disk", "library-poll", "library-event", "ublk", "nvme-disk")
LIBRARY = {"library-poll": "poll", "library-event": "event"}
CLIENT_DEPTHS = (1, 64)
# The wanted upper bound of a polling client's cost, as a share of the cost of the disk's client.
CLIENT_SHARE = 0.5
# At the larger depth, all outstanding writes fit into the eager ring.
PATH_DEPTHS = (1, 8)


@dataclass(frozen=True)
class Load:
    """The size, pattern and queue depth of the I/Os."""

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
    """Returns the rows of all peers with all loads, peer by peer, and of single work requests."""
    disks = itertools.product(PEERS, SIZES, PATTERNS, DEPTHS)
    verbs = itertools.product((VERBS,), VERBS_SIZES, OPERATIONS, VERBS_DEPTHS)
    return [Row(peer, Load(size, pattern, depth)) for peer, size, pattern, depth in (*disks, *verbs)]


def mode_rows() -> list[Row]:
    """Returns all rows on the emulated drive."""
    loads = [Load(*load) for load in itertools.product(MODE_SIZES, MODE_PATTERNS, MODE_DEPTHS)]
    return [Row(peer, load) for peer in MODES for load in loads]


def path_rows() -> list[Row]:
    """Returns the rows of each data path alone."""
    return [
        Row(path, Load(size, pattern, depth))
        for path, (pattern, most) in PATHS.items()
        for depth in PATH_DEPTHS
        for size, count in PATH_SIZES.items()
        if count <= most
    ]


def chunk_rows() -> list[Row]:
    """Returns the rows of all lengths of chunks."""
    return [Row(chunks, Load(CHUNK_SIZE, pattern, 1)) for chunks in CHUNKS for pattern in CHUNK_PATTERNS]


def tuned_loads() -> list[Load]:
    """Returns the loads for peers with the settings of a tuned installation."""
    return [
        Load(size, pattern, depth)
        for size in TUNED_SIZES
        for depth in (1, 64)
        for pattern in (*RANDOM, *(f"{name}{SINGLE}" for name in RANDOM if depth > 1))
    ]


def tuned_rows() -> list[Row]:
    """Returns the rows of peers with the settings of a tuned installation, and those that submit one by one."""
    return [Row(peer, load) for peer in TUNED_PEERS for load in tuned_loads() if peer in TUNED or SINGLE in load.pattern]


def client_rows() -> list[Row]:
    """Returns the rows of all ways for a program to use a volume."""
    loads = [Load("4k", pattern, depth) for pattern in RANDOM for depth in CLIENT_DEPTHS]
    return [Row(client, load) for client in CLIENTS for load in loads]


def all_rows() -> list[Row]:
    """Returns all rows of the benchmark."""
    return [*matrix(), *tuned_rows(), *path_rows(), *chunk_rows(), *mode_rows(), *client_rows()]


def figure_rows() -> list[Row]:
    """Returns the rows that the wanted ratios need."""
    wanted = {Row(peer, load) for figure in FIGURES for load in figure.loads() for peer in ("hcablk", figure.peer)}
    return [row for row in matrix() if row in wanted]


def select(words: list[str], quick: bool) -> list[Row]:
    """Returns the rows that `words` select: names of peers, loads and groups, or globs of names of rows."""
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
