#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: each refused connection gets an error of its own and one message in the log, and leaves nothing behind.
# tier: heart
# turn: 1
# takes: 70
# timeout: 480

. "${0%/*}/../lib/lib.sh"

id=$(host_id c1)

# refused "DESCRIPTION" ERROR-TEXT WORDS-OF-THE-MESSAGE SETTING=VALUE…: checks that c1 is refused with these errors
refused() {
	local what=$1 error=$2 words=$3 before output
	shift 3
	before=$(on c1 'dmesg | wc -l')
	output=$(try_connect c1 dev host_id="$id" connect_timeout=5 "$@")
	like "$what: the error is '$error'" "$error" "$output"
	output=$(on c1 "cat $initiator/dev/error")
	like "$what: the disk's error has the reason" "$words" "$output"
	same "$what: the kernel logs one line" 1 \
		"$(on c1 "dmesg | tail -n +$((before + 1)) | grep hcablk | grep -v -e hcablk-test -e taint | wc -l")"
	silent "$what: no disk exists" on c1 "cat $initiator/dev/device"
	same "$what: no queue pair is left" 0 "$(queue_pairs c1)"
	must on c1 "rmdir $initiator/dev"
}
# explained "DESCRIPTION" WORDS ARGUMENT…: checks the message of hcablk connect, for people.
explained() {
	local what=$1 words=$2
	shift 2
	like "$what: the command reports the reason" "$words" "$(on c1 "hcablk connect $*" 2>&1)"
}

refused "nothing listens" "refused" "listens" address=$target_address volume=vol1
explained "nothing listens" "listens" $target_address vol1
refused "no host has the address" "unreachable|No route|timed out" "looking for an RDMA device that reaches the address" address=10.77.0.99 volume=vol1
refused "no network reaches the address" "unreachable|No route|Cannot assign" "looking for an RDMA device that reaches the address" address=192.0.2.1 volume=vol1

export_volume vol1 "$drive" c2
refused "the volume is unknown" "No such" "no volume" address=$target_address volume=nothere
explained "the volume is unknown" "nothere" $target_address nothere
refused "the host is not allowed" "denied" "not allow" address=$target_address volume=vol1
explained "the host is not allowed" "allow" $target_address vol1

must on target "hcablk target allow vol1 $id"
refused "the target supports none of the offered versions" "Protocol not supported" "versions 2 to 3" \
	address=$target_address volume=vol1 protocol=4-9
for range in 1-9 3-9 2-2; do
	silent "a version range that includes one of the target's is accepted: $range" \
		try_connect c1 vol1 host_id="$id" address=$target_address volume=vol1 protocol=$range
	must on c1 "echo 0 > $initiator/vol1/enable && rmdir $initiator/vol1"
done
connect c1 vol1
pass "an allowed host connects"
disconnect c1 vol1
must on target "hcablk target forbid vol1 $id"
refused "the host is no longer allowed" "denied" "does not allow" address=$target_address volume=vol1

must on target "echo 0 > $target/volumes/vol1/enable"
refused "the volume is disabled" "No such" "exports no volume" address=$target_address volume=vol1

# most MILLISECONDS: prints the most lines of a kind in that time: ten in five seconds, and one with the number of those left out.
most() {
	echo $((10 * ($1 / 5000 + 2) + 1))
}
# often LIMIT COMMAND…: repeats the command, which does $often things each time, until an unlimited log would have 1.5 times the
# lines that most() allows, and at most LIMIT times: on a machine too slow for that the log has few lines in any case. Sets $did and
# $took.
often() {
	local limit=$1 start round
	start=$(now_ms) did=0
	shift
	for ((round = 0; round < limit; round++)); do
		must "$@"
		did=$((did + often))
		took=$(($(now_ms) - start))
		[ $((2 * did)) -le $((3 * $(most "$took"))) ] || break
	done
}

# A host that is refused again and again must not fill the target's log.
must on c1 "mkdir $initiator/again && cd $initiator/again && echo $target_address > address && echo nothere > volume && echo $id > host_id"
# refusals: prints how many sessions without a volume were refused, and how many with one.
refusals() {
	in_log target 'refused [0-9a-f-]+: ' | wc -l
	in_log target 'refused [0-9a-f-]+ for volume ' | wc -l
}
mapfile -t before < <(refusals)
often=$(few 80)
ON_SECONDS=400 often 4 on c1 "for n in \$(seq $often); do ! env echo 1 > $initiator/again/enable || exit; done 2> /dev/null"
must on c1 "rmdir $initiator/again"
mapfile -t after < <(refusals)
for kind in 0 1; do
	lines=$((after[kind] - before[kind]))
	echo "# $did refusals in $took ms made $lines lines" >&2
	less "refusals do not fill the target's log (line $((kind + 1)) of 2)" "$lines" "$(most "$took")"
done

# An allowed host that connects and disconnects again and again must not fill the log either. Each kind of line has its own limit.
must on target "echo 1 > $target/volumes/vol1/enable && hcablk target allow vol1 $id"
# At this port sessions get requests of 1 MiB, although they ask for more.
must on target "hcablk target listen --id 2 --port 7745 --buffer-mib 1"
# Several disks at a time, since connecting is slow.
devices="1 2 3 4"
must on c1 "for n in $devices; do mkdir $initiator/again\$n && cd $initiator/again\$n && echo $target_address > address &&
	echo vol1 > volume && echo $id > host_id && echo 1 > queues && echo 7745 > port && echo 4096 > max_io_kib || exit; done"
# news: prints the number of lines of each kind.
news() {
	local kind
	for kind in ' begun, ' ' ended: ' ': nothing is left of session ' ': requests are limited to [0-9]+ KiB instead of '; do
		in_log target "$kind" | wc -l
	done
}
mapfile -t before < <(news)
often=$((4 * $(few 20)))
ON_SECONDS=400 often 4 on c1 "for n in $devices; do (
		cd $initiator/again\$n && for m in \$(seq $(few 20)); do env echo 1 > enable && env echo 0 > enable || exit; done
		touch /tmp/again\$n
	) & done; wait; for n in $devices; do rm /tmp/again\$n || exit; done"
must on c1 "for n in $devices; do rmdir $initiator/again\$n || exit; done"
mapfile -t after < <(news)
for kind in 0 1 2 3; do
	lines=$((after[kind] - before[kind]))
	echo "# $did sessions in $took ms made $lines lines" >&2
	less "sessions that begin and end do not fill the target's log (line $((kind + 1)) of 4)" "$lines" "$(most "$took")"
	less "the log has some lines of sessions that begin and end" 0 "$lines"
done

same "no queue pair is left on c1" 0 "$(queue_pairs c1)"
# The target notices the disconnects later.
check "no queue pair is left on the target" wait_until target 60 "$no_queue_pairs"
