#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: vhost-user frontends, libblkio's and a test's, use a volume as a disk: rings stop and continue, memory is added and removed, a broken ring stops alone, and the disk follows the volume's size.
# turn: 21
# takes: 120
# guests: target c1
# skips: siw debug
# timeout: 1200

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
must on c1 'modprobe rdma_ucm'

socket=/run/vol1.sock
# serve ARGUMENT…: starts a program that serves the volume at the socket
serve() {
	must on c1 'rm -f /tmp/vhost /tmp/pid'
	ON_SECONDS=900 spawn serve c1 "hcablk-vhost-user serve -o queues=2 $* $socket $target_address vol1 >> /tmp/vhost 2>&1 & echo \$! > /tmp/pid; wait \$!"
	must wait_until c1 60 "grep -q ^$socket /tmp/vhost"
}
# frontend WHAT ARGUMENT…: runs the tests' frontend and prints its output
frontend() {
	local what=$1
	shift
	ON_SECONDS=600 on c1 "hcablk-vhost-frontend $what $socket $*" 2>&1
}
# says REGEX: prints how often the program has printed a matching line
says() {
	on c1 "grep -c '$1' /tmp/vhost"
}

must on target "modprobe dm_mod && echo '0 262144 linear $drive 0' | dmsetup create grows && dmsetup mknodes"
export_volume vol1 /dev/mapper/grows --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a47 c1

like "a volume that does not exist is not served" "no volume of this name" "$(on c1 "hcablk-vhost-user serve $socket $target_address nosuch" 2>&1)"
like "a file that is not a socket is refused" "is not a socket" "$(on c1 "echo precious > /run/file && hcablk-vhost-user serve /run/file $target_address vol1" 2>&1)"
same "the refused file stays as it is" precious "$(on c1 'cat /run/file')"
refuse "refused commands leave nothing on the client" on c1 "[ -e $socket ] || ls /run/hcablk/vhost-user | grep -q json"

serve
same "only root may connect" 600 "$(on c1 "stat -c %a $socket")"
like "a socket is served by one program only" "another program serves" "$(on c1 "hcablk-vhost-user serve $socket $target_address vol1" 2>&1)"
like "libblkio uses the disk" '^all was done' "$(on c1 "hcablk-blkio $socket 2 7" 2>&1 | tail -n 1)"
same "libblkio sees the volume's size" "capacity 134217728" "$(on c1 "hcablk-blkio $socket 1 7" | head -n 1)"
must on c1 'hcablk-blkio '$socket' 2 11'
must on target 'dd if=/dev/mapper/grows of=/tmp/first bs=1M count=1 iflag=direct status=none'
must on c1 'hcablk-blkio '$socket' 2 12'
must on target 'dd if=/dev/mapper/grows of=/tmp/other bs=1M count=1 iflag=direct status=none'
must on c1 'hcablk-blkio '$socket' 2 11'
check "the drive holds what libblkio wrote" on target 'dd if=/dev/mapper/grows bs=1M count=1 iflag=direct status=none | cmp - /tmp/first'
refuse "different data was written in between" on target 'cmp -s /tmp/first /tmp/other'
done_all=$(frontend all 2)
like "a guest makes all kinds of requests, with indirect descriptors and event indices" '^done$' "$(tail -n 1 <<<"$done_all")"
like "the disk's id is the volume's" '^id 6f0c2b625f5e4c0e9d57$' "$(grep ^id <<<"$done_all")"
like "a guest makes all kinds of requests without either of them" '^done$' "$(frontend plain 2 | tail -n 1)"
like "rings stop and continue, and no interrupt is lost" '^done$' "$(frontend stop | tail -n 1)"
like "memory is added and removed, and each region is registered once" '^done$' "$(frontend memory "\$(cat /tmp/pid)" | tail -n 1)"
must on c1 ': > /tmp/vhost'
like "a ring that a guest breaks stops, and works when it is set up again" '^done$' "$(frontend broken | tail -n 1)"
same "each broken ring is logged once" 11 "$(says 'ring 0 is broken')"
like "messages without sense end the connection of their frontend" '^done$' "$(frontend messages | tail -n 1)"
check "the program keeps serving" on c1 "kill -0 \$(cat /tmp/pid)"

ON_SECONDS=300 spawn one c1 "hcablk-vhost-frontend size $socket 393216 > /tmp/size 2>&1"
must wait_until c1 60 'grep -q "^sectors 262144" /tmp/size'
like "a second frontend is refused" "Connection reset|failed to fill|Broken pipe" "$(frontend flush)"
must on target "dmsetup suspend grows && printf '0 393216 linear $drive 0\n' | dmsetup load grows && dmsetup resume grows"
check "the frontend is notified that the volume has grown" join one

# A frontend that is killed under load.
ON_SECONDS=300 spawn load c1 "hcablk-vhost-frontend load $socket 1000000 > /tmp/load 2>&1 & echo \$! > /tmp/front; wait \$!"
must wait_until c1 60 'grep -q started /tmp/load'
must on c1 'kill -9 $(cat /tmp/front)'
join load
like "after a frontend was killed under load the next one is served" '^done$' "$(frontend all 2 | tail -n 1)"

must on c1 'kill $(cat /tmp/pid)'
check "the program ends on a signal" join serve
refuse "the program leaves nothing on the client" on c1 "[ -e $socket ] || ls /run/hcablk/vhost-user | grep -q json || ls /run/hcablk/sessions | grep -q reserved"
check "the program leaves nothing at the target" wait_until target 60 "$no_queue_pairs"

# A new program takes over under load: no request fails.
serve --mode 660
same "the socket's mode can be set" 660 "$(on c1 "stat -c %a $socket")"
ON_SECONDS=600 spawn load c1 "hcablk-vhost-frontend load $socket $(few 2000) > /tmp/load 2>&1"
must wait_until c1 60 'grep -q started /tmp/load'
must on c1 'kill $(cat /tmp/pid)'
check "the program ends under load" join serve
serve
check "the guest continues with the next program: its data is right" join load
like "the guest has used two connections" '^done [0-9]* 2$' "$(on c1 'tail -n 1 /tmp/load')"

# A volume that has ended for good.
must on c1 'kill $(cat /tmp/pid)'
must join serve
serve -o ctrl-loss-tmo=2
must on target 'hcablk target unexport --force vol1'
refuse "a program whose volume has ended ends" join serve
like "the program reports that its volume has ended" "the volume has ended: " "$(on c1 'cat /tmp/vhost')"
refuse "the program has removed its socket" on c1 "[ -e $socket ]"
same "the traces of the ended program are removed on request" "$socket" "$(on c1 "hcablk-vhost-user forget $socket")"
silent "removing them again prints nothing" on c1 "hcablk-vhost-user forget $socket"
must on target 'dmsetup remove grows'
