#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the core's safe layers do what they promise, and refuse what they should, on a real RDMA device and block layer.
# turn: 7
# takes: 5
# skips: stock siw
# guests: target
# timeout: 480
# expect-log: BUG: a completion queue was started twice
# expect-log: BUG: a request was dropped by its owner

. "${0%/*}/../lib/lib.sh"

on target 'modinfo hcablk_kunit > /dev/null 2>&1 && [ -d /sys/kernel/debug/kunit ]' ||
	skip "the kernel has no built-in KUnit: these tests need the debug kernel"
[ "$rdma" = rxe ] || skip "iWARP needs a registered region for every RDMA READ; these tests read into plain memory"

# The tests let allocations of every kind fail silently. Allocations of vmalloc() are left out: they would log a warning.
must on target 'set -- $(sort /proc/kallsyms | grep -A 1 " __vmalloc_node_range_noprof$" | cut -d " " -f 1)
for f in failslab fail_page_alloc; do
	cd /sys/kernel/debug/$f && echo 0 > probability && echo 0 > verbose && echo N > ignore-gfp-wait &&
		echo 0x$1 > reject-start && echo 0x$2 > reject-end && echo 32 > stacktrace-depth || exit 1
	[ ! -e cache-filter ] || echo N > cache-filter
	[ ! -e min-order ] || echo 0 > min-order
	[ ! -e ignore-gfp-highmem ] || echo N > ignore-gfp-highmem
done'

# Loading the module runs the suites.
ON_SECONDS=280 must on target "modprobe hcablk_kunit address=$(
	IFS=. read -r a b c d <<< $target_address
	printf '0x%02x%02x%02x%02x' "$a" "$b" "$c" "$d"
)"
suites="blkdev buffers completions configfs direct exposed queues regions requests sglist sinks small"
total=0
for suite in $suites; do
	suite=hcablk_$suite
	results=$(on target "cat /sys/kernel/debug/kunit/$suite/results")
	count=$(grep -cE '^    (not )?ok ' <<< "$results")
	bad=$(grep -E '^    not ok |# SKIP' <<< "$results")
	less "$suite has tests" 0 "$count"
	same "$suite: all announced tests have a result" "$(sed -nE 's/^    1\.\.([0-9]+)$/\1/p' <<< "$results")" "$count"
	if [ -z "$bad" ] && grep -q "^ok 1 $suite" <<< "$results"; then
		pass "$suite: all $count tests pass"
	else
		fail "$suite: all $count tests pass"
		printf '# %s\n' "$results" >&2
		# Names of failed tests must be in the output, not only in the log: the injected bugs are found by these.
		[ -z "$bad" ] || awk '{ $1 = $1; print "# " $0 }' <<< "$bad"
		in_log target 'hcablk_kunit: ' | sed 's/^/# /'
	fi
	total=$((total + count))
done
same "no other suite exists" "$(wc -w <<< "$suites")" "$(on target 'ls -d /sys/kernel/debug/kunit/hcablk_*' | wc -l)"
echo "# $total tests"

# fails "WHY" COMMAND: checks that the command in the module's directories fails with this text.
tree=/sys/kernel/config/hcablk_kunit
fails() {
	local output
	if output=$(on target "cd $tree && $2" 2>&1); then
		fail "refused: $2"
	else
		like "refused: $2" "$1" "$output"
	fi
}
shows() {
	same "$1 shows what it should" "$2" "$(on target "cat $tree/$1")"
}
same "text that just fits is complete" 64 "$(on target "wc -l < $tree/texts/full")"
same "longer text is cut after a whole line" "4036 $(printf '%063d' 62) ..." \
	"$(on target "cd $tree/texts && echo \$(wc -c < long) \$(tail -n 2 long)")"
same "a longer line is cut at the size of the buffer" 4096 "$(on target "tr -d -c y < $tree/texts/line | wc -c")"
fails 'No such device' 'cat texts/fails'
fails 'out of range' 'env echo 1 > texts/fails'
fails 'Invalid argument' 'env echo 1 > pin'
fails 'Invalid argument' 'env echo 1 > texts/pin'
fails 'No space' 'mkdir bad'
shows removed 0
fails 'No space' 'mkdir halfway'
shows removed 1
fails 'Invalid argument' "mkdir \$(printf '\\377')"
fails 'not permitted' 'mkdir texts/one'
check "a directory can be made" on target "mkdir $tree/one"
fails 'exists' 'mkdir one'
same "every attribute has its own value" "$(seq -s ' ' 0 37)" "$(on target "cd $tree/one && echo \$(cat a??)")"
must on target "printf ' \t two words \n\n' > $tree/one/echo"
shows one/echo '[two words]'
fails 'Invalid argument' "printf 'x\\377' | env dd of=one/echo status=none"
shows one/echo '[two words]'
must on target "env echo 1 > $tree/one/pin"
fails 'busy' 'rmdir one'
fails 'in use' 'rmmod hcablk_kunit'
fails 'not permitted' 'rmdir one/inner'
must on target "env echo 0 > $tree/one/pin"
shows removed 1
refuse "the module cannot be unloaded while it has a directory" on target 'rmmod hcablk_kunit'
check "the directory can be removed" on target "rmdir $tree/one"
shows removed 2
check "the module unloads" on target 'rmmod hcablk_kunit'
check "the core unloads" on target 'rmmod hcablk_core'
