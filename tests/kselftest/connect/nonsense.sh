#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: an unknown protocol version and malformed messages, of a client or of a target, are answered and do no harm; the log has the reason.
# turn: 22
# takes: 60
# skips: siw
# timeout: 480

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/peer.sh"

[ "$rdma" = rxe ] || skip "the nonsense peer's library speaks soft-RoCE only"

good=$(request 2 2 16 $admin 1 4711 1) other=$(request 2 2 16 $admin 1 4720 1)
# Each session has a number of its own, since the target remembers the epochs of ended sessions.
sessions=$(mktemp)
trap 'code=$?; rm -f "$sessions"; (exit $code); _finish' EXIT
new_session() {
	echo >> "$sessions"
	echo $((5000 + $(wc -l < "$sessions")))
}

# reject REASON: prints the target's refusal by this implementation
reject() {
	echo "$magic$(le 2 "$1")0203"
}
peer() {
	on c1 "hcablk-peer connect $target_address 7744 $*" 2>&1
}
# session REQUEST…: as peer, but over an I/O queue pair of a session whose admin queue pair it
# connects first.
session() {
	on c1 "hcablk-peer session $target_address 7744 $*" 2>&1
}

export_volume vol1 "$drive" c1

like "a good request is granted (so each bad one is refused for its fault)" "^established $magic" "$(peer "$good" close)"
same "a request of an unknown version is refused for its version" "$(reject 2)" "$(peer "$(request 3 4 16 $admin 1 4712 1)" | sed 's/^rejected \(.\{16\}\).*/\1/')"
malformed() {
	same "$1 is malformed" "$(reject 1)" "$(peer "$2" | sed 's/^rejected \(.\{16\}\).*/\1/')"
}
malformed "an empty request" .
malformed "a short request" "${good:0:80}"
malformed "another magic" "49${good:2}"
malformed "a version range upside down" "$(request 2 1 16 $admin 1 4713 1)"
malformed "depth 0" "$(request 2 2 0 $admin 1 4713 1)"
malformed "depth 1025" "$(request 2 2 1025 $admin 1 4713 1)"
malformed "no queues" "$(request 2 2 16 $admin 0 4713 1)"
malformed "too many queues" "$(request 2 2 16 $admin 128 4713 1)"
malformed "a queue index above the last queue" "$(request 2 2 16 3 2 4713 1)"
malformed "session 0" "$(request 2 2 16 $admin 1 0 1)"
malformed "epoch 0" "$(request 2 2 16 $admin 1 4713 0)"
malformed "an explicit request for the default request size" "${good:0:20}0001${good:24}"
malformed "a wish for requests above 4 MiB" "${good:0:20}0104${good:24}"
like "a request for 4 MiB per request is granted" "^established $magic.{32}00004000" "$(peer "${other:0:20}0004${other:24}" close)"
malformed "an empty volume name" "${good:0:80}00000000000000000000000000000000"
malformed "a volume name with a byte after its end" "${good:0:80}766f6c31000000000000000000000061"
# question LIST INDEX: prints a question for an entry of a list of what c1 may use
question() {
	echo "${magic}02020100ff010000$(le 8 0)$(le 4 0)${id//-/}$(printf %s "$1" | od -An -tx1 | tr -d ' \n')$(le 4 "$2")$(le 4 0)"
}
reply_head="$magic$(le 2 14)0203$(le 4 1)"
like "a question for the first volume is answered" "^rejected $reply_head.{8}$vol1" "$(peer "$(question .volumes 0)")"
like "a question for an index above the last volume is answered with no entry" "^rejected $reply_head.{8}0{96}" "$(peer "$(question .volumes 4294967295)")"
like "a question for the first portal is answered" "^rejected $reply_head.{8}0{20}ffff0a4d0001" "$(peer "$(question .portals 0)")"
good_question=$(question .volumes 0)
malformed "a question for an unknown list" "$(question .secrets 0)"
malformed "a question with a session" "${good_question:0:24}01${good_question:26}"
malformed "a question with a length" "${good_question:0:20}0101${good_question:24}"
malformed "a question without a host id" "${good_question:0:48}$(le 8 0)$(le 8 0)${good_question:80}"
malformed "a question with a trailing byte" "${good_question:0:110}01"
malformed "half a question" "${good_question:0:64}"
check "no session is left after the malformed requests" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
same "the epoch of an ended session is not granted again" "$(reject 6)" "$(peer "$good" | sed 's/^rejected \(.\{16\}\).*/\1/')"
like "a later epoch is granted" "^established $magic" "$(peer "$(request 2 2 16 $admin 1 4711 2)" close)"
same "a first queue without an admin queue pair is refused" "$(reject 7)" \
	"$(peer "$(request 2 2 16 0 2 4714 1)" | sed 's/^rejected \(.\{16\}\).*/\1/')"
