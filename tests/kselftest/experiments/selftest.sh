#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: `hcablk bench selftest` passes between two machines, gives a reason for each check that is not possible, and leaves both machines as they were; it refuses a drive that is in use or has a signature.
# turn: 5
# takes: 150
# timeout: 1200
# skips: siw debug

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/experiments.sh"

[ "$rdma" != siw ] || skip "most data paths that the selftest checks do not exist on iWARP"
on target '[ ! -e /sys/kernel/debug/kmemleak ]' || skip "the selftest takes too long on a debug kernel"

# ---- what is refused

like "selftest without --drive reports that it is needed" "drive is needed" "$(bench selftest)"
serve
remember
like "an unknown check is refused" "there is no check nonsense" "$(bench selftest --through "'$through'" --drive "$drive" --only nonsense)"
# The target's part that nobody used.
must on c1 ": | $through"
unchanged "wrong usage"
must on target "mkfs.ext4 -q $drive2 && sha256sum $drive2 > /tmp/sum"
serve
like "a drive with a signature is refused" "$drive2 has a signature .*TYPE=ext4" "$(bench selftest --through "'$through'" --drive "$drive2")"
must join part
check "the refused drive is unchanged" on target 'sha256sum -c /tmp/sum'
must on target "mount -o ro $drive2 /mnt"
serve
like "a mounted drive is refused" "$drive2 cannot be used: it is in use" "$(bench selftest --through "'$through'" --drive "$drive2")"
must join part
must on target 'umount /mnt'
serve
like "a file is refused" "it is not a block device" "$(bench selftest --through "'$through'" --drive /etc/passwd)"
must join part
# Loaded for the file system above.
on target 'rmmod ext4 jbd2 mbcache crc16; true'
serve
remember
like "a drive that does not exist is refused" "/nonsense cannot be used" "$(bench selftest --through "'$through'" --drive /nonsense)"
unchanged "refused drives"

# ---- all checks

serve
output=$(bench selftest --through "'$through'" --drive "$drive" --span 128 --load 8 --requests 8)
code=$?
echo "$output" >&2
same "no check of the selftest fails" "0 0" "$code $(result selftest .failed)"
same "each check that is not possible has a reason" "link-down p2p-read p2p-write soak" \
	"$(result selftest '[.checks[] | select(.outcome == "not possible" and (.detail | length > 20)).name] | sort | join(" ")')"
less "more than 25 checks of the selftest pass" 25 "$(result selftest .passed)"
unchanged "all checks"
page selftest
check "the proposal of the selftest is a valid configuration" on c1 'hcablk config check /tmp/selftest/proposal.toml'
same "the report has all its files" "client-check.json client-kernel.log client-list.json client-stats.json index.html proposal.toml result.json target-check.json target-kernel.log target-list.json target-stats.json " \
	"$(on c1 'ls /tmp/selftest | tr "\n" " "')"
