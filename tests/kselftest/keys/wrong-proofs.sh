#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: an initiator that does one thing wrong in its proof gets nothing from the target, and learns no more than it may; nor does a false target from an initiator.
# tier: heart
# turn: 0
# takes: 50
# skips: siw
# waits: yes
# timeout: 900

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the peer's library speaks soft-RoCE only"

use_keys c1
id=$(host_id c1)
keys="$(key_digits c1 host)\n$(key_digits target target)"
export_volume vol1 "$drive" c1

# initiator WRONG: prints the target's answers to an initiator with this fault, in one line
initiator() {
	on c1 "printf '$keys\n' | hcablk-prove initiator $target_address 7744 vol1 $id $1" 2>&1 | tr '\n' ' ' | sed 's/ $//'
}

# says "DESCRIPTION" WRONG ANSWERS [WORDS-OF-THE-LOG]: checks the target's answers and its log
says() {
	local try line
	same "$1" "$3" "$(initiator "$2")"
	if [ -n "${4:-}" ]; then
		# The log has at most ten such lines in five seconds: if this one was left out, try once more.
		for try in 1 2; do
			line=$(in_log target 'refused' | tail -n 1)
			[[ "$line" =~ $4 ]] || [ $try = 2 ] || { sleep 5; initiator "$2" > /dev/null; }
		done
		line=$(in_log target 'refused' | tail -n 1)
		like "$1: the target's log has the reason" "$4" "$line"
	fi
	check "$1: the target has no session left" wait_until target 30 "$no_queue_pairs && [ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
}

# hcablk-prove shares no code with the drivers, and has no X25519.
says "an initiator without a fault connects all queue pairs" nothing "admin granted queue granted queue granted"
says "an initiator without a proof is refused" names "admin 3!" "does not prove its identity"
says "a proof with another key of the host is refused" host-key "admin 13!" "not made with the keys"
says "a proof with the key of another target is refused" target-key "admin 13!" "not made with the keys"
says "a proof with swapped keys is refused" keys-swapped "admin 13!" "not made with the keys"
says "a proof with the id of another host is refused" other-host "admin 13!" "this host is not allowed"
says "a proof for an unknown volume is refused" no-volume "admin 13!" "there is no such volume"
says "a proof without a MAC is refused" no-mac "admin 13!" "not made with the keys"
says "a proof with one changed bit of its MAC is refused" mac-bit "admin 13!" "not made with the keys"
says "a proof with the handle of another challenge is refused" handle "admin 13!" "belongs to no challenge"
says "the target's nonce is accepted as the initiator's" reflected "admin granted queue granted queue granted"
says "a proof with a point of small order is refused" share-is-point "admin 13!" "not made with the keys"
says "a proof after the time of its challenge is refused" late "admin 13!" "belongs to no challenge"
says "a proof of another handshake is refused" replayed-proof "admin granted again 13!" "not made with the keys"
says "a repeated proof is refused" same-proof "admin granted again 13!" "belongs to no challenge"
says "a further queue pair without a MAC is refused" queue-names "admin granted queue 3! queue 3!" "does not prove its identity"
says "a further queue pair with one changed bit of its MAC is refused" queue-mac "admin granted queue 7! queue 7!" "does not hold the key"
says "a further queue pair with another depth than sealed is refused" queue-changed "admin granted queue 7! queue 7!" "does not hold the key"
says "a further queue pair with another session's handle is refused" queue-handle "admin granted queue 7! queue 7!" "does not hold the key"
says "a request that is sealed for another queue pair is refused" queue-channel "admin granted queue 7! queue 7!" "does not hold the key"
says "a request that is sealed for another IP address is refused" queue-address "admin granted queue 7! queue 7!" "does not hold the key"
says "a request that is sealed for another port is refused" queue-port "admin granted queue 7! queue 7!" "does not hold the key"
says "a request that is sealed for another epoch is refused" queue-epoch "admin granted queue 1! queue 1!" "makes no sense"
says "a request with the number of an earlier one is refused" queue-replayed "admin granted queue granted queue 7!" "repeats an earlier request"
says "a request with an invalid number is refused" queue-old "admin granted queue granted queue 7!" "repeats an earlier request"

# false_target WRONG: lets c1's driver connect to a false target, which is c2 and speaks version 2; prints the driver's error.
must on c1 'modprobe hcablk'
secret=$(key_digits c1 host) target_secret=$(key_digits target target)
false_target() {
	on c2 "rm -f /tmp/prove; printf '$keys\n' | hcablk-prove target 7745 $1 > /tmp/prove 2>&1 &"
	must wait_until c2 20 'grep -q listens /tmp/prove'
	on c1 "mkdir -p /sys/kernel/config/hcablk/false && cd /sys/kernel/config/hcablk/false && echo 10.77.0.3 > address &&
		echo 7745 > port && echo vol1 > volume && echo $id > host_id && echo $secret > host_key && echo $target_secret > target_key &&
		echo 2-2 > protocol && echo 0 > ctrl_loss_tmo && ! env echo 1 > enable 2> /dev/null && cat error"
	must on c1 'rmdir /sys/kernel/config/hcablk/false'
	on c2 'killall -q hcablk-prove; cat /tmp/prove' >&2
}
# A false target with the keys is believed, and fails later since it has no other queue pairs.
like "a false target that has the keys is believed" "the connection broke|closed the connection|took too long" "$(false_target nothing)"
other="the peer failed authentication: it does not hold the expected keys"
same "a target with another key of the host is refused" "$other" "$(false_target host-key)"
same "a target with another key of its own is refused" "$other" "$(false_target target-key)"
same "a reply without a MAC is refused" "$other" "$(false_target reply-unsealed)"
same "a reply that was changed is refused" "$other" "$(false_target reply-changed)"
same "a reply with the initiator's own MAC is refused" "$other" "$(false_target reply-reflected)"
like "a target that asks for no proof is refused" "does not ask for a proof, although keys are set here" "$(false_target no-challenge)"
if on c1 '[ -d /sys/module/libcurve25519 ]'; then
	like "a challenge with a point of small order is refused" "not an hcablk target" "$(false_target zero-point)"
fi
like "a reject with a proof is believed" "has evicted this host" "$(false_target reject-sealed)"
