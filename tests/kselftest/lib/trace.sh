# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and from lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# Functions of the tests that record how data moves.

# begin_recording GUEST…: starts a recording into /tmp/GUEST.trace on each guest, and waits until it is under way.
begin_recording() {
	local guest last=hcablk_target/hcablk_target_chunk_completed
	for guest; do
		spawn "recording of $guest" "$guest" "hcablk trace record -o /tmp/$guest.trace"
		must wait_until "$guest" 60 "grep -q 1 /sys/kernel/tracing/instances/hcablk-*/events/$last/enable"
	done
}

# end_recording GUEST…: ends the recordings
end_recording() {
	local guest
	for guest; do
		must on "$guest" "kill -TERM \$(pidof hcablk)"
		check "$guest ends its recording without an error" join "recording of $guest"
	done
}

# bring_recording FROM TO: copies the recording of one guest to another.
bring_recording() {
	local packed
	packed=$(on "$1" "gzip -c /tmp/$1.trace | base64 -w 0") || die "cannot read the recording of $1"
	must on "$2" "echo $packed | base64 -d | gunzip > /tmp/$1.trace"
}
