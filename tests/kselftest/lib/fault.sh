# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and the rest is in lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# Functions of tests faults/allocations and faults/handshake-allocations, for allocations that fail. They source it after lib.sh.

on c1 '[ -d /sys/kernel/debug/failslab ] && [ -e /proc/self/fail-nth ]' ||
	skip "the kernel has no fault injection (CONFIG_FAULT_INJECTION, CONFIG_FAILSLAB)"

# Allocations of every kind may fail, silently. fail-nth decides which one fails; otherwise the probability is 0.
for guest in c1 target; do
	must on $guest 'for f in failslab fail_page_alloc; do
		cd /sys/kernel/debug/$f || continue
		echo 0 > probability; echo 0 > verbose; echo N > ignore-gfp-wait
		[ ! -e min-order ] || echo 0 > min-order
		[ ! -e ignore-gfp-highmem ] || echo N > ignore-gfp-highmem
	done; true'
done

# Shell text for the guest: `fail_nth N FILE VALUE` writes the value while the task's Nth allocation fails; prints "done" or
# "failed", and whether there was an Nth allocation. The files are opened before, so that opening them cannot fail, and each
# round is a process of its own.
nth='fail_nth() { sh -c '\''
	exec 3< /proc/self/fail-nth 4> /proc/self/fail-nth 5> "$2" || exit 1
	echo "$1" >&4
	if echo "$3" >&5; then result=done; else result=failed; fi
	read -r left <&3
	echo 0 >&4
	[ "$left" = 0 ] && echo "$result injected" || echo "$result all"
'\'' nth "$@" 2> /dev/null; }
'

# rounds GUEST "PREPARE" FILE VALUE "AFTER": repeats the write for the first and later allocations, in ever larger steps, until no
# allocation is left to fail. Runs PREPARE before each round, and AFTER, with $result, after it.
rounds() {
	local guest=$1 prepare=$2 file=$3 value=$4 after=$5
	ON_SECONDS=900 on "$guest" "$nth"'
		n=1; failed=0; passed=0
		while :; do
			{ '"$prepare"'; } || { echo "round $n: cannot prepare"; exit 1; }
			output=$(fail_nth $n '"$file '$value'"')
			result=${output% *}
			case $output in
			"failed all") echo "round $n: failed without a fault"; exit 1 ;;
			"done "*) passed=$((passed + 1)) ;;
			"failed injected") failed=$((failed + 1)) ;;
			*) echo "round $n: says \"$output\""; exit 1 ;;
			esac
			{ '"$after"'; } || { echo "round $n, $output: not as it should be afterwards"; exit 1; }
			[ "${output#* }" = injected ] || break
			n=$((n + 1 + n / 16))
		done
		echo "$n allocations, $failed rounds failed, $passed succeeded nevertheless"
		[ $failed -gt 0 ]'
}

no_pairs="[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = 0 ]"
soon_no_pairs="n_=0; until $no_pairs; do n_=\$((n_ + 1)); [ \$n_ -lt 200 ] || exit 1; usleep 50000; done"

# only_of GUEST MODULE: lets only allocations fail that have the module in their call chain, in any thread.
only_of() {
	local start length
	read -r _ length _ _ _ start _ <<< "$(on "$1" "grep '^$2 ' /proc/modules")"
	must on "$1" "cd /sys/kernel/debug/failslab && echo N > task-filter && echo $start > require-start &&
		printf '%#x\n' $(printf '0x%x' $((start + length))) > require-end && echo 32 > stacktrace-depth"
}

# mend_management GUEST: replaces soft-RoCE's device if its GSI queue pair is in the state ERR, so that it can connect nothing: a
# packet for which it had no memory, or which the network card refused, caused that (rxe_requester()), and the kernel only
# repairs the state SQE (mad_error_handler()). The device's connections are lost then.
mend_management() {
	on "$1" 'rdma resource show qp' | grep -q 'type GSI state ERR' || return 0
	echo "# $1: soft-RoCE's GSI queue pair was in the state ERR: the device is replaced" >&2
	must on "$1" "card=\$(cat /sys/class/infiniband/$rdma_link/parent) && rdma link delete $rdma_link &&
		rdma link add $rdma_link type $rdma netdev \$card"
}

# in_turn GUEST "COMMAND" [STEPS]: lets the guest `c1` run COMMAND twice while one allocation of GUEST fails: the first one, the
# second one, …, with steps that grow by one in STEPS, until the allocation does not come before COMMAND has ended once. The second
# run must succeed. COMMAND prints its error. The kernel hides its count of the allocations that may fail, so each round waits for
# a failure, after which the count is known, and keeps it as long as the guest runs.
in_turn() {
	local guest=$1 command=$2 steps=${3:-1000} count n=1 left is_last first second failed=0 passed=0
	local fault=/sys/kernel/debug/failslab
	count=$(on "$guest" 'cat /run/fault-count 2> /dev/null || echo 0')
	while :; do
		# An interval of 1 would count nothing.
		[ $((count + n)) -gt 1 ] || count=1
		must on "$guest" "cd $fault && echo 1 > times && echo $((count + n)) > interval && echo 100 > probability"
		first=$(on c1 "{ $command; } > /tmp/first 2>&1; echo \$? \$(cat /tmp/first)")
		is_last=$(on "$guest" "cat $fault/times")
		second=$(on c1 "{ $command; } > /tmp/second 2>&1; echo \$? \$(cat /tmp/second)")
		for _ in 1 2 3 4 5; do
			left=$(on "$guest" "cat $fault/times")
			[ "$left" != 0 ] || break
			on c1 "$command" >&2
		done
		must on "$guest" "echo 0 > $fault/probability; echo $((count + n)) > /run/fault-count"
		[ "$left" = 0 ] || { echo "# allocation $n was never reached" >&2 && return 1; }
		count=$((count + n))
		echo "# allocation $n: $first; then $second" >&2
		[ "$is_last" = 0 ] || break
		[ "${second%% *}" = 0 ] || { echo "# the command fails without a fault" >&2 && return 1; }
		if [ "${first%% *}" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
		n=$((n + 1 + n / steps))
		[ $n -lt 20000 ] || return 1
	done
	echo "# $n allocations, $failed failures, $passed times the command succeeded nevertheless" >&2
	[ $failed -gt 0 ]
}
