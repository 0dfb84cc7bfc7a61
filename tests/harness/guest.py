# SPDX-License-Identifier: GPL-2.0
"""Guests: QEMU processes, the commands that run in them, and their consoles."""

from __future__ import annotations

import json
import os
import queue
import re
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from unblock import unblock
from volatile import BLOCK, VolatileDrive

# The number of commands that run in a guest at a time. Each costs it 4 MiB of buffers, and time in the search for
# leaks.
CHANNELS = 5
# The time limit for a guest's answer after its command was killed.
KILL_SECONDS = 20.0
# A booting guest whose console is silent for this time counts as hung.
BOOT_SECONDS = 60.0
MARK_SECONDS = 60.0
ADD_SECONDS = 60.0

Output = Callable[[str, bytes], None]


class GuestError(Exception):
    """A guest has died, does not boot or does not answer."""


@dataclass
class Settings:
    """The settings that all guests of a run share."""

    kernel: Path
    image: Path
    accel: str
    work: Path  # sockets and disks
    logs: Path
    # The program through which scripts reach the guests.
    on: Path | None = None
    memory: int = 768
    # The frequency of the emulated processors' time stamp counter in kHz; 0: the guest's kernel measures it.
    tsc_khz: int = 0
    # The factor by which all time limits of a stock kernel's guests are multiplied.
    slow: int = 1
    # The guests' RDMA device: rxe or siw.
    rdma: str = "rxe"
    # The seed of random tests; 0 when none is given.
    seed: str = "0"
    # Whether tests try all values and shapes.
    whole: bool = False
    # Parameters of modules in the guests: MODULE.NAME=VALUE, separated by blanks.
    parameters: str = ""
    # The kind of kernel (stock or debug), and the RDMA device: a test's header lists those on which it may be skipped.
    kinds: frozenset[str] = frozenset()
    cpus: int = 2
    # QEMU's name of the emulated processor.
    cpu: str = "max,la57=off"
    append: str = ""
    # For guests that are whole Debian machines: the folder that scripts/machine-image has made, and a disk with our
    # packages.
    system: Path | None = None
    packages: Path | None = None
    # Further arguments for QEMU.
    arguments: list[str] = field(default_factory=list)


# UEFI firmware without Secure Boot, which would require a kernel that is signed with the run's own key.
FIRMWARE = "/usr/share/OVMF/OVMF_CODE_4M.fd"
FIRMWARE_VARIABLES = "/usr/share/OVMF/OVMF_VARS_4M.fd"


@dataclass
class Spec:
    """The description of one guest: its name, its number in the network, its cards and drives."""

    name: str
    number: int
    # Each card is one end of a cable: the cable's name, and whether this end listens. A cable without a name leads
    # nowhere: the packets of soft-RoCE to its own guest never reach the card.
    cables: list[tuple[str, bool]]
    # Drives' sizes in MiB; they are NVMe drives, and empty at the start of a run. A guest's drives are below one PCIe
    # switch, and so reach each other's memory, and that of the cards in `memories`.
    drives: list[int] = field(default_factory=list)
    # Sizes in MiB of further NVMe drives, which the lane's guests share: each is one file.
    shared: list[int] = field(default_factory=list)
    # MiB of the last drive's controller memory buffer.
    drive_memory: int = 0
    # PCI devices that only have memory: their sizes in MiB. The last one is not below the switch.
    memories: list[int] = field(default_factory=list)
    # The number of PCI devices below the switch that hcablk_hca turns into RDMA devices, instead of soft-RoCE: see tests/hca.
    hcas: int = 0
    # Whether the guest has an IOMMU, which removes each mapping at once.
    iommu: bool = False
    # Whether all DMA goes through bounce buffers, as with devices that do not reach all memory.
    bounce: bool = False
    # Whether the guest starts with UEFI firmware, whose signature database has a certificate of the run's own:
    # signing.key and signing.pem, in the lane's folder.
    firmware: bool = False
    # The number of processors, and MiB of memory, where they are not the run's.
    cpus: int = 0
    memory: int = 0
    # Whether the guest is a whole Debian machine, which starts from its own disk; see scripts/machine-image.
    machine: bool = False
    # Whether the guest runs only while a test needs it.
    rare: bool = False

    @property
    def address(self) -> str:
        return f"10.77.0.{self.number}"

    @property
    def address6(self) -> str:
        return f"fd77::{self.number}"


