# SPDX-License-Identifier: GPL-2.0
"""The guests that the benchmark runs in, with the peers' disks in them."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
sys.path.insert(0, str(TESTS / "harness"))

import image  # noqa: E402
import kmsg  # noqa: E402
from accel import accelerator  # noqa: E402
from guest import Guest, GuestError as GuestError, Settings, Spec  # noqa: E402

import peers  # noqa: E402

# Real seconds that a step may take on a machine with much else to do.
STEP_SECONDS = 600.0
# What guests of the benchmark have beside what a test's have.
PROGRAMS = ("nbd-client", "nbd-server", "chrt")


@dataclass(frozen=True)
class Parts:
    """What the guests are made of."""

    cache: Path
    kernel: Path  # folder with vmlinuz and the modules
    modules: list[Path]
    command: Path
    logs: Path


@dataclass(frozen=True)
class Kind:
    """A way to run the guests."""

    name: str
    accel: str
    arguments: list[str] = field(default_factory=list)
    append: str = ""
    guests: int = 1
    counting: bool = False
    unit: str = "instructions"
    # MiB of an emulated NVMe drive, and of the memory that it has for others.
    drive: tuple[int, int] = (0, 0)
    # Two of the tests' own HCAs, whose engines have a processor each for themselves; only the first counts then.
    hca: bool = False
    iommu: bool = False

    @property
    def cpus(self) -> int:
        return 3 if self.hca else 1


# One CPU, and a clock that counts instructions: each takes a nanosecond. The same work then takes the same time,
# whatever else the host does. That clock is the only one there is, so nothing has to watch it.
EXACT = Kind("one guest, instructions", "tcg,thread=single", ["-icount", "shift=0,sleep=off"], "tsc=reliable nokaslr")
# The same on a QEMU that counts what is executed.
COUNTING = replace(EXACT, counting=True)
# A drive takes its time, which is real: the clock has to wait for it, and only what is executed counts. The drive takes
# a list of its own memory's pages for one of RAM's when the list is in RAM (QEMU's nvme_map_sgl()): no such lists.
DRIVES = replace(
    COUNTING,
    name="one guest with an emulated NVMe drive, instructions executed",
    arguments=["-icount", "shift=0,sleep=on"],
    append="tsc=reliable nokaslr nvme.sgl_threshold=0",
    drive=(256, 16),
)
# Two HCAs of the tests' own (tests/hca) in one guest. Their engines run on processors on which nothing else does; what
# counts is what the first one executes. It is idle between; to begin and to end that is to cost as little as can be.
HCA = replace(
    COUNTING,
    name="one guest with two HCAs of the tests' own, instructions of the processor that is none of theirs",
    append="tsc=reliable nokaslr isolcpus=1,2 idle=halt nohz=off",
    hca=True,
)
HCA_IOMMU = replace(HCA, name=HCA.name + ", with an IOMMU", iommu=True)
# Two guests, and a virtual network between them, in real time.
LINK = Kind("two guests, real time", "", guests=2, unit="nanoseconds")
# The same with both throttled, see chunks.py.
THROTTLED = replace(LINK, name="two guests with a throttled drive and wire, real time")


def plugin(cache: Path) -> Path:
    """The QEMU plugin that counts; kept in the cache by its sources' hash."""
    sources = sorted((HERE / "plugin").glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    result = cache / "guest" / f"count-{digest}.so"
    if not result.exists():
        partial = result.with_suffix(f".partial-{os.getpid()}")
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(partial)]
        subprocess.run([*command, *(str(source) for source in sources if source.suffix == ".c")], check=True)
        partial.rename(result)
    return result


