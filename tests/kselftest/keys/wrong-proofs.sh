#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a peer that does one thing wrong in proving who it is gets nothing of the target, and learns no more than it may; nor does a false target of an initiator.
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

# initiator WRONG: what the target says to each request, in one line
initiator() {
	on c1 "printf '$keys\n' | hcablk-prove initiator $target_address 7744 vol1 $id $1" 2>&1 | tr '\n' ' ' | sed 's/ $//'
}

# says "DESCRIPTION" WRONG ANSWERS [WORDS-OF-THE-LOG]
says() {
	local try line
	same "$1" "$3" "$(initiator "$2")"
	if [ -n "${4:-}" ]; then
		# Ten such lines in five seconds, not more: when there are fewer again it is done once more.
		for try in 1 2; do
			line=$(in_log target 'refused' | tail -n 1)
			[[ "$line" =~ $4 ]] || [ $try = 2 ] || { sleep 5; initiator "$2" > /dev/null; }
		done
		line=$(in_log target 'refused' | tail -n 1)
		like "$1: the target's log says why" "$4" "$line"
	fi
	check "$1: nothing is left" wait_until target 30 "$no_queue_pairs && [ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
}

# An implementation that shares no code with ours, and has no X25519.
says "who does nothing wrong is let in, by all queue pairs" nothing "admin granted queue granted queue granted"
says "by names alone" names "admin 3!" "does not prove its identity"
says "by another key of the host" host-key "admin 13!" "not made with the keys"
says "by the key of another target" target-key "admin 13!" "not made with the keys"
says "by each key in the other's place" keys-swapped "admin 13!" "not made with the keys"
says "by the name of another host" other-host "admin 13!" "this host is not allowed"
says "for a volume that is not there" no-volume "admin 13!" "there is no such volume"
says "without a MAC" no-mac "admin 13!" "not made with the keys"
says "with one bit of the MAC changed" mac-bit "admin 13!" "not made with the keys"
says "with the handle of another challenge" handle "admin 13!" "answers no challenge"
says "the target's nonce, reflected, is as good as any" reflected "admin granted queue granted queue granted"
says "a point of small order" share-is-point "admin 13!" "not made with the keys"
says "an answer that comes too late" late "admin 13!" "answers no challenge"
says "the proof of another handshake" replayed-proof "admin granted again 13!" "not made with the keys"
says "the same proof once more" same-proof "admin granted again 13!" "answers no challenge"
says "another queue pair by names alone" queue-names "admin granted queue 3! queue 3!" "does not prove its identity"
says "another queue pair with one bit of the MAC changed" queue-mac "admin granted queue 7! queue 7!" "does not hold the key"
says "with another depth than was sealed" queue-changed "admin granted queue 7! queue 7!" "does not hold the key"
says "by another session's handle" queue-handle "admin granted queue 7! queue 7!" "does not hold the key"
says "sealed for another queue pair" queue-channel "admin granted queue 7! queue 7!" "does not hold the key"
says "sealed for another IP address" queue-address "admin granted queue 7! queue 7!" "does not hold the key"
says "sealed for another port" queue-port "admin granted queue 7! queue 7!" "does not hold the key"
says "sealed for another epoch" queue-epoch "admin granted queue 1! queue 1!" "makes no sense"
says "the number of a request that came before" queue-replayed "admin granted queue granted queue 7!" "repeats an earlier request"
says "a number that is none" queue-old "admin granted queue granted queue 7!" "repeats an earlier request"

# false_target WRONG: c1's driver connects to a false target, which is at c2; prints what the driver says.
must on c1 'modprobe hcablk'
secret=$(key_digits c1 host) target_secret=$(key_digits target target)
false_target() {
	on c2 "rm -f /tmp/prove; printf '$keys\n' | hcablk-prove target 7745 $1 > /tmp/prove 2>&1 &"
	must wait_until c2 20 'grep -q listens /tmp/prove'
	on c1 "mkdir -p /sys/kernel/config/hcablk/false && cd /sys/kernel/config/hcablk/false && echo 10.77.0.3 > address &&
		echo 7745 > port && echo vol1 > volume && echo $id > host_id && echo $secret > host_key && echo $target_secret > target_key &&
		echo 0 > ctrl_loss_tmo && ! env echo 1 > enable 2> /dev/null && cat error"
	must on c1 'rmdir /sys/kernel/config/hcablk/false'
	on c2 'killall -q hcablk-prove; cat /tmp/prove' >&2
}
# An honest one is believed, and fails for what it has not: other queue pairs.
like "a target that has the keys is believed" "the connection broke|closed the connection|took too long" "$(false_target nothing)"
other="the peer failed authentication: it does not hold the expected keys"
same "by another key of the host" "$other" "$(false_target host-key)"
same "by another key of the target" "$other" "$(false_target target-key)"
same "a reply without a MAC" "$other" "$(false_target reply-unsealed)"
same "a reply that was changed" "$other" "$(false_target reply-changed)"
same "the initiator's own MAC, reflected" "$other" "$(false_target reply-reflected)"
like "a target that asks for no proof" "asks for no proof, although keys are set" "$(false_target no-challenge)"
if on c1 '[ -d /sys/module/libcurve25519 ]'; then
	like "a challenge with a point of small order" "not an hcablk target" "$(false_target zero-point)"
fi
like "a reject that is proven is believed" "has evicted this host" "$(false_target reject-sealed)"
