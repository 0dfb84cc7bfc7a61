#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: hosts that ask for connections and never finish them, as many as may, keep no other from connecting, coming back and leaving.
# group: refuse
# skips: siw
# waits: yes
# timeout: 400

. "${0%/*}/lib.sh"

[ "$rdma" = rxe ] || skip "the crowd's connection requests come from no queue pair, which siw does not have"

le() {
	local n=$2 i
	for ((i = 0; i < $1; i++)); do
		printf '%02x' $((n & 255))
		n=$((n >> 8))
	done
}
# request HOST VOLUME SESSION EPOCH: a connection request for one queue pair, in hexadecimal
request() {
	printf '484341420101%s0001%s%s%s%s%s' "$(le 2 1)" 0000 "$(le 8 "$3")" "$(le 4 "$4")" "$(host_id "$1" | tr -d -)" \
		"$(printf '%-16s' "$2" | tr ' ' '\0' | od -An -v -tx1 | tr -d ' \n')"
}
# crowd HOST REQUEST session|epoch COUNT: begins; shown HOST: what it has said last; disperse HOST: ends it.
crowd() {
	ON_SECONDS=280 spawn "crowd-$1" "$1" "exec hcablk-peer crowd $target_address 7744 $2 $3 $4 > /tmp/crowd 2>&1"
}
shown() {
	on "$1" 'tail -n 1 /tmp/crowd'
}
settles() {
	check "$1" wait_until "$2" 60 "tail -n 1 /tmp/crowd | grep -qx '$3'"
	echo "# $2: $(shown "$2")" >&2
}
disperse() {
	on "$1" 'killall hcablk-peer; rm /tmp/crowd'
	join "crowd-$1" || true
}
# Its own session of that volume: "SESSION EPOCH", the first as a hexadecimal number.
session_of() {
	on target "awk '\$1 == \"$2\" && \$2 == \"$(host_id "$1")\" { print \$3, \$4 }' $target/ports/*/sessions"
}
soon=60
# Connection requests that may be under way in all; of those that wait for drives a host may have 32, and 16 sessions.
all=40 own=32 sessions=16

must on target "modprobe hcablk_target pending_connects=$all && modprobe dm_mod &&
	echo \"0 \$(blockdev --getsz $drive) linear $drive 0\" | dmsetup create hung && dmsetup mknodes"
export_volume hung "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname hung')" c1 c2
export_volume well "$drive2" c1 c2
# Sessions that are granted and of which nothing more comes.
crowd c2 "$(request c2 well 815 1)" session $((sessions + 8))
settles "of a host's sessions that come to nothing there are so many" c2 "granted $sessions, refused 8, waiting 0"
like "another host has a session besides" "^established" \
	"$(on c1 "hcablk-peer connect $target_address 7744 $(request c1 well 4712 1) close" 2>&1)"
disperse c2
check "they end with those who asked" wait_until target 60 "[ -z \"\$(cat $target/volumes/well/clients)\" ]"

for client in c1 c2; do
	connect $client hung --queues 1 --io-timeout 600
	disks+=("$device")
done
must on target 'dmsetup suspend --nolockfs hung'
for n in 1 2; do
	before=$(stat_of target $target/volumes/hung receives)
	ON_SECONDS=300 spawn read$n c$n "fio --name=r --filename=${disks[n - 1]} --direct=1 --ioengine=libaio --rw=read --bs=4k \
		--iodepth=8 --number_ios=8"
	# Most of them, since questions for the size count as well.
	must wait_until target 60 "awk '\$1 == \"receives\" { exit !(\$2 >= $((before + 8))) }' $target/volumes/hung/stats"
done

# c1 comes back again and again to what hangs.
read -r session epoch <<< "$(session_of c1 hung)"
crowd c1 "$(request c1 hung $((16#$session)) $((epoch + 1)))" epoch $((own + 200))
settles "of a host that asks again and again, so many requests wait" c1 "granted 0, refused 200, waiting $own"

export ON_SECONDS=$soon
connect c2 well
check "another host connects and is served" on c2 "dd if=/dev/zero of=$device bs=64k count=4 oflag=direct"
spawn first c2 "hcablk-peer connect $target_address 7744 $(request c2 well 4711 1) wait > /tmp/first"
must wait_until c2 60 'grep -q established /tmp/first'
like "it comes back to a volume that does not hang" "^established" \
	"$(on c2 "hcablk-peer connect $target_address 7744 $(request c2 well 4711 2) close" 2>&1)"
join first
disconnect c2 well
check "it leaves, and nothing is left of it" wait_until target $soon "[ -z \"\$(cat $target/volumes/well/clients)\" ]"

connect c2 well

# Both together are all that may be under way.
read -r session epoch <<< "$(session_of c2 hung)"
crowd c2 "$(request c2 hung $((16#$session)) $((epoch + 1)))" epoch $((own + 100))
settles "all together so many wait" c2 "granted 0, refused $((own + 100 - all + own)), waiting $((all - own))"
started=$(now_ms)
like "then a request is refused at once" "^rejected 48434142$(le 2 5)" \
	"$(on c1 "hcablk-peer connect $target_address 7744 $(request c1 well 4713 1) close" 2>&1)"
less "which takes no time" $(($(now_ms) - started)) $((15000 * slow))
check "who is connected is served" on c2 "dd if=/dev/zero of=$device bs=64k count=4 oflag=direct"
disconnect c2 well
check "and leaves, and nothing is left of it" wait_until target $soon "[ -z \"\$(cat $target/volumes/well/clients)\" ]"
disperse c2
check "when some of them are gone there is room for another" wait_until c2 $soon "hcablk connect $target_address well"
disconnect c2 well

disperse c1
ON_SECONDS=120
must on target 'dmsetup resume hung'
for n in 1 2; do
	refuse "what c$n read fails, since it came back" join read$n
	must on c$n 'hcablk disconnect --force hung'
done
check "nothing is left" wait_until target 60 "[ -z \"\$(cat $target/volumes/hung/clients)\" ]"
must on target 'hcablk target unexport hung && dmsetup remove hung'
for guest in c1 c2 target; do
	check "no queue pair is left on $guest" wait_until $guest 60 "[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = 0 ]"
done
