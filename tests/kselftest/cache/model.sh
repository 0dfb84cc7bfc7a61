#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the target's cache hits, misses and evicts exactly what the simulator says of the same requests.
# tier: heart
# turn: 5
# takes: 60
# timeout: 400

. "${0%/*}/../lib/lib.sh"

simulator=${HCABLK_BIN%/*}/hcablk-cachesim
[ -x "$simulator" ] || skip "there is no hcablk-cachesim"
volume=$target/volumes/vol1
trace=$(mktemp)

# count COUNTER
count() {
	stat_of target $volume "$1"
}

# Far from everything else, as many lines as the cache and its history hold, and a few more: whatever was read
# before (by whoever looked for partitions) is forgotten then.
for ((i = 0; i < 84; i++)); do
	echo "read $(((100000 + 16 * i) << 12)) 65536"
done > "$trace"
stream=$("$simulator" generate --requests "$(few 1500)" --lines 1200 --client 100 --writes 10 --seed "$RANDOM") ||
	die "the simulator makes a stream"
tr , ' ' <<< "$stream" >> "$trace"
output=$("$simulator" run --trace "$trace" --cache-mib 1 --json) || die "the simulator runs"
# of POLICY MEMBER
of() {
	jq ".caches[0].policies[] | select(.policy == \"$1\") | .$2" <<< "$output"
}
echo "# $(jq -c '[.caches[0].policies[] | {policy, hits}]' <<< "$output")" >&2

export_volume vol1 "$drive" --cache-mib=1 c1
connect c1 vol1
same "nothing was read twice before" 0 "$(count cache_hits)"
before=$(count cache_misses)
# The requests in short: r or w, the first line, how many lines.
must on c1 "tr ' ' '\n' << 'END' | awk -F: -v f=$device '
	BEGIN { print \"fio version 2 iolog\\n\" f \" add\\n\" f \" open\" }
	{ printf \"%s %s %.0f %d\\n\", f, \$1 == \"r\" ? \"read\" : \"write\", \$2 * 4096, \$3 * 4096 }
	END { print f \" close\" }' > /tmp/iolog
$(awk '{ printf "%s%s:%d:%d", NR == 1 ? "" : " ", substr($1, 1, 1), $2 / 4096, $3 / 4096 }' "$trace")
END"
check "the requests are made, one after the other" on c1 "fio --name=replay --ioengine=psync --direct=1 --replay_no_stall=1 --read_iolog=/tmp/iolog"
must wait_until target 60 "awk '/^cache_(hits|misses) / { n += \$2 } END { exit n != $(jq .accesses <<< "$output") + $before }' $volume/stats"
same "as many lines were there as the simulator says" "$(of mq hits)" "$(count cache_hits)"
same "as many were not" "$(of mq misses)" $(($(count cache_misses) - before))
# It began with an empty cache.
same "as many had to go" "$(of mq evictions)" $(($(count cache_evictions) - before))
check "some were there" [ "$(of mq hits)" -gt 0 ]
check "and no better than what knows the future" [ "$(of mq hits)" -le "$(of opt hits)" ]
rm "$trace"
on c1 'rm /tmp/iolog'
