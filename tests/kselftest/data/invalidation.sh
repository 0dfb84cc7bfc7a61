#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: memory is invalidated by the target's answer where that is allowed, and by the client where not.
# tier: heart
# turn: 16
# takes: 20

. "${0%/*}/../lib/lib.sh"

share c1
must on c1 "hcablk-scatter $device random 11 16"
registrations=$(stat_of c1 $initiator/vol1 registrations)
less "memory was registered" 20 "$registrations"
same "every registration was invalidated by the target" "$registrations" \
	"$(stat_of c1 $initiator/vol1 remote_invalidations)"
same "none here" 0 "$(stat_of c1 $initiator/vol1 local_invalidations)"
disconnect c1 vol1

connect c1 vol1 --no-remote-invalidate
check "data is right without it, too" on c1 "hcablk-scatter $device random 12 16"
check "with many requests at a time" fio c1 "--name=v --filename=$device --rw=randrw --bs=8k --iodepth=64 \
	--size=$(few 8)M --verify=crc32c --verify_fatal=1"
registrations=$(stat_of c1 $initiator/vol1 registrations)
same "now every registration was invalidated here" "$registrations" \
	"$(stat_of c1 $initiator/vol1 local_invalidations)"
same "none by the target" 0 "$(stat_of c1 $initiator/vol1 remote_invalidations)"

# A read rings once, when it is registered. Its invalidation does so with others, or with the next read's registration; how many are
# together is a matter of the pace of answers, and keep-alives ring, too: some reads of several times have to.
for ((i = 0; i < 5; i++)); do
	doorbells=$(stat_of c1 $initiator/vol1 doorbells)
	reads=$(stat_of c1 $initiator/vol1 registrations)
	must fio c1 "--name=r --filename=$device --rw=randread --bs=16k --iodepth=64 --size=$(few 8)M"
	reads=$(($(stat_of c1 $initiator/vol1 registrations) - reads))
	doorbells=$(($(stat_of c1 $initiator/vol1 doorbells) - doorbells))
	[ "$reads" -ge $(($(few 8) * 64)) ] || break
	[ "$doorbells" -ge $((reads * 2)) ] || break
done
less "all reads are registered" $(($(few 8) * 64 - 1)) "$reads"
less "invalidations share doorbells" "$doorbells" $((reads * 2))
# Their requests ended no earlier than that.
less "each of them was waited for" $(($(stat_of c1 $initiator/vol1 local_invalidations) - 1)) "$(stat_of c1 $initiator/vol1 send_waits)"
same "yet there is one for each" "$(stat_of c1 $initiator/vol1 registrations)" "$(stat_of c1 $initiator/vol1 local_invalidations)"
