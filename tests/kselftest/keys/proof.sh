#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: with keys both sides prove their identity on every queue pair, over reconnections and key rotation; a peer with other keys gets nothing.
# turn: 7
# takes: 40
# waits: yes
# timeout: 900

. "${0%/*}/../lib/lib.sh"

id=$(host_id c1)
hosts=$target/volumes/vol1/hosts

# refused "DESCRIPTION" WORDS: checks that c1 cannot connect, that its error has these words, and that the target has nothing left.
refused() {
	local what=$1 words=$2 output
	if output=$(on c1 "hcablk connect $target_address vol1 --ctrl-loss-tmo 0" 2>&1); then
		fail "$what: the connection is refused"
	else
		pass "$what: the connection is refused"
	fi
	like "$what: the error has the reason" "$words" "$output"
	same "$what: no queue pair is left" 0 "$(queue_pairs target)"
	must on c1 'hcablk disconnect --if-exists vol1'
}

# A host without a key gets the same answer for a volume that demands proofs as for one that does not exist.
with_keys=1
export_volume vol1 "$drive" c1 c2
refused "no keys" "exports no volume of this name, or none to hosts that do not prove"
missing=$(on c1 "hcablk connect $target_address nothere --ctrl-loss-tmo 0" 2>&1)
like "a host without a key gets the same refusal for a volume that does not exist" "exports no volume of this name, or none to hosts that do not prove" "$missing"
like "the target's log has the true reason" "does not prove its identity, which the volume demands" "$(in_log target 'refused')"
must on target 'hcablk target unexport vol1'

use_keys c1 c2
same "only root can read the key files" "600 600" "$(on c1 'stat -c %a /etc/hcablk/keys/host /etc/hcablk/keys/targets/default' | tr '\n' ' ' | sed 's/ $//')"
export_volume vol1 "$drive" c1 c2
connect c1 vol1
pass "a host with a known key connects"
connect c2 vol1
check "another host connects with its own key" on c2 "hcablk-scatter $device random 1 8"
same "the disk has two keys, and the volume one key of the host" "2 1" "$(on c1 "cat $initiator/vol1/keys") $(on target "cat $hosts/$id/keys")"
refuse "the disk's key cannot be read from the kernel" on c1 "cat $initiator/vol1/host_key"
refuse "the host's key cannot be read from the kernel" on target "cat $hosts/$id/key"
refuse "the target's key cannot be read from the kernel" on target "cat $target/key"
refuse "a malformed key is refused" on c1 "env echo 00112233 > $initiator/vol1/host_key"
check "data is right on all queues" on c1 "hcablk-scatter $device random 2 8"
disconnect c2 vol1
disconnect c1 vol1

# Each key is wrong once.
other=$(on c2 'hcablk key show host')
must on c1 "cp -r /etc/hcablk/keys /tmp/keys && echo '$other' > /etc/hcablk/keys/host"
refused "the key of another host" "does not accept the proof"
like "the target's log has the wrong key as the reason" "$id for volume vol1: its proof was not made with the keys" "$(in_log target "refused $id")"
must on c1 "cp /tmp/keys/host /etc/hcablk/keys/host && echo '$other' > /etc/hcablk/keys/targets/default"
refused "the key of another target" "does not accept the proof"
must on c1 'cp /tmp/keys/targets/default /etc/hcablk/keys/targets/default'
same "an unknown volume, a forbidden host and a wrong key are refused with the same words" \
	"$(on c1 "hcablk connect $target_address nothere --ctrl-loss-tmo 0" 2>&1 | grep -o 'the target does not accept.*')" \
	"$(must on target "hcablk target forbid vol1 $id"; on c1 "hcablk connect $target_address vol1 --ctrl-loss-tmo 0" 2>&1 | grep -o 'the target does not accept.*')"
must on c1 'hcablk disconnect --if-exists vol1; hcablk disconnect --if-exists nothere'
like "the target's log has the unknown volume as the reason" "$id for volume nothere: there is no such volume" "$(in_log target nothere)"
like "the target's log has the forbidden host as the reason" "$id for volume vol1: this host is not allowed" "$(in_log target 'not allowed')"
must on target "hcablk target allow vol1 $id"

# Over a lost connection, and while keys change.
connect c1 vol1 --ctrl-loss-tmo 600 --reconnect-delay 1 --queues 2
must on target "echo 0 > $target/volumes/vol1/enable"
check "the disk waits while the volume is disabled" wait_until c1 30 "grep -q queueing $initiator/vol1/state"
must on target "echo 1 > $target/volumes/vol1/enable"
check "the disk is live again with a new proof" wait_until c1 60 "grep -q live $initiator/vol1/state"
check "data is right in the new session" on c1 "hcablk-scatter $device random 3 8"
must on c1 'hcablk key generate host --rotate'
key=$(on c1 'hcablk key show host')
must on target "echo '$key' | hcablk key add host $id && hcablk key apply"
same "the target accepts two keys of the host" 2 "$(on target "cat $hosts/$id/keys")"
epoch=$(on c1 "cat $initiator/vol1/session")
must on target "echo 0 > $target/volumes/vol1/enable && echo 1 > $target/volumes/vol1/enable"
check "the host reconnects with its old key" wait_until c1 60 "grep -q live $initiator/vol1/state && ! grep -q '$epoch' $initiator/vol1/session"
must on c1 'hcablk key apply'
must on target "hcablk key retire host $id && hcablk key apply"
same "the old key is retired" 1 "$(on target "cat $hosts/$id/keys")"
epoch=$(on c1 "cat $initiator/vol1/session")
must on target "echo 0 > $target/volumes/vol1/enable && echo 1 > $target/volumes/vol1/enable"
check "the host reconnects with its new key" wait_until c1 60 "grep -q live $initiator/vol1/state && ! grep -q '$epoch' $initiator/vol1/session"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'

# An insecure volume is marked as such.
with_keys=
export_volume vol1 "$drive" c1
like "hcablk target list marks an insecure volume" "INSECURE" "$(on target 'hcablk target list')"
like "the target's log marks an insecure volume" "exported INSECURELY" "$(in_log target INSECURELY)"
connect c1 vol1
pass "a host with keys connects to an insecure volume with a proof"
disconnect c1 vol1
must on c1 'mv /etc/hcablk/keys/targets /tmp/targets'
missing=$(on c1 "hcablk connect $target_address vol1 --ctrl-loss-tmo 0" 2>&1) && fail "a host with a key connects although it lacks the target's key"
like "a host with a key refuses a target whose key it lacks, and reports why" "none of the target $target_address: nothing would prove the target's identity" "$missing"
refuse "the refused target leaves no device" on c1 "[ -e $initiator/vol1 ]"
must on c1 'rm -r /etc/hcablk/keys'
refused "a host with a known key must prove its identity also to an insecure volume" "exports no volume of this name, or none to hosts that do not prove"
