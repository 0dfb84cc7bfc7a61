#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
# Proves: hosts that use up the limits on unfinished connection requests, or on requests that wait for a hung drive, do not prevent another host from connecting, reconnecting and disconnecting.
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

# Limits: connection requests under way in all, requests of one host that wait for drives, and
# sessions of one host.
ALL, OWN, SESSIONS = 40, 32, 16
# The most requests that wait for one drive while no request waits for another: half of all.
DRIVES = 64
SOON = 60
ONE_QUEUE = "--queues 1 --io-timeout 600 --message-requests 1"
DRIVE_HANGS = "dmsetup suspend --nolockfs hung"
DRIVE_GOES_ON = "dmsetup resume hung"


def request(host_id, volume, session, epoch):
    """Return a connection request in hexadecimal: the admin queue pair of a session with one more queue pair."""
    head = struct.pack("<4sBBHBBHQI", b"HCAB", 2, 2, 1, 0xFF, 1, 0, session, epoch)
    return (head + uuid.UUID(host_id).bytes + volume.name.encode().ljust(16, b"\0")).hex()


def ask(guest, words):
    """Send one connection request, and return the target's answer."""
    return guest.run(f"hcablk-peer connect {target.address} 7744 {words}", SOON).text


def session_of(host_id, volume):
    """Return the id and the epoch of the host's own session of the volume."""
    text = target.must(f"awk '$1 == \"{volume.name}\" && $2 == \"{host_id}\" {{ print $3, $4 }}' {target.configfs}/ports/*/sessions")
    session, epoch = text.split()[:2]
    return int(session, 16), int(epoch)


class Crowd:
    """Many connection requests of one guest, none of which is ever finished."""

    number = 0

    def __init__(self, guest, words, each, count):
        Crowd.number += 1
        self.guest, self.file = guest, f"/tmp/crowd{Crowd.number}"
        command = f"exec hcablk-peer crowd {target.address} 7744 {words} {each} {count} > {self.file} 2>&1"
        self.job = guest.start(command, 280)

    def settles(self, what, granted, refused, waiting):
        """Check that the crowd's last report has these numbers soon."""
        line = f"granted {granted}, refused {refused}, waiting {waiting}"
        check(what, self.guest.wait(f"tail -n 1 {self.file} | grep -qx '{line}'"))


def disperse(guest, *crowds):
    """End all crowds on the guest."""
    guest.run("killall hcablk-peer; rm /tmp/crowd*")
    for crowd in crowds:
        crowd.job.join()


def read_what_hangs(volume, disks):
    """Start reads of each disk, and return when the drive has them all."""
    before = volume.stat("receives")
    jobs = [disk.fio("--rw=randread --bs=4k --iodepth=8 --number_ios=8", 300) for disk in disks]
    all_have = before + 8 * len(disks)
    must(target.wait(f"awk '$1 == \"receives\" {{ exit !($2 >= {all_have}) }}' {volume.configfs}/stats"))
    return jobs


def comes_back(well):
    """Let c2 replace a session of its own on `well`, as an initiator does after a loss."""
    # A second session of the host's instance.
    second = session_of(c2.id, well)[0] & ~0xFFFF | 4711
    first = c2.start(f"hcablk-peer connect {target.address} 7744 {request(c2.id, well, second, 1)} wait > /tmp/first")
    must(c2.wait("grep -q established /tmp/first"))
    like("a host can replace its session of a volume that does not hang", "^established", ask(c2, f"{request(c2.id, well, second, 2)} close"))
    first.join()


def writes(disk):
    return disk.guest.run(f"dd if=/dev/zero of={disk.device} bs=64k count=4 oflag=direct", SOON)


