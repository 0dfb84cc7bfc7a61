# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and the rest is in lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# Functions of tests hostile/target and hostile/eager-writes: the initiator c1 against the malicious target c2. They source it after
# lib.sh.

[ "$rdma" = rxe ] || skip "the malicious target's library speaks soft-RoCE only"

seed=${HCABLK_SEED:-1}
# The initiator's errors for a broken connection, and for a message that it cannot decode.
broken="the target (closed the connection|no longer responds)|the connection broke" \
	nonsense="a message cannot be understood"

must on c1 "modprobe hcablk && mkdir $initiator/dev && cd $initiator/dev && echo 10.77.0.3 > address && echo 7799 > port &&
	echo vol1 > volume && echo $(host_id c1) > host_id && echo 2 > queues && echo 10 > connect_timeout && echo 60 > io_timeout"

# duel MESSAGES OPTION…: c2 is the malicious target, c1 its victim; sets $target_output, $victim_output and their exit codes.
duel() {
	local n=$1
	shift
	ON_SECONDS=$((n + 600)) spawn hostile c2 "exec hcablk-hostile target 7799 --seed $seed --messages $n $* > /tmp/peer 2>&1"
	must wait_until c2 10 'grep -q listening /tmp/peer'
	ON_SECONDS=$((n + 700)) spawn victim c1 "exec hcablk-hostile victim $initiator/dev /tmp/stop --seed $seed > /tmp/victim 2>&1"
	target_code=0 victim_code=0
	join hostile || target_code=$?
	on c1 'touch /tmp/stop'
	join victim || victim_code=$?
	target_output=$(on c2 'cat /tmp/peer; rm /tmp/peer')
	victim_output=$(on c1 'cat /tmp/victim; rm /tmp/victim /tmp/stop')
	printf '%s\n' "$target_output" "$victim_output" >&2
}

# trick NAME TEXT [MESSAGES]: checks that the initiator reports TEXT when the target plays only this trick. The victim's requests
# decide whether the trick is played, so there are several attempts: some tricks have one occasion in a session, and use every
# second.
trick() {
	for _ in {1..14}; do
		duel "${3:-12}" --only "$1"
		[ "$target_code $victim_code" = "0 0" ] || break
		[[ "$victim_output" =~ $2 ]] && break
		seed=$((seed + 1))
	done
	if [ "$target_code $victim_code" != "0 0" ]; then
		fail "$1: the target reaches no memory and the session ends"
	else
		like "$1: the target reaches no memory and the initiator reports the trick" "$2" "$victim_output"
	fi
}

# harmless NAME: checks that a target that plays only this trick reaches no memory and does not break the protocol.
harmless() {
	duel "$(few 60)" --only "$1"
	same "$1: the target reaches no memory" "0 0" "$target_code $victim_code"
	refuse "$1: the initiator reports no breach of the protocol" grep "broke the protocol" <<< "$victim_output"
}
