# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and the rest is in lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# The initiator c1 against the malicious target c2: what tests hostile/target and hostile/eager-writes have in common. They
# source it after lib.sh.

[ "$rdma" = rxe ] || skip "the malicious target's library speaks soft-RoCE only"

seed=${HCABLK_SEED:-1}
# What the initiator says when its connection broke, and of a message that it cannot read.
broken="the target (closed the connection|does not answer any more)|the connection broke" \
	nonsense="a message cannot be understood"

must on c1 "modprobe hcablk && mkdir $initiator/dev && cd $initiator/dev && echo 10.77.0.3 > address && echo 7799 > port &&
	echo vol1 > volume && echo $(host_id c1) > host_id && echo 2 > queues && echo 10 > connect_timeout && echo 60 > io_timeout"

# duel MESSAGES OPTION…: c2 is the malicious target, c1 its victim; sets the $output and the exit code of each.
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

# trick NAME TEXT [MESSAGES]: a target of only this trick is found out so. Whether it comes to play it is up to what the victim
# sends meanwhile, so it has some attempts: to some tricks a session gives one occasion, which every other one takes.
trick() {
	for _ in {1..14}; do
		duel "${3:-12}" --only "$1"
		[ "$target_code $victim_code" = "0 0" ] || break
		[[ "$victim_output" =~ $2 ]] && break
		seed=$((seed + 1))
	done
	if [ "$target_code $victim_code" != "0 0" ]; then
		fail "$1: nothing is reached and the session ends"
	else
		like "$1: nothing is reached, and what is told" "$2" "$victim_output"
	fi
}

# harmless NAME: nor does a target of only this trick break the protocol.
harmless() {
	duel "$(few 60)" --only "$1"
	same "$1: nothing is reached" "0 0" "$target_code $victim_code"
	refuse "$1: no breach of the protocol" grep "broke the protocol" <<< "$victim_output"
}
