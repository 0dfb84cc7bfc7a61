# SPDX-License-Identifier: GPL-2.0
# Proves: a leg of an md mirror whose target loses its write cache comes back with old data, since md has forgotten its write; check warns of such a leg, and it is not re-added by itself.
# guests: host t1 t2
# turn: 9
# takes: 85
# skips: debug
# timeout: 600
# expect-log: (md|Buffer I/O error).*

from hcablk import SLOW, check, like, must, same, skip, test
from mirror import ARRAY, MD, Leg, add_by_hand, create, findings, host, start_udev, wait_in_sync

# Blocks of the array, in different chunks of the bitmap.
BLOCK, OTHER = 5000, 20000


def put(word: str, block: int = BLOCK) -> None:
    """Fill a block of the array with a word, past the page cache."""
    host.must(f"yes {word} | dd of={ARRAY} bs=4k count=1 seek={block} iflag=fullblock oflag=direct conv=notrunc status=none")


def word_on(leg: Leg) -> str:
    """Return the word of the block on a leg."""
    offset = int(host.must(f"cat {MD}/dev-{leg.disk.device.removeprefix('/dev/')}/offset")) // 8
    return host.must(f"dd if={leg.disk.device} bs=4k count=1 skip={offset + BLOCK} iflag=direct status=none | uniq")


with test():
    start_udev()
    legs = [Leg(1, "/dev/volatile", "back"), Leg(2)]
    if not legs[0].target.run("modprobe -a virtio_scsi sd_mod"):
        skip("the kernel has no driver for the volatile drive")
    legs[0].target.machine("add-drive")
    for leg in legs:
        leg.connect(f"--fast-io-fail-tmo {SLOW}")
    create(legs, "--assume-clean")
    like("check warns of the leg with a write cache", "leg of md0 and has a volatile write cache", findings())
    same("check warns of that leg only", ["leg1"], [subject for subject, level, _ in findings() if level != "ok"])

    # A superblock write, or one of the bitmap, flushes the legs' caches: none may follow the write of "new".
    host.must(f"echo 0 > {MD}/safe_mode_delay && echo 8 > {MD}/bitmap/time_base")
    put("old")
    # md writes the cleared bit of "old" some time after it has forgotten the write.
    clean = f"echo 3 > /proc/sys/vm/drop_caches; mdadm --examine-bitmap {legs[1].disk.device} | grep -q ' 0 dirty'"
    must(host.wait(clean, 100))
    put("new")
    same("both legs have acknowledged the new data", ["new", "new"], [word_on(leg) for leg in legs])
    check("md has forgotten the write", host.wait("grep -q 'bitmap: 0/' /proc/mdstat", 60))
    legs[0].lose_power()
    must(legs[0].disk.wait("failing-fast"))
    put("more", OTHER)
    must(legs[0].wait_failed())
    legs[0].get_power()
    must(legs[0].disk.wait("live"))
    check("the leg with a write cache is not re-added by itself", host.wait("grep -q 'stays out of md0' /tmp/systemd-run.log"))
    like("the leg with a write cache is still out of the array", "faulty", legs[0].state())
    same("the leg has lost the write", "1", legs[0].disk.attribute("lost_writes"))

    check("the leg is re-added by hand", add_by_hand(legs[0]))
    check("md fails the leg again, since a flush fails", legs[0].wait_failed())
    check("the leg is re-added by hand again, which closes its disk and so ends the state of lost writes", add_by_hand(legs[0]))
    check("md considers both legs to be the same", wait_in_sync())
    same("the re-added leg has old data", ["old", "new"], [word_on(leg) for leg in legs])
    must(host.run(f"mdadm --stop {ARRAY}"))
    for leg in legs:
        leg.disk.disconnect()
    check("udev ends", host.run("udevadm control --exit"))