same "a replacement queue without an admin queue pair is refused" "$(reject 7)" \
	"$(peer "$(request 2 2 16 128 2 4714 1)" | sed 's/^rejected \(.\{16\}\).*/\1/')"

# status MESSAGE: prints the status in the answer to the message, or what happened instead
status() {
	session "$(request 2 2 16 0 1 "$(new_session)" 1)" "$1" close | tail -n 1 | sed -E 's/^answer 80.{2}.{4}07000900(.{4}).*/\1/'
}
size=$(on target "cat $target/volumes/vol1/size")
same "a flush succeeds" "$(le 2 0)" "$(status "$(message 3 0 0 0 0 | sed "s/$(le 4 4660)$(le 8 4096)/$(le 4 0)$(le 8 0)/")")"
same "an unknown operation is unsupported" "$(le 2 2)" "$(status "$(message 77 0 0 4096 1)")"
same "an unknown flag is invalid" "$(le 2 1)" "$(status "$(message 1 64 0 4096 1)")"
same "a read of zero bytes is invalid" "$(le 2 1)" "$(status "$(message 1 0 0 0 1)")"
same "a read beyond the end is out of range" "$(le 2 3)" "$(status "$(message 1 0 "$size" 4096 1)")"
same "a read across the end is out of range" "$(le 2 3)" "$(status "$(message 1 0 $((size - 512)) 4096 1)")"
same "a read off block boundaries is out of range" "$(le 2 3)" "$(status "$(message 1 0 1 4096 1)")"
like "a read that is too large is refused" "^0[13]00$" "$(status "$(message 1 0 0 $((64 << 20)) 1)")"
same "an offset that wraps is invalid" "$(le 2 1)" "$(status "$(message 1 0 -4096 8192 1)")"
same "a short message is invalid" "$(le 2 1)" "$(status "$(message 1 0 0 4096 1 | cut -c1-40)")"
same "a message too short for an answer ends the connection" disconnected "$(status 0100)"
same "trailing bytes of a request without data are invalid" "$(le 2 1)" "$(status "$(message 1 0 0 4096 1)$(printf '01%.0s' {1..100})")"
same "an inline write with too few data bytes is invalid" "$(le 2 1)" \
	"$(status "$(message 2 0 0 512 3 | sed "s/$(le 4 4660)$(le 8 4096)/$(le 4 0)$(le 8 0)/")$(printf '01%.0s' {1..511})")"
same "an inline write with all its data bytes succeeds" "$(le 2 0)" \
	"$(status "$(message 2 0 0 512 3 | sed "s/$(le 4 4660)$(le 8 4096)/$(le 4 0)$(le 8 0)/")$(printf '01%.0s' {1..512})")"
same "a message longer than the buffer ends the connection" disconnected "$(status "$(printf '01%.0s' {1..4137})")"
# The client has not registered this memory: the transfer fails, and the connection with it.
like "a write from unregistered memory ends the connection" 'disconnected|0500' "$(status "$(message 2 0 0 4096 1)")"

