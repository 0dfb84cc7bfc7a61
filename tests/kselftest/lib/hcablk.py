# SPDX-License-Identifier: GPL-2.0
"""Guests, volumes and disks as objects, and points, for tests in Python.

A test is a script that runs outside the guests; header and output are those of a test in bash (lib.sh):

    with test():
        volume = target.export("vol1", target.drive, c1)
        disk = c1.connect(volume, "--ctrl-loss-tmo 600")
        target.kill()
        check("requests wait", disk.wait("queueing"))

The function of a point decides the kind of its failure: the event of a `wait` may come after its time and before twice
that, and a time of `within` may be too long. Such a point is late; every other failure is wrong. See
tests/README.md.
"""

from __future__ import annotations

import enum
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

FAILED, SKIPPED = 1, 4
SLOW = int(os.environ.get("HCABLK_SLOW", "1"))
RDMA = os.environ.get("HCABLK_RDMA", "rxe")
CONFIG = "/sys/kernel/config"
# The most seconds of a command in a guest; the runner multiplies them by SLOW.
SECONDS = 120.0
NO_QUEUE_PAIRS = "[ $(rdma resource show qp | grep -v 'type GSI' | wc -l) = 0 ]"
NOTHING = re.compile("d41d8cd98f00b204e9800998ecf8427e|e3b0c44298fc1c149afbf4c8996fb924")

_began = time.monotonic()


# ---- points


class Stop(Exception):
    """The test cannot continue."""


class Waited(enum.Enum):
    """The result of a wait."""

    IN_TIME = enum.auto()
    LATE = enum.auto()
    NOT = enum.auto()

    def __bool__(self) -> bool:
        """Return whether the event has come at all."""
        return self is not Waited.NOT


def log(text: object) -> None:
    """Write a line to the test's log."""
    print(text, file=sys.stderr, flush=True)


class _Points:
    """The points of the test."""

    def __init__(self) -> None:
        self.number = 0
        self.failed = False

    def add(self, ok: bool, what: str) -> None:
        self.number += 1
        self.failed = self.failed or not ok
        # The log says when each point was reached, to show what is slow.
        log(f"# at {(time.monotonic() - _began) * 1000:.0f} ms: {what}")
        line = f"{'ok' if ok else 'not ok'} {self.number} - {what}"
        print(line, flush=True)
        # With an injected bug the test ends at the point that finds it.
        if not ok and (wanted := os.environ.get("HCABLK_STOP_AT")) and re.search(wanted, line):
            raise Stop

    def judge(self, what: str, outcome: object) -> None:
        """Add a point for a true or false outcome, or for the result of a wait."""
        if outcome is Waited.LATE:
            self.add(False, f"{what} # late")
        else:
            self.add(bool(outcome), what)


_points = _Points()


def check(what: str, outcome: object) -> None:
    """Add a point: ok if the command has succeeded, or the event of a wait has come."""
    _points.judge(what, outcome)


def refuse(what: str, outcome: object) -> None:
    """Add a point: ok if the command has failed."""
    _points.add(not outcome, what)


def must(outcome: object) -> None:
    """End the test unless the command has succeeded, or the event of a wait has come."""
    if outcome is Waited.LATE or not outcome:
        _points.judge(str(traceback.extract_stack()[-2].line), outcome)
    if not outcome:
        raise Stop


def same(what: str, wanted: object, got: object) -> None:
    """Add a point: ok if both are the same. WANTED must not be empty: use `silent` for that."""
    ok = str(wanted) == str(got) and bool(str(wanted)) and not NOTHING.match(str(wanted))
    if not ok:
        log(f"# wanted {str(wanted)!r}, got {str(got)!r}")
    _points.add(ok, what)


def silent(what: str, done: Done) -> None:
    """Add a point: ok if the command has succeeded and printed nothing."""
    if not done or done.out:
        log(f"# exit code {done.code}, printed {done.out!r}")
    _points.add(bool(done) and not done.out, what)


def like(what: str, pattern: str, text: object) -> None:
    """Add a point: ok if the text matches. A pattern that matches any text, or none, is refused."""
    found = re.search(pattern, str(text))
    if re.search(pattern, "") or re.search(pattern, "\x01") or not found:
        log(f"# wanted something like {pattern!r}, got {str(text)!r}")
        found = None
    _points.add(bool(found), what)


