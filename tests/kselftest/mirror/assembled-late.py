# SPDX-License-Identifier: GPL-2.0
# Proves: a host that starts while one of two targets is away assembles its md mirror with one leg, and mdadm's rule for new disks re-adds the other leg when it is connected later.
# guests: host t1 t2
# turn: 3
# takes: 85
# timeout: 600
# expect-log: (md|Buffer I/O error).*

from hcablk import SLOW, check, less, like, must, same, test
from mirror import ARRAY, MIB, Leg, create, host, wait_in_sync

# Blocks of the array.
BLOCK, OTHER = 5000, 20000
# What Debian's 64-md-raid-assembly.rules runs for a new disk.
NEW = "mdadm --incremental --export --offroot"


def put(word: str, block: int) -> None:
    host.must(f"yes {word} | dd of={ARRAY} bs=4k count=1 seek={block} iflag=fullblock oflag=direct conv=notrunc status=none")


def word_at(block: int) -> str:
    return host.must(f"dd if={ARRAY} bs=4k count=1 skip={block} iflag=direct status=none | uniq")


with test():
    legs = [Leg(1), Leg(2)]
    for leg in legs:
        leg.connect(f"--fast-io-fail-tmo {SLOW}")
    create(legs, "--assume-clean")
    host.must(f"mkdir -p /etc/mdadm && mdadm --detail --brief {ARRAY} > /etc/mdadm/mdadm.conf")
    host.must("echo POLICY action=re-add >> /etc/mdadm/mdadm.conf")
    put("old", BLOCK)
    put("old", OTHER)
    must(host.run(f"mdadm --stop {ARRAY}"))
    legs[0].disk.disconnect()

    # The host has started, and the first target is away.
    must(host.run(f"{NEW} {legs[1].disk.device}"))
    # What mdadm-last-resort@.service runs when no other disk has come.
    check("the array starts with one leg", host.run(f"mdadm --run {ARRAY}"))
    put("new", BLOCK)

    # The first target is back.
    legs[0].connect(f"--fast-io-fail-tmo {SLOW}")
    before = legs[0].mib_written()
    check("mdadm's rule for new disks adds the other leg", host.run(f"{NEW} {legs[0].disk.device}"))
    check("the other leg is in sync", wait_in_sync())
    same("both legs are in the array", ["in_sync", "in_sync"], [leg.state() for leg in legs])
    less("md copies little to the other leg", legs[0].mib_written() - before, MIB // 8)
    must(host.run(f"mdadm {ARRAY} --fail {legs[1].disk.device}"))
    same("the other leg has what was written while it was away, and before", "new old", f"{word_at(BLOCK)} {word_at(OTHER)}")
    like("the array has only the other leg", "faulty", legs[1].state())
    must(host.run(f"mdadm --stop {ARRAY} && rm -r /etc/mdadm"))
    for leg in legs:
        leg.disk.disconnect()