# reason SESSION MESSAGE|close...: prints the reason that the target's log has for the end of that session.
reason() {
	local session=$1
	session "$(request 2 2 16 0 1 "$session" 1)" "${@:2}" > /tmp/peer.$$
	rm /tmp/peer.$$
	must wait_until target 30 "dmesg | grep -q 'session $(printf %016x "$session") of .* ended: '" >&2
	on target "dmesg | sed -n 's/^.* vol1: session $(printf %016x "$session") of $id ended: //p'"
}
same "the log reports why a session ended: a message to which no response is possible" \
	"queue 0: a message of 2 bytes to which no response is possible" "$(reason 40001 0100 wait)"
like "the log reports why a session ended: a message that is too long" "^queue 0: receiving failed: .+\$" "$(reason 40002 "$(printf '01%.0s' {1..4137})" wait)"
like "the log reports why a session ended: data that cannot be read, with its tag and key" \
	"^queue 0: an RDMA READ failed: .+ \(tag 7, generation 9, key 0x1234\)\$" "$(reason 40003 "$(message 2 0 0 4096 1)" wait)"
place=$(message 2 0 0 4194304 4 | sed "s/$(le 4 4660)$(le 8 4096)/$(le 4 0)$(le 8 0)/")
same "the log reports why a session ended: an eager write without a ring slot" \
	"queue 0: an eager write of 4194304 bytes that has no ring slot (tag 7, generation 9)" "$(reason 40004 "$place" wait)"
same "the log reports why a session ended: an admin message on another queue pair" \
	"queue 0: a message of 40 bytes to which no response is possible" "$(reason 40005 "$(admin_message 33 5 0)" wait)"
# admin_reason SESSION MESSAGE…: as reason, for messages on the admin queue pair.
admin_reason() {
	on c1 "hcablk-peer connect $target_address 7744 $(request 2 2 16 $admin 1 "$1" 1) ${*:2} wait" > /dev/null 2>&1
	must wait_until target 30 "dmesg | grep -q 'session $(printf %016x "$1") of .* ended: '" >&2
	on target "dmesg | sed -n 's/^.* vol1: session $(printf %016x "$1") of $id ended: //p'"
}
# This check goes first, since it takes longer than five seconds: the log has at most ten of these
# lines in five seconds.
like "the log reports why a session ended: nothing came on the admin queue pair" "^admin queue pair: nothing was received for 1[0-9] s\$" "$(admin_reason 40101)"
same "the log reports why a session ended: an I/O request on the admin queue pair" \
	"admin queue pair: a message of 40 bytes that is not an admin request" "$(admin_reason 40006 "$(message 3 0 0 0 0)")"
same "the log reports why a session ended: a keep-alive with too long a timeout" \
	"admin queue pair: a message of 40 bytes that is not an admin request" "$(admin_reason 40007 "$(admin_message 33 601 0)")"
same "the log reports why a session ended: a short message on the admin queue pair" "admin queue pair: a message of 2 bytes that is not an admin request" "$(admin_reason 40008 2100)"
like "the log reports why a session ended: a message too long for the admin queue pair" "^admin queue pair: receiving failed: .+\$" "$(admin_reason 40009 "$(printf '21%.0s' {1..65})")"
# The keep-alive promises a further one within a second.
like "the log reports why a session ended: the promised keep-alive did not come" "^admin queue pair: nothing was received for [34] s\$" "$(admin_reason 40102 "$(admin_message 33 1 0)")"
admin_answer() {
	peer "$(request 2 2 16 $admin 1 "$(new_session)" 1)" "$1" close | sed -n 's/^answer //p'
}
answer="820000000700090000000000000000000000000000000000"
same "a keep-alive is answered" "$answer" "$(admin_answer "$(admin_message 33 5 0)")"
same "a fence is answered when the target has nothing of the fenced session" "$answer" "$(admin_answer "$(admin_message 34 $((2 << 32 | 1)) 0)")"
# The sessions' ids have path 1.
same "a fence of the session's own path is invalid" "${answer:0:16}0100${answer:20}" "$(admin_answer "$(admin_message 34 $((1 << 32 | 1)) 0)")"
same "a watch is answered when the volume differs from the watch's state" "${answer:0:32}$(le 8 $((size / 512)))" "$(admin_answer "$(admin_message 35 1 0)")"
like "an I/O queue pair ends when its admin queue pair is lost" disconnected \
	"$(session "$(request 2 2 16 0 1 "$(new_session)" 1)" lose)"