def sessions_that_come_to_nothing(well):
    """A host requests sessions, and does not establish those that are granted."""
    crowd = Crowd(c2, request(c2.id, well, 815, 1), "session", SESSIONS + 8)
    crowd.settles(f"a host gets at most {SESSIONS} sessions that it does not finish", SESSIONS, 8, 0)
    like("another host gets a session meanwhile", "^established", ask(c1, f"{request(c1.id, well, 4712, 1)} close"))
    disperse(c2, crowd)
    check("the unfinished sessions end with their requests", well.wait_no_clients())


def hosts_come_back_to_what_hangs(hung, well):
    disks = [host.connect(hung, ONE_QUEUE) for host in (c1, c2)]
    target.must(DRIVE_HANGS)
    reads = [read_what_hangs(hung, [disk])[0] for disk in disks]

    identifiers = target.must("rdma resource show cm_id | wc -l")
    session1, epoch1 = session_of(c1.id, hung)
    crowd1 = Crowd(c1, request(c1.id, hung, session1, epoch1 + 1), "epoch", OWN + 200)
    crowd1.settles(f"at most {OWN} requests of one host wait for the hung drive, and more are refused", 0, 200, OWN)

    disk = c2.connect(well, seconds=SOON)
    check("another host connects meanwhile, and its writes succeed", writes(disk))
    comes_back(well)
    disk.disconnect()
    check("the target has no client of that volume after the disconnect", well.wait_no_clients())

    # The requests of both hosts together are as many as the target allows.
    disk = c2.connect(well, seconds=SOON)
    session, epoch = session_of(c2.id, hung)
    crowd2 = Crowd(c2, request(c2.id, hung, session, epoch + 1), "epoch", OWN + 100)
    crowd2.settles(f"the requests of all hosts that wait are limited to {ALL}", 0, OWN + 100 - ALL + OWN, ALL - OWN)
    started = time.monotonic()
    busy = b"HCAB".hex() + struct.pack("<H", 5).hex()
    like("a further request is refused at once", f"^rejected {busy}", ask(c1, f"{request(c1.id, well, 4713, 1)} close"))
    within("the refusal comes within 15 s", time.monotonic() - started, 15)
    check("a connected host is served while further requests are refused", writes(disk))
    disk.disconnect()
    check("the connected host disconnects, and the target has no client left", well.wait_no_clients())
    disperse(c2, crowd2)
    check("another host connects when some of the requests have ended", c2.wait(f"hcablk connect {target.address} well", SOON))
    c2.must("hcablk disconnect well")

    disperse(c1, crowd1)
    must(target.wait(f"[ $(rdma resource show cm_id | wc -l) -le {identifiers} ]", SOON))
    crowd1 = Crowd(c1, request(c1.id, hung, session1, epoch1 + 1000), "epoch", OWN + 20)
    crowd1.settles("requests that were given up are not counted any more", 0, 20, OWN)
    target.must(DRIVE_GOES_ON)
    crowd1.settles("all waiting requests are answered when the drive has finished", "[1-9][0-9]*", "[1-9][0-9]*", 0)
    disperse(c1, crowd1)
    for disk, read in zip(disks, reads):
        refuse(f"the reads of {disk.guest.name} fail, since a newer session replaced theirs", read.join())
        disk.disconnect(force=True)
    check("the hung volume has no client left", hung.wait_no_clients())


def many_hosts_wait_for_one_drive(hung, well, hung_drive):
    """Several hosts have reads in the drive, and each as many waiting requests as a host may have."""
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
            crowds[-1].settles(f"host {n}: as many requests wait for the drive as a host may have", 0, 3, OWN)
        else:
            # A guest runs no more commands at a time than it has now.
            beyond = Crowd(c1, words, "epoch", OWN + 3)
            beyond.settles(f"while {DRIVES} requests wait for a drive, no request of another host waits for it", 0, OWN + 3, 0)
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
    check("the hung volume has no client of these hosts left", hung.wait_no_clients())


with test():
    if RDMA != "rxe":
        skip("the crowd sends connection requests without a queue pair, which siw cannot")
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
