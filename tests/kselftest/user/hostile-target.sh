#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a target that sends nonsense to a program with the library reaches no memory except that of requests; the session ends with the reason.
# turn: 6
# takes: 30
# skips: siw
# timeout: 1500

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the malicious target's library speaks soft-RoCE only"
must on c1 'modprobe rdma_ucm'
seed=${HCABLK_SEED:-1}
host=$(host_id c1)
broken="the target (closed the connection|no longer responds)|the connection broke"
nonsense="a message cannot be understood"

# duel MESSAGES TRICK: runs a malicious target with this trick on c2 and a program on c1; sets the output and the exit code of
# each.
duel() {
	ON_SECONDS=$(($1 + 600)) spawn hostile c2 "exec hcablk-hostile target 7799 --seed $seed --messages $1 --only $2 > /tmp/peer 2>&1"
	must wait_until c2 10 'grep -q listening /tmp/peer'
	ON_SECONDS=$(($1 + 700)) spawn victim c1 "exec hcablk-c-victim 10.77.0.3 7799 $host /tmp/stop $seed > /tmp/victim 2>&1"
	target_code=0 victim_code=0
	join hostile || target_code=$?
	on c1 'touch /tmp/stop'
	join victim || victim_code=$?
	victim_output=$(on c1 'cat /tmp/victim; rm /tmp/victim /tmp/stop')
	printf '%s\n' "$(on c2 'cat /tmp/peer; rm /tmp/peer')" "$victim_output" >&2
}

# trick NAME TEXT: checks that the program reports the trick with TEXT. Some tricks find an occasion in few sessions
# only.
trick() {
	for _ in {1..10}; do
		duel 16 "$1"
		[ "$target_code $victim_code" = "0 0" ] || break
		[[ "$victim_output" =~ $2 ]] && break
		seed=$((seed + 1))
	done
	same "$1: the target reaches no memory" "0 0" "$target_code $victim_code"
	like "$1: the program reports the trick" "$2" "$victim_output"
}

# Without the tricks that invalidate foreign keys: Linux's soft-RoCE then dereferences a null pointer (docs/design/user-client.md).
trick refuse "not an hcablk target|no target listens|the session is refused|the target refuses"
trick hang-up "not an hcablk target|no target listens|the session is refused|the target refuses"
trick reply "not an hcablk target|disagree about the volume"
trick vanish "$broken"
trick leave "$broken"
for name in short opcode flags unknown reserved; do
	trick $name "broke the protocol: $nonsense"
done
trick long "broke the protocol: $nonsense|$broken"
trick tag "broke the protocol: it sent an unexpected response"
trick replay "broke the protocol: it sent an unexpected response"
trick twice "broke the protocol: it (sent an unexpected response|responded twice)"
trick overdraw "broke the protocol: it granted more credits than it has"
trick empty "broke the protocol|$broken"
trick other-length "broke the protocol: it sent data that was not asked for"
trick other-value "broke the protocol: it sent an unexpected response"
for name in eager-forged eager-wrapped eager-twice eager-form; do
	trick $name "broke the protocol"
done
for name in admin-length admin-opcode admin-reserved admin-tag admin-size; do
	trick $name "broke the protocol"
done
trick admin-gone "the target ends the export"
for name in fair status lean; do
	duel 60 $name
	same "$name: the target reaches no memory" "0 0" "$target_code $victim_code"
	refuse "$name: the program reports no breach of the protocol" grep "broke the protocol" <<< "$victim_output"
done
like "the program has read and written" " [1-9][0-9]* reads compared.* [1-9][0-9]* writes" "$victim_output"
same "no queue pair is left" 0 "$(queue_pairs c1)"
