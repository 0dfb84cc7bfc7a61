# SPDX-License-Identifier: GPL-2.0
# Proves: an md mirror over two targets survives the loss of power of one after the other under load: no error, a stall below 5 s; udev re-adds the leg that is back, and md copies only what changed.
# guests: host t1 t2
# turn: 7
# takes: 140
# timeout: 900
# expect-log: (md|Buffer I/O error).*

from hcablk import SLOW, check, less, log, must, same, test, within
from mirror import MD, MIB, Leg, Load, create, findings, host, start_udev, wait_in_sync

# Seconds for which requests wait for a lost target: see docs/user/ha.md.
FAIL = 1

with test():
    start_udev()
    legs = [Leg(1), Leg(2)]
    for leg in legs:
        leg.connect(f"--fast-io-fail-tmo {FAIL * SLOW}")
    create(legs)
    check("md has copied the first leg to the second", wait_in_sync())
    same("check finds nothing wrong with the legs", [("leg1", "ok", "a leg of md0"), ("leg2", "ok", "a leg of md0")], findings())
    load = Load(48)
    load.make()

    for leg, other in ((legs[0], legs[1]), (legs[1], legs[0])):
        name = leg.target.name
        load.start(40)
        leg.lose_power()
        check(f"{name} has no power: md continues without its leg", leg.wait_failed())
        check(f"{name} has no power: writes continue", load.wait_writes(300))
        messages = [message for subject, _, message in findings() if subject == leg.name]
        check(f"{name} has no power: check reports the missing leg", any("md0 continues without" in one for one in messages))
        if leg is legs[1]:
            # All that was acknowledged must be on the leg that was away before.
            written, verified, stall = load.stop()
            must(host.run(f"umount {load.FOLDER}"))
            check("the file system is sound on the first leg alone", host.run("e2fsck -fn /dev/md0"))
            must(host.run(f"mount /dev/md0 {load.FOLDER}"))
            check("the first leg alone has all that was acknowledged, and all files", load.check())
        leg.get_power()
        check(f"{name} is back: its disk is live", leg.disk.wait("live"))
        before = leg.mib_written()
        check(f"{name} is back: its leg is re-added by itself", wait_in_sync())
        copied = leg.mib_written() - before
        log(f"# {name}: {copied} MiB written to the leg since it came back")
        less(f"{name} is back: md copies less than a third of the array", copied, MIB // 3)
        log(host.says("cat /tmp/systemd-run.log; dmesg | grep -E 'md|hcablk:' | tail -n 40"))
        if leg is legs[0]:
            written, verified, stall = load.stop()
        check(f"{name} lost its power: no write or flush failed", written)
        check(f"{name} lost its power: fio read all that it wrote", verified)
        log(f"# {name} lost its power: the longest request took {stall:.2f} s")
        within(f"{name} lost its power: no request took longer than 5 s", stall, 5)

    must(host.run(f"umount {load.FOLDER} && echo check > {MD}/sync_action"))
    must(wait_in_sync())
    same("both legs have the same data", "0", host.must(f"cat {MD}/mismatch_cnt"))
    check("the file system is sound", host.run("e2fsck -fn /dev/md0"))
    must(host.run("mdadm --stop /dev/md0"))
    for leg in legs:
        leg.disk.disconnect()
    check("udev ends", host.run("udevadm control --exit"))
