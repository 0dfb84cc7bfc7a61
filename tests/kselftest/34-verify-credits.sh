#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: with fewer receive buffers than requests nothing is sent without a credit, and all of it arrives.
# group: verify

. "${0%/*}/lib.sh"

must on target 'hcablk target listen --port 7744 --queue-credits 4'
share c1
rnr_client=$(rnr c1)
rnr_target=$(rnr target)
check "128 requests with 4 credits" fio c1 "--name=v --filename=$device --rw=randrw --bs=4k --iodepth=128 --numjobs=2 \
	--size=$(few 4)M --offset_increment=64M --verify=crc32c --verify_fatal=1"
check "large requests with 4 credits" fio c1 "--name=v --filename=$device --rw=randrw --bs=512k --iodepth=32 \
	--size=$(few 16)M --verify=crc32c --verify_fatal=1"
less "requests waited for credits" 0 "$(stat_of c1 $initiator/vol1 credit_waits)"
same "the client saw no receiver not ready" "$rnr_client" "$(rnr c1)"
same "nor did the target" "$rnr_target" "$(rnr target)"
disconnect c1 vol1
must on target 'hcablk target unlisten --all && hcablk target listen --queue-credits 1'
connect c1 vol1
check "one credit is enough" on c1 "hcablk-scatter $device edges 21 16"
check "for many requests at a time, too" fio c1 "--name=v --filename=$device --rw=randrw --bs=16k --iodepth=32 \
	--size=$(few 4)M --verify=crc32c --verify_fatal=1"
same "the client saw no receiver not ready with one" "$rnr_client" "$(rnr c1)"
same "nor did the target with one" "$rnr_target" "$(rnr target)"
