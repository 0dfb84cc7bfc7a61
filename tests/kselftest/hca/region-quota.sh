#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk reconnects over an RDMA device that lacks the memory regions for the lost and the new session together.
# turn: 1
# takes: 50
# guests: hca
# timeout: 300

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"

# regions: prints the number of hca0's memory regions
regions() {
	on c1 "rdma resource show" | awk '$2 == "hca0:" { for (n = 3; n < NF; n++) if ($n == "mr") print $(n + 1) }'
}

hca_pair
share c1
needed=$(regions)
less "a disk has memory regions" 16 "$needed"
hca_end

# As a virtual function with a quota: fewer regions than two sessions need.
hca_parameters=max_mr=$((needed * 3 / 2))
hca_pair
export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo 600
spawn load c1 "fio --output-format=terse --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=16k \
	--iodepth=16 --size=24M --verify=crc32c --verify_fatal=1"
must wait_until c1 30 "awk '{ exit !(\$1 + \$5 > 100) }' /sys/block/$disk/stat"
# The errors with which devices refuse more than their quota: ENOMEM, EIO (bnxt_re), EOVERFLOW (irdma).
for error in 12 5 75; do
	must on c1 "echo $error > /sys/module/hcablk_hca/parameters/quota_error"
	knob hca0 port 0
	check "error $error: the connection is lost" wait_until c1 60 "[ \$(cat $initiator/vol1/state) = queueing ]"
	knob hca0 port 1
	check "error $error: the disk reconnects with the regions of the lost session" wait_until c1 60 "[ \$(cat $initiator/vol1/state) = live ]"
done
check "fio verifies the data" join load
same "the client has no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
check "memory of every shape is written and read right" on c1 "hcablk-scatter $device random $RANDOM 12"
hca_end
