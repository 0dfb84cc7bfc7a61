#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a client can name more disks, one after the other, than there are disk numbers: the numbers of removed disks are used again.
# turn: 19
# takes: 90

. "${0%/*}/../lib/lib.sh"

export_volume vol1 "$drive" c1
must on c1 'modprobe hcablk'

# Numbers have twelve bits, without 0.
ON_SECONDS=$((300 * slow)) check "4200 disks are named one after the other" on c1 "cd $initiator && for batch in \$(seq 42); do
		names=; for n in \$(seq 100); do names=\"\$names n\$batch-\$n\"; done
		mkdir \$names && rmdir \$names || exit 1
	done"
connect c1 vol1
check "a disk whose number is used again is written" on c1 "dd if=/dev/urandom of=$device bs=64k count=1 oflag=direct status=none"
