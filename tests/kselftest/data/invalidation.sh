#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the target's response invalidates memory where that is allowed, and the client invalidates it otherwise.
# tier: heart
# turn: 16
# takes: 20

. "${0%/*}/../lib/lib.sh"

share c1
must on c1 "hcablk-scatter $device random 11 16"
registrations=$(stat_of c1 $initiator/vol1 registrations)
less "the client registered memory" 20 "$registrations"
same "the target invalidated every registration" "$registrations" \
	"$(stat_of c1 $initiator/vol1 remote_invalidations)"
same "the client invalidated no registration" 0 "$(stat_of c1 $initiator/vol1 local_invalidations)"
disconnect c1 vol1

connect c1 vol1 --no-remote-invalidate
check "data is right without remote invalidation" on c1 "hcablk-scatter $device random 12 16"
check "fio verifies many requests without remote invalidation" fio c1 "--name=v --filename=$device --rw=randrw --bs=8k --iodepth=64 \
	--size=$(few 8)M --verify=crc32c --verify_fatal=1"
registrations=$(stat_of c1 $initiator/vol1 registrations)
same "without remote invalidation the client invalidated every registration" "$registrations" \
	"$(stat_of c1 $initiator/vol1 local_invalidations)"
same "without remote invalidation the target invalidated no registration" 0 "$(stat_of c1 $initiator/vol1 remote_invalidations)"

# A read rings one doorbell for its registration. Its invalidation shares a doorbell with others, or with the registration of
# the next read. How many share one depends on the pace of responses, and keep-alives ring, too: some rounds must be enough.
for ((i = 0; i < 5; i++)); do
	doorbells=$(stat_of c1 $initiator/vol1 doorbells)
	reads=$(stat_of c1 $initiator/vol1 registrations)
	must fio c1 "--name=r --filename=$device --rw=randread --bs=16k --iodepth=64 --size=$(few 8)M"
	reads=$(($(stat_of c1 $initiator/vol1 registrations) - reads))
	doorbells=$(($(stat_of c1 $initiator/vol1 doorbells) - doorbells))
	[ "$reads" -ge $(($(few 8) * 64)) ] || break
	[ "$doorbells" -ge $((reads * 2)) ] || break
done
less "each read has a registration" $(($(few 8) * 64 - 1)) "$reads"
less "invalidations share doorbells" "$doorbells" $((reads * 2))
# A request ends only after its invalidation has completed.
less "each request waited for its invalidation" $(($(stat_of c1 $initiator/vol1 local_invalidations) - 1)) "$(stat_of c1 $initiator/vol1 send_waits)"
same "each registration has an invalidation" "$(stat_of c1 $initiator/vol1 registrations)" "$(stat_of c1 $initiator/vol1 local_invalidations)"
