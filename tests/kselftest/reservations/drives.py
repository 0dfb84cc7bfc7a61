#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Proves: reservations and their file belong to one drive, in either order of exporting; a refused change stays refused; no change of an evicted host is made; a hung file system holds up only changes of its reservations.
# turn: 19
# takes: 40
# timeout: 480

from hcablk import c1, c2, check, like, must, refuse, same, target, test

ONE, TWO, THREE = (f"6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0b0{n}" for n in (1, 2, 3))
STATE = "/mnt/state/reservations"
KEPT = f"0 16384 linear {target.drive2} 0"
EIO = "Input/output error"
SOON = 20


def export(volume, part, wwid):
    """Export a part of the drive under a name and a wwid; return the command's result."""
    return volume.export(f"/dev/mapper/{part}", c1, c2, options=f"--wwid {wwid}")


def pr(disk, command, seconds=None):
    return disk.guest.run(f"hcablk-pr {disk.device} {command}", seconds)


def keys(disk, seconds=None):
    return pr(disk, "keys", seconds).text


def connect(host, volume):
    return host.connect(volume, "--ctrl-loss-tmo -1")


def again(volume, disk, part, wwid, what):
    """Export again, which makes the target read its file again, and wait for the disk."""
    check(what, export(volume, part, wwid))
    must(disk.wait("live"))


def without_blocks(first, count):
    """Return the device-mapper table of the file system's drive with some failing sectors."""
    behind = first + count
    return f"0 {first} linear {target.drive2} 0\\n{first} {count} error\\n{behind} {16384 - behind} linear {target.drive2} {behind}"


def freeze():
    target.must("fsfreeze --freeze /mnt/state")


def unfreeze():
    target.must("fsfreeze --unfreeze /mnt/state")


def change(disk, command):
    """Start a change of reservations, and wait until it waits for the frozen file system."""
    job = disk.guest.start(f"hcablk-pr {disk.device} {command}", 100)
    must(target.wait("cat /proc/[0-9]*/comm | grep -q '+hcablk_changes'", 30))
    return job


def one_drive_one_wwid(vol1, vol2):
    """Two drives with one wwid would write the same file."""
    check("a drive is exported", export(vol1, "part1", ONE))
    like("another drive with the same wwid is refused", "another drive is exported under its wwid", export(vol2, "part2", ONE).text)
    check("another drive with its own wwid is exported", export(vol2, "part2", TWO))
    vol2.unexport(force=True)
    disk = connect(c1, vol1)
    check("a host registers", pr(disk, "register 0 11"))

    # Exporting the drive under another wwid does not bypass its reservations under the first, in either order.
    vol1.unexport(force=True)
    check("the drive is exported under another wwid", export(vol2, "part1", TWO))
    like("the drive is then refused under the wwid with reservations", "reservations, and its drive", export(vol1, "part1", ONE).text)
    vol2.unexport(force=True)
    check("in the other order the drive is exported under the wwid with reservations", export(vol1, "part1", ONE))
    like("the drive is then refused under another wwid", "reservations under another wwid", export(vol2, "part1", TWO).text)
    must(disk.wait("live"))
    like("the registration is still there", ": 11$", keys(disk))
    must(pr(disk, "register 11 0"))
    check("the drive is exported under another wwid when no host is registered", export(vol2, "part1", TWO))
    same("no host can register while the drive has two wwids", "Operation not supported", pr(disk, "register 0 11").text)
    vol2.unexport(force=True)
    check("a host registers when the other volume is gone", pr(disk, "register 0 11"))
    vol1.unexport(force=True)
    disk.disconnect(force=True)


def find_file():
    """Return the block of the file system that holds the first image of THREE's file; the next block holds the second."""
    target.must(
        f"""for place in 0 1; do
                printf '\\nhcablk-place-%d\\n' $place
                dd if=/dev/zero bs=4080 count=1 status=none
            done > {STATE}/{THREE} && sync"""
    )

    def holds(first, count, place):
        read = f"dd if=/dev/mapper/kept bs=4k skip={first} count={count} iflag=direct status=none"
        return target.run(f"{read} | grep -aq hcablk-place-{place}")

    first, count = 0, 2048
    while count > 1:
        count //= 2
        if not holds(first, count, 0):
            first += count
    must(holds(first, 1, 0))
    must(holds(first + 1, 1, 1))
    target.must(f"dd if=/dev/zero of={STATE}/{THREE} bs=8k count=1 conv=notrunc,fsync status=none")
    return first


