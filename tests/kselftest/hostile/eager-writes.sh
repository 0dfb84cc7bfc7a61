#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: false answers to eager writes end the session, as does a first request that took the only credit and is not answered; nothing hangs.
# tier: heart
# turn: 1
# takes: 50
# skips: siw
# timeout: 1800

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hostile.sh"

# The malicious target of hostile/target, one trick after the other.
not_asked="it sent an unexpected response"
# Answers to eager writes, by the writes' numbers.
trick wrong-ring "$broken" 60
trick eager-forged "$not_asked" 60
trick eager-wrapped "$not_asked" 60
trick eager-twice "$not_asked" 120
trick eager-overdraw "it granted more credits than it has" 150
trick eager-form "$nonsense" 60
trick eager-response "it responded to an eager write by tag" 250
trick eager-key "it invalidated a key that it was not given" 60
# The write that it answers early may have arrived meanwhile.
trick eager-ahead "$not_asked|$broken" 60
trick eager-gone "the target ends the export of the volume" 60
harmless eager-status
harmless eager-value
# Whether some writes come while one is held also depends on the victim.
several=" [1-9][0-9]* times several of them"
for _ in 1 2 3 4 5 6; do
	harmless hold
	[[ "$target_output" =~ $several ]] && break
	seed=$((seed + 1))
done
like "several writes are answered at once" "$several" "$target_output"

# The target reads nothing by RDMA READ, so the initiator sends a request before any write. That request takes the only credit, so
# no other request can follow whose timeout would end the wait.
ON_SECONDS=400 spawn hostile c2 "echo \$\$ > /tmp/pid; exec hcablk-hostile target 7799 --messages 10000 --only nopless > /tmp/peer 2>&1"
must wait_until c2 60 'grep -q listening /tmp/peer'
# A reader of the partition table cannot send its request.
ON_SECONDS=150 spawn connecting c1 "cd $initiator/dev && echo 1 > queues && echo 2 > io_timeout && echo 1 > enable"
must wait_until c2 60 'grep -q unanswered /tmp/peer'
check "a session without a credit ends when its first request gets no response in time" wait_until c1 60 "grep -qE '^(failed|new)' $initiator/dev/state"
like "the disk's error reports the request that got no response" "a request got no response in time" "$(on c1 "cat $initiator/dev/error")"
# The disk may have existed for a moment.
join connecting || true
on c2 'kill $(cat /tmp/pid)'
join hostile || true
same "no queue pair is left" 0 "$(queue_pairs c1)"
