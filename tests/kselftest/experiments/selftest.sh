#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: `hcablk bench selftest` passes between two machines, says why it cannot do the rest, and leaves both as they were, also when it is interrupted or killed; it refuses a drive that is in use or has a signature.
# turn: 21
# takes: 240
# timeout: 1800
# skips: siw debug

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/experiments.sh"

[ "$rdma" != siw ] || skip "on iWARP most ways that it checks are not there"
on target '[ ! -e /sys/kernel/debug/kmemleak ]' || skip "it takes too long on a debug kernel"

# unchanged "DESCRIPTION"
unchanged() {
	check "$1: the target's part ends" join part
	must wait_until target 30 "$no_queue_pairs"
	same "$1: the client is as it was" "$client" "$(state c1)"
	same "$1: the target is as it was" "$server" "$(state target)"
}

# What the first run may load and leave, since it was not there as a module of ours.
serve
must on c1 "hcablk-bench selftest --list > /dev/null; : | $through"
join part
client=$(state c1) server=$(state target)

# ---- what is refused

like "without a drive it says so" "drive is needed" "$(bench selftest)"
serve
like "a check that there is not is refused" "there is no check nonsense" "$(bench selftest --through "'$through'" --drive "$drive" --only nonsense)"
must on c1 ": | $through"
unchanged "wrong usage"
must on target "mkfs.ext4 -q $drive2 && sha256sum $drive2 > /tmp/sum"
serve
like "a drive with a signature is refused" "$drive2 has a signature .*TYPE=ext4" "$(bench selftest --through "'$through'" --drive "$drive2")"
join part
check "nothing on it has changed" on target 'sha256sum -c /tmp/sum'
must on target "mount -o ro $drive2 /mnt"
serve
like "one that is in use is refused" "$drive2 cannot be used: it is in use" "$(bench selftest --through "'$through'" --drive "$drive2")"
must on target 'umount /mnt'
serve
like "a file is refused" "it is no block device" "$(bench selftest --through "'$through'" --drive /etc/passwd)"
join part
# Loaded for the file system that was made here.
on target 'rmmod ext4 jbd2 mbcache crc16; true'
server=$(state target)
serve
: "$(bench selftest --through "'$through'" --drive /nonsense)"
unchanged "refused drives"

# ---- all checks

serve
output=$(bench selftest --through "'$through'" --drive "$drive" --span 128 --load 8 --requests 8)
code=$?
echo "$output" >&2
same "no check fails" "0 0" "$code $(result selftest .failed)"
same "checks that are not possible here say why" "link-down p2p-read p2p-write soak" \
	"$(result selftest '[.checks[] | select(.outcome == "not possible" and (.detail | length > 20)).name] | sort | join(" ")')"
less "there were many" 25 "$(result selftest .passed)"
unchanged "all checks"
page selftest
check "what it proposes is a configuration" on c1 'hcablk config check /tmp/selftest/proposal.toml'
same "it has what a stranger needs" "client-check.json client-kernel.log client-list.json client-stats.json index.html proposal.toml result.json target-check.json target-kernel.log target-list.json target-stats.json " \
	"$(on c1 'ls /tmp/selftest | tr "\n" " "')"

# ---- when it is stopped

# started: it is connected
started() {
	serve
	ON_SECONDS=900 spawn run c1 "rm -rf /tmp/stopped; hcablk-bench selftest --address $target_address --output /tmp/stopped --through '$through' \
		--drive $drive --only load --span 128 --load 128 & echo \$! > /tmp/pid; wait \$!; echo \$? > /tmp/code"
	must wait_until c1 60 "awk '{ exit !(\$5 > 20) }' /sys/block/hcablk0/stat"
}
started
must on c1 'kill -TERM $(cat /tmp/pid)'
check "it ends when it is interrupted" wait_until c1 90 '[ -s /tmp/code ]'
join run
same "and says so" 130 "$(on c1 'cat /tmp/code')"
must on c1 'rm /tmp/code /tmp/pid'
unchanged "interrupted"
same "an interrupted run leaves no folder" no "$(on c1 '[ ! -e /tmp/stopped ] && echo no')"

started
must on c1 'kill -KILL $(cat /tmp/pid)'
join run
check "killed: the target's part ends" join part
must wait_until target 30 "$no_queue_pairs"
same "killed: the target is as it was" "$server" "$(state target)"
# Who began it could not: its disk is left, and its load ends with the connection.
must wait_until c1 60 '! pidof fio'
must on c1 'hcablk disconnect hcablk-bench --force --if-exists'
