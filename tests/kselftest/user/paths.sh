#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a volume that a program has opened with several paths survives the loss of each, in turn: requests continue over another path and device, with the right data, and a write that the target got over a lost path never overtakes a later one.
# turn: 10
# takes: 85
# guests: target c1
# waits: yes
# skips: siw
# timeout: 1200

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
must on c1 'modprobe rdma_ucm'
two_cards 1 target c1
target_address=10.77.1.1
user="hcablk-user --path=10.77.2.1 --keep-alive-tmo=$((2 * slow)) --connect-timeout=$((30 * slow))"

# says TEXT: waits until the program that holds the volume has printed the text
says() {
	wait_until c1 100 "grep -q '$1' /tmp/held"
}
# now PATH NUMBER TEXT: checks that session NUMBER uses the path
now() {
	check "$3" says "^reconnects $2 over 10.77.$1.1:7744"
}
export_volume vol1 "$drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 c1
like "a path that is not an address is refused" "path is ADDRESS" "$(on c1 "hcablk-user --path=nowhere $target_address vol1 info" 2>&1)"
ON_SECONDS=900 spawn load c1 "n=0; until [ -e /tmp/stop ]; do n=\$((n + 1)); $user --queues=2 --event $target_address vol1 verify \$n || exit 1; done"
ON_SECONDS=900 spawn held c1 "$user $target_address vol1 hold > /tmp/held 2>&1 & echo \$! > /tmp/pid; wait \$!"
must says '^open'
number=0
for n in 1 2 1; do
	other=$((3 - n)) number=$((number + 1))
	cut path$n
	now $other $number "path $n is cut: session $number is on path $other"
	mend path$n
done
must on target 'hcablk target unexport --force vol1'
must wait_until c1 60 'tail -n 1 /tmp/held | grep -q "^lost: "'
export_volume vol1 "$drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 c1
number=$((number + 1))
check "the export has ended and is back: the program has a new session" says "^reconnects $number "
must on c1 'touch /tmp/stop'
check "programs that wrote while paths were cut read their data back" join load
refuse "no request has failed" on c1 'grep -Eq "^(ended|failed)" /tmp/held'
must on c1 'kill $(cat /tmp/pid)'
join held
must wait_until target 60 "$no_queue_pairs"

# One path is dead from the beginning.
cut path1
check "a volume is opened over its second path while the first is cut" on c1 "$user $target_address vol1 info"
mend path1
check "a path without a target is no obstacle" on c1 "hcablk-user --path=10.77.2.1:7 $target_address vol1 info"
check "a volume is opened over its second path while no target listens at the first" on c1 "hcablk-user --port=7 --path=10.77.2.1:7744 $target_address vol1 info"
like "without any target, the reason is the first path's" "no target listens" "$(on c1 "hcablk-user --port=7 --path=10.77.2.1:8 $target_address vol1 info" 2>&1)"

# The device of the path is removed.
must on c1 'rm /tmp/held'
ON_SECONDS=600 spawn held c1 "$user $target_address vol1 hold > /tmp/held 2>&1 & echo \$! > /tmp/pid; wait \$!"
must says '^open'
must on c1 "rdma link delete ${rdma}1"
now 2 1 "the RDMA device of path 1 is removed: the session is on path 2"
must on c1 "rdma link add ${rdma}1 type $rdma netdev path1"
must on c1 'kill $(cat /tmp/pid)'
join held
must wait_until target 60 "$no_queue_pairs"
must on target 'hcablk target unexport vol1'

# A drive whose second half is the first half under other addresses, and late. A write to it is with the drive when the path is
# cut; the program then writes the same place over the other path.
must on target "modprobe dm_mod && printf '0 65536 linear $drive 0\n65536 65536 delay $drive 0 0 $drive 0 $((6000 * slow))\n' | dmsetup create slow && dmsetup mknodes"
export_volume vol1 /dev/mapper/slow --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a46 c1
ON_SECONDS=300 spawn late c1 "$user --queues=2 --io-timeout=600 $target_address vol1 late $((32 << 20)) > /tmp/late 2>&1"
must wait_until target 60 "dmsetup status slow | grep -q ' delay [0-9]* [1-9]'"
cut path1
check "a late write ends well although its path is cut" join late
same "the late write and those after it succeed" "late write: kept next write: kept reads: kept" \
	"$(on c1 "grep -E '^(late write|next write|reads)' /tmp/late | xargs")"
like "the late write's session was lost" '^lost' "$(on c1 'cat /tmp/late')"
mend path1
must wait_until target 60 "$no_queue_pairs"
must on target 'dmsetup suspend slow && dmsetup resume slow'
same "the write after the late one is the one that the drive has" 0 "$(on target "dd if=$drive bs=512 count=1 iflag=direct status=none | tr -d '\273' | wc -c")"
must on target 'hcablk target unexport vol1 && dmsetup remove slow'
