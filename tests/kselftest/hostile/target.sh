#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a malicious target reaches no memory that it was not granted; its session ends, and the initiator reports why.
# turn: 0
# takes: 510
# skips: siw
# timeout: 7200

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hostile.sh"

# As in hostile/client. An initiator connects more slowly than the hostile client.
messages=$(hostile_messages 10000)
first=${HCABLK_FIRST:-0}

duel "$messages" --first "$first"
echo "# $(tail -n 1 <<< "$target_output")"
echo "# $(tail -n 1 <<< "$victim_output")"
same "$messages messages of seed $seed: the initiator ends sessions that break the protocol, and grants no other access" 0 $target_code
same "every successful read returned the data sent, and no memory was touched out of turn" 0 $victim_code
like "the victim read and wrote data" " [1-9][0-9]* reads compared.* [1-9][0-9]* writes" "$victim_output"
like "the victim reported breaches of the protocol" "times: the target broke the protocol" "$victim_output"
early=$(sed -n 's/.* \([0-9]*\) answers before the data.*/\1/p' <<< "$target_output")
stale=$(sed -n 's/.* \([0-9]*\) without data.*/\1/p' <<< "$victim_output")
values=$(sed -n 's/.* \([0-9]*\) answers by a value.*/\1/p' <<< "$target_output")
less "some small reads were answered by an immediate value" 0 "${values:-0}"
several=$(sed -n 's/.* \([0-9]*\) times several in a message.*/\1/p' <<< "$target_output")
less "some messages had several requests" 0 "${several:-0}"
like "some eager writes came with an immediate value, and some with a request" " [1-9][0-9]* eager writes by an immediate value, [1-9][0-9]* by a request" "$target_output"
like "some messages came on admin queue pairs" " [1-9][0-9]* messages on admin queue pairs" "$target_output"
like "some volumes were attached to sessions, and some sessions began with their volume" " [1-9][0-9]* of a later version, [1-9][0-9]* volumes attached" "$target_output"
less "no read ended before its answer" "${stale:-1}" $((${early:--1} + 1))

refused="not an hcablk target|no target listens|the target (does not|did not|speaks|exports|is|holds|ended)"
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
which="queue [0-9]+, tag [0-9]+, generation [0-9]+"
trick tag "it sent an unexpected response \($which\)"
# Needs a request that follows an answered one: the earlier answer is repeated for it.
trick replay "it sent an unexpected response" 60
trick twice "it sent an unexpected response|it responded twice"
trick overdraw "it granted more credits than it has \(queue [0-9]+\)"
trick miser "it left no credit for any request" 60
trick key "$broken"
trick other-key "it invalidated a key that it was not given \($which, key 0x[0-9a-f]+\)" 60
trick empty "it sent an unexpected response|it sent data that was not asked for|$broken"
trick unasked "it sent data that was not asked for" 60
trick other-length "it sent data that was not asked for" 60
trick other-value "it sent an unexpected response"
# Not a breach of the protocol: the volume has left the session, and the requests wait for the next one.
trick gone "the target ends the export of the volume"
trick admin-length "$nonsense \(admin queue pair\)"
trick admin-opcode "$nonsense \(admin queue pair\)"
trick admin-reserved "$nonsense \(admin queue pair\)"
trick admin-status "$nonsense \(admin queue pair"
trick admin-tag "it sent an unexpected response \(admin queue pair, tag [0-9]+, generation [0-9]+\)"
trick admin-twice "it sent an unexpected response \(admin queue pair, tag 0|$nonsense \(admin queue pair, tag 2"
trick admin-same "it reported an unchanged state \(admin queue pair, tag 2"
trick admin-size "the reported size is invalid \(admin queue pair"
trick admin-value "it sent data that was not asked for \(admin queue pair\)|$broken"
trick admin-leave "$broken"
trick admin-gone "the target ends the export of the volume"
trick attach-length "$nonsense \(admin queue pair\)"
trick attach-form "$nonsense \(admin queue pair"
trick attach-handle "$nonsense \(admin queue pair\)"
trick attach-size "$nonsense \(admin queue pair\)"
trick attach-large "a volume has larger requests than its session \(admin queue pair\)|$nonsense \(admin queue pair\)"
trick attach-reserved "$nonsense \(admin queue pair\)"
trick attach-reason "$nonsense \(admin queue pair\)"
trick attach-refused "the target (does not|did not|asks|sent|lets|speaks|exports|is|has|holds|ended)|a later instance of this host"
trick attach-tag "it sent an unexpected response \(admin queue pair, tag [0-9]+, generation [0-9]+\)"
trick attach-twice "$nonsense \(admin queue pair, tag 5, generation 1\)"
trick attach-ahead "it sent an unexpected response \(admin queue pair, tag 5, generation 2\)"
for trick in fair partial late status immediate lean; do
	harmless $trick
done
must on c1 "echo 1 > $initiator/dev/keep_alive_tmo"
trick admin-silent "the target has not responded to a keep-alive for 1 s"
must on c1 "cd $initiator/dev && echo 5 > keep_alive_tmo && echo 2 > io_timeout && echo 2 > connect_timeout"
trick silent "a request got no response in time"
# Each attempt waits for its full time limit.
trick ignore "waiting for the target's response took too long" 4
same "no queue pair is left" 0 "$(queue_pairs c1)"
must on c1 "rmdir $initiator/dev"
