#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when any one allocation of a proof, or of a question for volumes, fails on either side, the caller gets a clean error, the next try succeeds, and nothing is left behind.
# turn: 12
# takes: 5
# skips: stock
# timeout: 3600
# expect-log: Call Trace:
# (As in faults/allocations.)

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/fault.sh"

must on target "modprobe -a ext4 loop; mkfs.ext4 -q -F $drive2 64M && mkdir -p /mnt/files && mount $drive2 /mnt/files &&
	truncate -s 1M /mnt/files/open"
use_keys c1
secret=$(key_digits c1 host) target_secret=$(key_digits target target)
export_volume vol1 "$drive" c1
# An open volume is visible to a host id that no host proves.
other=11111111-0000-4000-8000-000000000001
must on target "hcablk target export open /mnt/files/open --insecure --allow $other"
must on c1 'modprobe hcablk'

asker=/sys/kernel/config/hcablk_discovery/asker
# asks HOST [COMMAND]: makes a new directory in which to ask, with the host's id
asks() {
	must on c1 "[ ! -d $asker ] || rmdir $asker; mkdir $asker && cd $asker && echo $target_address > address && echo 60 > connect_timeout &&
		echo $1 > host_id && ${2:-true}"
}
by_keys="echo $secret > host_key && echo $target_secret > target_key"
asked="
	if [ \$result = failed ]; then [ -n \"\$(cat $asker/error)\" ] && [ -z \"\$(cat $asker/answer)\" ]
	else grep -q '^count 1' $asker/answer && [ -z \"\$(cat $asker/error)\" ]; fi && $soon_no_pairs &&
	env echo volumes 0 > $asker/ask && grep -q '^size_bytes' $asker/answer"

asks $other
check "asking without a proof survives the failure of every allocation of the client" rounds c1 true $asker/ask "volumes 0" "$asked"
asks "$(host_id c1)" "$by_keys"
check "asking with a proof survives the failure of every allocation of the client" rounds c1 true $asker/ask "volumes 0" "$asked"
check "asking for portals survives the failure of every allocation of the client" rounds c1 true $asker/ask "portals 0" "$asked"
check "setting a key survives the failure of every allocation" rounds c1 true $asker/host_key "$secret" \
	"env echo volumes 0 > $asker/ask && grep -q '^size_bytes' $asker/answer"

dev=$initiator/nth
settings="mkdir -p $dev && echo $target_address > $dev/address && echo vol1 > $dev/volume && echo $(host_id c1) > $dev/host_id &&
	echo $secret > $dev/host_key && echo $target_secret > $dev/target_key && echo 60 > $dev/connect_timeout && echo 0 > $dev/ctrl_loss_tmo &&
	echo 2 > $dev/queue_depth && echo 1 > $dev/queues"
check "connecting with a proof survives the failure of every allocation of the client" rounds c1 "$settings" $dev/enable 1 "
	if [ \$result = failed ]; then
		[ \$(cat $dev/state) = new ] && [ -n \"\$(cat $dev/error)\" ] && [ -z \"\$(cat $dev/device)\" ]
	else
		dd if=/dev/\$(cat $dev/device) of=/dev/null bs=4k count=2 iflag=direct 2> /dev/null && echo 0 > $dev/enable
	fi && rmdir $dev && $soon_no_pairs"
check "the target has no session left" wait_until target 60 "[ -z \"\$(cat $target/volumes/*/clients)\" ] && $no_pairs"

# From here on the target's allocations fail, in any thread.
only_of target hcablk_target
ask="env echo volumes 0 > $asker/ask 2> /dev/null || { echo error: \$(cat $asker/error) && false; }"
# clean "DESCRIPTION" "COMMAND" [STEPS]: runs the command with failing allocations, and checks that each failure has a reason.
clean() {
	local log
	log=$(mktemp)
	if in_turn target "$2" ${3:+"$3"} 2> "$log"; then pass "$1"; else fail "$1"; fi
	cat "$log" >&2
	refuse "$1: each failure has a reason" grep -E '^# allocation.* [1-9][0-9]* (error: )?(;|$)' "$log"
	rm "$log"
}
asks $other
clean "a question without a proof survives the failure of every allocation of the target" "$ask"
asks "$(host_id c1)" "$by_keys"
clean "a question with a proof survives the failure of every allocation of the target" "$ask"
must on c1 "rmdir $asker"
clean "a session with a proof survives failing allocations of the target" "$settings && { env echo 1 > $dev/enable 2> /dev/null || { echo error: \$(cat $dev/error) && false; }; } &&
	{ dd if=/dev/\$(cat $dev/device) of=/dev/null bs=4k count=2 iflag=direct 2> /dev/null || { echo error: \$(cat $dev/error) && false; }; }; code=\$?; echo 0 > $dev/enable; rmdir $dev; (exit \$code)" 8
check "the target has no session left after its failed allocations" wait_until target 60 \
	"[ -z \"\$(cat $target/volumes/*/clients)\" ] && $no_pairs"
must on target 'cd /sys/kernel/debug/failslab && echo 1 > interval && echo 0 > require-start && echo 0xffffffffffffffff > require-end'
same "discovery lists the volume after the failed allocations" vol1 "$(on c1 "hcablk discover $target_address --json" | jq -r '.volumes[].name')"
connect c1 vol1
check "the disk works after the failed allocations" on c1 "hcablk-scatter $device random 177 4"
disconnect c1 vol1
must on target 'hcablk target unexport open && umount /mnt/files'