def less(what: str, number: int, limit: int) -> None:
    """Add a point: ok if NUMBER < LIMIT. For times use `within`."""
    if number >= limit:
        log(f"# {number} is not less than {limit}")
    _points.add(number < limit, what)


def within(what: str, took: float, limit: float) -> None:
    """Add a point: ok if a finished step took less than LIMIT seconds, times SLOW."""
    log(f"# {what}: it took {took:.1f} s of {limit * SLOW:g} s")
    _points.judge(what, Waited.IN_TIME if took < limit * SLOW else Waited.LATE)


def skip(why: str) -> None:
    """End the test as skipped."""
    print(f"1..0 # SKIP {why}", flush=True)
    os._exit(SKIPPED)


@contextmanager
def test() -> Iterator[None]:
    """Run the body of the test, and print its result."""
    print("TAP version 14", flush=True)
    try:
        if RDMA == "hca":
            target.must("hcablk-hca-pair")
        yield
    except Stop:
        pass
    except Exception as err:  # A test with an exception has not passed.
        log(traceback.format_exc())
        _points.add(False, f"the script: {err!r}")
    print(f"1..{_points.number}", flush=True)
    # Jobs that are not joined end with the script.
    sys.stdout.flush()
    os._exit(FAILED if _points.failed or not _points.number else 0)


# ---- guests


