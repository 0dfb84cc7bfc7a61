#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: `hcablk bench selftest` passes on HCAs that obey the rules strictly, and finds each of five faults of an HCA.
# turn: 11
# takes: 90
# guests: hca
# timeout: 1500

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"
. "${0%/*}/../lib/experiments.sh"

hca_pair

# selftest OPTION…: runs the selftest with both sides in the one guest
selftest() {
	output=$(bench selftest --drive "$drive" --span 64 --load 4 --requests 8 "$@")
	code=$?
	echo "$output" >&2
}

# finds "FAULT" CHECK DEVICE KNOB VALUE REGEX: with this fault of the device the check fails, and reports REGEX
finds() {
	knob "$3" "$4" "$5"
	selftest --only "$2"
	knob "$3" "$4" 0
	same "$1: the check $2 and the command fail" "1 fail" "$code $(result selftest '.checks[0].outcome')"
	like "$1: the check reports the reason" "$6" "$(result selftest '.checks[0].detail')"
	must wait_until c1 60 "$no_queue_pairs"
	same "$1: no disk and no volume is left" "0 0" "$(on c1 "hcablk list --json | jq '.devices | length'; hcablk target list --json | jq '.volumes | length'" | xargs)"
}

finds "a bit of the data read is wrong" registered-read hca0 corrupt 100000 "WRONG DATA"
finds "a bit of the data written is wrong" eager-write hca1 corrupt 100000 "WRONG DATA"
finds "a work request fails" registered-read hca0 fail_wr 25 "cannot (read|write)|Input/output|No such device"
finds "posting fails" fetched-write hca1 fail_post 25 "cannot (read|write)|Input/output|No such device"
finds "the device stalls" small-read hca1 stall 1 "connect .*failed"

selftest --only small-read,registered-read,local-invalidation,inline-write,eager-write,fetched-write,chunked-read,chunked-write,whole-write,shapes,shapes-registered,message-batches,interrupt-batching,completion-vectors,killed-queue-pairs,eviction,kernel-log
same "without a fault all 17 checks pass" "0 17 0 0" "$code $(result selftest '"\(.passed) \(.failed) \(.not_possible)"')"
for dev in hca0 hca1; do
	same "$dev made no access outside its memory regions" 0 "$(counted $dev dma_faults)"
done
