#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: hcablk apply reports the planned steps, undoes its steps when a later step fails, and ends no disk that is in use.
# tier: heart
# turn: 0
# takes: 25
# guests: target c1

. "${0%/*}/../lib/lib.sh"

id=$(host_id c1)

# configure GUEST: writes the configuration from standard input into the guest
configure() {
	local text
	text=$(cat)
	must on "$1" "mkdir -p /etc/hcablk && cat > /etc/hcablk/hcablk.toml << 'END'
$text
END"
}

# says GUEST CODE COMMAND…: runs the command, prints its output, and succeeds if its exit code is CODE
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
like "apply reports a misspelt key with file, line and the correct key" 'hcablk.toml:4: unknown key `alow`: did you mean `allow`' "$(says target 2 hcablk apply)"
refuse "a faulty configuration exports nothing" on target "[ -e $target/volumes/data ]"

# No guest has the address of the second port: this step fails after all others.
configure target << END
[export.data]
insecure = true
device = "$drive"
allow = ["$id"]
[port.1]
[port.2]
address = "10.99.99.99"
END
like "a dry run reports the steps that apply would make" "would enable export data.*would enable port 2" "$(says target 0 hcablk apply --dry-run | tr '\n' ' ')"
refuse "a dry run makes no volume and no port" on target "[ -e $target/volumes/data ] || [ -e $target/ports/1 ]"
like "apply reports the step that failed" "cannot listen at 10.99.99.99" "$(says target 1 hcablk apply)"
refuse "apply undoes the steps before the failed one" on target "[ -e $target/volumes/data ] || [ -e $target/ports/1 ]"

# A client starts before its target.
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
like "a host that is not allowed yet waits for its permission" 'not allow' "$(on c1 'tail -n 1 /tmp/early.err')"
configure target << END
[export.data]
insecure = true
device = "$drive"
allow = ["$id"]
[port.1]
END
same "apply allows a host while the volume is in use" "done: allow $id to use export data" "$(on target 'hcablk apply')"
check "the disk is connected when its target is up" join early
same "the connected disk has the configured name" /dev/hcablk0 "$(on c1 'cat /tmp/early')"

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
like "apply leaves a setting pending that cannot be changed while the disk is in use" 'pending: set queue_depth of disk data from 128 to 32' "$(says c1 5 hcablk apply)"
same "apply changes a setting that can be changed while the disk is in use" round-robin "$(on c1 "cat $initiator/data/policy")"
check "apply adds a path while the disk is in use" wait_until c1 60 "[ \$(cat $initiator/data/paths/2/state) = live ]"
same "the disk keeps its queue depth while it is in use" 128 "$(on c1 "cat $initiator/data/queue_depth")"
like "apply --force does not end a mounted disk" 'umount /mnt' "$(says c1 4 hcablk apply --force)"
same "the mounted disk still works" here "$(on c1 'cat /mnt/file')"
like "config diff reports the pending setting" 'queue_depth is 128, not 32' "$(says c1 5 hcablk config diff)"
must on c1 'umount /mnt'
check "apply --force changes a disk that is not in use" on c1 'hcablk apply --force'
same "the disk has the new queue depth" 32 "$(on c1 "cat $initiator/data/queue_depth")"
check "the disk is live over both paths" wait_until c1 60 "[ \$(cat $initiator/data/state) = live ]"
check "config diff reports no difference any more" on c1 'hcablk config diff'

configure target << END
[export.data]
insecure = true
device = "$drive"
allow = []
[port.1]
END
like "apply does not forbid a host that has a session" 'pending: forbid' "$(says target 5 hcablk apply)"
check "apply --force forbids a host that has a session" on target 'hcablk apply --force'
check "the forbidden host loses its connection" wait_until c1 60 "grep -q failed $initiator/data/state"
check "the client disconnects all disks" on c1 'hcablk disconnect --all'