def few(number: int) -> int:
    """Return the number of repetitions of a slow step: fewer on a slow kernel, but at least one."""
    return max(number // SLOW, 1)


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    def __bool__(self) -> bool:
        return self.code == 0

    @property
    def text(self) -> str:
        """All output of the command."""
        return (self.out + self.err).strip()


def _exactly(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = sock.recv(length - len(data))
        if not part:
            raise ConnectionError("the test runner is gone")
        data += part
    return data


def _ask(*words: object) -> Done:
    """Send a request to the runner: see harness/control.py."""
    parts: dict[str, bytes] = {"o": b"", "e": b""}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(os.environ["HCABLK_CONTROL"])
        sock.sendall(b"".join(str(word).encode() + b"\0" for word in words) + b"\0")
        while True:
            head = _exactly(sock, 5)
            kind, data = chr(head[0]), _exactly(sock, int.from_bytes(head[1:], "little"))
            if kind == "x":
                done = Done(int(data), parts["o"].decode(errors="replace").rstrip("\n"), parts["e"].decode(errors="replace"))
                if done.err:
                    log(done.err.rstrip("\n"))
                return done
            parts[kind] += data


class Job:
    """A command that runs in a guest while the test continues."""

    def __init__(self, guest: Guest, command: str, seconds: float) -> None:
        self._done: Done | None = None
        self._thread = threading.Thread(target=self._run, args=(guest, command, seconds), daemon=True)
        self._thread.start()

    def _run(self, guest: Guest, command: str, seconds: float) -> None:
        self._done = guest.run(command, seconds)

    def join(self) -> Done:
        """Wait for the command's end; the command has a time limit of its own."""
        self._thread.join()
        assert self._done is not None
        if self._done.out:
            log(self._done.out)
        return self._done


class Guest:
    """One of the virtual machines."""

    def __init__(self, name: str) -> None:
        # With the tests' own devices, target and first host are one guest: see hca.sh.
        self.name = "hca" if RDMA == "hca" else name

    def run(self, command: str, seconds: float | None = None) -> Done:
        """Run shell text in the guest, and wait for its end."""
        return _ask("on", self.name, seconds or SECONDS, command)

    def must(self, command: str) -> str:
        """Run shell text, return its output, and end the test if it fails."""
        done = self.run(command)
        if not done:
            _points.add(False, f"on {self.name} {command}")
            raise Stop
        return done.out

    def says(self, command: str) -> str:
        """Run a command, and return all its output, whether it succeeds or not."""
        return self.run(command).text

    def start(self, command: str, seconds: float | None = None) -> Job:
        """Run shell text while the test continues."""
        return Job(self, command, seconds or SECONDS)

    def wait(self, command: str, seconds: int = 60) -> Waited:
        """Repeat a command until it succeeds, for twice the time at most: see Waited."""
        grace = max(seconds, 10)
        done = self.run(
            f"""began=$(cut -d. -f1 /proc/uptime) late=0
                until {{ {command}
                }} > /dev/null 2>&1; do
                    took=$(($(cut -d. -f1 /proc/uptime) - began))
                    [ $took -lt {seconds * SLOW} ] || late=62
                    [ $took -lt {(seconds + grace) * SLOW} ] || exit 1
                    usleep 50000
                done
                exit $late""",
            seconds + grace + 20,
        )
        if not done:
            log(f"{self.name}: not within {seconds if done.code == 62 else seconds + grace} s: {command}")
        return {0: Waited.IN_TIME, 62: Waited.LATE}.get(done.code, Waited.NOT)

    def in_log(self, pattern: str) -> str:
        """Return the kernel's messages of this test that match."""
        return _ask("log", "grep", self.name, pattern).out

    def machine(self, action: str, *arguments: object) -> None:
        """Act on the machine, not on the programs in it: kill, start, link-down N, …"""
        done = _ask("vm", action, self.name, *arguments)
        if not done:
            _points.add(False, f"vm {action} {self.name}: {done.text}")
            raise Stop

    def kill(self) -> None:
        """Take the machine's power."""
        self.machine("kill")

    def boot(self) -> None:
        """Start the machine again."""
        self.machine("start")

    def cut(self, cable: int = 0) -> None:
        """Pull one of the machine's network cables."""
        self.machine("link-down", cable)

    def mend(self, cable: int = 0) -> None:
        """Plug a network cable in again."""
        self.machine("link-up", cable)

    def stats(self, place: str, *counters: str) -> list[int]:
        """Return counters of a configfs directory, of one moment, each as the sum of all queues."""
        # The first read waits for the completions that queues are handling, but only for a short time: read twice.
        text = self.must(f"cat {place}/stats > /dev/null; cat {place}/stats")
        sums: dict[str, int] = {}
        for name, value, *_ in (line.split() for line in text.splitlines()):
            sums[name] = sums.get(name, 0) + int(value)
        return [sums[counter] for counter in counters]

    def queue_pairs(self) -> int:
        """Return the number of RDMA queue pairs, without those of the general services (GSI)."""
        lines = self.must("rdma resource show qp").splitlines()
        return sum("type GSI" not in line for line in lines)

    def wait_no_queue_pairs(self) -> Waited:
        """Wait until no queue pair is left: the side that ends a connection removes its own first."""
        return self.wait(NO_QUEUE_PAIRS)


class Target(Guest):
    """The machine that exports drives."""

    address = "10.78.0.2" if RDMA == "hca" else "10.77.0.1"
    # The two NVMe drives, of 1 GiB and 512 MiB.
    drive, drive2 = "/dev/drive0", "/dev/drive1"
    configfs = f"{CONFIG}/hcablk_target"

    def volume(self, name: str) -> Volume:
        """Return the volume of this name, which need not be exported."""
        return Volume(self, name)

    def export(self, name: str, path: str, *hosts: Host, options: str = "") -> Volume:
        """Export a drive or a file to hosts, without keys."""
        volume = self.volume(name)
        must(volume.export(path, *hosts, options=options))
        return volume

    def keep_reservations(self, directory: str) -> None:
        """Make a directory for reservations, as the package does, and configure the target to use it."""
        self.must(
            f"mkdir -p {directory} && : > {directory}/.hcablk-reservations && "
            f"modprobe hcablk_target && env echo {directory} > {self.configfs}/reservations"
        )

    def device_mapper(self, name: str, table: str) -> None:
        """Make or change a device of device-mapper; \\n separates the lines of the table."""
        self.must(
            f"""if dmsetup info {name} > /dev/null 2>&1; then
                    dmsetup suspend {name} && printf '{table}\\n' | dmsetup load {name} && dmsetup resume {name}
                else
                    modprobe dm_mod && printf '{table}\\n' | dmsetup create {name} && dmsetup mknodes
                fi"""
        )


class Volume:
    """A volume of a target."""

    def __init__(self, guest: Target, name: str) -> None:
        self.guest, self.name = guest, name
        self.configfs = f"{guest.configfs}/volumes/{name}"

    def export(self, path: str, *hosts: Host, options: str = "") -> Done:
        """Export the volume, perhaps again, and return the command's result."""
        allowed = " ".join(f"--allow {host.id}" for host in hosts)
        return self.guest.run(f"hcablk target export {self.name} {path} --insecure {options} {allowed}")

    def unexport(self, force: bool = False) -> None:
        self.guest.must(f"hcablk target unexport {'--force ' if force else ''}{self.name}")

    def allow(self, host: Host) -> None:
        self.guest.must(f"hcablk target allow {self.name} {host.id}")

    def forbid(self, host: Host) -> None:
        self.guest.must(f"hcablk target forbid {self.name} {host.id}")

    def stat(self, counter: str) -> int:
        return self.guest.stats(self.configfs, counter)[0]

    def wait_no_clients(self) -> Waited:
        return self.guest.wait(f'[ -z "$(cat {self.configfs}/clients)" ]')


class Host(Guest):
    """A machine that connects volumes."""

    configfs = f"{CONFIG}/hcablk"
    _id = ""

    @property
    def id(self) -> str:
        """The id by which targets know the host."""
        self._id = self._id or self.must("cat /etc/hcablk/host_id")
        return self._id

    def connect(self, volume: Volume, options: str = "", seconds: float | None = None) -> Disk:
        """Connect a disk. Without --ctrl-loss-tmo a lost connection fails the disk at once."""
        if "--ctrl-loss-tmo" not in options:
            options += " --ctrl-loss-tmo 0"
        if SLOW > 1:
            options += "" if "--io-timeout" in options else f" --io-timeout {30 * SLOW}"
            options += "" if "--keep-alive-tmo" in options else f" --keep-alive-tmo {5 * SLOW}"
            options += "" if "--connect-timeout" in options else f" --connect-timeout {10 * SLOW}"
        done = self.run(f"hcablk connect {volume.guest.address} {volume.name} {options}", seconds)
        must(done)
        named = re.search(r"--name (\S+)", options)
        disk = Disk(self, named[1] if named else volume.name, done.out)
        must(self.wait(f"[ -b {disk.device} ]", 10))
        return disk


class Disk:
    """A disk of a host: a connected volume."""

    def __init__(self, guest: Host, name: str, device: str) -> None:
        self.guest, self.name, self.device = guest, name, device
        self.configfs = f"{guest.configfs}/{name}"
        self.sysfs = f"/sys/block/{device.removeprefix('/dev/')}"

    def attribute(self, name: str) -> str:
        return self.guest.must(f"cat {self.configfs}/{name}")

    def wait(self, state: str, seconds: int = 60) -> Waited:
        """Wait until the disk is in this state."""
        return self.guest.wait(f"[ $(cat {self.configfs}/state) = {state} ]", seconds)

    def wait_error(self, words: str, seconds: int = 30) -> Waited:
        """Wait until the disk's error has these words."""
        return self.guest.wait(f"grep -q '{words}' {self.configfs}/error", seconds)

    def done(self) -> int:
        """Return the number of reads and writes that have ended."""
        fields = self.guest.must(f"cat {self.sysfs}/stat").split()
        return int(fields[0]) + int(fields[4])

    def wait_done(self, number: int, seconds: int = 30) -> Waited:
        """Wait until more requests than NUMBER have ended."""
        return self.guest.wait(f"awk '{{ exit !($1 + $5 > {number}) }}' {self.sysfs}/stat", seconds)

    def stat(self, counter: str) -> int:
        return self.guest.stats(self.configfs, counter)[0]

    def scatter(self, case: str, seed: int, mib: int) -> Done:
        """Write to the disk from memory of every shape, and compare."""
        return self.guest.run(f"hcablk-scatter {self.device} {case} {seed} {mib}")

    def fio(self, options: str, seconds: float = 200) -> Job:
        """Run fio on the disk while the test continues."""
        return self.guest.start(f"fio --name=fio --filename={self.device} --direct=1 --ioengine=libaio {options} 2>&1", seconds)

    def load(self) -> Job:
        """Start reads and writes that continue until they fail; return when they are under way."""
        job = self.fio(f"--rw=randrw --bs=32k --iodepth={few(16)} --numjobs=2 --time_based --runtime=300 --norandommap", 330)
        must(self.guest.wait(f"awk '{{ exit !($1 > 40 && $5 > 40) }}' {self.sysfs}/stat", 30))
        return job

    def disconnect(self, force: bool = False) -> None:
        self.guest.must(f"hcablk disconnect {'--force ' if force else ''}{self.name}")


def ends_within(job: Job, seconds: float, what: str) -> None:
    """Add two points: the load ends with errors, and in time."""
    started = time.monotonic()
    refuse(f"{what}: the requests fail", job.join())
    within(f"{what}: the requests fail within {seconds * SLOW:g} s", time.monotonic() - started, seconds)


target = Target("target")
c1, c2 = Host("c1"), Host("c2")
