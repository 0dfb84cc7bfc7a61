#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: apply says what it would do, undoes what it did when a later step fails, and ends no disk that is in use.
# tier: heart
# turn: 0
# takes: 25
# guests: target c1

. "${0%/*}/../lib/lib.sh"

id=$(host_id c1)

# configure GUEST: standard input is its configuration
configure() {
	local text
	text=$(cat)
	must on "$1" "mkdir -p /etc/hcablk && cat > /etc/hcablk/hcablk.toml << 'END'
$text
END"
}

# says GUEST CODE COMMAND…: prints what the command says, if its exit code is this one
says() {
	local guest=$1 code=$2 output got=0
	shift 2
	output=$(on "$guest" "$* 2>&1") || got=$?
	echo "$output"
	echo "# exit code $got: $output" >&2
	[ $got = "$code" ]
}

configure target << END
[export.data]
insecure = true
device = "$drive"
alow = ["$id"]
END
like "a mistake has its file and line, and what was meant" 'hcablk.toml:4: unknown key `alow`: `allow` is meant' "$(says target 2 hcablk apply)"
refuse "nothing was made" on target "[ -e $target/volumes/data ]"

# The second port's address is nobody's here: it fails when all else is done.
configure target << END
[export.data]
insecure = true
device = "$drive"
allow = ["$id"]
[port.1]
[port.2]
address = "10.99.99.99"
END
like "a dry run says what it would do" "would enable export data.*would enable port 2" "$(says target 0 hcablk apply --dry-run | tr '\n' ' ')"
refuse "and does nothing" on target "[ -e $target/volumes/data ] || [ -e $target/ports/1 ]"
like "a step that fails is told" "cannot listen at 10.99.99.99" "$(says target 1 hcablk apply)"
refuse "and what was done before it is undone" on target "[ -e $target/volumes/data ] || [ -e $target/ports/1 ]"

# A client that is started before its target.
configure c1 << END
[disk.data]
address = "$target_address"
ctrl_loss_tmo = "0 s"
END
spawn early c1 'hcablk connect data --wait 100 > /tmp/early 2> /tmp/early.err'
must wait_until c1 60 "grep -q 'is tried again' /tmp/early.err"
configure target << END
[export.data]
insecure = true
device = "$drive"
[port.1]
END
must on target 'hcablk target apply'
must wait_until c1 60 "[ \$(grep -c 'is tried again' /tmp/early.err) -ge 2 ]"
like "a host that is not allowed yet waits, too" 'not allow' "$(on c1 'tail -n 1 /tmp/early.err')"
configure target << END
[export.data]
insecure = true
device = "$drive"
allow = ["$id"]
[port.1]
END
same "a host is allowed while the volume is used" "done: allow $id to use export data" "$(on target 'hcablk apply')"
check "a disk is connected when its target comes up" join early
same "and is the one of the configuration" /dev/hcablk0 "$(on c1 'cat /tmp/early')"

must on c1 'mkfs.ext4 -q /dev/hcablk0 && mkdir -p /mnt && mount /dev/hcablk0 /mnt && echo here > /mnt/file'
configure c1 << END
[disk.data]
address = "$target_address"
ctrl_loss_tmo = "0 s"
queue_depth = 32
policy = "round-robin"
paths = { 2 = "[$target_address6]:7745" }
END
must on target "hcablk target listen --address :: --port 7745"
like "what cannot be changed in use is pending" 'pending: set queue_depth of disk data from 128 to 32' "$(says c1 5 hcablk apply)"
same "what can be is changed" round-robin "$(on c1 "cat $initiator/data/policy")"
check "a path is added in use" wait_until c1 60 "[ \$(cat $initiator/data/paths/2/state) = live ]"
same "the disk has its settings from before" 128 "$(on c1 "cat $initiator/data/queue_depth")"
like "a mounted disk is not ended by force" 'umount /mnt' "$(says c1 4 hcablk apply --force)"
same "it works on" here "$(on c1 'cat /mnt/file')"
like "diff tells what is left" 'queue_depth is 128, not 32' "$(says c1 5 hcablk config diff)"
must on c1 'umount /mnt'
check "force changes what is not in use" on c1 'hcablk apply --force'
same "so it is" 32 "$(on c1 "cat $initiator/data/queue_depth")"
check "and by both paths" wait_until c1 60 "[ \$(cat $initiator/data/state) = live ]"
check "nothing differs any more" on c1 'hcablk config diff'

configure target << END
[export.data]
insecure = true
device = "$drive"
allow = []
[port.1]
END
like "a host with a session is not forbidden" 'pending: forbid' "$(says target 5 hcablk apply)"
check "unless that is forced" on target 'hcablk apply --force'
check "then its connection is lost" wait_until c1 60 "grep -q failed $initiator/data/state"
check "stop" on c1 'hcablk disconnect --all'
