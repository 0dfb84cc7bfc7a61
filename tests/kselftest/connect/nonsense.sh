#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: another version and nonsense, of a client or of a target, get their answer and harm nothing; the log has the reason.
# turn: 22
# takes: 60
# skips: siw
# timeout: 480

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/peer.sh"

[ "$rdma" = rxe ] || skip "the nonsense peer's library speaks soft-RoCE only"

good=$(request 2 2 16 $admin 1 4711 1) other=$(request 2 2 16 $admin 1 4720 1)
# A number for each session, as the target remembers the epochs of those that are gone.
sessions=$(mktemp)
trap 'code=$?; rm -f "$sessions"; (exit $code); _finish' EXIT
new_session() {
	echo >> "$sessions"
	echo $((5000 + $(wc -l < "$sessions")))
}

# reject REASON: a target's refusal by this implementation
reject() {
	echo "$magic$(le 2 "$1")0203"
}
peer() {
	on c1 "hcablk-peer connect $target_address 7744 $*" 2>&1
}
# As that, by a queue pair of a session whose admin queue pair is connected before.
session() {
	on c1 "hcablk-peer session $target_address 7744 $*" 2>&1
}

export_volume vol1 "$drive" c1

like "a good request is granted (so that the bad ones are bad for their fault)" "^established $magic" "$(peer "$good" close)"
same "another version is told so" "$(reject 2)" "$(peer "$(request 3 4 16 $admin 1 4712 1)" | sed 's/^rejected \(.\{16\}\).*/\1/')"
malformed() {
	same "$1 is malformed" "$(reject 1)" "$(peer "$2" | sed 's/^rejected \(.\{16\}\).*/\1/')"
}
malformed "nothing" .
malformed "a short request" "${good:0:80}"
malformed "another magic" "49${good:2}"
malformed "a version range upside down" "$(request 2 1 16 $admin 1 4713 1)"
malformed "depth 0" "$(request 2 2 0 $admin 1 4713 1)"
malformed "depth 1025" "$(request 2 2 1025 $admin 1 4713 1)"
malformed "no queues" "$(request 2 2 16 $admin 0 4713 1)"
malformed "more queues than there may be" "$(request 2 2 16 $admin 128 4713 1)"
malformed "a queue beyond the last" "$(request 2 2 16 3 2 4713 1)"
malformed "session 0" "$(request 2 2 16 $admin 1 0 1)"
malformed "epoch 0" "$(request 2 2 16 $admin 1 4713 0)"
malformed "a wish for small requests, in so many words" "${good:0:20}0001${good:24}"
malformed "a wish for requests above 4 MiB" "${good:0:20}0104${good:24}"
like "one for requests of 4 MiB comes true" "^established $magic.{32}00004000" "$(peer "${other:0:20}0004${other:24}" close)"
malformed "an empty volume name" "${good:0:80}00000000000000000000000000000000"
malformed "a volume name with a byte after its end" "${good:0:80}766f6c31000000000000000000000061"
# question LIST INDEX: for an entry of a list of what c1 may use
question() {
	echo "${magic}02020100ff010000$(le 8 0)$(le 4 0)${id//-/}$(printf %s "$1" | od -An -tx1 | tr -d ' \n')$(le 4 "$2")$(le 4 0)"
}
told="$magic$(le 2 14)0203$(le 4 1)"
like "a question is answered" "^rejected $told.{8}$vol1" "$(peer "$(question .volumes 0)")"
like "one for more than there is, too" "^rejected $told.{8}0{96}" "$(peer "$(question .volumes 4294967295)")"
like "as is one for where the target listens" "^rejected $told.{8}0{20}ffff0a4d0001" "$(peer "$(question .portals 0)")"
good_question=$(question .volumes 0)
malformed "a question for another list" "$(question .secrets 0)"
malformed "a question with a session" "${good_question:0:24}01${good_question:26}"
malformed "a question with a length" "${good_question:0:20}0101${good_question:24}"
malformed "a question of nobody" "${good_question:0:48}$(le 8 0)$(le 8 0)${good_question:80}"
malformed "a question with a byte behind it" "${good_question:0:110}01"
malformed "half a question" "${good_question:0:64}"
check "no session is left" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
same "the epoch of a session that is gone is not granted again" "$(reject 6)" "$(peer "$good" | sed 's/^rejected \(.\{16\}\).*/\1/')"
like "a later one is" "^established $magic" "$(peer "$(request 2 2 16 $admin 1 4711 2)" close)"
same "a first queue without its session is refused" "$(reject 7)" \
	"$(peer "$(request 2 2 16 0 2 4714 1)" | sed 's/^rejected \(.\{16\}\).*/\1/')"
same "so is one in place of it" "$(reject 7)" \
	"$(peer "$(request 2 2 16 128 2 4714 1)" | sed 's/^rejected \(.\{16\}\).*/\1/')"

