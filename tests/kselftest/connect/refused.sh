#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: each reason why a connection is refused has its error, one message, and leaves nothing behind.
# tier: heart
# turn: 1
# takes: 70
# timeout: 480

. "${0%/*}/../lib/lib.sh"

id=$(host_id c1)

# refused "DESCRIPTION" ERROR-TEXT WORDS-OF-THE-MESSAGE SETTING=VALUE…
refused() {
	local what=$1 error=$2 words=$3 before output
	shift 3
	before=$(on c1 'dmesg | wc -l')
	output=$(try_connect c1 dev host_id="$id" connect_timeout=5 "$@")
	like "$what: the error is '$error'" "$error" "$output"
	output=$(on c1 "cat $initiator/dev/error")
	like "$what: the reason is told" "$words" "$output"
	same "$what: the kernel says one line" 1 \
		"$(on c1 "dmesg | tail -n +$((before + 1)) | grep hcablk | grep -v -e hcablk-test -e taint | wc -l")"
	silent "$what: there is no disk" on c1 "cat $initiator/dev/device"
	same "$what: no queue pair is left" 0 "$(queue_pairs c1)"
	must on c1 "rmdir $initiator/dev"
}
# The message of the command, for people.
told() {
	local what=$1 words=$2
	shift 2
	like "$what: the command says so" "$words" "$(on c1 "hcablk connect $*" 2>&1)"
}

refused "nothing listens" "refused" "listens" address=$target_address volume=vol1
told "nothing listens" "listens" $target_address vol1
refused "nobody has the address" "unreachable|No route|timed out" "looking for an RDMA device that reaches the address" address=10.77.0.99 volume=vol1
refused "no network leads there" "unreachable|No route|Cannot assign" "looking for an RDMA device that reaches the address" address=192.0.2.1 volume=vol1

export_volume vol1 "$drive" c2
refused "the volume is unknown" "No such" "no volume" address=$target_address volume=nothere
told "the volume is unknown" "nothere" $target_address nothere
refused "the host is not allowed" "denied" "not allow" address=$target_address volume=vol1
told "the host is not allowed" "allow" $target_address vol1

must on target "hcablk target allow vol1 $id"
refused "the target speaks no version of ours" "Protocol not supported" "versions 2 to 3" \
	address=$target_address volume=vol1 protocol=4-9
# What the session's volume is attached to, or what begins with it.
for range in 1-9 3-9 2-2; do
	silent "a range that holds a version of the target's is granted: $range" \
		try_connect c1 vol1 host_id="$id" address=$target_address volume=vol1 protocol=$range
	must on c1 "echo 0 > $initiator/vol1/enable && rmdir $initiator/vol1"
done
connect c1 vol1
pass "once allowed it connects"
disconnect c1 vol1
must on target "hcablk target forbid vol1 $id"
refused "the host is no longer allowed" "denied" "does not allow" address=$target_address volume=vol1

must on target "echo 0 > $target/volumes/vol1/enable"
refused "the volume is disabled" "No such" "exports no volume" address=$target_address volume=vol1

# most MILLISECONDS: so many lines of a kind there may be in that time, ten in five seconds, and one that says how many were left out.
most() {
	echo $((10 * ($1 / 5000 + 2) + 1))
}
# often LIMIT COMMAND…: does it until that was often enough, by $often times each, for too many lines to be seen: half as many again as
# may be there. A machine that is too slow for that, LIMIT times, has too few lines whatever is wrong. Sets $did and $took.
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

# Whoever is refused again and again: the target's log is not his to fill.
must on c1 "mkdir $initiator/again && cd $initiator/again && echo $target_address > address && echo nothere > volume && echo $id > host_id"
before=$(in_log target 'refused ' | wc -l) often=$(few 80)
ON_SECONDS=400 often 4 on c1 "for n in \$(seq $often); do ! env echo 1 > $initiator/again/enable || exit; done 2> /dev/null"
must on c1 "rmdir $initiator/again"
lines=$(($(in_log target 'refused ' | wc -l) - before))
echo "# $did refusals in $took ms made $lines lines" >&2
less "refusals do not fill the target's log" "$lines" "$(most "$took")"

# And whoever is not refused, but comes and goes again and again: a line for each kind of news of a session.
must on target "echo 1 > $target/volumes/vol1/enable && hcablk target allow vol1 $id"
# At this port a session gets requests of 1 MiB, and asks for more.
must on target "hcablk target listen --id 2 --port 7745 --buffer-mib 1"
# Several at a time, since a connection takes a while.
devices="1 2 3 4"
must on c1 "for n in $devices; do mkdir $initiator/again\$n && cd $initiator/again\$n && echo $target_address > address &&
	echo vol1 > volume && echo $id > host_id && echo 1 > queues && echo 7745 > port && echo 4096 > max_io_kib || exit; done"
# news: how many lines there are of each kind.
news() {
	local kind
	for kind in ' begun, ' ' ended: ' ': nothing is left of session ' ': requests of [0-9]+ KiB at most, not of '; do
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
	less "nor do sessions that begin and end (line $((kind + 1)) of 4)" "$lines" "$(most "$took")"
	less "though some are told" 0 "$lines"
done

same "no queue pair is left on c1" 0 "$(queue_pairs c1)"
# The target hears of the end later.
check "none is left on the target" wait_until target 60 "$no_queue_pairs"
