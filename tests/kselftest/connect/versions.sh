#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a session begins without a volume, and the volume is attached to it; if the target refuses that, the initiator requests a session that begins with the volume.
# turn: 23
# takes: 25
# timeout: 240

. "${0%/*}/../lib/lib.sh"

id=$(host_id c1)
# attached VOLUME: how often the target has attached it.
attached() {
	in_log target "$1: disk [0-9a-f]+ of $id attached, epoch" | wc -l
}
# begun LABEL: how many sessions of it have begun.
begun() {
	in_log target "$1: session [0-9a-f]+ of $id begun, epoch" | wc -l
}
# keeps_data VOLUME: writes and reads on $device.
keeps_data() {
	check "$1 keeps what is written" on c1 "dd if=/dev/urandom of=/tmp/data bs=64k count=16 status=none &&
		dd if=/tmp/data of=$device bs=4k oflag=direct status=none && dd if=/tmp/data of=$device bs=64k oflag=direct status=none &&
		dd if=$device bs=64k count=16 iflag=direct status=none | cmp - /tmp/data"
}

export_volume vol1 "$drive" c1
connect c1 vol1
keeps_data vol1
disconnect c1 vol1
same "vol1 is attached to a session" "1 1" "$(attached vol1) $(begun hcablk)"
check "the initiator detaches vol1 at an orderly end" wait_log target 30 "vol1: session [0-9a-f]+ of $id ended: its initiator has detached it"

# The data of a write to a volume with a cache must not change meanwhile: the session has no eager
# ring.
export_volume vol2 "$drive2" --cache-mib=1 c1
connect c1 vol2
keeps_data vol2
disconnect c1 vol2
same "a volume with a cache is attached to a session" "1 2" "$(attached vol2) $(begun hcablk)"

# The target uses the nearest peer memory, or RAM.
must on target 'hcablk target unexport vol2'
export_volume vol3 "$drive2" --mode=p2p c1
connect c1 vol3
keeps_data vol3
disconnect c1 vol3
same "a session of a volume of mode p2p begins with it" "0 1" "$(attached vol3) $(begun vol3)"
check "the client logs the fall-back to version 2" wait_log c1 30 'vol3: path 0 uses version 2 of the protocol'
same "no other disk has fallen back" 1 "$(in_log c1 'uses version 2 of the protocol' | wc -l)"

silent "an initiator of version 2 connects" \
	try_connect c1 vol1 host_id="$id" address=$target_address volume=vol1 protocol=2-2
device=/dev/$(on c1 "cat $initiator/vol1/device")
keeps_data vol1
must on c1 "echo 0 > $initiator/vol1/enable && rmdir $initiator/vol1"
same "with an initiator of version 2 a session begins with its volume" "1 1" "$(attached vol1) $(begun vol1)"

# Another volume allows the host, so the target grants it a session: the error must be that of
# attaching this volume.
must on target "hcablk target forbid vol1 $id"
like "a volume that the host may not use is refused as such" "does not allow" "$(on c1 "hcablk connect $target_address vol1" 2>&1)"
like "a volume that is not there is refused as such" "exports no volume" "$(on c1 "hcablk connect $target_address nothere" 2>&1)"

# A host that may use no volume at the moment is refused a session, which says nothing about a volume that will be exported again.
must on target 'hcablk target unexport vol3 && hcablk target unexport vol1'
export_volume vol1 "$drive" c1
silent "an initiator of version 3 only connects" \
	try_connect c1 vol1 host_id="$id" address=$target_address volume=vol1 protocol=3-3 ctrl_loss_tmo=600
must on target 'hcablk target unexport --force vol1'
check "the disk reports the refused session" wait_until c1 60 "grep -q 'refuses a session without a volume' $initiator/vol1/error"
export_volume vol1 "$drive" c1
check "the disk is live when its volume is exported again" wait_until c1 60 "grep -q live $initiator/vol1/state"
must on c1 "echo 0 > $initiator/vol1/enable && rmdir $initiator/vol1"

check "no queue pair is left on the target" wait_until target 60 "$no_queue_pairs"
same "no queue pair is left on the client" 0 "$(queue_pairs c1)"
