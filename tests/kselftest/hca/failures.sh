#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when work requests fail, a port is down, or a device hangs, fails for good or is removed under I/O, requests end with errors or are issued again, and nothing hangs.
# turn: 16
# takes: 110
# guests: hca
# timeout: 800

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"

# begin: connects a disk, and puts load on it.
begin() {
	connect c1 vol1 --io-timeout $((5 * slow))
	start_load load c1 "$device"
}

# lost "WHAT": checks that the load ends, the disk is removed, and the target ends the session.
lost() {
	ends_within load 60000 "$1"
	check "$1: the client disconnects" wait_until c1 60 'hcablk disconnect --if-exists vol1'
	check "$1: the target ends the session" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
	check "$1: no queue pair is left" wait_until c1 60 "$no_queue_pairs"
}

anew() {
	connect c1 vol1
	check "$1: a new disk works" on c1 "hcablk-scatter $device random $RANDOM 8"
	disconnect c1 vol1
}

hca_pair
export_volume vol1 "$drive" c1

for dev in hca0 hca1; do
	begin
	knob $dev fail_wr 200
	lost "a work request of $dev fails"
	begin
	knob $dev fail_post 200
	lost "posting to $dev fails"
	knob $dev fail_post 0
	anew "$dev"
done

# Fewer losses than the transport has retries: no user may notice.
connect c1 vol1
spawn verify c1 "fio --output-format=terse --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=16k \
	--iodepth=16 --size=24M --verify=crc32c --verify_fatal=1"
must wait_until c1 30 "awk '{ exit !(\$1 + \$5 > 100) }' /sys/block/$disk/stat"
knob hca1 lose 4
must wait_until c1 20 "[ \$(cat /sys/kernel/debug/hcablk_hca/hca1/lose) = 0 ]"
check "fio verifies the data although packets are lost" join verify
less "lost packets were sent again" 0 $(($(counted hca0 resent) + $(counted hca1 resent)))
disconnect c1 vol1

begin
knob hca1 port 0
lost "the port stays down"
knob hca1 port 1
must wait_until c1 60 "rdma link show hca1/1 | grep 'state ACTIVE'"
anew "the port is up"

begin
knob hca1 stall 1
ends_within load 60000 "the target's device hangs"
knob hca1 stall 0
must wait_until c1 60 'hcablk disconnect --if-exists vol1'
must wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
anew "the target's device works again"

for dev in hca0 hca1; do
	begin
	must on c1 "rdma link delete $dev"
	lost "$dev is removed"
	must on c1 "rdma link add $dev type hca netdev hcaport${dev#hca}"
	must wait_until c1 60 "rdma link show $dev/1 | grep 'state ACTIVE'"
	[ $dev = hca0 ] || must on target 'hcablk target unlisten --all'
	must on target 'hcablk target unexport vol1'
	export_volume vol1 "$drive" c1
	anew "$dev is added again"
done

for dev in hca0 hca1; do
	begin
	knob $dev fatal 1
	lost "$dev fails for good"
	must on target 'hcablk target unexport vol1; hcablk target unlisten --all'
	hca_pair
	export_volume vol1 "$drive" c1
	anew "$dev is reset"
done

# The failed device refuses all work requests. It drains by itself: with a completion for the caller, without one, or with a
# completion whose event comes after the poller's last look.
for hca_parameters in own_drain=1 own_drain=2 own_drain=3; do
	for dev in hca0 hca1; do
		on target 'hcablk target unexport vol1; hcablk target unlisten --all' >&2
		hca_pair
		export_volume vol1 "$drive" c1
		begin
		knob $dev fatal 1
		lost "$dev fails and refuses work requests ($hca_parameters)"
	done
done