def refused_changes_do_not_come_back(vol1):
    block = find_file()
    sector = block * 8
    # Writing the first image of a new file fails, so that neither is there.
    check("a drive with a new file is exported", export(vol1, "part2", THREE))
    disk = connect(c1, vol1)
    target.device_mapper("kept", without_blocks(sector, 8))
    same("registering is refused when the file cannot be written", EIO, pr(disk, "register 0 33").text)
    check("the log reports the failed write", target.in_log("cannot write a change of reservations to file"))
    like("the refused host is not registered", ":$", keys(disk))
    vol1.unexport(force=True)
    target.device_mapper("kept", KEPT)
    target.must(
        f"""env echo > {target.configfs}/reservations
            umount /mnt/state && mount /dev/mapper/kept /mnt/state && env echo {STATE} > {target.configfs}/reservations"""
    )
    again(vol1, disk, "part2", THREE, "the target reads the new file again")
    like("the refused host is not registered after that, either", ":$", keys(disk))
    check("registering succeeds when the file can be written", pr(disk, "register 0 33"))
    vol1.unexport(force=True)
    again(vol1, disk, "part2", THREE, "the target reads the written file again")
    like("the host is still registered", ": 33$", keys(disk))

    # Neither image can be written: the change in the page cache must not be mistaken for one on the file system's drive.
    letters = int.from_bytes(b"K" * 8, "little")
    durable = f"dd if={target.drive2} bs=4k skip={block} count=2 iflag=direct status=none | grep -aq KKKKKKKK"
    must(pr(disk, f"register 33 {letters}"))
    must(target.run(durable))
    target.device_mapper("kept", without_blocks(sector, 16))
    same("a change that cannot be written is refused", EIO, pr(disk, f"register {letters} 34").text)
    vol1.unexport(force=True)
    target.device_mapper("kept", KEPT)
    again(vol1, disk, "part2", THREE, "the target reads the file again after the refused change")
    like("the refused change was not made", f": {letters}$", keys(disk))
    check("another change succeeds", pr(disk, f"register {letters} 33"))
    check("the change is written next to the durable image", target.run(durable))
    return disk


def file_system_hangs(vol1, vol2, disk1):
    disk2 = connect(c2, vol1)
    freeze()
    changing = change(disk2, "register 0 22")
    like("the keys are read while the file system hangs", ": 33$", keys(disk1, SOON))
    same("configfs shows the directory while the file system hangs", STATE, target.run(f"cat {target.configfs}/reservations", SOON).text)
    check("another volume is exported while the file system hangs", export(vol2, "part2", THREE))
    check("the other volume is unexported while the file system hangs", target.run("hcablk target unexport vol2", SOON))
    check("the changing volume is unexported while the file system hangs", target.run("hcablk target unexport --force vol1", SOON))
    check("the changing volume is exported again", export(vol1, "part2", THREE))
    unfreeze()
    check("the change is made when the file system continues", changing.join())
    must(disk1.wait("live"))
    like("the change was made once", ": 22 33$", keys(disk1))
    return disk2


def evicted_host_changes_nothing(vol1, disk1, disk2):
    """After an eviction no change of the evicted host is made; the eviction waits for one that has begun."""
    evict = f"hcablk target evict vol1 {c2.id}"
    evicted = f"cat {vol1.configfs}/evicted"
    freeze()
    changing = change(disk1, "register 33 44")
    asking = c2.start(f"hcablk-pr {disk2.device} abort 22 33 3", 100)
    must(c2.wait("cat /proc/[0-9]*/comm | grep -q hcablk-pr", 30))
    check("a host is evicted while another host's change is being made", target.run(f"{evict} --timeout 10", SOON))
    unfreeze()
    check("the other host's change is made", changing.join())
    refuse("the evicted host's waiting change fails", asking.join())
    like("the evicted host's change was not made", ": 22 44$", keys(disk1))
    disk2.disconnect(force=True)
    target.must(f"hcablk target admit vol1 {c2.id}")
    disk2 = connect(c2, vol1)

    freeze()
    changing = change(disk2, "abort 22 44 3")
    said = target.run(f"{evict} --timeout 3", SOON).text
    like("evicting a host whose change is being made times out", "a change of reservations, may still land", said)
    same("the host is shown as draining", f"{c2.id} draining", target.says(evicted))
    unfreeze()
    check("the host is evicted when its change is made", target.run(evict))
    same("the host is shown as evicted", c2.id, target.says(evicted))
    must(disk1.wait("live"))
    like("the change was made before the eviction", ": 22$", keys(disk1))
    changing.join()
    disk1.disconnect(force=True)
    disk2.disconnect(force=True)


with test():
    vol1, vol2 = target.volume("vol1"), target.volume("vol2")
    target.must(f"modprobe ext4 && dd if=/dev/zero of={target.drive2} bs=1M count=1 status=none")
    target.device_mapper("kept", KEPT)
    target.device_mapper("part1", f"0 131072 linear {target.drive} 0")
    target.device_mapper("part2", f"0 131072 linear {target.drive} 131072")
    target.must("mkfs.ext4 -q -F -b 4096 -O ^has_journal /dev/mapper/kept && mkdir -p /mnt/state && mount /dev/mapper/kept /mnt/state")
    target.keep_reservations(STATE)
    one_drive_one_wwid(vol1, vol2)
    disk1 = refused_changes_do_not_come_back(vol1)
    disk2 = file_system_hangs(vol1, vol2, disk1)
    evicted_host_changes_nothing(vol1, disk1, disk2)
    vol1.unexport()
    target.must("umount /mnt/state; for name in kept part1 part2; do dmsetup remove $name; done")
