# SPDX-License-Identifier: GPL-2.0
"""The guest that the benchmark runs in, with the peers' disks in it."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
sys.path.insert(0, str(TESTS / "harness"))

import image  # noqa: E402
import kmsg  # noqa: E402
from guest import Guest, GuestError, Settings, Spec  # noqa: E402

import peers  # noqa: E402

# One CPU, and a clock that counts instructions: each takes a nanosecond. The same work then takes the same time,
# whatever else the host does.
EXACT = ["-icount", "shift=0,sleep=off"]
EXACT_ACCEL = "tcg,thread=single"
# The clock that counts instructions is the only one that there is to watch.
EXACT_APPEND = "tsc=reliable nokaslr"
# Real seconds that a step may take on a machine with much else to do.
PATIENCE = 600.0


@dataclass(frozen=True)
class Parts:
    """What the guests are made of."""

    cache: Path
    kernel: Path  # folder with vmlinuz and the modules
    modules: list[Path]
    command: Path
    logs: Path


class Machine:
    """Both ends of every connection in one guest; what they send to each other stays in soft-RoCE."""

    def __init__(self, parts: Parts) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hcablk-", ignore_cleanup_errors=True)
        work = Path(self._folder.name)
        parts.logs.mkdir(parents=True, exist_ok=True)
        settings = Settings(
            kernel=parts.kernel / "vmlinuz",
            image=work / "initrd",
            accel=EXACT_ACCEL,
            work=work,
            logs=parts.logs,
            memory=1024,
            slow=4,
            cpus=1,
            append=EXACT_APPEND,
            arguments=EXACT,
        )
        image.build(
            settings.image,
            parts.cache,
            TESTS / "guest",
            parts.kernel,
            parts.modules,
            parts.command,
            more_helpers=HERE / "guest",
        )
        self.guest = Guest(settings, Spec("bench", 1, [("", False)]))
        self.target = self.guest

    def start(self) -> None:
        self.guest.start()
        self.guest.wait_booted()

    def close(self) -> None:
        self.guest.kill()
        self._folder.cleanup()

    def trouble(self) -> list[str]:
        """What the kernel has complained of."""
        return kmsg.trouble(self.guest.console_text(), [])

    def shell(self, guest: Guest, script: str) -> str:
        """What a script says; it has to succeed."""
        code, said = guest.shell(script, PATIENCE)
        if code != 0:
            raise GuestError(f"{guest.name}: exit code {code}: {said.strip()}\n{script}")
        return said

    @contextmanager
    def disk(self, name: str) -> Iterator[str]:
        """A peer's disk, there for as long as the context lasts."""
        peer = peers.PEERS[name]
        words = {
            "backing": peers.BACKING,
            "address": self.target.spec.address,
            "host": shlex.quote(self.shell(self.guest, "cat /etc/hcablk/host_id").strip()),
        }

        def do(guest: Guest, script: str) -> str:
            return self.shell(guest, peers.UNTIL + script.format(**words)) if script else ""

        do(self.target, peers.SERVE_BACKING)
        do(self.target, peer.serve)
        yield do(self.guest, peer.attach).split()[-1]
        do(self.guest, peer.detach)
        do(self.target, peer.unserve)
        do(self.target, peers.DROP_BACKING)