# The log limits the rate of usual ends, and the earlier checks made many: try until one is logged.
usual() {
	local session
	for session in {40010..40100}; do
		session "$(request 2 2 16 0 1 "$session" 1)" close > /dev/null
		becomes_true target 1 "dmesg | grep -q 'session $(printf %016x "$session") of .* ended: '" 2> /dev/null || continue
		on target "dmesg | sed -n 's/^.* vol1: session $(printf %016x "$session") of $id ended: //p'"
		return
	done
}
same "the log reports why a session ended: the initiator disconnected" "queue 0: the initiator disconnected" "$(usual)"

check "a client vanishes without a disconnect" on c1 "hcablk-peer connect $target_address 7744 $(request 2 2 16 $admin 1 4721 1) drop"
check "the target ends the session of a client that vanished" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
check "the target has no queue pair left" wait_until target 30 "[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = 0 ]"
# A disk's first request over one path may arrive late, after a session over another path: the newer epoch stays recorded.
disk=$((0xabc))
by_path() {
	peer "$(request 2 2 16 $admin 1 $(($1 << 12 | disk)) "$2")" close | sed 's/^\(rejected .\{16\}\).*/\1/; s/^established .*/established/; /^disconnected/d'
}
same "a disk gets a session over path 1, with epoch 9" established "$(by_path 1 9)"
check "the session over path 1 ends" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
same "the disk gets no session over path 2 with an older epoch" "rejected $(reject 6)" "$(by_path 2 8)"
same "the disk gets a session over path 2 with a newer epoch" established "$(by_path 2 10)"
connect c1 vol1
check "an honest client is served after all malformed requests" on c1 "hcablk-scatter $device random 81 16"
disconnect c1 vol1

# The other direction: the initiator meets malformed targets. c2 plays them.
# strange "DESCRIPTION" ERROR-TEXT WORDS accept|reject REPLY: lets c1 connect to c2, which answers with REPLY, and checks both errors
strange() {
	local output
	spawn peer c2 "exec hcablk-peer listen 7799 $4 $5 > /tmp/peer"
	must wait_until c2 60 'grep -q listening /tmp/peer'
	output=$(try_connect c1 dev address=10.77.0.3 port=7799 volume=vol1 host_id="$id" connect_timeout=5)
	like "$1: the error is '$2'" "$2" "$output"
	like "$1: the disk's error has the reason" "$3" "$(on c1 "cat $initiator/dev/error")"
	same "$1: no queue pair is left" 0 "$(queue_pairs c1)"
	must on c1 "rmdir $initiator/dev"
	on c2 'killall hcablk-peer; rm /tmp/peer'
	join peer || true
}
strange "a target of an unknown version refuses" "Protocol not supported" "version" reject "${magic}02000304$(le 8 0)"
strange "a server of another protocol refuses" "Protocol|refused" "not an hcablk target|no target listens" reject .
strange "a server of another protocol accepts" "Protocol" "not an hcablk target" accept .
strange "a target sends random bytes" "Protocol" "not an hcablk target" accept "$(printf 'a5%.0s' {1..64})"
# Credits, capacity, block sizes, flags, largest transfer, session, epoch: a reply for a session that was not requested.
strange "a target answers for another session" "Protocol" "not an hcablk target" accept \
	"${magic}02000800$(le 8 1048576)09090000$(le 4 1048576)$(le 8 1)$(le 4 1)$(printf '00%.0s' {1..28})"
