#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a target that speaks nonsense reaches no memory that it was not given; its session ends, and says why.
# group: hostile
# skips: siw
# timeout: 7200

. "${0%/*}/lib.sh"

[ "$rdma" = rxe ] || skip "the false target's library speaks soft-RoCE only"

# As in 63. An initiator takes longer to connect than the hostile client.
messages=$(hostile_messages 10000)
seed=${HCABLK_SEED:-1}
first=${HCABLK_FIRST:-0}

must on c1 "modprobe hcablk && mkdir $initiator/dev && cd $initiator/dev && echo 10.77.0.3 > address && echo 7799 > port &&
	echo vol1 > volume && echo $(host_id c1) > host_id && echo 2 > queues && echo 10 > connect_timeout && echo 60 > io_timeout"

# duel MESSAGES OPTION…: c2 is the false target, c1 its prey; sets what each $said and its exit code.
duel() {
	local n=$1
	shift
	ON_SECONDS=$((n / 10 + 300)) spawn hostile c2 "exec hcablk-hostile target 7799 --seed $seed --messages $n $* > /tmp/peer 2>&1"
	must wait_until c2 10 'grep -q listening /tmp/peer'
	ON_SECONDS=$((n / 10 + 400)) spawn prey c1 "exec hcablk-hostile prey $initiator/dev /tmp/stop --seed $seed > /tmp/prey 2>&1"
	target_code=0 prey_code=0
	join hostile || target_code=$?
	on c1 'touch /tmp/stop'
	join prey || prey_code=$?
	target_said=$(on c2 'cat /tmp/peer; rm /tmp/peer')
	prey_said=$(on c1 'cat /tmp/prey; rm /tmp/prey /tmp/stop')
	printf '%s\n' "$target_said" "$prey_said" >&2
}

# trick NAME TEXT: a target of only this trick is found out so.
trick() {
	duel "${3:-12}" --only "$1"
	if [ $target_code != 0 ] || [ $prey_code != 0 ]; then
		fail "$1: nothing is reached and the session ends"
	else
		like "$1: nothing is reached, and what is told" "$2" "$prey_said"
	fi
}

duel "$messages" --first "$first"
echo "# $(tail -n 1 <<< "$target_said")"
echo "# $(tail -n 1 <<< "$prey_said")"
same "$messages messages by seed $seed: the initiator ends what breaks the protocol, and grants nothing else" 0 $target_code
same "every read that succeeded gave what was sent, and no memory was touched out of turn" 0 $prey_code
like "something was read and written" " [1-9][0-9]* reads compared.* [1-9][0-9]* writes" "$prey_said"
like "and breaches of the protocol were told" "times: the target broke the protocol" "$prey_said"
early=$(sed -n 's/.* \([0-9]*\) answers before the data.*/\1/p' <<< "$target_said")
stale=$(sed -n 's/.* \([0-9]*\) without data.*/\1/p' <<< "$prey_said")
values=$(sed -n 's/.* \([0-9]*\) answers by a value.*/\1/p' <<< "$target_said")
less "small reads were answered by a value" 0 "${values:-0}"
several=$(sed -n 's/.* \([0-9]*\) times several in a message.*/\1/p' <<< "$target_said")
less "requests came several in a message" 0 "${several:-0}"
less "no read ended before its answer" "${stale:-1}" $((${early:--1} + 1))

broken="the target (closed the connection|does not answer any more)|the connection broke"
refused="not an hcablk target|no target listens|the target (does not|did not|speaks|exports|is|holds|ended)"
nonsense="a message cannot be understood"
trick refuse "$refused"
trick hang-up "$refused"
trick reply "not an hcablk target|disagree about the volume"
trick eager "broke the protocol|$broken"
trick vanish "$broken"
trick reach "$broken"
trick leave "$broken"
trick early "$broken" 60
trick short "$nonsense"
trick long "$broken"
trick opcode "$nonsense"
trick flags "$nonsense"
trick unknown "$nonsense"
trick reserved "$nonsense"
trick tag "it answered what was not asked"
# Only what follows an answer can repeat it.
trick replay "it answered what was not asked" 60
trick twice "it answered what was not asked|it answered twice"
trick overdraw "it granted more credits than it has"
trick miser "it leaves no credit to ask with" 60
trick key "$broken"
trick other-key "it invalidated a key that it was not given" 60
trick empty "it answered what was not asked|it sent data that was not asked for|$broken"
trick unasked "it sent data that was not asked for" 60
trick other-length "it sent data that was not asked for" 60
trick other-value "it answered what was not asked"
for harmless in fair partial late status immediate lean; do
	duel "$(few 60)" --only $harmless
	same "$harmless: nothing is reached" "0 0" "$target_code $prey_code"
	refuse "$harmless: no breach of the protocol" grep "broke the protocol" <<< "$prey_said"
done
must on c1 "cd $initiator/dev && echo 2 > io_timeout && echo 2 > connect_timeout"
trick silent "a request was not answered in time"
trick ignore "waiting for the target's answer took too long"
same "no queue pair is left" 0 "$(queue_pairs c1)"
must on c1 "rmdir $initiator/dev"
