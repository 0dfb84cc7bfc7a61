#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: stats tells by intervals just what happened, metrics are OpenMetrics and say what stats says, check finds what is wrong.
# turn: 4
# takes: 30
# guests: target c1

. "${0%/*}/../lib/lib.sh"

metrics=$(mktemp)
export_volume vol1 "$drive" c1
connect c1 vol1
must on c1 'hcablk times vol1 --measure on'
must on target 'hcablk target times vol1 --measure on'

# What the intervals that were told so far say of reads and their bytes, all together.
sum="jq -sc 'map((.devices // .volumes)[0].grown | [.reads // 0, .read_bytes // 0]) | transpose | map(add)' /tmp/rates"
ON_SECONDS=300 spawn stats-c1 c1 'echo $$ > /tmp/stats; exec hcablk stats vol1 0.5 --json > /tmp/rates'
ON_SECONDS=300 spawn stats-target target 'echo $$ > /tmp/stats; exec hcablk target stats vol1 0.5 --json > /tmp/rates'
declare -A wanted
for guest in c1 target; do
	must wait_until $guest 30 '[ -s /tmp/rates ]'
	# udev reads a disk that comes.
	must wait_until $guest 60 "tail -n 1 /tmp/rates | jq -e '(.devices // .volumes)[0].grown.reads == 0'"
	wanted[$guest]=$(on $guest "$sum | jq -c '[.[0] + 100, .[1] + 6553600]'")
done
must on c1 "dd if=$device of=/dev/null bs=64k count=100 iflag=direct 2> /dev/null"
for guest in c1 target; do
	check "the intervals of $guest have these 100 reads, and none twice" wait_until $guest 30 "[ \"\$($sum)\" = '${wanted[$guest]}' ]"
	must on $guest 'kill $(cat /tmp/stats)'
	! join stats-$guest
	check "rates are by the second" on $guest "jq -se 'all((.interval_ns / 1e9) as \$s | (.devices // .volumes)[0] | (.grown.reads / \$s | round) - .per_second.reads | . > -2 and . < 2)' /tmp/rates"
	check "so long a request takes, and not longer than a minute" on $guest "jq -se 'map((.devices // .volumes)[0].mean_ns) | any(. != null and . > 1000 and . < 60e9)' /tmp/rates"
done
like "as text they have a line each" '^NAME .*'$'\n''vol1 +live ' "$(on c1 'hcablk stats vol1 0.1 1')"

# value GUEST SERIES: one of the metrics
value() {
	on "$1" 'hcablk metrics --output /tmp/hcablk.prom && cat /tmp/hcablk.prom' > "$metrics"
	"${0%/*}/../../harness/openmetrics.py" "$metrics" "$2"
}
check "the initiator's metrics are OpenMetrics" value c1 'hcablk_disk_state{disk="vol1",state="live"}'
same "they count what stats counts" "$(on c1 "hcablk stats vol1 --json | jq '.devices[0].counters.reads'")" "$(value c1 'hcablk_disk_reads_total{disk="vol1"}')"
same "and measure what times measures" "$(on c1 "hcablk times vol1 --json | jq '.devices[0].states[] | select(.state == \"sent\").count'")" \
	"$(value c1 'hcablk_disk_request_seconds_count{disk="vol1",state="sent"}')"
same "no file is left beside them" hcablk.prom "$(on c1 'ls -A /tmp | grep prom')"
check "the target's metrics are OpenMetrics" value target 'hcablk_volume_enabled{volume="vol1"}'
same "they count the session" 1 "$(value target 'hcablk_volume_sessions{volume="vol1"}')"
same "and the reads" "$(on target "hcablk target stats vol1 --json | jq '.volumes[0].counters.reads'")" "$(value target 'hcablk_volume_reads_total{volume="vol1"}')"
same "and the memory" "$(on target "sed -n 's/^used //p' $target/ports/1/memory")" "$(value target 'hcablk_port_memory_used_bytes{port="1"}')"
rm -f "$metrics"

# level GUEST CHECK: what check says of this, the worst first
level() {
	on "$1" "hcablk check --json | jq -r '[.findings[] | select(.check == \"$2\").level] | if index(\"failure\") then \"failure\" elif index(\"warning\") then \"warning\" else \"ok\" end'"
}
check "check finds nothing that does not work" on c1 'hcablk check'
check "nor at the target" on target 'hcablk check'
same "the disk is well" ok "$(level c1 disk)"
if [ "$rdma" = rxe ]; then
	same "so is the MTU" ok "$(level c1 roce-mtu)"
	must on c1 'ip link set eth0 mtu 1500'
	same "a small one is found" warning "$(level c1 roce-mtu)"
	refuse "a warning is enough to fail if that is wanted" on c1 'hcablk check --strict'
	must on c1 'ip link set eth0 mtu 9000'
fi
must on target "echo 0 > $target/ports/1/enable"
same "a port that does not listen is found" failure "$(level target port)"
code=0
on target 'hcablk check --quiet' >&2 || code=$?
same "the exit code says so" 7 $code
must on target 'mkdir -p /etc/hcablk && touch /etc/hcablk/hcablk.toml && chmod 666 /etc/hcablk/hcablk.toml'
same "a configuration that all may write is found" failure "$(level target file-rights)"
must on target 'rm /etc/hcablk/hcablk.toml'