class Machine:
    """A guest that uses the disks and one that serves them. That may be the same one: what it sends to itself stays in
    soft-RoCE."""

    def __init__(self, parts: Parts, kind: Kind) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hcablk-", ignore_cleanup_errors=True)
        self.kind = kind
        work = Path(self._folder.name)
        parts.logs.mkdir(parents=True, exist_ok=True)
        settings = Settings(
            kernel=parts.kernel / "vmlinuz",
            image=work / "initrd",
            accel=kind.accel,
            work=work,
            logs=parts.logs,
            memory=1024,
            slow=4,
            cpus=kind.cpus,
            append=kind.append,
            arguments=kind.arguments,
        )
        image.build(
            settings.image,
            parts.cache,
            TESTS / "guest",
            parts.kernel,
            parts.modules,
            parts.command,
            more_programs=[name for name in PROGRAMS if shutil.which(name)],
            more_helpers=HERE / "guest",
        )
        if not kind.accel:
            settings.accel = accelerator(settings, parts.cache)
        self.counts: Path | None = None
        if kind.counting:
            self.counts = work / "counts"
            counted = ",cpu=marked" if kind.hca else ""
            settings.arguments = [*kind.arguments, "-plugin", f"{plugin(parts.cache)},out={self.counts}{counted}"]
        if kind.guests == 1:
            size, memory = kind.drive
            drives, hcas = [size] if size else [], 2 if kind.hca else 0
            spec = Spec("bench", 1, [("", False)], drives=drives, drive_memory=memory, hcas=hcas, iommu=kind.iommu)
            self.target = self.guest = Guest(settings, spec)
        else:
            self.target = Guest(settings, Spec("target", 1, [("wire", True)]))
            self.guest = Guest(settings, Spec("bench", 2, [("wire", False)]))
        self.guests = list(dict.fromkeys((self.target, self.guest)))

    def start(self) -> float:
        """Boot; how many seconds it took."""
        started = time.monotonic()
        for guest in self.guests:
            guest.start()
        for guest in self.guests:
            guest.wait_booted()
        if self.guest is not self.target:
            self.guest.wait_reaches(self.target.spec.address)
        if self.kind.hca:
            # One completion vector each: all interrupts are the first processor's. Nobody follows what is mapped.
            self.shell(self.guest, "hcablk-hca-pair engine_cpu=1,2 engine_poll=5000 vectors=1 check_dma=0")
        return time.monotonic() - started

    @property
    def address(self) -> str:
        """Where the target listens."""
        return "10.78.0.2" if self.kind.hca else self.target.spec.address

    def close(self) -> None:
        for guest in self.guests:
            guest.kill()
        self._folder.cleanup()

    def trouble(self) -> list[str]:
        """What the kernels have complained of: the lines that would fail a test."""
        for guest in self.guests:
            # What was said before is on the console then; a guest that died has said all that it will.
            with suppress(GuestError):
                guest.mark("end of the measurement")
        return [f"{guest.name}: {line}" for guest in self.guests for line in kmsg.trouble(guest.complaints_text(), [])]

    def output(self, guest: Guest, script: str) -> bytes:
        """What a script writes; it has to succeed."""
        parts: dict[str, bytes] = {"o": b"", "e": b""}

        def collect(kind: str, data: bytes) -> None:
            parts[kind] += data

        code = guest.run(script, STEP_SECONDS, collect)
        if code != 0:
            raise GuestError(f"{guest.name}: exit code {code}: {parts['e'].decode(errors='replace')}\n{script}")
        return parts["o"]

    def shell(self, guest: Guest, script: str) -> str:
        """The same as text."""
        return self.output(guest, script).decode(errors="replace")

    @contextmanager
    def disk(self, name: str) -> Iterator[str]:
        """A peer's disk, there for as long as the context lasts."""
        peer = peers.PEERS[name]
        words = {
            "backing": peer.backing,
            "address": self.address,
            "host": shlex.quote(self.shell(self.guest, "cat /etc/hcablk/host_id").strip()),
        }

        def do(guest: Guest, script: str) -> str:
            return self.shell(guest, peers.COMMON + script.format(**words)) if script else ""

        do(self.target, peer.serve_backing)
        do(self.target, peer.serve)
        yield do(self.guest, peer.attach).split()[-1]
        do(self.guest, peer.detach)
        do(self.target, peer.unserve)
        do(self.target, peer.drop_backing)

    def counters(self, name: str) -> dict[str, int]:
        """What the target has counted for a peer's disk."""
        script = peers.PEERS[name].counters
        lines = self.shell(self.target, script).splitlines() if script else []
        return {word: int(value) for word, value in (line.split() for line in lines)}