# status: the status in the answer to a message, or what happened instead
status() {
	session "$(request 2 2 16 0 1 "$(new_session)" 1)" "$1" close | tail -n 1 | sed -E 's/^answer 80.{2}.{4}07000900(.{4}).*/\1/'
}
size=$(on target "cat $target/volumes/vol1/size")
same "a flush is done" "$(le 2 0)" "$(status "$(message 3 0 0 0 0 | sed "s/$(le 4 4660)$(le 8 4096)/$(le 4 0)$(le 8 0)/")")"
same "an unknown operation is unsupported" "$(le 2 2)" "$(status "$(message 77 0 0 4096 1)")"
same "an unknown flag is invalid" "$(le 2 1)" "$(status "$(message 1 64 0 4096 1)")"
same "a read of nothing is invalid" "$(le 2 1)" "$(status "$(message 1 0 0 0 1)")"
same "a read behind the end is out of range" "$(le 2 3)" "$(status "$(message 1 0 "$size" 4096 1)")"
same "a read across the end is out of range" "$(le 2 3)" "$(status "$(message 1 0 $((size - 512)) 4096 1)")"
same "a read off block boundaries is out of range" "$(le 2 3)" "$(status "$(message 1 0 1 4096 1)")"
like "a read that is too long is refused" "^0[13]00$" "$(status "$(message 1 0 0 $((64 << 20)) 1)")"
same "an offset that wraps is invalid" "$(le 2 1)" "$(status "$(message 1 0 -4096 8192 1)")"
same "a short message is invalid" "$(le 2 1)" "$(status "$(message 1 0 0 4096 1 | cut -c1-40)")"
same "too short a message to answer ends the connection" disconnected "$(status 0100)"
same "bytes behind a request that has none are invalid" "$(le 2 1)" "$(status "$(message 1 0 0 4096 1)$(printf '01%.0s' {1..100})")"
same "fewer bytes behind a write than it says are invalid" "$(le 2 1)" \
	"$(status "$(message 2 0 0 512 3 | sed "s/$(le 4 4660)$(le 8 4096)/$(le 4 0)$(le 8 0)/")$(printf '01%.0s' {1..511})")"
same "as many are a write" "$(le 2 0)" \
	"$(status "$(message 2 0 0 512 3 | sed "s/$(le 4 4660)$(le 8 4096)/$(le 4 0)$(le 8 0)/")$(printf '01%.0s' {1..512})")"
same "a message longer than the buffer ends the connection" disconnected "$(status "$(printf '01%.0s' {1..4137})")"
# Memory that the client has not given: the transfer fails, and with it this connection.
like "a write from memory that is not there ends the connection" 'disconnected|0500' "$(status "$(message 2 0 0 4096 1)")"

# reason SESSION MESSAGE|close...: what the target's log says of why that session ended, all of it.
reason() {
	local session=$1
	session "$(request 2 2 16 0 1 "$session" 1)" "${@:2}" > /tmp/peer.$$
	rm /tmp/peer.$$
	must wait_until target 30 "dmesg | grep -q 'session $(printf %016x "$session") of .* ended: '" >&2
	on target "dmesg | sed -n 's/^.* vol1: session $(printf %016x "$session") of $id ended: //p'"
}
same "why a session ended is told: a message that cannot be answered" \
	"queue 0: a message of 2 bytes that cannot be answered" "$(reason 40001 0100 wait)"
like "a message that is too long" "^queue 0: receiving failed: .+\$" "$(reason 40002 "$(printf '01%.0s' {1..4137})" wait)"
like "data that cannot be fetched: which, and by what key" \
	"^queue 0: an RDMA READ failed: .+ \(tag 7, generation 9, key 0x1234\)\$" "$(reason 40003 "$(message 2 0 0 4096 1)" wait)"
place=$(message 2 0 0 4194304 4 | sed "s/$(le 4 4660)$(le 8 4096)/$(le 4 0)$(le 8 0)/")
same "an eager write that finds no place" \
	"queue 0: an eager write of 4194304 bytes that has no ring slot (tag 7, generation 9)" "$(reason 40004 "$place" wait)"
same "for the admin queue pair, and elsewhere" \
	"queue 0: a message of 40 bytes that cannot be answered" "$(reason 40005 "$(admin_message 33 5 0)" wait)"
# admin_reason SESSION MESSAGE…: as reason, of what comes by the admin queue pair.
admin_reason() {
	on c1 "hcablk-peer connect $target_address 7744 $(request 2 2 16 $admin 1 "$1" 1) ${*:2} wait" > /dev/null 2>&1
	must wait_until target 30 "dmesg | grep -q 'session $(printf %016x "$1") of .* ended: '" >&2
	on target "dmesg | sed -n 's/^.* vol1: session $(printf %016x "$1") of $id ended: //p'"
}
# First, since the log has no more than ten of these lines in five seconds.
like "on the admin queue pair: nothing at all" "^admin queue pair: nothing was received for 1[0-9] s\$" "$(admin_reason 40101)"
same "what is for the others" \
	"admin queue pair: a message of 40 bytes that is not an admin request" "$(admin_reason 40006 "$(message 3 0 0 0 0)")"
