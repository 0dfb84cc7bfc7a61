# SPDX-License-Identifier: GPL-2.0
"""The competitors, and how each is set up: shell scripts for the guest that serves the disk and for the guest that uses
it. Both run in the same guest if there is only one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from rows import CHUNKS, SMALL_READ_MAX, SMALL_WRITE_MAX

# The drive that all peers export. It moves no data: the benchmark measures the path to it.
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
	# A disk with one hardware queue gets a scheduler by default: no disk here may have one.
	for queue in /sys/block/${2:-${1#/dev/}}/queue; do
		[ ! -e $queue/scheduler ] || echo none > $queue/scheduler
	done
	echo "$1"
}
set -e
"""


@dataclass(frozen=True)
class Peer:
    """The scripts that export and attach a disk, and those that undo this."""

    title: str
    backing: str = BACKING
    serve_backing: str = SERVE_BACKING
    drop_backing: str = DROP_BACKING
    serve: str = ""
    attach: str = ""
    detach: str = ""
    unserve: str = ""
    # Prints counters of the target, one `NAME VALUE` in each line.
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
    # The process that serves a connection ends only when it notices the disconnect.
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
    # The clients keep keys of the server's memory, which stay valid.
    "rnbd-trust": replace(
        RNBD,
        title="RNBD/RTRS, always_invalidate=N",
        serve="modprobe rtrs_server always_invalidate=N; modprobe rnbd_server",
        unserve="modprobe -r rnbd_server; modprobe -r rtrs_server 2>/dev/null || true",
    ),
}


def path(title: str, options: str) -> Peer:
    """Returns our initiator with limits that leave only one data path for the measured requests."""
    return replace(HCABLK, title=title, attach=f"appears $(hcablk connect {{address}} bench {options})")


# With a queue depth of 16, a memory region of soft-RoCE (2 MiB) has a read bounce slot for each.
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
    "disk": replace(HCABLK, title="the kernel's driver, with io_uring"),
    "library-poll": replace(
        HCABLK, title="a program with libhcablk that polls", attach="modprobe rdma_ucm; echo none", detach="true"
    ),
    "ublk": replace(
        HCABLK,
        title="hcablk-ublk, with io_uring",
        attach="""
modprobe -a ublk_drv rdma_ucm
setsid hcablk-ublk add -o queues=1 {address} bench > /tmp/ublk 2>&1 < /dev/null &
appears /dev/ublkb0
""",
        detach="hcablk-ublk remove 0",
    ),
    "nvme-disk": replace(NVME, title="nvme-rdma/nvmet-rdma, with io_uring"),
}
PEERS["library-event"] = replace(PEERS["library-poll"], title="a program with libhcablk that waits for events")

# On an emulated NVMe drive, which has memory of its own for peers.
DRIVE = "/dev/drive0"
# The part of the drive that is used. It is read once first, to fill the caches.
DRIVE_MIB = 64
WARM = f"dd if=$disk of=/dev/null bs=1M count={DRIVE_MIB} iflag=direct 2> /dev/null"


def on_drive(peer: Peer, **more: str) -> Peer:
    """Returns a peer on the emulated drive."""
    own = {"backing": DRIVE, "serve_backing": "", "drop_backing": ""}
    return replace(peer, **{**own, **more})


def mode(title: str, options: str, module: str = "") -> Peer:
    """Returns our target with `options` for the export and `module` for its module."""
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
    # nvmet's peer-to-peer mode needs an RDMA device that does DMA, and uses RAM without one.
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
