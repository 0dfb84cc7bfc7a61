#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a saved system has the same configfs on both sides after a fresh boot and hcablk apply.
# turn: 17
# takes: 90
# guests: target c1
# timeout: 600

. "${0%/*}/../lib/lib.sh"

# whole GUEST TREE: prints all of configfs except counters, names of sessions and write-only files
whole() {
	on "$1" "cd $2 && find . -type d | sort && find . -type f | sort | while read -r file; do
			case \${file##*/} in
			session | stats | times | clients | sessions | memory | shares | lost | peers | admit | force_disconnect) ;;
			*) echo \"\$file \$(tr '\n' ' ' < \$file)\" ;;
			esac
		done"
}

# has_all_defaults GUEST DIRECTORY: a directory that apply made from a table without settings equals a fresh one
has_all_defaults() {
	local fresh=${2%/*}/fresh
	on "$1" "mkdir $fresh; status=0
		for file in $2/*; do
			[ -f \$file ] || continue
			case \${file##*/} in address | volume | host_id | path | wwid | memory | stats | times | error | enable) continue ;; esac
			[ \"\$(cat \$file)\" = \"\$(cat $fresh/\${file##*/})\" ] || { echo \$file is \$(cat \$file), not \$(cat $fresh/\${file##*/}); status=1; }
		done
		rmdir $fresh; exit \$status"
}

# The command's defaults equal the drivers'.
must on target "mkdir -p /etc/hcablk && printf '[export.plain]\ndevice = \"$drive\"\nenabled = false\n[port.plain]\nenabled = false\n' > /etc/hcablk/hcablk.toml"
must on target 'hcablk apply'
check "a volume without settings has the driver's defaults" has_all_defaults target $target/volumes/plain
check "a port without settings has the driver's defaults" has_all_defaults target $target/ports/plain
must on c1 "printf '[disk.plain]\naddress = \"$target_address\"\nenabled = false\n' > /etc/hcablk/hcablk.toml && hcablk apply"
check "a disk without settings has the driver's defaults" has_all_defaults c1 $initiator/plain
must on target 'hcablk target unexport plain && hcablk target unlisten --all; rmdir /sys/kernel/config/hcablk_target/ports/plain 2> /dev/null; rm /etc/hcablk/hcablk.toml'
must on c1 'hcablk disconnect plain && rm /etc/hcablk/hcablk.toml'

# A system with all kinds of settings.
id=$(host_id c1)
other=0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11
must on target "hcablk target export data $drive --insecure --mode cached --chunk-kib 64 --allow $id --allow $other"
must on target "hcablk target export log $drive2 --insecure --read-only --cache-mib 8 --no-port --allow $id && hcablk target times log --measure on"
must on target "hcablk target listen --address :: --port 7745 --id 6 --memory-mib 300 --buffer-mib 32 --queue-credits 64"
must on c1 "hcablk connect $target_address data --name a --path '[$target_address6]:7745' --queues 1 --queue-depth 64 --io-timeout 90 --policy round-robin \
	--small-read 0 --max-io-kib 512 --ctrl-loss-tmo -1 --fast-io-fail-tmo 30 --batch-upper 0"
must on c1 "hcablk connect $target_address log --poll-queues 1 --wwid $(on target "cat $target/volumes/log/wwid") --no-remote-invalidate"
must on c1 "mkdir $initiator/a/paths/5 && echo 10.77.0.9 > $initiator/a/paths/5/address && hcablk times a --measure on"
must wait_until c1 60 "[ \$(cat $initiator/a/state) = live ]"

must on target 'hcablk config save'
must on c1 'hcablk config save'
check "the target's saved configuration equals the running one" on target 'hcablk config diff'
check "the client's saved configuration equals the running one" on c1 'hcablk config diff'
before_target=$(whole target $target)
before_c1=$(whole c1 $initiator)
file_target=$(on target 'cat /etc/hcablk/hcablk.toml')
file_c1=$(on c1 'cat /etc/hcablk/hcablk.toml')
echo "$file_target" >&2
echo "$file_c1" >&2

for guest in target c1; do
	must vm kill $guest
	must vm start $guest
done
must on target "cat > /etc/hcablk/hcablk.toml << 'END'
$file_target
END"
must on c1 "cat > /etc/hcablk/hcablk.toml << 'END'
$file_c1
END"
check "the target applies its configuration after a fresh boot" on target 'hcablk target apply'
check "the client applies its configuration after a fresh boot" on c1 'hcablk apply'
must wait_until c1 60 "[ \$(cat $initiator/a/state) = live ]"
same "the target's configfs is the same as before the boot" "$before_target" "$(whole target $target)"
same "the client's configfs is the same as before the boot" "$before_c1" "$(whole c1 $initiator)"
same "a second apply changes nothing" 0 "$(on c1 'hcablk apply --json' | jq '.steps + .pending | length')"
check "config diff reports no difference at the target" on target 'hcablk config diff'
same "config show and config show --running agree" "$(on c1 'hcablk config show')" "$(on c1 'hcablk config show --running')"
check "the disk can be written" on c1 'dd if=/dev/urandom of=/dev/hcablk0 bs=64k count=16 oflag=direct 2>&1'
check "the client disconnects all disks" on c1 'hcablk disconnect --all'
check "the target withdraws all ports and volumes" on target 'hcablk target unlisten --all && hcablk target unexport --all'