same "a keep-alive that promises none for too long" \
	"admin queue pair: a message of 40 bytes that is not an admin request" "$(admin_reason 40007 "$(admin_message 33 601 0)")"
same "a short message" "admin queue pair: a message of 2 bytes that is not an admin request" "$(admin_reason 40008 2100)"
like "one that is too long" "^admin queue pair: receiving failed: .+\$" "$(admin_reason 40009 "$(printf '21%.0s' {1..65})")"
# A keep-alive that promises another within a second.
like "less than was promised" "^admin queue pair: nothing was received for [34] s\$" "$(admin_reason 40102 "$(admin_message 33 1 0)")"
admin_answer() {
	peer "$(request 2 2 16 $admin 1 "$(new_session)" 1)" "$1" close | sed -n 's/^answer //p'
}
answer="820000000700090000000000000000000000000000000000"
same "a keep-alive is answered" "$answer" "$(admin_answer "$(admin_message 33 5 0)")"
same "so is a fence, when there is nothing of what it names" "$answer" "$(admin_answer "$(admin_message 34 $((2 << 32 | 1)) 0)")"
# The sessions' ids are of path 1.
same "that of its own path makes no sense" "${answer:0:16}0100${answer:20}" "$(admin_answer "$(admin_message 34 $((1 << 32 | 1)) 0)")"
same "a watch is, when the volume is not as it says" "${answer:0:32}$(le 8 $((size / 512)))" "$(admin_answer "$(admin_message 35 1 0)")"
like "a session without it is none" disconnected \
	"$(session "$(request 2 2 16 0 1 "$(new_session)" 1)" lose)"
# Of ends that are usual there were many before, of which the log does not have each: until one is told.
usual() {
	local session
	for session in {40010..40100}; do
		session "$(request 2 2 16 0 1 "$session" 1)" close > /dev/null
		becomes_true target 1 "dmesg | grep -q 'session $(printf %016x "$session") of .* ended: '" 2> /dev/null || continue
		on target "dmesg | sed -n 's/^.* vol1: session $(printf %016x "$session") of $id ended: //p'"
		return
	done
}
same "the initiator's own end" "queue 0: the initiator disconnected" "$(usual)"

check "a client that vanishes is cleaned up after" on c1 "hcablk-peer connect $target_address 7744 $(request 2 2 16 $admin 1 4721 1) drop"
check "nor is its session" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
check "no queue pair is left" wait_until target 30 "[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = 0 ]"
# A disk's first request that comes late, when its session has begun by another path: what is remembered of that stays.
disk=$((0xabc))
by_path() {
	peer "$(request 2 2 16 $admin 1 $(($1 << 12 | disk)) "$2")" close | sed 's/^\(rejected .\{16\}\).*/\1/; s/^established .*/established/; /^disconnected/d'
}
same "a disk begins by path 1, with epoch 9" established "$(by_path 1 9)"
check "its session ends" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
same "it does not begin by path 2 with an older one" "rejected $(reject 6)" "$(by_path 2 8)"
same "it does with a newer one" established "$(by_path 2 10)"
connect c1 vol1
check "an honest client is served after all that" on c1 "hcablk-scatter $device random 81 16"
disconnect c1 vol1

# The other way round: what the initiator does with strange targets. c2 plays them.
# strange "DESCRIPTION" ERROR-TEXT WORDS accept|reject REPLY
strange() {
	local output
	spawn peer c2 "exec hcablk-peer listen 7799 $4 $5 > /tmp/peer"
	must wait_until c2 60 'grep -q listening /tmp/peer'
	output=$(try_connect c1 dev address=10.77.0.3 port=7799 volume=vol1 host_id="$id" connect_timeout=5)
	like "$1: the error is '$2'" "$2" "$output"
	like "$1: the reason is told" "$3" "$(on c1 "cat $initiator/dev/error")"
	same "$1: no queue pair is left" 0 "$(queue_pairs c1)"
	must on c1 "rmdir $initiator/dev"
	on c2 'killall hcablk-peer; rm /tmp/peer'
	join peer || true
}
strange "a target of another version" "Protocol not supported" "version" reject "${magic}02000304$(le 8 0)"
strange "something that is no hcablk target refuses" "Protocol|refused" "not an hcablk target|no target listens" reject .
strange "something that is no hcablk target accepts" "Protocol" "not an hcablk target" accept .
strange "a target that says nonsense" "Protocol" "not an hcablk target" accept "$(printf 'a5%.0s' {1..64})"
# Credits, capacity, block sizes, flags, largest transfer, session, epoch: a reply for a session that is not asked for.
strange "a target that answers for another session" "Protocol" "not an hcablk target" accept \
	"${magic}02000800$(le 8 1048576)09090000$(le 4 1048576)$(le 8 1)$(le 4 1)$(printf '00%.0s' {1..28})"
