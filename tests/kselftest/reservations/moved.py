# SPDX-License-Identifier: GPL-2.0
# Proves: when another target takes a volume over with its state directory, the client continues without an error and loses nothing acknowledged; wwid, keys, reservations and the evicted host are the same there; without the newest state nothing is exported.
# guests: host t1 t2
# turn: 6
# takes: 90
# timeout: 900

from hcablk import SLOW, Target, check, like, log, must, same, silent, test
from mirror import host

ADDRESS = "10.77.0.50"
DATA, STATE_DRIVE = "/dev/shared0", "/dev/shared1"
STATE = "/mnt/state"
# The host has two disks of the volume, with two host ids: one of the ids is evicted.
FENCED = "00000000-0000-4000-8000-000000000099"
TIMES = f"--ctrl-loss-tmo 600 --reconnect-delay 1 --keep-alive-tmo {SLOW}"
WRITER = "hcablk-durable write {} /tmp/state 48"

t1, t2 = Target("t1"), Target("t2")
# The address of whichever target exports the volume.
t1.address = t2.address = ADDRESS


def export(target, options=f"--state {STATE}"):
    """Export the volume, and return the command's result."""
    hosts = f"--allow {host.id} --allow {FENCED}"
    return target.run(f"hcablk target export vol1 {DATA} --write-cache through {options} {hosts}")


def mount(target):
    target.must(f"modprobe ext4 && mkdir -p {STATE} && mount {STATE_DRIVE} {STATE}")


def take_address(target):
    """Give a target the address of the volume, and announce that, as the agent IPaddr2 does."""
    target.must(f"ip address add {ADDRESS}/32 dev eth0 && arping -U -c 1 -I eth0 {ADDRESS}")


def refused(what, words, done):
    """Add two points: an export is refused with these words, and leaves no volume."""
    like(f"{what}: the export is refused", words, "" if done else done.text)
    silent(f"{what}: no volume is left", t2.run(f"ls {t2.configfs}/volumes"))


def connect(name, identity=""):
    return host.connect(t1.volume("vol1"), f"--name {name} {TIMES} {identity}")


def state(disk):
    """Return the reservations as a host sees them."""
    return disk.guest.must(f"hcablk-pr {disk.device} keys; hcablk-pr {disk.device} reservation")


def wait_writes(more):
    """Wait until the writer has MORE further acknowledged writes."""
    count = int(host.must("hcablk-durable counts /tmp/state").split()[0])
    return host.wait(f"hcablk-durable counts /tmp/state | {{ read -r writes _ && [ $writes -ge {count + more} ]; }}", 100)


def give_keys():
    """Make the keys of the host, and of the first target; the second one has none."""
    host.must("hcablk key generate host")
    key = host.must("hcablk key show host")
    t1.must("hcablk key generate target")
    for identity in (host.id, FENCED):
        t1.must(f"echo {key} | hcablk key add host {identity}")
    host.must(f"echo {t1.must('hcablk key show target')} | hcablk key add target {ADDRESS}")


with test():
    give_keys()
    # Records of an earlier run would look like those of this one.
    t1.must(f"dd if=/dev/zero of={DATA} bs=1M count=8 oflag=direct && modprobe ext4 && mkfs.ext4 -q -F {STATE_DRIVE}")
    mount(t1)
    t1.must(f"touch {STATE}/.hcablk-state")
    must(export(t1))
    take_address(t1)
    disk, fenced = connect("data"), connect("fenced", f"--host-id {FENCED}")
    must(host.run(f"hcablk-pr {disk.device} register 0 11 && hcablk-pr {fenced.device} register 0 22"))
    must(host.run(f"hcablk-pr {disk.device} reserve 11 3"))
    reservations, wwid = state(disk), t1.must(f"cat {t1.configfs}/volumes/vol1/wwid")
    like("both registrations are there before the move", ": 11 22", reservations)
    check("a host is evicted before the move", t1.run(f"hcablk target evict vol1 {FENCED}"))
    check("the evicted host's disk fails", fenced.wait("failed"))
    host.must("hcablk disconnect fenced")

    writer = host.start(WRITER.format(disk.device), 600)
    must(wait_writes(500))
    t1.kill()
    check("the disk waits when the first target has lost its power", disk.wait("queueing"))
    refused("the state is not mounted", "is its file system mounted", export(t2))
    mount(t2)
    t2.must("mkdir /tmp/other && echo 6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0b09 > /tmp/other/.hcablk-state && echo 1 >> /tmp/other/.hcablk-state")
    refused("it is the state of another volume", "belongs to the volume", export(t2, f"--state /tmp/other --wwid {wwid}"))
    check("the second target exports the volume with its state", export(t2))
    take_address(t2)
    check("the disk continues at the second target", disk.wait("live", 120))
    check("writes continue at the second target", wait_writes(500))

    same("the volume has the same wwid", wwid, t2.must(f"cat {t2.configfs}/volumes/vol1/wwid"))
    same("the volume has the same registrations and reservation", reservations, state(disk))
    same("the host that was evicted at the first target is evicted at the second", FENCED, t2.must(f"cat {t2.configfs}/volumes/vol1/evicted"))
    like("the evicted host is refused", "evicted", host.says(f"hcablk connect {ADDRESS} vol1 --name fenced --host-id {FENCED}"))
    keys = f"/etc/hcablk/keys/target /etc/hcablk/keys/hosts/* {STATE}/keys/target {STATE}/keys/hosts/*"
    same("only root can read the keys that have moved", "600 " * 6, t2.must(f"stat -c %a {keys} | tr '\\n' ' '"))

    # An orderly move back, to a machine that has forgotten all, as a new one.
    t1.boot()
    check("the evicted host is admitted at the second target", t2.run(f"hcablk target admit vol1 {FENCED}"))
    check("a host preempts the other one at the second target", host.run(f"hcablk-pr {disk.device} abort 11 22 3"))
    reservations = state(disk)
    like("one registration is left", ": 11$", reservations.splitlines()[0])
    t2.must(f"ip address del {ADDRESS}/32 dev eth0 && hcablk target unexport --force vol1")
    refused("the state is forgotten", "was exported with the state directory", export(t2, f"--wwid {wwid}"))
    old = t2.must(f"cat {STATE}/.hcablk-state").split()
    t2.must(f"mkdir -p /tmp/old && printf '%s\\n1\\n' {old[0]} > /tmp/old/.hcablk-state")
    same("the state has counted the exports", "2", old[1])
    refused("it is an old copy of the state", "is an old copy", export(t2, "--state /tmp/old"))
    t2.must(f"umount {STATE}")
    mount(t1)
    check("the first target exports the volume again", export(t1))
    take_address(t1)
    check("the disk continues at the first target", disk.wait("live", 120))
    check("writes continue at the first target", wait_writes(200))
    same("the preemption has moved back", reservations, state(disk))
    silent("the admission has moved back", t1.run(f"cat {t1.configfs}/volumes/vol1/evicted"))

    host.must("touch /tmp/state.stop")
    check("no write or flush failed", writer.join())
    found = host.run(f"hcablk-durable check {disk.device} /tmp/state 48 through")
    log(found.text)
    check("nothing acknowledged is lost", found)
    disk.disconnect()
    t1.must(f"hcablk target unexport vol1 && umount {STATE}")
