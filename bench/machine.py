# SPDX-License-Identifier: GPL-2.0
"""The guests in which the benchmark runs, and the peers' disks in them."""

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

# The time limit of a step in real seconds, on a loaded host.
STEP_SECONDS = 600.0
# Programs of the benchmark's guests, in addition to those of a test's guests.
PROGRAMS = ("nbd-client", "nbd-server", "chrt")


@dataclass(frozen=True)
class Parts:
    """The files of which the guests are made."""

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
    # MiB of an emulated NVMe drive, and of its memory for peers.
    drive: tuple[int, int] = (0, 0)
    # Two of the tests' own HCAs. Each of their engines has a processor for itself; only the first processor is counted.
    hca: bool = False
    iommu: bool = False

    @property
    def cpus(self) -> int:
        return 3 if self.hca else 1


# One CPU, and a clock that counts instructions: each takes a nanosecond. The same work then takes the same time,
# regardless of the host's load. The guest has no second clock to compare it with, so the kernel's check is off
# (tsc=reliable).
EXACT = Kind("one guest, instructions", "tcg,thread=single", ["-icount", "shift=0,sleep=off"], "tsc=reliable nokaslr")
# The same on a QEMU that counts the executed instructions.
COUNTING = replace(EXACT, counting=True)
# A drive takes real time, for which the clock has to wait: the executed instructions are counted instead. If a list of
# pages of the drive's memory is itself in RAM, QEMU treats the pages as RAM (nvme_map_sgl()), so SGLs are off.
DRIVES = replace(
    COUNTING,
    name="one guest with an emulated NVMe drive, instructions executed",
    arguments=["-icount", "shift=0,sleep=on"],
    append="tsc=reliable nokaslr nvme.sgl_threshold=0",
    drive=(256, 16),
)
# Two of the tests' own HCAs (tests/hca) in one guest. Their engines run on processors that run nothing else; the
# instructions of the first processor are counted. It becomes idle between requests: idle=halt and nohz=off make that
# as cheap as possible.
HCA = replace(
    COUNTING,
    name="one guest with two HCAs of the tests' own, instructions of the first processor",
    append="tsc=reliable nokaslr isolcpus=1,2 idle=halt nohz=off",
    hca=True,
)
HCA_IOMMU = replace(HCA, name=HCA.name + ", with an IOMMU", iommu=True)
# Two guests, and a virtual network between them, in real time.
LINK = Kind("two guests, real time", "", guests=2, unit="nanoseconds")
# The same with both throttled, see chunks.py.
THROTTLED = replace(LINK, name="two guests with a throttled drive and wire, real time")


def plugin(cache: Path) -> Path:
    """Returns the QEMU plugin that counts, from the cache or built; its name has the hash of its sources."""
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
    """The guest that uses the disks, and the guest that serves them. If both are the same guest, its packets to itself
    stay in soft-RoCE."""

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
        """Boots the guests. Returns how many seconds the boot took."""
        started = time.monotonic()
        for guest in self.guests:
            guest.start()
        for guest in self.guests:
            guest.wait_booted()
        if self.guest is not self.target:
            self.guest.wait_reaches(self.target.spec.address)
        if self.kind.hca:
            # One completion vector each: the first processor handles all interrupts. DMA mappings are not tracked.
            self.shell(self.guest, "hcablk-hca-pair engine_cpu=1,2 engine_poll=5000 vectors=1 check_dma=0")
        return time.monotonic() - started

    @property
    def address(self) -> str:
        """The address at which the target listens."""
        return "10.78.0.2" if self.kind.hca else self.target.spec.address

    def close(self) -> None:
        for guest in self.guests:
            guest.kill()
        self._folder.cleanup()

    def trouble(self) -> list[str]:
        """Returns the complaints of the kernels: the lines of their logs that would fail a test."""
        for guest in self.guests:
            # After the mark the console has all earlier lines. The log of a dead guest is complete without a mark.
            with suppress(GuestError):
                guest.mark("end of the measurement")
        return [f"{guest.name}: {line}" for guest in self.guests for line in kmsg.trouble(guest.complaints_text(), [])]

    def output(self, guest: Guest, script: str) -> bytes:
        """Returns the output of a script, and raises an error if the script fails."""
        parts: dict[str, bytes] = {"o": b"", "e": b""}

        def collect(kind: str, data: bytes) -> None:
            parts[kind] += data

        code = guest.run(script, STEP_SECONDS, collect)
        if code != 0:
            raise GuestError(f"{guest.name}: exit code {code}: {parts['e'].decode(errors='replace')}\n{script}")
        return parts["o"]

    def shell(self, guest: Guest, script: str) -> str:
        """Returns the output of a script as text, as `output` does."""
        return self.output(guest, script).decode(errors="replace")

    @contextmanager
    def disk(self, name: str) -> Iterator[str]:
        """Attaches a peer's disk until the context ends."""
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
        """Returns the target's counters of a peer's disk."""
        script = peers.PEERS[name].counters
        lines = self.shell(self.target, script).splitlines() if script else []
        return {word: int(value) for word, value in (line.split() for line in lines)}
