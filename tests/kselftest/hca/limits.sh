#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: with small limits, late and reordered completions, moderated interrupts and slow peers, all data is right, and the drivers stay within the device's limits.
# turn: 5
# takes: 60
# guests: hca
# timeout: 480

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"

# load WHAT: verifies data of every shape, and many requests at a time.
load() {
	check "$1: memory of every shape is written and read right" on c1 "hcablk-scatter $device random $RANDOM 12"
	check "$1: fio verifies many requests at a time" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-512k \
		--blockalign=512 --iodepth=32 --numjobs=2 --size=$(few 4)M --offset_increment=100M --verify=crc32c --verify_fatal=1"
	same "$1: client and target have no errors" "0 0 0" "$(stat_of c1 $initiator/vol1 errors) $(stat_of c1 $initiator/vol1 protocol_errors) $(
		stat_of target $target/volumes/vol1 protocol_errors)"
	for dev in hca0 hca1; do
		same "$1: $dev refused nothing" "0 0 0" "$(counted $dev naks) $(counted $dev dma_faults) $(counted $dev resent)"
	done
}

# limited WHAT PARAMETER=VALUE…: runs the load over devices with these limits.
limited() {
	hca_parameters=${*:2}
	hca_pair
	share c1
	load "$1"
	hca_end
}

limited "eight segments, four for a READ and one READ at a time, regions of 32 pages" \
	max_send_sge=8 max_recv_sge=4 max_sge_rd=4 max_qp_rd_atom=1 max_fast_reg_page_list_len=32
# At least two segments to send: the general services need two.
hca_parameters="max_send_sge=2 max_recv_sge=1 max_sge_rd=1 max_qp_rd_atom=1"
hca_pair
share c1
# Eight work requests with one segment of 32 KiB each.
same "two segments, one for a READ: the request size follows the target's device" 256 \
	"$(on c1 "cat /sys/block/$disk/queue/max_hw_sectors_kb")"
load "two segments, one for a READ"
hca_end
limited "one segment to receive, no local key of the device's own" max_recv_sge=1 dma_lkey=0
# No smaller: the general services have queues of 512.
limited "queues of 512 work requests, 600 regions" max_qp_wr=512 max_mr=600
limited "draining by the device's own operations" own_drain=1

hca_parameters="engine_cpu=0,1"
hca_pair
share c1
for dev in hca0 hca1; do
	knob $dev send_delay_us 3000
done
load "sends complete long after the peer's response"
for dev in hca0 hca1; do
	knob $dev send_delay_us 0
	knob $dev recv_delay_us 1000
done
load "receives complete late"
for dev in hca0 hca1; do
	knob $dev recv_delay_us 0
	knob $dev jitter_us 2000
done
load "queues overtake each other"
for dev in hca0 hca1; do
	knob $dev moderation_us 2000
done
load "queues overtake each other with moderated interrupts"
hca_end
