#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Proves: hosts that ask for connections and never finish them, as many as may, keep no other from connecting, coming back and leaving; nor do those of a drive that hangs.
# tier: heart
# turn: 12
# takes: 30
# skips: siw
# waits: yes
# timeout: 500

import struct
import time
import uuid

from hcablk import RDMA, c1, c2, check, like, must, refuse, skip, target, test, within

# Connection requests that may be under way in all; of those that wait for drives a host may have 32, and 16 sessions.
ALL, OWN, SESSIONS = 40, 32, 16
# And how many may wait for one drive, while nobody waits for another one: half of all.
DRIVES = 64
SOON = 60
ONE_QUEUE = "--queues 1 --io-timeout 600 --message-requests 1"
DRIVE_HANGS = "dmsetup suspend --nolockfs hung"
DRIVE_GOES_ON = "dmsetup resume hung"


def request(host_id, volume, session, epoch):
    """A connection request for the admin queue pair of a session of one more, in hexadecimal."""
    head = struct.pack("<4sBBHBBHQI", b"HCAB", 2, 2, 1, 0xFF, 1, 0, session, epoch)
    return (head + uuid.UUID(host_id).bytes + volume.name.encode().ljust(16, b"\0")).hex()


def ask(guest, words):
    """What the target answers to one connection request."""
    return guest.run(f"hcablk-peer connect {target.address} 7744 {words}", SOON).text


def session_of(host_id, volume):
    """A host's own session of that volume, and its epoch."""
    text = target.must(f"awk '$1 == \"{volume.name}\" && $2 == \"{host_id}\" {{ print $3, $4 }}' {target.configfs}/ports/*/sessions")
    session, epoch = text.split()[:2]
    return int(session, 16), int(epoch)


class Crowd:
    """Many connection requests of one guest, which are never finished."""

    number = 0

    def __init__(self, guest, words, each, count):
        Crowd.number += 1
        self.guest, self.file = guest, f"/tmp/crowd{Crowd.number}"
        command = f"exec hcablk-peer crowd {target.address} 7744 {words} {each} {count} > {self.file} 2>&1"
        self.job = guest.start(command, 280)

    def settles(self, what, granted, refused, waiting):
        """What it says last comes to be so."""
        line = f"granted {granted}, refused {refused}, waiting {waiting}"
        check(what, self.guest.wait(f"tail -n 1 {self.file} | grep -qx '{line}'"))


def disperse(guest, *crowds):
    """End all that there are on the guest."""
    guest.run("killall hcablk-peer; rm /tmp/crowd*")
    for crowd in crowds:
        crowd.job.join()


def read_what_hangs(volume, disks):
    """Reads that the drive has, of each disk."""
    before = volume.stat("receives")
    jobs = [disk.fio("--rw=randread --bs=4k --iodepth=8 --number_ios=8", 300) for disk in disks]
    all_have = before + 8 * len(disks)
    must(target.wait(f"awk '$1 == \"receives\" {{ exit !($2 >= {all_have}) }}' {volume.configfs}/stats"))
    return jobs


def comes_back(well):
    """c2 replaces a session of its own on `well`, as an initiator does that has lost it."""
    # Another session of the host's instance.
    second = session_of(c2.id, well)[0] & ~0xFFFF | 4711
    first = c2.start(f"hcablk-peer connect {target.address} 7744 {request(c2.id, well, second, 1)} wait > /tmp/first")
    must(c2.wait("grep -q established /tmp/first"))
    like("it comes back to a volume that does not hang", "^established", ask(c2, f"{request(c2.id, well, second, 2)} close"))
    first.join()


def writes(disk):
    return disk.guest.run(f"dd if=/dev/zero of={disk.device} bs=64k count=4 oflag=direct", SOON)


def sessions_that_come_to_nothing(well):
    """Sessions that are granted and of which nothing more comes."""
    crowd = Crowd(c2, request(c2.id, well, 815, 1), "session", SESSIONS + 8)
    crowd.settles("of a host's sessions that come to nothing there are so many", SESSIONS, 8, 0)
    like("another host has a session besides", "^established", ask(c1, f"{request(c1.id, well, 4712, 1)} close"))
    disperse(c2, crowd)
    check("they end with those who asked", well.wait_no_clients())


