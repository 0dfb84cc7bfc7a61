#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when any one allocation of connecting, exporting or ending fails, the caller gets a clean error, and nothing is left behind.
# turn: 15
# takes: 5
# skips: stock
# timeout: 1800
# expect-log: Call Trace:
# (The call trace belongs to a warning of vmalloc about each failed allocation. Reports that count have a headline.)

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/fault.sh"

export_volume vol1 "$drive" c1
must on c1 'modprobe hcablk'
dev=$initiator/nth
settings="mkdir -p $dev && echo $target_address > $dev/address && echo vol1 > $dev/volume && echo $(host_id c1) > $dev/host_id &&
	echo 2 > $dev/queue_depth && echo 1 > $dev/queues"

check "connecting survives the failure of every allocation" rounds c1 "$settings" $dev/enable 1 "
	if [ \$result = failed ]; then
		[ \$(cat $dev/state) = new ] && [ -n \"\$(cat $dev/error)\" ] && [ -z \"\$(cat $dev/device)\" ]
	else
		dd if=/dev/\$(cat $dev/device) of=/dev/null bs=4k count=2 iflag=direct 2> /dev/null && echo 0 > $dev/enable
	fi && rmdir $dev && $soon_no_pairs"
check "the target has no session left" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ] && $no_pairs"

check "disconnecting survives the failure of every allocation" rounds c1 "[ -d $dev ] && [ \$(cat $dev/enable) = 1 ] || { $settings && echo 1 > $dev/enable; }" \
	$dev/enable 0 "
	if [ \$result = failed ]; then
		[ \$(cat $dev/state) = live ] && dd if=/dev/\$(cat $dev/device) of=/dev/null bs=4k count=1 iflag=direct 2> /dev/null
	else
		[ \$(cat $dev/state) = new ] && $soon_no_pairs
	fi"
must on c1 "echo 0 > $dev/enable; rmdir $dev"

volume=$target/volumes/nth
check "exporting survives the failure of every allocation" rounds target "mkdir -p $volume && echo $drive2 > $volume/path" $volume/enable 1 "
	if [ \$result = failed ]; then [ \$(cat $volume/enable) = 0 ]; else echo 0 > $volume/enable; fi && rmdir $volume"
check "unexporting survives the failure of every allocation" rounds target "mkdir -p $volume && { [ \$(cat $volume/enable) = 1 ] ||
	{ echo $drive2 > $volume/path && echo 1 > $volume/enable; }; }" $volume/enable 0 "true"
must on target "echo 0 > $volume/enable; rmdir $volume"
port=$target/ports/nth
check "listening survives the failure of every allocation" rounds target "mkdir -p $port && echo 7790 > $port/port" $port/enable 1 "
	if [ \$result = failed ]; then [ \$(cat $port/enable) = 0 ]; else echo 0 > $port/enable; fi && rmdir $port"

# made DIRECTORY: repeats mkdir while its first, second, … allocation fails, until the number is far beyond its last allocation;
# the first ones are of the program's start. After each failure nothing may be left, so that the next mkdir succeeds.
made() {
	ON_SECONDS=600 on target '
		n=0; passed=0; failed=0
		while [ $passed -lt 30 ]; do
			n=$((n + 1))
			if sh -c "echo $n > /proc/self/fail-nth; exec mkdir '"$1"'" 2> /dev/null; then
				passed=$((passed + 1))
			else
				passed=0; failed=$((failed + 1))
				mkdir '"$1"' || { echo "round $n: something is left"; exit 1; }
			fi
			rmdir '"$1"' || exit 1
		done
		echo "$n allocations, $failed failed"
		[ $failed -gt 0 ]'
}
check "allowing a host survives the failure of every allocation" made $target/volumes/vol1/hosts/00000000-0000-4000-8000-0000000000cc
check "making a volume survives the failure of every allocation" made $target/volumes/nth
check "making a port survives the failure of every allocation" made $target/ports/nth

# The target allocates memory for a client in kernel threads: one random allocation with our module in its call chain fails
# in each round.
only_of target hcablk_target
ON_SECONDS=600
injected=$(on target 'cat /sys/kernel/debug/failslab/times')
for ((round = 1; round <= 25; round++)); do
	must on target "cd /sys/kernel/debug/failslab && echo 1 > times && echo $((round % 5 * 15 + 3)) > probability"
	must on c1 "if hcablk connect $target_address vol1 --queues 1 --queue-depth 4 > /tmp/disk 2>> /tmp/output; then
		dd if=\$(cat /tmp/disk) of=/dev/null bs=64k count=8 iflag=direct 2> /dev/null; fi
		hcablk disconnect --if-exists vol1"
	must on target 'echo 0 > /sys/kernel/debug/failslab/probability'
	[ "$(on target 'cat /sys/kernel/debug/failslab/times')" != 0 ] || injected=hit
done
same "allocations of the target failed" hit "$injected"
check "the target has no session left after its failed allocations" wait_until target 60 \
	"[ -z \"\$(cat $target/volumes/vol1/clients)\" ] && $no_pairs"
must on target 'cd /sys/kernel/debug/failslab && echo 0 > require-start && echo 0xffffffffffffffff > require-end'

connect c1 vol1
check "the disk works after the failed allocations" on c1 "hcablk-scatter $device random 90 4"

# Under load, allocations fail at random everywhere: a request may fail or be tried again, but data that was read is right.
for guest in c1 target; do
	must on $guest 'cd /sys/kernel/debug/failslab && echo Y > ignore-gfp-wait && echo -1 > times && echo 2 > probability'
done
output=$(ON_SECONDS=200 on c1 "hcablk-scatter $device random 91 4 2>&1")
echo "# $output" >&2
refuse "no data that was read is wrong" grep -E 'is wrong|holds neither' <<< "$output"
for guest in c1 target; do
	must on $guest 'echo 0 > /sys/kernel/debug/failslab/probability; echo N > /sys/kernel/debug/failslab/ignore-gfp-wait'
done
must on c1 "hcablk disconnect --if-exists vol1"
mend_management c1
mend_management target
connect c1 vol1
check "the disk works after random failures" on c1 "hcablk-scatter $device random 92 4"
