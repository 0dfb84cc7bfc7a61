# SPDX-License-Identifier: GPL-2.0
# Proves: an md mirror over two targets continues without an error when one target is out of reach, ends its export, or has a drive that hangs or fails; the leg is re-added by itself, except after an error of its drive.
# guests: host t1 t2
# turn: 14
# takes: 170
# timeout: 1200
# expect-log: (md|Buffer I/O error).*

from hcablk import SLOW, check, log, must, same, test, within
from mirror import MD, Leg, Load, add_by_hand, create, host, start_udev, wait_in_sync

SECTORS = 256 * 2048
LINEAR = f"0 {SECTORS} linear /dev/drive0 0"


def ends_export(leg: Leg) -> None:
    """End the export, and with it the session."""
    leg.volume.unexport(force=True)


# For each fault: the function that causes it, the one that ends it, whether the leg is re-added by itself, and the most
# seconds for which a request may wait, which leave room for a busy machine.
FAULTS = {
    "its network is cut": (lambda _: host.cut(0), lambda _: host.mend(0), True, 10),
    "its export ends": (ends_export, Leg.export, True, 10),
    "its drive hangs": (
        lambda leg: leg.target.must("dmsetup suspend --nolockfs gate"),
        lambda leg: leg.target.must("dmsetup resume gate"),
        True,
        30,
    ),
    "its drive fails": (
        lambda leg: leg.target.device_mapper("gate", f"0 {SECTORS} error"),
        lambda leg: leg.target.device_mapper("gate", LINEAR),
        False,
        10,
    ),
}

with test():
    start_udev()
    legs = [Leg(1, "/dev/mapper/gate"), Leg(2)]
    legs[0].target.device_mapper("gate", LINEAR)
    legs[0].connect(f"--fast-io-fail-tmo {SLOW} --io-timeout {5 * SLOW} --connect-timeout {5 * SLOW}")
    # The host may lose this target, too, for a moment, when the machine is busy: md must not fail both legs.
    legs[1].connect(f"--fast-io-fail-tmo {60 * SLOW}")
    create(legs)
    must(wait_in_sync())
    load = Load(49)
    load.make()
    leg = legs[0]
    for fault, (cause, end, returns, limit) in FAULTS.items():
        load.start(30)
        cause(leg)
        check(f"{fault}: md continues without the leg", leg.wait_failed(120))
        check(f"{fault}: writes continue", load.wait_writes(200))
        written, verified, stall = load.stop()
        end(leg)
        check(f"{fault}: no write or flush failed", written)
        check(f"{fault}: fio read all that it wrote", verified)
        log(f"# {fault}: the longest request took {stall:.2f} s")
        within(f"{fault}: no request took longer than {limit} s", stall, limit)
        must(leg.disk.wait("live"))
        if not returns:
            same(f"{fault}: the leg stays out of the array", "faulty", leg.state().split(",")[0])
            check(f"{fault}: the leg is re-added by hand", add_by_hand(leg))
        check(f"{fault}: the leg is back", wait_in_sync())
    check("the files are right", load.check())
    must(host.run(f"umount {load.FOLDER} && echo check > {MD}/sync_action"))
    must(wait_in_sync())
    same("both legs have the same data", "0", host.must(f"cat {MD}/mismatch_cnt"))
    must(host.run("mdadm --stop /dev/md0"))
    for leg in legs:
        leg.disk.disconnect()
    legs[0].volume.unexport()
    legs[0].target.must("dmsetup remove gate")