def hosts_come_back_to_what_hangs(hung, well):
    disks = [host.connect(hung, ONE_QUEUE) for host in (c1, c2)]
    target.must(DRIVE_HANGS)
    reads = [read_what_hangs(hung, [disk])[0] for disk in disks]

    identifiers = target.must("rdma resource show cm_id | wc -l")
    session1, epoch1 = session_of(c1.id, hung)
    crowd1 = Crowd(c1, request(c1.id, hung, session1, epoch1 + 1), "epoch", OWN + 200)
    crowd1.settles("of a host that asks again and again, so many requests wait", 0, 200, OWN)

    disk = c2.connect(well, seconds=SOON)
    check("another host connects and is served", writes(disk))
    comes_back(well)
    disk.disconnect()
    check("it leaves, and nothing is left of it", well.wait_no_clients())

    # Both together are all that may be under way.
    disk = c2.connect(well, seconds=SOON)
    session, epoch = session_of(c2.id, hung)
    crowd2 = Crowd(c2, request(c2.id, hung, session, epoch + 1), "epoch", OWN + 100)
    crowd2.settles("all together so many wait", 0, OWN + 100 - ALL + OWN, ALL - OWN)
    started = time.monotonic()
    busy = b"HCAB".hex() + struct.pack("<H", 5).hex()
    like("then a request is refused at once", f"^rejected {busy}", ask(c1, f"{request(c1.id, well, 4713, 1)} close"))
    within("which takes no time", time.monotonic() - started, 15)
    check("who is connected is served", writes(disk))
    disk.disconnect()
    check("and leaves, and nothing is left of it", well.wait_no_clients())
    disperse(c2, crowd2)
    check("when some of them are gone there is room for another", c2.wait(f"hcablk connect {target.address} well", SOON))
    c2.must("hcablk disconnect well")

    disperse(c1, crowd1)
    must(target.wait(f"[ $(rdma resource show cm_id | wc -l) -le {identifiers} ]", SOON))
    crowd1 = Crowd(c1, request(c1.id, hung, session1, epoch1 + 1000), "epoch", OWN + 20)
    crowd1.settles("those who gave up are not counted any more", 0, 20, OWN)
    target.must(DRIVE_GOES_ON)
    crowd1.settles("when the drive has finished, all who wait have their answers", "[1-9][0-9]*", "[1-9][0-9]*", 0)
    disperse(c1, crowd1)
    for disk, read in zip(disks, reads):
        refuse(f"what {disk.guest.name} read fails, since it came back", read.join())
        disk.disconnect(force=True)
    check("nothing is left", hung.wait_no_clients())


def many_hosts_wait_for_one_drive(hung, well, hung_drive):
    """Several hosts, each with something in the drive and as many requests as it may have."""
    hosts = [f"0c0ffee0-0000-4000-8000-{n:012}" for n in range(DRIVES // OWN + 1)]
    must(hung.export(hung_drive))
    for host in hosts:
        target.must(f"hcablk target allow hung {host}")
    disks = [c1.connect(hung, f"--name hung{n} --host-id {host} {ONE_QUEUE}") for n, host in enumerate(hosts)]
    target.must(DRIVE_HANGS)
    reads = read_what_hangs(hung, disks)
    crowds = []
    for n, host in enumerate(hosts):
        session, epoch = session_of(host, hung)
        words = request(host, hung, session, epoch + 1)
        if n < DRIVES // OWN:
            crowds.append(Crowd(c2, words, "epoch", OWN + 3))
            crowds[-1].settles(f"host {n}: as many wait for the drive as may", 0, 3, OWN)
        else:
            # A guest runs no more commands at a time.
            beyond = Crowd(c1, words, "epoch", OWN + 3)
            beyond.settles(f"when {DRIVES} wait for a drive, none of another host does", 0, OWN + 3, 0)
    must(well.export(target.drive2, c2))
    disk = c2.connect(well, seconds=SOON)
    comes_back(well)
    disk.disconnect()
    disperse(c1, beyond)
    disperse(c2, *crowds)
    target.must(DRIVE_GOES_ON)
    for disk, read in zip(disks, reads):
        read.join()
        disk.disconnect(force=True)
    check("nothing is left of these hosts", hung.wait_no_clients())


with test():
    if RDMA != "rxe":
        skip("the crowd's connection requests come from no queue pair, which siw does not have")
    target.must(f"modprobe hcablk_target pending_connects={ALL}")
    size = target.must(f"blockdev --getsz {target.drive}")
    target.device_mapper("hung", f"0 {size} linear {target.drive} 0")
    hung_drive = "/dev/" + target.must("dmsetup info -c --noheadings -o blkdevname hung")
    hung = target.export("hung", hung_drive, c1, c2)
    well = target.export("well", target.drive2, c1, c2)
    sessions_that_come_to_nothing(well)
    hosts_come_back_to_what_hangs(hung, well)
    hung.unexport()
    well.unexport()
    target.must("hcablk target unlisten --all && rmmod hcablk_target")

    many_hosts_wait_for_one_drive(hung, well, hung_drive)
    hung.unexport()
    well.unexport()
    target.must("dmsetup remove hung")
    for guest in c1, c2, target:
        check(f"no queue pair is left on {guest.name}", guest.wait_no_queue_pairs())
