#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk with a ctrl_loss_tmo outlives its connection: no error, no wrong data; and it ends when it must.
# turn: 1
# takes: 370
# waits: yes
# timeout: 2000

import time

from hcablk import RDMA, SLOW, c1, check, ends_within, few, less, like, must, refuse, same, target, test


def export():
    """Export the drive, again; each time without a cache: else a target that starts again may have forgotten."""
    target.must(f"echo 'write through' > /sys/block/$(basename $(readlink -f {target.drive}))/queue/write_cache")
    return target.export("vol1", target.drive, c1)


def verify(disk):
    """Write and read what was written, until that has been done with all of it."""
    began = disk.done()
    job = disk.fio(
        f"--rw=randrw --bsrange=4k-128k --size={few(96)}M --iodepth=16 --numjobs=2 --offset_increment=128M "
        "--verify=crc32c --verify_fatal=1 --rate=2m",
        600,
    )
    must(disk.wait_done(began + 40))
    return job


def lose_and_return(volume, disk):
    """End the export, and export again when the disk has seen that."""
    volume.unexport(force=True)
    check("the export ends: requests wait", disk.wait("queueing"))
    must(disk.wait_error("no volume of this name"))
    return export()


def outlives_losses():
    volume = export()
    disk = c1.connect(volume, "--ctrl-loss-tmo 600 --io-timeout 5")
    first = int(disk.attribute("session").split()[1])

    load = verify(disk)
    target.kill()
    check("the target is killed: requests wait", disk.wait("queueing"))
    check("the disk stays", c1.run(f"[ -b {disk.device} ]"))
    like("why it has no connection is told", "answer|address|listens|closed|broke", disk.attribute("error"))
    target.boot()
    volume = export()
    check("it is connected again", disk.wait("live"))
    check("what was written is read", load.join())
    same("no request has failed", 0, disk.stat("errors"))
    less("the epoch is a later one", first, int(disk.attribute("session").split()[1]))
    check("memory of every shape", disk.scatter("random", 69, 16))

    load = verify(disk)
    target.cut()
    check("the cable is cut: requests wait", disk.wait("queueing"))
    target.mend()
    check("the cable is in: it is connected again", disk.wait("live"))
    check("what was written over the cut is read", load.join())
    same("still no request has failed", 0, disk.stat("errors"))

    load = verify(disk)
    lose_and_return(volume, disk)
    check("it is exported: it is connected again", disk.wait("live"))
    check("what was written over that is read", load.join())
    same("no request has failed at all", 0, disk.stat("errors"))
    disk.disconnect()
    same("no queue pair is left", 0, c1.queue_pairs())
    check("nor at the target", target.wait_no_queue_pairs())


def is_removed_while_it_waits():
    """A disk that waits can be removed if nobody has it open, and by force if somebody has."""
    volume = export()
    disk = c1.connect(volume, "--ctrl-loss-tmo -1")
    volume.unexport(force=True)
    check("idle, the loss is noticed", disk.wait("queueing"))
    check("a disk that waits is disconnected", c1.run("hcablk disconnect vol1"))
    volume = export()
    disk = c1.connect(volume, "--ctrl-loss-tmo -1")
    load = disk.load()
    volume.unexport(force=True)
    check("with load, too", disk.wait("queueing"))
    refuse("one that is open is not disconnected", c1.run("hcablk disconnect vol1"))
    check("and waits on", disk.wait("queueing"))
    check("it is by force", c1.run("hcablk disconnect --force vol1"))
    ends_within(load, 20, "disconnected by force")


def stays_while_it_works_in_between():
    """However short its sessions are, and for longer than ctrl_loss_tmo."""
    volume = export()
    disk = c1.connect(volume, "--ctrl-loss-tmo 12")
    load = verify(disk)
    losses = 0
    began = time.monotonic()
    while time.monotonic() - began < 36:
        volume.unexport(force=True)
        must(disk.wait("queueing"))
        must(disk.wait_error("no volume of this name"))
        ended = disk.done()
        volume = export()
        must(disk.wait("live"))
        must(disk.wait_done(ended))
        losses += 1
    check(f"{losses} losses within three times ctrl_loss_tmo: what was written is read", load.join())
    same("no request has failed of these", 0, disk.stat("errors"))
    disk.disconnect()
    volume.unexport()


def ends_when_it_must():
    volume = export()
    disk = c1.connect(volume, f"--ctrl-loss-tmo {8 * SLOW}")
    load = disk.load()
    volume.unexport(force=True)
    check("until ctrl_loss_tmo is over requests wait", disk.wait("queueing"))
    ends_within(load, 30, "ctrl_loss_tmo is over")
    check("the disk goes", c1.wait(f"[ ! -e {disk.sysfs} ]", 30))
    check("the state tells", disk.wait("failed"))
    disk.disconnect()


def requests_end_before_the_disk():
    volume = export()
    disk = c1.connect(volume, f"--ctrl-loss-tmo -1 --fast-io-fail-tmo {8 * SLOW}")
    load = disk.load()
    volume.unexport(force=True)
    check("requests wait at first", disk.wait("queueing"))
    ends_within(load, 30, "fast_io_fail_tmo is over")
    same("the state tells", "failing-fast", disk.attribute("state"))
    check("the disk stays", c1.run(f"[ -b {disk.device} ]"))
    refuse("what comes fails at once", c1.run(f"dd if={disk.device} of=/dev/null bs=4k count=1 iflag=direct"))
    volume = export()
    check("it is connected again", disk.wait("live"))
    check("and serves", disk.scatter("random", 691, 4))
    volume.unexport(force=True)
    check("a loss that follows soon belongs to the one before: requests need not wait again", disk.wait("failing-fast"))
    export()
    check("it is connected once more", disk.wait("live"))
    disk.disconnect()


def host_is_forbidden():
    volume = export()
    disk = c1.connect(volume, "--ctrl-loss-tmo -1")
    load = disk.load()
    volume.forbid(c1)
    ends_within(load, 30, "the host is not allowed any more")
    check("no attempt changes that", disk.wait("failed"))
    like("the reason is told", "does not allow", disk.attribute("error"))
    disk.disconnect()
    volume.allow(c1)
    return volume


def rdma_device_goes_while_it_waits(volume):
    """What refers to an RDMA device that goes away lets go of it, also while the disk waits."""
    active = f"rdma link show {RDMA}0/1 | grep 'state ACTIVE'"
    disk = c1.connect(volume, "--ctrl-loss-tmo -1")
    volume.unexport(force=True)
    must(disk.wait("queueing"))
    check("the RDMA device is removed while the disk waits", c1.run(f"rdma link delete {RDMA}0", 30))
    check("it says so", disk.wait_error("looking for an RDMA device that reaches the address failed"))
    same("it goes on waiting", "queueing", disk.attribute("state"))
    c1.must(f"rdma link add {RDMA}0 type {RDMA} netdev eth0")
    must(c1.wait(active))
    export()
    check("it is connected when the device and the volume are back", disk.wait("live"))
    disk.disconnect()
    must(c1.wait(active))


with test():
    outlives_losses()
    is_removed_while_it_waits()
    stays_while_it_works_in_between()
    ends_when_it_must()
    requests_end_before_the_disk()
    rdma_device_goes_while_it_waits(host_is_forbidden())
    check("the module unloads", c1.run("rmmod hcablk hcablk_core"))
