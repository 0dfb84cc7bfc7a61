# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and the rest is in lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# Allocations that fail: what tests faults/allocations and faults/handshake-allocations have in common. They source it after lib.sh.

on c1 '[ -d /sys/kernel/debug/failslab ] && [ -e /proc/self/fail-nth ]' ||
	skip "the kernel has no fault injection (CONFIG_FAULT_INJECTION, CONFIG_FAILSLAB)"

# Every kind of allocation may fail, silently; which one does is told by fail-nth. Only task 0 would by itself: none.
for guest in c1 target; do
	must on $guest 'for f in failslab fail_page_alloc; do
		cd /sys/kernel/debug/$f || continue
		echo 0 > probability; echo 0 > verbose; echo N > ignore-gfp-wait
		[ ! -e min-order ] || echo 0 > min-order
		[ ! -e ignore-gfp-highmem ] || echo N > ignore-gfp-highmem
	done; true'
done

# A script for the guest: `fail_nth N FILE VALUE` writes the value while the task's Nth allocation fails; prints "done" or
# "failed", and whether there was an Nth allocation. The files are open before, so that opening them cannot fail, and
# each round is a process of its own.
nth='fail_nth() { sh -c '\''
	exec 3< /proc/self/fail-nth 4> /proc/self/fail-nth 5> "$2" || exit 1
	echo "$1" >&4
	if echo "$3" >&5; then result=done; else result=failed; fi
	read -r left <&3
	echo 0 >&4
	[ "$left" = 0 ] && echo "$result injected" || echo "$result all"
'\'' nth "$@" 2> /dev/null; }
'

# rounds GUEST "PREPARE" FILE VALUE "AFTER": from the first allocation on, ever larger steps, until none is left to fail.
# Before each round PREPARE, after it AFTER, which finds $result.
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
		echo "$n allocations, $failed failed, $passed went well all the same"
		[ $failed -gt 0 ]'
}

no_pairs="[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = 0 ]"
soon_no_pairs="n_=0; until $no_pairs; do n_=\$((n_ + 1)); [ \$n_ -lt 200 ] || exit 1; usleep 50000; done"

# only_of GUEST MODULE: from now on allocations fail in the call chain of which the module is, whoever's thread that is.
only_of() {
	local start length
	read -r _ length _ _ _ start _ <<< "$(on "$1" "grep '^$2 ' /proc/modules")"
	must on "$1" "cd /sys/kernel/debug/failslab && echo N > task-filter && echo $start > require-start &&
		printf '%#x\n' $(printf '0x%x' $((start + length))) > require-end && echo 32 > stacktrace-depth"
}

# mend_management GUEST: makes soft-RoCE's device anew if it can send no management datagram any more, and so connect nothing: a
# packet that it had no memory for, or that the network card refused, has put its GSI queue pair into the state ERR
# (rxe_requester()), out of which the kernel takes only one that is in SQE (mad_error_handler()). Its connections are gone then.
mend_management() {
	on "$1" 'rdma resource show qp' | grep -q 'type GSI state ERR' || return 0
	echo "# $1: soft-RoCE's GSI queue pair was in the state ERR: the device is made anew" >&2
	must on "$1" "card=\$(cat /sys/class/infiniband/$rdma_link/parent) && rdma link delete $rdma_link &&
		rdma link add $rdma_link type $rdma netdev \$card"
}

# in_turn GUEST "COMMAND" [STEPS]: has the guest `c1` do COMMAND twice, and one allocation of GUEST's fail meanwhile: the first one,
# the second one, …, further apart by one in STEPS, until it has not come when COMMAND is done the first time. What fails must
# succeed when it is done again. COMMAND prints why it fails. The kernel counts those that may fail where nobody can read it, so
# a failure has to be awaited for the count to be known: it is kept as long as the guest runs.
in_turn() {
	local guest=$1 command=$2 steps=${3:-1000} count n=1 left is_last first second failed=0 passed=0
	local fault=/sys/kernel/debug/failslab
	count=$(on "$guest" 'cat /run/fault-count 2> /dev/null || echo 0')
	while :; do
		# An interval of 1 is none, and counts nothing.
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
		[ "$left" = 0 ] || { echo "# allocation $n never comes" >&2 && return 1; }
		count=$((count + n))
		echo "# allocation $n: $first; then $second" >&2
		[ "$is_last" = 0 ] || break
		[ "${second%% *}" = 0 ] || { echo "# it fails without a fault" >&2 && return 1; }
		if [ "${first%% *}" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
		n=$((n + 1 + n / steps))
		[ $n -lt 20000 ] || return 1
	done
	echo "# $n allocations, $failed failures, $passed times it went well all the same" >&2
	[ $failed -gt 0 ]
}
