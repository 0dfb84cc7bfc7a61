# SPDX-License-Identifier: GPL-2.0
# Proves: an md mirror whose host loses both targets for less than fast_io_fail_tmo waits for them, and continues with both legs, without an error.
# guests: host t1 t2
# turn: 10
# takes: 85
# timeout: 600
# expect-log: (md|Buffer I/O error).*

from hcablk import SLOW, check, must, same, test
from mirror import ARRAY, Leg, create, host

WRITE = f"dd if=/dev/zero of={ARRAY} bs=4k count=1 oflag=direct status=none"


def out_of_reach(legs: list[Leg]) -> None:
    """Pull the host's cables until both disks have lost their targets, and plug them in again."""
    for cable in (0, 1):
        host.cut(cable)
    for leg in legs:
        must(leg.disk.wait("queueing"))
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
    writer = host.start(f"while {WRITE}; do [ ! -e /tmp/stop ] || exit 0; done; exit 1", 300)
    out_of_reach(legs)
    check("writes continue when both targets are back", host.run(WRITE))
    host.must("touch /tmp/stop")
    check("no write failed while both targets were out of reach", writer.join())
    same("md has both legs", ["in_sync", "in_sync"], [leg.state() for leg in legs])
    must(host.run(f"mdadm --stop {ARRAY}"))
    for leg in legs:
        leg.disk.disconnect()
