# SPDX-License-Identifier: GPL-2.0
"""The competitors, and how each is set up: shell text for the guest that serves and for the one that uses the disk.

Without a second guest both run in the same one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from rows import CHUNKS, SMALL_READ_MAX, SMALL_WRITE_MAX

# What all of them export. It moves no data: what is measured is the way to it.
BACKING = "/dev/nullb0"
SERVE_BACKING = """
modprobe null_blk nr_devices=1 gb=4 bs=512 memory_backed=0 submit_queues=1 hw_queue_depth=128
[ -b /dev/nullb0 ] && echo none > /sys/block/nullb0/queue/scheduler
"""
DROP_BACKING = "rmmod null_blk"

# The last line that `attach` prints is the disk.
COMMON = """
appears() {
	n=0
	until [ -b "$1" ]; do
		[ $n -lt 300 ] || { echo "no disk $1" >&2; exit 1; }
		n=$((n + 1))
		usleep 20000
	done
	# One hardware queue would get a scheduler by default: none of them is to have one.
	for queue in /sys/block/${2:-${1#/dev/}}/queue; do
		[ ! -e $queue/scheduler ] || echo none > $queue/scheduler
	done
	echo "$1"
}
set -e
"""


@dataclass(frozen=True)
class Peer:
    """How to export and to attach a disk, and how to undo that."""

    title: str
    backing: str = BACKING
    serve_backing: str = SERVE_BACKING
    drop_backing: str = DROP_BACKING
    serve: str = ""
    attach: str = ""
    detach: str = ""
    unserve: str = ""
    # Prints counters of the target, `NAME VALUE` each.
    counters: str = ""


HCABLK = Peer(
    title="hcablk",
    serve="hcablk target export bench {backing} --insecure --allow {host}",
    attach=f"appears $(hcablk connect {{address}} bench --queues 1 {os.environ.get('CONNECT', '')})",
    detach="hcablk disconnect bench && modprobe -r hcablk",
    unserve="hcablk target unexport bench && hcablk target unlisten --all && modprobe -r hcablk_target",
)

NVME = Peer(
    title="nvme-rdma/nvmet-rdma",
    serve="""
modprobe nvmet_rdma
cd /sys/kernel/config/nvmet
mkdir subsystems/bench subsystems/bench/namespaces/1 ports/1
echo 1 > subsystems/bench/attr_allow_any_host
echo {backing} > subsystems/bench/namespaces/1/device_path
echo 1 > subsystems/bench/namespaces/1/enable
cd ports/1
echo rdma > addr_trtype
echo ipv4 > addr_adrfam
echo {address} > addr_traddr
echo 4420 > addr_trsvcid
ln -s /sys/kernel/config/nvmet/subsystems/bench subsystems/
""",
    attach="""
modprobe nvme_rdma
echo transport=rdma,traddr={address},trsvcid=4420,nqn=bench,nr_io_queues=1 > /dev/nvme-fabrics
appears /dev/nvme0n1 'nvme0*n1'
""",
    detach="echo 1 > /sys/class/nvme/nvme0/delete_controller; modprobe -r nvme_rdma",
    unserve="""
cd /sys/kernel/config/nvmet
rm ports/1/subsystems/bench
rmdir ports/1 subsystems/bench/namespaces/1 subsystems/bench
modprobe -r nvmet_rdma
""",
)

RNBD = Peer(
    title="RNBD/RTRS",
    serve="modprobe rnbd_server",
    attach="""
modprobe rnbd_client
echo sessname=bench path=ip:{address} device_path={backing} > /sys/class/rnbd-client/ctl/map_device
appears /dev/rnbd0
""",
    detach="""
echo normal > /sys/block/rnbd0/rnbd/unmap_device
modprobe -r rnbd_client
""",
    unserve="modprobe -r rnbd_server",
)

NBD = Peer(
    title="NBD over TCP",
    serve="""
printf '[generic]\n[bench]\nexportname = {backing}\nlistenaddr = {address}\n' > /tmp/nbd.conf
nbd-server -C /tmp/nbd.conf -p /tmp/nbd.pid
""",
    attach="""
modprobe nbd nbds_max=1
nbd-client -N bench -b 512 -C 1 {address} 10809 /dev/nbd0 > /dev/null
appears /dev/nbd0
""",
    detach="nbd-client -d /dev/nbd0 > /dev/null && modprobe -r nbd",
    # What serves a connection is a process of its own, and ends when it notices.
    unserve="""
kill $(cat /tmp/nbd.pid)
while pidof nbd-server > /dev/null; do
	usleep 20000
done
""",
)

PEERS: dict[str, Peer] = {
    "null": Peer(title="null_blk itself", attach="appears {backing}"),
    "hcablk": HCABLK,
    "nvme": NVME,
    "rnbd": RNBD,
    "nbd": NBD,
    "verbs": Peer(title="raw verbs", attach="echo none"),
}

PEERS |= {
    "nvme-16k": replace(
        NVME,
        title="nvme-rdma/nvmet-rdma, 16 KiB of inline data",
        serve=NVME.serve.replace("ln -s", "echo 16384 > param_inline_data_size\nln -s"),
    ),
    # Its clients keep keys of the server's memory that stay valid.
    "rnbd-trust": replace(
        RNBD,
        title="RNBD/RTRS, always_invalidate=N",
        serve="modprobe rtrs_server always_invalidate=N; modprobe rnbd_server",
        unserve="modprobe -r rnbd_server; modprobe -r rtrs_server 2>/dev/null || true",
    ),
}


def path(title: str, options: str) -> Peer:
    """Our initiator with limits that leave one way for what is measured."""
    return replace(HCABLK, title=title, attach=f"appears $(hcablk connect {{address}} bench {options})")


# So that soft-RoCE's memory regions, of 2 MiB, have a read bounce slot for each request.
SHALLOW = "--queue-depth 16"

PEERS |= {
    "bounced": path("reads copied out of a read bounce slot", f"--small-read {SMALL_READ_MAX} {SHALLOW}"),
    "registered": path("reads into registered memory", f"--small-read 0 {SHALLOW}"),
    "inline": path("writes within the request's message", f"--eager-write 0 --small-write {SMALL_WRITE_MAX}"),
    "eager": path("writes into the eager ring", "--eager-write 1048576"),
    "fetched": path("writes fetched by RDMA READ", "--eager-write 0 --small-write 0"),
}

PEERS |= {
    name: replace(
        HCABLK,
        title=f"large requests in chunks of {kib} KiB" if kib else "large requests as a whole",
        serve=f"hcablk target export bench {{backing}} --insecure --chunk-kib {kib} --allow {{host}}",
    )
    for name, kib in CHUNKS.items()
}

# Ways for a program to use a volume.
PEERS |= {
    "disk": replace(HCABLK, title="the kernel's driver, by io_uring"),
    "library-poll": replace(
        HCABLK, title="a program with libhcablk that polls", attach="modprobe rdma_ucm; echo none", detach="true"
    ),
    "ublk": replace(
        HCABLK,
        title="hcablk-ublk, by io_uring",
        attach="""
modprobe -a ublk_drv rdma_ucm
setsid hcablk-ublk add -o queues=1 {address} bench > /tmp/ublk 2>&1 < /dev/null &
appears /dev/ublkb0
""",
        detach="hcablk-ublk remove 0",
    ),
    "nvme-disk": replace(NVME, title="nvme-rdma/nvmet-rdma, by io_uring"),
}
PEERS["library-event"] = replace(PEERS["library-poll"], title="a program with libhcablk that waits for events")

# On an emulated NVMe drive, which has memory of its own for peers.
DRIVE = "/dev/drive0"
# What is read and written of it. It is read once first: what keeps data has it then.
DRIVE_MIB = 64
WARM = f"dd if=$disk of=/dev/null bs=1M count={DRIVE_MIB} iflag=direct 2> /dev/null"


def on_drive(peer: Peer, **more: str) -> Peer:
    """The same peer on that drive."""
    own = {"backing": DRIVE, "serve_backing": "", "drop_backing": ""}
    return replace(peer, **{**own, **more})


def mode(title: str, options: str, module: str = "") -> Peer:
    """A way of our target; its options, and its module's."""
    return on_drive(
        HCABLK,
        title=title,
        serve=f"modprobe hcablk_target {module}; hcablk target listen --buffer-mib 4; "
        f"hcablk target export bench {{backing}} --insecure --allow {{host}} {options}",
        attach=f"disk=$(hcablk connect {{address}} bench); {WARM}; appears $disk",
        counters="cat /sys/kernel/config/hcablk_target/volumes/bench/stats",
    )


PEERS |= {
    "drive": on_drive(PEERS["null"], title="the drive itself", attach=f"disk={{backing}}; {WARM}; appears $disk"),
    "direct": mode("mode direct", "--mode direct"),
    "cached": mode("mode cached: the page cache", "--mode cached"),
    "mixed": mode("mode mixed: cached writes, direct reads", "--mode mixed"),
    "mqcache": mode("mode direct with a cache of its own", f"--mode direct --cache-mib {2 * DRIVE_MIB}"),
    "p2p": mode("mode p2p, copied between PCI memory and RAM for soft-RoCE", "--mode p2p"),
    "p2p-hca": mode("mode p2p, soft-RoCE taken for an HCA that reaches PCI memory", "--mode p2p", "p2p_virtual=1"),
    # Its own peer-to-peer mode wants an RDMA device with DMA of its own, and takes RAM without one.
    "nvmet": on_drive(
        NVME,
        title="nvme-rdma/nvmet-rdma",
        # The drive is nvme0.
        attach=NVME.attach.replace("nvme0n1", "nvme1n1").replace("'nvme0*n1'", "'nvme1*n1'").replace(
            "appears /dev/nvme1n1", f"disk=/dev/nvme1n1; until [ -b $disk ]; do usleep 20000; done; {WARM}; appears $disk"
        ),
        detach=NVME.detach.replace("nvme/nvme0/", "nvme/nvme1/"),
    ),
}
