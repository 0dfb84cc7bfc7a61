#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk with a ctrl_loss_tmo survives the loss of its connection, without an error or wrong data, and ends when ctrl_loss_tmo expires.
# turn: 1
# takes: 370
# waits: yes
# timeout: 2000

import time

from hcablk import RDMA, SLOW, c1, check, ends_within, few, less, like, must, refuse, same, target, test


def export():
    """Export the drive without a write cache: with one a restarted target may have lost acknowledged writes."""
    target.must(f"echo 'write through' > /sys/block/$(basename $(readlink -f {target.drive}))/queue/write_cache")
    return target.export("vol1", target.drive, c1)


def verify(disk):
    """Start to write to the disk and to read the data back, and wait until the first writes are done."""
    began = disk.done()
    job = disk.fio(
        f"--rw=randrw --bsrange=4k-128k --size={few(96)}M --iodepth=16 --numjobs=2 --offset_increment=128M "
        "--verify=crc32c --verify_fatal=1 --rate=2m",
        600,
    )
    must(disk.wait_done(began + 40))
    return job


def lose_and_return(volume, disk):
    """End the export, and export again when the disk has noticed."""
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
    check("the target is killed: the disk stays", c1.run(f"[ -b {disk.device} ]"))
    like("the disk reports why it has no connection", "answer|address|listens|closed|broke", disk.attribute("error"))
    target.boot()
    volume = export()
    check("the target has booted: the disk is connected again", disk.wait("live"))
    check("the data written over the reboot is read back", load.join())
    same("no request has failed over the reboot", 0, disk.stat("errors"))
    less("the session has a later epoch", first, int(disk.attribute("session").split()[1]))
    check("memory of every shape is written and read right after the reboot", disk.scatter("random", 69, 16))

    load = verify(disk)
    target.cut()
    check("the cable is cut: requests wait", disk.wait("queueing"))
    target.mend()
    check("the cable is plugged in: the disk is connected again", disk.wait("live"))
    check("the data written over the cut is read back", load.join())
    same("no request has failed over the cut", 0, disk.stat("errors"))

    load = verify(disk)
    lose_and_return(volume, disk)
    check("the volume is exported again: the disk is connected again", disk.wait("live"))
    check("the data written over the lost export is read back", load.join())
    same("no request has failed over the lost export", 0, disk.stat("errors"))
    disk.disconnect()
    same("no queue pair is left", 0, c1.queue_pairs())
    check("no queue pair is left at the target", target.wait_no_queue_pairs())


def is_removed_while_it_waits():
    """A queueing disk can be disconnected if it is not open, and by force if it is."""
    volume = export()
    disk = c1.connect(volume, "--ctrl-loss-tmo -1")
    volume.unexport(force=True)
    check("an idle disk notices the loss", disk.wait("queueing"))
    check("a queueing disk is disconnected", c1.run("hcablk disconnect vol1"))
    volume = export()
    disk = c1.connect(volume, "--ctrl-loss-tmo -1")
    load = disk.load()
    volume.unexport(force=True)
    check("a busy disk notices the loss", disk.wait("queueing"))
    refuse("a queueing disk that is open is not disconnected", c1.run("hcablk disconnect vol1"))
    check("the open disk stays queueing", disk.wait("queueing"))
    check("the open disk is disconnected by force", c1.run("hcablk disconnect --force vol1"))
    ends_within(load, 20, "disconnected by force")


def stays_while_it_works_in_between():
    """A disk stays, even beyond ctrl_loss_tmo, if each of its short sessions does some work."""
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
    check(f"{losses} losses within three times ctrl_loss_tmo: the data is read back", load.join())
    same("no request has failed over these losses", 0, disk.stat("errors"))
    disk.disconnect()
    volume.unexport()


def ends_when_it_must():
    volume = export()
    disk = c1.connect(volume, f"--ctrl-loss-tmo {8 * SLOW}")
    load = disk.load()
    volume.unexport(force=True)
    check("requests wait until ctrl_loss_tmo expires", disk.wait("queueing"))
    ends_within(load, 30, "ctrl_loss_tmo expires")
    check("the disk is removed when ctrl_loss_tmo expires", c1.wait(f"[ ! -e {disk.sysfs} ]", 30))
    check("the removed disk's state is failed", disk.wait("failed"))
    disk.disconnect()


def requests_end_before_the_disk():
    volume = export()
    disk = c1.connect(volume, f"--ctrl-loss-tmo -1 --fast-io-fail-tmo {8 * SLOW}")
    load = disk.load()
    volume.unexport(force=True)
    check("requests wait until fast_io_fail_tmo expires", disk.wait("queueing"))
    ends_within(load, 30, "fast_io_fail_tmo expires")
    same("the disk's state is failing-fast", "failing-fast", disk.attribute("state"))
    check("the disk stays after fast_io_fail_tmo", c1.run(f"[ -b {disk.device} ]"))
    refuse("a new request fails at once", c1.run(f"dd if={disk.device} of=/dev/null bs=4k count=1 iflag=direct"))
    volume = export()
    check("the failing disk is connected again", disk.wait("live"))
    check("the disk works again", disk.scatter("random", 691, 4))
    volume.unexport(force=True)
    check("after another loss soon afterwards requests do not wait again", disk.wait("failing-fast"))
    export()
    check("the disk is connected once more", disk.wait("live"))
    disk.disconnect()


def host_is_forbidden():
    volume = export()
    disk = c1.connect(volume, "--ctrl-loss-tmo -1")
    load = disk.load()
    volume.forbid(c1)
    ends_within(load, 30, "the host is no longer allowed")
    check("the disk fails for good", disk.wait("failed"))
    like("the disk reports that the host is not allowed", "does not allow", disk.attribute("error"))
    disk.disconnect()
    volume.allow(c1)
    return volume


def rdma_device_goes_while_it_waits(volume):
    """A queueing disk releases its references to an RDMA device that is removed."""
    active = f"rdma link show {RDMA}0/1 | grep 'state ACTIVE'"
    disk = c1.connect(volume, "--ctrl-loss-tmo -1")
    volume.unexport(force=True)
    must(disk.wait("queueing"))
    check("the RDMA device is removed while the disk waits", c1.run(f"rdma link delete {RDMA}0", 30))
    check("the disk reports the missing RDMA device", disk.wait_error("looking for an RDMA device that reaches the address failed"))
    same("the disk stays queueing", "queueing", disk.attribute("state"))
    c1.must(f"rdma link add {RDMA}0 type {RDMA} netdev eth0")
    must(c1.wait(active))
    export()
    check("the disk is connected when the device and the volume are back", disk.wait("live"))
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
