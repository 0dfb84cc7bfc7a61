#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the target's cache has exactly the hits, misses and evictions that the simulator predicts for the same requests.
# tier: heart
# turn: 5
# takes: 60
# timeout: 400

. "${0%/*}/../lib/lib.sh"

simulator=${HCABLK_BIN%/*}/hcablk-cachesim
[ -x "$simulator" ] || skip "hcablk-cachesim was not built"
volume=$target/volumes/vol1
trace=$(mktemp)

# count COUNTER: prints a counter of the volume
count() {
	stat_of target $volume "$1"
}

# Far from all other blocks, a few more lines than the cache and its history hold: they displace everything that was
# read before, such as the partition table.
for ((i = 0; i < 84; i++)); do
	echo "read $(((100000 + 16 * i) << 12)) 65536"
done > "$trace"
stream=$("$simulator" generate --requests "$(few 1500)" --lines 1200 --client 100 --writes 10 --seed "$RANDOM") ||
	die "the simulator generates no requests"
tr , ' ' <<< "$stream" >> "$trace"
output=$("$simulator" run --trace "$trace" --cache-mib 1 --json) || die "the simulator fails"
# simulated POLICY MEMBER: a number of the simulator's output
simulated() {
	jq ".caches[0].policies[] | select(.policy == \"$1\") | .$2" <<< "$output"
}
echo "# $(jq -c '[.caches[0].policies[] | {policy, hits}]' <<< "$output")" >&2

export_volume vol1 "$drive" --cache-mib=1 c1
connect c1 vol1
same "the cache has no hits before the requests" 0 "$(count cache_hits)"
before=$(count cache_misses)
# The requests in short: r or w, the first line, the number of lines.
must on c1 "tr ' ' '\n' << 'END' | awk -F: -v f=$device '
	BEGIN { print \"fio version 2 iolog\\n\" f \" add\\n\" f \" open\" }
	{ printf \"%s %s %.0f %d\\n\", f, \$1 == \"r\" ? \"read\" : \"write\", \$2 * 4096, \$3 * 4096 }
	END { print f \" close\" }' > /tmp/iolog
$(awk '{ printf "%s%s:%d:%d", NR == 1 ? "" : " ", substr($1, 1, 1), $2 / 4096, $3 / 4096 }' "$trace")
END"
check "fio makes the requests one after the other" on c1 "fio --name=replay --ioengine=psync --direct=1 --replay_no_stall=1 --read_iolog=/tmp/iolog"
must wait_until target 60 "awk '/^cache_(hits|misses) / { n += \$2 } END { exit n != $(jq .accesses <<< "$output") + $before }' $volume/stats"
same "the cache has as many hits as the simulator" "$(simulated mq hits)" "$(count cache_hits)"
same "the cache has as many misses as the simulator" "$(simulated mq misses)" $(($(count cache_misses) - before))
# The simulator began with an empty cache.
same "the cache has as many evictions as the simulator" "$(simulated mq evictions)" $(($(count cache_evictions) - before))
check "some requests were hits" [ "$(simulated mq hits)" -gt 0 ]
check "the cache has at most as many hits as the optimal policy" [ "$(simulated mq hits)" -le "$(simulated opt hits)" ]
rm "$trace"
on c1 'rm /tmp/iolog'
