# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and the rest is in lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# The protocol's messages in hexadecimal, for hcablk-peer.

# le BYTES NUMBER: prints the number's bytes, lowest first, in hexadecimal
le() {
	local n=$2 i
	for ((i = 0; i < $1; i++)); do
		printf '%02x' $((n & 255))
		n=$((n >> 8))
	done
}

magic=48434142
id=$(host_id c1)
vol1=$(printf vol1 | od -An -tx1 | tr -d ' \n')000000000000000000000000

# The index of a session's admin queue pair, which begins the session.
admin=255
# request VERSION-MIN VERSION-MAX DEPTH QUEUE QUEUES SESSION EPOCH: prints a connection request of c1 for vol1
request() {
	echo "$magic$(le 1 "$1")$(le 1 "$2")$(le 2 "$3")$(le 1 "$4")$(le 1 "$5")0000$(le 8 "$6")$(le 4 "$7")${id//-/}$vol1"
}

# admin_message OPCODE VALUE FLAGS: prints a message for an admin queue pair, with tag 7, generation 9
admin_message() {
	echo "$(le 1 "$1")000000$(le 2 7)$(le 2 9)$(le 8 "$2")$(le 4 "$3")$(printf '00%.0s' {1..20})"
}

# message OPCODE FLAGS OFFSET LENGTH DATA: prints a request with tag 7, generation 9, and an unused key and address
message() {
	echo "$(le 1 "$1")$(le 1 "$2")0000$(le 2 7)$(le 2 9)$(le 8 "$3")$(le 4 "$4")$(le 4 4660)$(le 8 4096)$(le 1 "$5")00000000000000"
}