def read_frame(sock: socket.socket) -> tuple[str, bytes]:
    """Receive one message of a guest's agent."""

    def exactly(n: int) -> bytes:
        data = b""
        while len(data) < n:
            part = sock.recv(n - len(data))
            if not part:
                raise GuestError("the guest is gone")
            data += part
        return data

    head = exactly(5)
    return chr(head[0]), exactly(int.from_bytes(head[1:], "little"))


class Guest:
    """One virtual machine, which a run starts and stops any number of times."""

    def __init__(self, settings: Settings, spec: Spec) -> None:
        self.settings = settings
        self.spec = spec
        self.name = spec.name
        self.console = settings.logs / f"console-{spec.name}.log"
        # QEMU's own output and traces.
        self.qemu_log = settings.logs / f"qemu-{spec.name}.log"
        self._traced = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._free: queue.Queue[socket.socket] = queue.Queue()
        self._sockets: list[socket.socket] = []
        self._qmp: socket.socket | None = None
        self._qmp_answers: TextIO | None = None
        self._qmp_lock = threading.Lock()
        self._booted = False
        # The drive that a test has added, until the end of the test.
        self._volatile: VolatileDrive | None = None
        # Processor time of killed processes.
        self._processor_seconds = 0.0
        # The place on the console where this boot begins, and the ranges of failed boots.
        self._boot = 0
        self._failed_boots: list[tuple[int, int]] = []
        self.console.touch()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def booted(self) -> bool:
        return self._booted and self.alive

    def processor_seconds(self) -> float:
        """Return the processor time that this guest has used since the run began."""
        if self._process is None or not self.alive:
            return self._processor_seconds
        try:
            # The clock of clock_getcpuclockid(), which Python lacks: the time of all threads of the process.
            return self._processor_seconds + time.clock_gettime((~self._process.pid << 3) | 2)
        except OSError:
            # The process has just died.
            return self._processor_seconds

    def machine_disk(self) -> Path:
        """Return the disk of a whole machine, and create it if it does not exist."""
        assert self.settings.system is not None
        disk = self.settings.work / f"{self.name}-system.img"
        if not disk.exists():
            subprocess.run(["cp", "--sparse=always", self.settings.system / "disk.img", disk], check=True)
        return disk

    def firmware_arguments(self) -> list[str]:
        """Return QEMU's arguments for UEFI firmware, and create its variables if they do not exist."""
        work = self.settings.work
        variables, key, certificate = work / f"{self.name}-vars.fd", work / "signing.key", work / "signing.pem"
        if not variables.exists():
            command = ["openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=hcablk test"]
            subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
            command = ["virt-fw-vars", "--input", FIRMWARE_VARIABLES, "--output", variables]
            command += ["--add-db", "6f1d1a5e-3f0c-4d0e-8e3b-6a8c2f9f1b77", certificate]
            subprocess.run(command, check=True, capture_output=True)
        code = f"if=pflash,unit=0,format=raw,readonly=on,file={FIRMWARE}"
        return ["-drive", code, "-drive", f"if=pflash,unit=1,format=raw,file={variables}"]

    def software(self) -> tuple[list[str], str]:
        """Return QEMU's arguments for the guest's software, and the kernel's arguments that describe the guest."""
        s, spec = self.settings, self.spec
        if not spec.machine:
            return ["-kernel", str(s.kernel), "-initrd", str(s.image)], ""
        args = ["-kernel", f"{s.system}/vmlinuz", "-initrd", f"{s.system}/initrd"]
        for n, (disk, more) in enumerate(((self.machine_disk(), "cache=unsafe"), (s.packages, "readonly=on"))):
            args += ["-drive", f"if=none,id=system{n},format=raw,file={disk},{more}"]
            args += ["-device", f"virtio-blk-pci,drive=system{n}"]
        return args, (
            f"root=/dev/vda rw net.ifnames=0 systemd.hostname={spec.name} systemd.firstboot=no "
            f"systemd.machine_id={spec.number:032x} systemd.show_status=1"
        )

    def command_line(self, channel_fds: list[int], qmp_fd: int) -> list[str]:
        """Return QEMU's arguments."""
        s, spec = self.settings, self.spec
        software, system = self.software()
        # tsc=reliable: an emulated processor's counter is reliable. But Linux would compare it with a slow clock, and
        # on a busy machine, where reading that clock is slow, use the slow clock instead. Each reading of that costs
        # hundreds of times as much.
        # tsc_early_khz: on a busy machine a booting kernel may measure a quarter of the frequency, and then its clock
        # and all of its timeouts run four times as fast.
        # rcu_cpu_stall_timeout, watchdog_thresh: a real hang lasts, but where many guests share few processors, a
        # guest's processor may stand still for 20 s; both report after 60 s.
        # napi_tx=0: soft-RoCE charges a packet to its queue pair until the card has sent it, and a cable whose other
        # end was killed at the wrong moment keeps the last packets forever. Without NAPI the card takes packets over at
        # once, as a real card does within microseconds.
        append = (
            f"console=ttyS0 loglevel=7 oops=panic panic=-1 nmi_watchdog=0 mitigations=off tsc=reliable "
            f"{f'tsc_early_khz={s.tsc_khz}' if s.tsc_khz and s.accel == 'tcg' else ''} "
            f"rcupdate.rcu_cpu_stall_timeout=60 watchdog_thresh=30 virtio_net.napi_tx=0 "
            f"guest.name={spec.name} guest.address={spec.address}/24,{spec.address6}/64 "
            f"guest.host_id=00000000-0000-4000-8000-{spec.number:012d} guest.slow={s.slow} "
            f"guest.rdma={'hca' if spec.hcas else s.rdma} "
            f"guest.seed={s.seed} {'guest.whole' if s.whole else ''} "
            f"{'intel_iommu=on iommu.strict=1 iommu.passthrough=0' if spec.iommu else ''} "
            f"{'swiotlb=force' if spec.bounce else ''} {s.parameters} {s.append} {system}"
        )
        cpu = "host" if s.accel == "kvm" else s.cpu
        args = ["qemu-system-x86_64", "-name", spec.name, "-machine", "q35", "-cpu", cpu]
        args += ["-accel", s.accel + (",thread=multi" if s.accel == "tcg" else "")]
        args += ["-smp", str(spec.cpus or s.cpus), "-m", str(spec.memory or s.memory), "-nodefaults", "-no-user-config"]
        args += ["-display", "none", "-no-reboot", *software, "-append", append]
        if spec.firmware:
            args += self.firmware_arguments()
        if spec.iommu:
            args += ["-device", "intel-iommu,intremap=off"]
        args += ["-chardev", f"file,id=console,path={self.console},append=on", "-serial", "chardev:console"]
        args += ["-chardev", f"socket,id=qmp,fd={qmp_fd}", "-mon", "chardev=qmp,mode=control"]
        args += ["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]
        for n, fd in enumerate(channel_fds):
            args += ["-chardev", f"socket,id=cmd{n},fd={fd}"]
            args += ["-device", f"virtserialport,chardev=cmd{n},name=cmd.{n}"]
        for n, (cable, listens) in enumerate(spec.cables):
            # Unix sockets: over TCP, Nagle's algorithm causes round trips of 40 ms.
            end = "server=on" if listens else "server=off,reconnect-ms=100"
            wire = f"stream,id=net{n},{end},addr.type=unix,addr.path={s.work}/net-{cable}"
            args += ["-netdev", wire if cable else f"hubport,id=net{n},hubid={n}"]
            mac = f"52:54:00:77:{spec.number:02x}:{n:02x}"
            # Without mergeable buffers Linux receives into plain pages. Mergeable ones come from a page pool, which
            # takes pages back with softirqs off and then enables them, and soft-RoCE drops packets under a lock that
            # its softirq takes.
            card = f"virtio-net-pci,id=card{n},netdev=net{n},mac={mac},host_mtu=9000,mrg_rxbuf=off,romfile="
            args += ["-device", card]
        if spec.drives or spec.memories or spec.hcas:
            args += ["-device", "pcie-root-port,id=root0,chassis=1,slot=1", "-device", "x3130-upstream,id=switch0,bus=root0"]
        for n, size in enumerate(spec.drives):
            disk = s.work / f"{spec.name}-drive{n}.img"
            if not disk.exists():
                disk.touch()
                os.truncate(disk, size << 20)
            args += ["-drive", f"if=none,id=drive{n},format=raw,file={disk},cache=unsafe,discard=unmap"]
            memory = f",cmb_size_mb={spec.drive_memory}" if spec.drive_memory and n + 1 == len(spec.drives) else ""
            args += self.below_switch(n) + ["-device", f"nvme,drive=drive{n},serial=drive{n},bus=port{n}{memory}"]
        for n, size in enumerate(spec.memories):
            args += ["-object", f"memory-backend-ram,id=memory{n},size={size}M,share=on"]
            card = f"ivshmem-plain,memdev=memory{n}"
            if n + 1 < len(spec.memories):
                port = len(spec.drives) + n
                args += self.below_switch(port)
                card += f",bus=port{port}"
            args += ["-device", card]
        for n, size in enumerate(spec.shared):
            disk = s.work / f"shared-drive{n}.img"
            if not disk.exists():
                disk.touch()
                os.truncate(disk, size << 20)
            # The files of two QEMUs have one page cache: a write of either is seen by both.
            args += ["-drive", f"if=none,id=shared{n},format=raw,file={disk},cache=unsafe,file.locking=off"]
            port = len(spec.drives) + len(spec.memories) + spec.hcas + n
            args += self.below_switch(port) + ["-device", f"nvme,drive=shared{n},serial=shared{n},bus=port{port}"]
        for n in range(spec.hcas):
            port = len(spec.drives) + len(spec.memories) + n
            args += self.below_switch(port) + ["-device", f"edu,bus=port{port}"]
        if spec.drives:
            # `add_drive` adds its drive here. Without a disk the guest does not load the controller's driver.
            args += ["-device", "virtio-scsi-pci,id=scsi0"]
        return args + s.arguments

    @staticmethod
    def below_switch(n: int) -> list[str]:
        """Return QEMU's arguments for a port of the switch, called port{n}."""
        return ["-device", f"xio3130-downstream,id=port{n},bus=switch0,chassis={n + 2},slot={n},hotplug=off"]

    def start(self) -> None:
        """Start QEMU; `wait_booted` waits for the guest."""
        if self.alive:
            raise GuestError(f"{self.name} is already running")
        self._booted = False
        self._boot = self.console_size()
        pairs = [socket.socketpair() for _ in range(CHANNELS + 1)]
        fds = [theirs.fileno() for _, theirs in pairs]
        with open(self.qemu_log, "ab") as log:
            self._process = subprocess.Popen(
                self.command_line(fds[1:], fds[0]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                start_new_session=True,
            )
        for _, theirs in pairs:
            theirs.close()
        pairs[0][0].settimeout(20)
        self._qmp = pairs[0][0]
        self._qmp_answers = self._qmp.makefile("r", encoding="utf-8")
        self._sockets = [ours for ours, _ in pairs[1:]]
        self._free = queue.Queue()

    def wait_booted(self) -> None:
        """Wait until the guest's agent answers on every channel.

        A busy machine is slow: only a guest whose console stays silent counts as hung.
        """
        begun = changed = time.monotonic()
        size, limit = self.console_size(), BOOT_SECONDS * self.settings.slow * (4 if self.spec.machine else 1)
        for sock in self._sockets:
            try:
                while not select.select([sock], [], [], 1)[0]:
                    now, grown = time.monotonic(), self.console_size()
                    if grown != size and now - begun < 5 * limit:
                        changed, size = now, grown
                    elif now - changed > limit:
                        raise TimeoutError
                sock.settimeout(20 * self.settings.slow)
                kind, _ = read_frame(sock)
            except (TimeoutError, OSError) as err:
                raise GuestError(f"{self.name} did not boot{self.last_words()}") from err
            except GuestError as err:
                raise GuestError(f"{self.name} died while booting{self.last_words()}") from err
            if kind != "r":
                raise GuestError(f"{self.name}: unexpected message {kind!r}")
            sock.settimeout(None)
            self._free.put(sock)
        self.qmp("qmp_capabilities")
        self._booted = True

    def run(self, script: str, timeout: float, output: Output, client: socket.socket | None = None) -> int:
        """Run a shell script in the guest and return its exit code, or 124 after `timeout`.

        If `client` is closed by its other end, nobody waits for the result any more: the script is killed.
        """
        if not self.booted:
            raise GuestError(f"{self.name} is not running")
        try:
            channel = self._free.get(timeout=timeout)
        except queue.Empty:
            raise GuestError(f"{self.name}: too many commands at once") from None
        text = script.encode()
        deadline = time.monotonic() + timeout
        killed = False
        watched = [channel] if client is None else [channel, client]
        try:
            channel.sendall(len(text).to_bytes(4, "little") + text)
            while True:
                ready, _, _ = select.select(watched, [], [], max(0.0, deadline - time.monotonic()))
                if channel in ready:
                    kind, data = read_frame(channel)
                    if kind == "x":
                        self._free.put(channel)
                        return 124 if killed else int(data)
                    output(kind, data)
                elif killed and not ready:
                    # The command cannot be killed, and its channel is lost.
                    raise GuestError(f"{self.name} does not answer (a command that cannot be killed?)")
                elif not killed:
                    if not ready:
                        output("e", f"{self.name}: no end after {timeout:g} s: {script}\n".encode())
                    watched = [channel]
                    channel.sendall(bytes(4))
                    killed = True
                    deadline = time.monotonic() + KILL_SECONDS * self.settings.slow
        except OSError as err:
            raise GuestError(f"{self.name} is gone") from err

    def wait_reaches(self, address: str) -> None:
        """Wait until another guest answers, so that a test's first packet needs no address resolution."""
        code, output = self.shell(f"for n in $(seq 20); do ping -c 1 -W 1 {address} && exit; done; exit 1", 60)
        if code != 0:
            raise GuestError(f"{self.name} does not reach {address}: {output}")

    def shell(self, script: str, timeout: float = 30) -> tuple[int, str]:
        """Run a script and collect its output."""
        parts: list[bytes] = []
        code = self.run(script, timeout, lambda _, data: parts.append(data))
        return code, b"".join(parts).decode(errors="replace")

    def qmp(self, command: str, fd: int | None = None, **arguments: object) -> None:
        """Send one command of QEMU's own control protocol, invisible to the guest; `fd` is passed to QEMU with it."""
        if not self.alive or self._qmp is None or self._qmp_answers is None:
            raise GuestError(f"{self.name} is not running")
        with self._qmp_lock:
            request = json.dumps({"execute": command, "arguments": arguments}) + "\n"
            socket.send_fds(self._qmp, [request.encode()], [] if fd is None else [fd])
            # Skip events and the greeting.
            for line in self._qmp_answers:
                answer = json.loads(line)
                if "error" in answer:
                    raise GuestError(f"{self.name}: {command}: {answer['error']['desc']}")
                if "return" in answer:
                    return
        raise GuestError(f"{self.name} is gone")

    def add_drive(self) -> None:
        """Add an empty drive that loses its write cache when this guest is killed; it stays until `remove_drive`."""
        if not self.spec.drives:
            raise GuestError(f"{self.name} has no place for a drive")
        if self._volatile is not None:
            raise GuestError(f"{self.name} already has its volatile drive")
        log = self.settings.logs / f"nbdkit-{self.name}.log"
        self._volatile = VolatileDrive(self.settings.work / f"{self.name}-volatile.img", log)
        self.attach_drive()

    def attach_drive(self) -> None:
        """Start the server of the drive that `add_drive` has added, if there is one, and wait until the guest has its
        disk.

        A SCSI disk, since QEMU's NVMe drives ignore the FUA bit of a write: see tests/README.md.
        """
        if self._volatile is None:
            return
        with self._volatile.power_on() as server:
            self.qmp("getfd", fd=server.fileno(), fdname="volatile")
        self.qmp("blockdev-add", **{"driver": "nbd", "node-name": "volatile", "server": {"type": "fd", "str": "volatile"}})
        # write-cache: without it QEMU itself would flush after each write. discard_granularity: a discard would
        # bypass the cache, so the drive has none.
        cache = {"write-cache": "on", "dpofua": True, "physical_block_size": BLOCK, "discard_granularity": 0}
        self.qmp("device_add", driver="scsi-hd", id="volatile", bus="scsi0.0", drive="volatile", serial="volatile", **cache)
        code, output = self.shell("hcablk-volatile", ADD_SECONDS * self.settings.slow)
        if code != 0:
            raise GuestError(f"{self.name} does not get its volatile drive: {output}")

    def remove_drive(self) -> None:
        """Remove the drive that `add_drive` has added; in a running guest hcablk-reset has released it."""
        drive, self._volatile = self._volatile, None
        if drive is None:
            return
        try:
            if self.booted:
                self.qmp("device_del", id="volatile")
                self.detach_volatile()
        finally:
            drive.remove()

    def detach_volatile(self) -> None:
        """Make QEMU close its connection to the drive's server."""
        deadline = time.monotonic() + KILL_SECONDS * self.settings.slow
        while True:
            try:
                return self.qmp("blockdev-del", **{"node-name": "volatile"})
            except GuestError:
                # QEMU frees the disk, which has the node open, a moment after reporting it as deleted.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def trace(self, event: str) -> None:
        """Make QEMU trace its devices; `event` may contain a star."""
        self._traced = self.qemu_log.stat().st_size
        self.qmp("trace-event-set-state", name=event, enable=True)

    def traced(self, event: str) -> str:
        """End a trace, and return it."""
        self.qmp("trace-event-set-state", name=event, enable=False)
        with open(self.qemu_log, "rb") as f:
            f.seek(self._traced)
            return f.read().decode(errors="replace")

    def wait_off(self, timeout: float) -> bool:
        """Wait until a guest that is shutting down or rebooting has ended."""
        if self._process is not None:
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                return False
        self.kill()
        return True

    def forget(self) -> None:
        """Discard the disk of a whole machine: its next start is from a new one."""
        self.kill()
        (self.settings.work / f"{self.name}-system.img").unlink(missing_ok=True)

    def kill(self) -> None:
        """Kill QEMU, as a power loss would: the guest sends nothing."""
        if self._process is not None:
            self._processor_seconds = self.processor_seconds()
            self._process.kill()
            self._process.wait()
        if self._volatile is not None:
            self._volatile.power_off()
        self._booted = False
        for sock in self._sockets:
            sock.close()
        if self._qmp is not None and self._qmp_answers is not None:
            self._qmp_answers.close()
            self._qmp.close()
        self._sockets, self._qmp, self._qmp_answers = [], None, None

    def unblock(self) -> None:
        """Prevent neighbours that do not read their sockets from stopping this guest: see `unblock`. Call this after
        neighbours were started.
        """
        if self._process is not None and self.alive:
            unblock(self._process.pid)

    def drop_unsent(self) -> None:
        """Make QEMU drop the packets that it could not send to a guest that is gone.

        It would keep them, and with them the guest's transmit queue, until that peer is back; a real network card
        sends into the void. Stopping the machine for a moment drops them.
        """
        if self.booted:
            self.qmp("stop")
            self.qmp("cont")

    # The console.

    def last_words(self) -> str:
        """Return the console's path and its last line, for an error message."""
        lines = self.console_text().split("\n")
        return f" (see {self.console}): {next((line for line in reversed(lines) if line.strip()), '').strip()}"

    def console_size(self) -> int:
        return self.console.stat().st_size

    def forget_boot(self) -> None:
        """Exclude the console of this boot from the search for complaints: no program ever ran in it."""
        self._failed_boots.append((self._boot, self.console_size()))

    def console_text(self, since: int = 0) -> str:
        with open(self.console, "rb") as f:
            f.seek(since)
            return f.read().decode(errors="replace").replace("\r", "")

    def complaints_text(self, since: int = 0) -> str:
        """Return the text of the console without failed boots."""
        data = self.console.read_bytes()
        kept = b""
        for begin, end in self._failed_boots:
            kept += data[since : max(begin, since)]
            since = max(end, since)
        return (kept + data[since:]).decode(errors="replace").replace("\r", "")

    def wait_console(self, pattern: str, since: int, timeout: float) -> str | None:
        """Wait for a line on the console; return it, or None after the timeout."""
        wanted = re.compile(pattern)
        deadline = time.monotonic() + timeout
        while True:
            for line in self.console_text(since).splitlines():
                if wanted.search(line):
                    return line
            if time.monotonic() > deadline:
                return None
            # Nothing reports a change of a file; look again soon.
            time.sleep(0.05)

    def mark(self, text: str) -> int:
        """Write a line into the kernel log and wait until it is on the console.

        Returns the console's size after the line: all earlier messages of the kernel are before it.
        """
        since = self.console_size()
        code, output = self.shell(f"echo '<6>hcablk-test: {text}' > /dev/kmsg", MARK_SECONDS * self.settings.slow)
        if code != 0 or not self.wait_console(re.escape(f"hcablk-test: {text}"), since, MARK_SECONDS * self.settings.slow):
            raise GuestError(f"{self.name}: no mark in its log: {output}")
        return self.console_size()
