# SPDX-License-Identifier: GPL-2.0
# Proves: an md mirror whose host loses both targets for less than fast_io_fail_tmo continues with both legs, without an error; after a longer loss it refuses all writes until it is assembled again.
# guests: host t1 t2
# turn: 19
# takes: 100
# timeout: 600
# expect-log: (md|Buffer I/O error).*

from hcablk import SLOW, check, log, must, refuse, same, test
from mirror import ARRAY, Leg, create, host

WRITE = f"dd if=/dev/zero of={ARRAY} bs=4k count=1 oflag=direct status=none"
# Writes until a write fails, or the file exists.
WRITER = f"rm -f /tmp/stop; while {WRITE}; do [ ! -e /tmp/stop ] || exit 0; done; exit 1"


def pull_cables(legs: list[Leg]) -> None:
    """Pull the host's cables, and wait until both disks have lost their targets."""
    for cable in (0, 1):
        host.cut(cable)
    for leg in legs:
        must(leg.disk.wait("queueing"))


def plug_in(legs: list[Leg]) -> None:
    """Plug the host's cables in, and wait until both disks have their targets."""
    for cable in (0, 1):
        host.mend(cable)
    for leg in legs:
        must(leg.disk.wait("live"))


with test():
    legs = [Leg(1), Leg(2)]
    for leg in legs:
        # Much longer than the outage, also on a busy machine.
        leg.connect(f"--fast-io-fail-tmo {100 * SLOW}")
    create(legs, "--assume-clean")
    writer = host.start(WRITER, 300)
    pull_cables(legs)
    plug_in(legs)
    check("a short loss of both targets: writes continue", host.run(WRITE))
    host.must("touch /tmp/stop")
    check("a short loss of both targets: no write failed", writer.join())
    same("a short loss of both targets: md has both legs", ["in_sync", "in_sync"], [leg.state() for leg in legs])

    for leg in legs:
        host.must(f"echo {4 * SLOW} > {leg.disk.configfs}/fast_io_fail_tmo")
    writer = host.start(WRITER, 300)
    pull_cables(legs)
    refuse("a long loss of both targets: writes fail", writer.join())
    plug_in(legs)
    refuse("a long loss of both targets: the array refuses writes when both are back", host.run(WRITE))
    log(host.says("cat /proc/mdstat; cat /sys/block/md0/md/dev-*/state; dmesg | tail -n 20"))
    must(host.run(f"mdadm --stop {ARRAY}"))
    disks = " ".join(leg.disk.device for leg in legs)
    check("a long loss of both targets: the array can be assembled again", host.run(f"mdadm --assemble --run {ARRAY} {disks}"))
    check("a long loss of both targets: writes succeed after that", host.run(WRITE))
    must(host.run(f"mdadm --stop {ARRAY}"))
    for leg in legs:
        leg.disk.disconnect()
