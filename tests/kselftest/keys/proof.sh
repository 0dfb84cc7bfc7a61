#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: with keys both sides prove who they are, on every queue pair, over reconnections and rotation; who has others gets nothing.
# turn: 7
# takes: 40
# waits: yes
# timeout: 900

. "${0%/*}/../lib/lib.sh"

id=$(host_id c1)
hosts=$target/volumes/vol1/hosts

# refused "DESCRIPTION" WORDS: c1 cannot connect; its message has these words, and nothing is left at the target.
refused() {
	local what=$1 words=$2 output
	if output=$(on c1 "hcablk connect $target_address vol1 --ctrl-loss-tmo 0" 2>&1); then
		fail "$what: it is refused"
	else
		pass "$what: it is refused"
	fi
	like "$what: why" "$words" "$output"
	same "$what: no queue pair is left" 0 "$(queue_pairs target)"
	must on c1 'hcablk disconnect --if-exists vol1'
}

# Without any key, a volume that demands proofs is one that is not there.
with_keys=1
export_volume vol1 "$drive" c1 c2
refused "no keys" "exports no volume of this name, or none to hosts that do not prove"
missing=$(on c1 "hcablk connect $target_address nothere --ctrl-loss-tmo 0" 2>&1)
like "a volume that is not there is refused in the same words" "exports no volume of this name, or none to hosts that do not prove" "$missing"
like "the target's log knows" "does not prove its identity, which the volume demands" "$(in_log target 'refused')"
must on target 'hcablk target unexport vol1'

use_keys c1 c2
same "keys are root's alone" "600 600" "$(on c1 'stat -c %a /etc/hcablk/keys/host /etc/hcablk/keys/targets/default' | tr '\n' ' ' | sed 's/ $//')"
export_volume vol1 "$drive" c1 c2
connect c1 vol1
pass "a host whose key is known connects"
connect c2 vol1
check "so does another one, by its own" on c2 "hcablk-scatter $device random 1 8"
same "the disk has two keys, and the volume one of the host" "2 1" "$(on c1 "cat $initiator/vol1/keys") $(on target "cat $hosts/$id/keys")"
refuse "the kernel gives no key back: the disk's" on c1 "cat $initiator/vol1/host_key"
refuse "the kernel gives no key back: the host's" on target "cat $hosts/$id/key"
refuse "the kernel gives no key back: the target's" on target "cat $target/key"
refuse "what is no key is refused" on c1 "env echo 00112233 > $initiator/vol1/host_key"
check "data goes by all queues" on c1 "hcablk-scatter $device random 2 8"
disconnect c2 vol1
disconnect c1 vol1

# Each key wrong by itself.
other=$(on c2 'hcablk key show host')
must on c1 "cp -r /etc/hcablk/keys /tmp/keys && echo '$other' > /etc/hcablk/keys/host"
refused "another host's name with an own key" "does not accept the proof"
like "its log knows" "$id for volume vol1: its proof was not made with the keys" "$(in_log target "refused $id")"
must on c1 "cp /tmp/keys/host /etc/hcablk/keys/host && echo '$other' > /etc/hcablk/keys/targets/default"
refused "the key of another target" "does not accept the proof"
must on c1 'cp /tmp/keys/targets/default /etc/hcablk/keys/targets/default'
same "a volume that is not there, a host that is not allowed and a wrong key are refused alike" \
	"$(on c1 "hcablk connect $target_address nothere --ctrl-loss-tmo 0" 2>&1 | grep -o 'the target does not accept.*')" \
	"$(must on target "hcablk target forbid vol1 $id"; on c1 "hcablk connect $target_address vol1 --ctrl-loss-tmo 0" 2>&1 | grep -o 'the target does not accept.*')"
must on c1 'hcablk disconnect --if-exists vol1; hcablk disconnect --if-exists nothere'
like "the log tells one" "$id for volume nothere: there is no such volume" "$(in_log target nothere)"
like "and the other" "$id for volume vol1: this host is not allowed" "$(in_log target 'not allowed')"
must on target "hcablk target allow vol1 $id"

# Over a loss, and while keys change.
connect c1 vol1 --ctrl-loss-tmo 600 --reconnect-delay 1 --queues 2
must on target "echo 0 > $target/volumes/vol1/enable"
check "the target goes: the disk waits" wait_until c1 30 "grep -q queueing $initiator/vol1/state"
must on target "echo 1 > $target/volumes/vol1/enable"
check "it comes back: a new session, proven anew" wait_until c1 60 "grep -q live $initiator/vol1/state"
check "data goes by it" on c1 "hcablk-scatter $device random 3 8"
must on c1 'hcablk key generate host --rotate'
key=$(on c1 'hcablk key show host')
must on target "echo '$key' | hcablk key add host $id && hcablk key apply"
same "the target takes two keys of the host" 2 "$(on target "cat $hosts/$id/keys")"
epoch=$(on c1 "cat $initiator/vol1/session")
must on target "echo 0 > $target/volumes/vol1/enable && echo 1 > $target/volumes/vol1/enable"
check "by the old key it connects again" wait_until c1 60 "grep -q live $initiator/vol1/state && ! grep -q '$epoch' $initiator/vol1/session"
must on c1 'hcablk key apply'
must on target "hcablk key retire host $id && hcablk key apply"
same "the old key is retired" 1 "$(on target "cat $hosts/$id/keys")"
epoch=$(on c1 "cat $initiator/vol1/session")
must on target "echo 0 > $target/volumes/vol1/enable && echo 1 > $target/volumes/vol1/enable"
check "by the new key it connects again" wait_until c1 60 "grep -q live $initiator/vol1/state && ! grep -q '$epoch' $initiator/vol1/session"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'

# Insecure volumes say so.
with_keys=
export_volume vol1 "$drive" c1
like "an insecure volume says so" "INSECURE" "$(on target 'hcablk target list')"
like "so does the log" "exported INSECURELY" "$(in_log target INSECURELY)"
connect c1 vol1
pass "a host with keys connects to it by them"
disconnect c1 vol1
must on c1 'mv /etc/hcablk/keys/targets /tmp/targets'
missing=$(on c1 "hcablk connect $target_address vol1 --ctrl-loss-tmo 0" 2>&1) && fail "it connects without the target's key"
like "a host with a key does not go to a target whose key it has not, and says why" "none of the target $target_address: nothing would prove who answers" "$missing"
refuse "no disk is left of that" on c1 "[ -e $initiator/vol1 ]"
must on c1 'rm -r /etc/hcablk/keys'
refused "a host whose key is known has to prove who it is even there" "exports no volume of this name, or none to hosts that do not prove"
