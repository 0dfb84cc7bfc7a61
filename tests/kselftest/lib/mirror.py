# SPDX-License-Identifier: GPL-2.0
"""A mirror of md over a volume of each of two targets, as docs/user/ha.md says.

The guest `host` has a cable to each of the targets `t1` and `t2`: one of them may lose its power, and the host reaches
the other. The package's udev rules run on the host, but not mdadm's, which would assemble what an earlier test has left
on the drives.
"""

from __future__ import annotations

import json
import os

from hcablk import SLOW, Disk, Done, Host, Job, Target, Waited, log, must

ARRAY = "/dev/md0"
MD = "/sys/block/md0/md"
MIB = 128
# The program that a rule starts must not run in udev, and the guests have no systemd.
SYSTEMD_RUN = r"""#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
setsid "$@" >> /tmp/systemd-run.log 2>&1 < /dev/null &
"""

host = Host("host")


class Leg:
    """A volume of one target, and the host's disk of it."""

    def __init__(self, number: int, drive: str = Target.drive, cache: str = "through") -> None:
        self.target = Target(f"t{number}")
        self.target.address = f"10.77.0.{40 + number}"
        self.name = f"leg{number}"
        self.volume = self.target.volume("vol1")
        self.disk: Disk
        self._drive = drive
        self._options = f"--write-cache {cache} --wwid 6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a{number:02}"

    def export(self) -> None:
        must(self.volume.export(self._drive, host, options=self._options))

    def connect(self, options: str) -> None:
        """Export the volume, and connect the host's disk."""
        self.export()
        times = f"--ctrl-loss-tmo never --reconnect-delay 1 --keep-alive-tmo {SLOW}"
        self.disk = host.connect(self.volume, f"--name {self.name} {times} {options}")

    def lose_power(self) -> None:
        self.target.kill()

    def get_power(self) -> None:
        """Start the target again, which exports its volume as hcablk-target.service does."""
        self.target.boot()
        self.export()

    def state(self) -> str:
        """Return md's words for the leg; empty when it is not in the array."""
        return host.says(f"cat {MD}/dev-{self.disk.device.removeprefix('/dev/')}/state 2>&1")

    def wait_failed(self, seconds: int = 60) -> Waited:
        return host.wait(f"grep -q faulty {MD}/dev-{self.disk.device.removeprefix('/dev/')}/state", seconds)

    def mib_written(self) -> int:
        """Return how much was written to the disk since it was connected."""
        return int(host.must(f"cat {self.disk.sysfs}/stat").split()[6]) // 2048


def start_udev() -> None:
    """Start udev with the rules of hcablk, and a stand-in for systemd-run."""
    host.must(f"cat > /usr/bin/systemd-run <<'EOF'\n{SYSTEMD_RUN}EOF\nchmod +x /usr/bin/systemd-run")
    host.must("mkdir -p /run/udev && /usr/lib/systemd/systemd-udevd --daemon")


def create(legs: list[Leg], options: str = "") -> None:
    """Make the array of the legs' disks."""
    disks = " ".join(leg.disk.device for leg in legs)
    host.must(
        f"modprobe raid1 && mdadm --create {ARRAY} --run --level=1 --raid-devices=2 --metadata=1.2 --bitmap=internal "
        f"--bitmap-chunk=1M --size={MIB}M {options} {disks}"
    )
    # md would copy 1 MB/s next to other I/O.
    host.must(f"echo 100000 > {MD}/sync_speed_min")


def wait_in_sync(seconds: int = 100) -> Waited:
    """Wait until md has all legs, and has copied all that a leg lacks."""
    return host.wait(f"[ $(cat {MD}/degraded) = 0 ] && grep -q idle {MD}/sync_action", seconds)


def add_by_hand(leg: Leg) -> Done:
    """Put a leg back that md has failed, without the checks of md-re-add."""
    return host.run(f"mdadm {ARRAY} --remove {leg.disk.device} && mdadm {ARRAY} --re-add {leg.disk.device}")


def findings() -> list[tuple[str, str, str]]:
    """Return the subject, level and message of what `hcablk check` says about legs of arrays."""
    found = json.loads(host.run("hcablk check --json").out)["findings"]
    return [(one["subject"], one["level"], one["message"]) for one in found if one["check"] == "mirror"]


class Load:
    """Programs that write to a file system on the array, and know what was acknowledged."""

    FOLDER = "/mnt/mirror"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._writer: Job
        self._fio: Job

    def make(self) -> None:
        """Make the file system, and files that nobody writes to afterwards."""
        host.must(f"modprobe ext4 && mkfs.ext4 -q -F {ARRAY} && mkdir -p {self.FOLDER} && mount {ARRAY} {self.FOLDER}")
        host.must(
            f"cd {self.FOLDER} && dd if=/dev/zero of=records bs=1M count=8 status=none && mkdir kept && "
            "for n in $(seq 16); do dd if=/dev/urandom of=kept/$n bs=256k count=1 status=none; done && "
            "sha256sum kept/* > /tmp/kept && sync"
        )

    def start(self, seconds: int) -> None:
        """Start the writers; fio ends after SECONDS, hcablk-durable with `stop`."""
        host.must("rm -f /tmp/state.stop")
        self._writer = host.start(f"hcablk-durable write {self.FOLDER}/records /tmp/state {self._seed}", 400)
        self._fio = host.start(
            f"fio --name=load --output-format=json --output=/tmp/load.json --filename={self.FOLDER}/load --size=8M "
            "--direct=1 --ioengine=libaio --iodepth=4 --rw=randrw --bs=4k --verify=crc32c --verify_backlog=256 "
            f"--time_based --runtime={seconds * SLOW} 2>&1",
            400,
        )
        must(self.wait_writes(200))

    def counts(self) -> list[int]:
        """Return how many writes were acknowledged, and how many flushes succeeded."""
        return [int(word) for word in host.must("hcablk-durable counts /tmp/state").split()[:2]]

    def wait_writes(self, more: int) -> Waited:
        """Wait until MORE further writes were acknowledged."""
        wanted = self.counts()[0] + more
        return host.wait(f"hcablk-durable counts /tmp/state | {{ read -r writes _ && [ $writes -ge {wanted} ]; }}", 100)

    def stop(self) -> tuple[Done, Done, float]:
        """Stop the writers; return their ends, and the longest time that fio waited for a request, in seconds of the
        guest's clock."""
        host.must("touch /tmp/state.stop")
        ends = self._writer.join(), self._fio.join()
        job = json.loads(host.must("cat /tmp/load.json"))["jobs"][0]
        return *ends, max(job[kind]["clat_ns"]["max"] for kind in ("read", "write")) / 1e9

    def check(self) -> Done:
        """Check the files: those that nobody wrote to, and that no acknowledged record is lost."""
        return host.run(
            f"cd {self.FOLDER} && echo 3 > /proc/sys/vm/drop_caches && sha256sum --quiet -c /tmp/kept && "
            f"hcablk-durable check records /tmp/state {self._seed} through"
        )
