#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: stats reports exactly what happened in each interval, metrics are OpenMetrics and agree with stats, and check finds faults.
# turn: 4
# takes: 30
# guests: target c1

. "${0%/*}/../lib/lib.sh"

metrics=$(mktemp)
export_volume vol1 "$drive" c1
connect c1 vol1
must on c1 'hcablk times vol1 --measure on'
must on target 'hcablk target times vol1 --measure on'

# The reads and their bytes, summed over the intervals so far.
sum="jq -sc 'map((.devices // .volumes)[0].grown | [.reads // 0, .read_bytes // 0]) | transpose | map(add)' /tmp/rates"
ON_SECONDS=300 spawn stats-c1 c1 'echo $$ > /tmp/stats; exec hcablk stats vol1 0.5 --json > /tmp/rates'
ON_SECONDS=300 spawn stats-target target 'echo $$ > /tmp/stats; exec hcablk target stats vol1 0.5 --json > /tmp/rates'
declare -A wanted
for guest in c1 target; do
	must wait_until $guest 30 '[ -s /tmp/rates ]'
	# udev reads a new disk.
	must wait_until $guest 60 "tail -n 1 /tmp/rates | jq -e '(.devices // .volumes)[0].grown.reads == 0'"
	wanted[$guest]=$(on $guest "$sum | jq -c '[.[0] + 100, .[1] + 6553600]'")
done
must on c1 "dd if=$device of=/dev/null bs=64k count=100 iflag=direct 2> /dev/null"
for guest in c1 target; do
	check "the intervals of $guest count these 100 reads, each once" wait_until $guest 30 "[ \"\$($sum)\" = '${wanted[$guest]}' ]"
	must on $guest 'kill $(cat /tmp/stats)'
	! join stats-$guest
	check "rates are per second" on $guest "jq -se 'all((.interval_ns / 1e9) as \$s | (.devices // .volumes)[0] | (.grown.reads / \$s | round) - .per_second.reads | . > -2 and . < 2)' /tmp/rates"
	check "the mean time of a request is above zero and below a minute" on $guest "jq -se 'map((.devices // .volumes)[0].mean_ns) | any(. != null and . > 1000 and . < 60e9)' /tmp/rates"
done
like "as text, each disk has a line" '^NAME .*'$'\n''vol1 +live ' "$(on c1 'hcablk stats vol1 0.1 1')"

# value GUEST SERIES: prints one of the metrics
value() {
	on "$1" 'hcablk metrics --output /tmp/hcablk.prom && cat /tmp/hcablk.prom' > "$metrics"
	"${0%/*}/../../harness/openmetrics.py" "$metrics" "$2"
}
check "the initiator's metrics are OpenMetrics" value c1 'hcablk_disk_state{disk="vol1",state="live"}'
same "the initiator's metrics agree with stats" "$(on c1 "hcablk stats vol1 --json | jq '.devices[0].counters.reads'")" "$(value c1 'hcablk_disk_reads_total{disk="vol1"}')"
same "the initiator's metrics agree with times" "$(on c1 "hcablk times vol1 --json | jq '.devices[0].states[] | select(.state == \"sent\").count'")" \
	"$(value c1 'hcablk_disk_request_seconds_count{disk="vol1",state="sent"}')"
same "metrics leaves no temporary file" hcablk.prom "$(on c1 'ls -A /tmp | grep prom')"
check "the target's metrics are OpenMetrics" value target 'hcablk_volume_enabled{volume="vol1"}'
same "the target's metrics count the session" 1 "$(value target 'hcablk_volume_sessions{volume="vol1"}')"
same "the target's metrics count the reads" "$(on target "hcablk target stats vol1 --json | jq '.volumes[0].counters.reads'")" "$(value target 'hcablk_volume_reads_total{volume="vol1"}')"
same "the target's metrics show the memory in use" "$(on target "sed -n 's/^used //p' $target/ports/1/memory")" "$(value target 'hcablk_port_memory_used_bytes{port="1"}')"
rm -f "$metrics"

# level GUEST CHECK: prints the worst level among check's findings of this kind
level() {
	on "$1" "hcablk check --json | jq -r '[.findings[] | select(.check == \"$2\").level] | if index(\"failure\") then \"failure\" elif index(\"warning\") then \"warning\" else \"ok\" end'"
}
check "check finds no failure on the client" on c1 'hcablk check'
check "check finds no failure on the target" on target 'hcablk check'
same "check finds the disk in order" ok "$(level c1 disk)"
if [ "$rdma" = rxe ]; then
	same "check finds the MTU in order" ok "$(level c1 roce-mtu)"
	must on c1 'ip link set eth0 mtu 1500'
	same "check warns of a small MTU" warning "$(level c1 roce-mtu)"
	refuse "check --strict fails on a warning" on c1 'hcablk check --strict'
	must on c1 'ip link set eth0 mtu 9000'
fi
must on target "echo 0 > $target/ports/1/enable"
same "check finds a port that does not listen" failure "$(level target port)"
code=0
on target 'hcablk check --quiet' >&2 || code=$?
same "check exits with 7 on a failure" 7 $code
must on target 'mkdir -p /etc/hcablk && touch /etc/hcablk/hcablk.toml && chmod 666 /etc/hcablk/hcablk.toml'
same "check finds a configuration that everybody may write" failure "$(level target file-rights)"
must on target 'rm /etc/hcablk/hcablk.toml'
