#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a loss is noticed, the other path is used, and a restored path is used, as soon as docs/design/reconnect.md states; the test prints the times.
# turn: 19
# takes: 110
# waits: yes
# skips: siw debug
# timeout: 1000

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" = rxe ] || skip "TCP notices a silent peer only when a request gets no response in time"

# All times are of the client's trace clock, from a mark that the causing command makes just before. The limits are many times
# the goals, since a guest may not run when it should; the lines `# …` have the measured times.
tracing=/sys/kernel/tracing
two_cards 1 target c1
target_address=10.77.1.1
for name in $drive $drive2; do
	must on target "echo 'write through' > /sys/block/\$(basename \$(readlink -f $name))/queue/write_cache"
done
export_volume vol1 "$drive" c1
export_volume vol2 "$drive2" c1
must on c1 "modprobe hcablk && cd $tracing && echo mono > trace_clock && echo 8192 > buffer_size_kb &&
	for event in session queue completed; do echo 1 > events/hcablk/hcablk_\$event/enable; done"
mark="echo mark > $tracing/trace_marker"
ending='hcablk_session:.*state=ending'
live='hcablk_session:.*state=live'
# Matches a request that ended, not one that is issued again.
done_='hcablk_completed:.*status=0'

# fresh: empties the trace
fresh() {
	must on c1 "echo > $tracing/trace"
}
# span FROM TO: prints the milliseconds from the first event like FROM to the next one like TO
span() {
	on c1 "awk -v from='$1' -v to='$2' '
		{ for (i = 1; i <= NF; i++) if (\$i ~ /^[0-9]+\.[0-9]+:\$/) { at = \$i * 1000; break } }
		!begun && \$0 ~ from { begun = 1; begin = at; next }
		begun && \$0 ~ to { printf \"%d\\n\", at - begin + 0.5; found = 1; exit }
		END { exit !found }' $tracing/trace" || { on c1 "grep -v hcablk_completed $tracing/trace | tail -n 40" >&2; die "no event like $2 after $1"; }
}
# gap: prints the longest time in milliseconds after the mark in which no request ended
gap() {
	on c1 "awk -v done='$done_' '
		{ for (i = 1; i <= NF; i++) if (\$i ~ /^[0-9]+\.[0-9]+:\$/) { at = \$i * 1000; break } }
		/mark_write: mark/ { marked = last = at }
		marked && \$0 ~ done { if (at - last > most) most = at - last; last = at }
		END { printf \"%d\\n\", most + 0.5 }' $tracing/trace"
}
# ascending TIMES…: prints them in ascending order
ascending() {
	printf '%s\n' "$@" | sort -n | xargs
}
# least TIMES…: prints the least, which is the time in guests that ran when they should
least() {
	printf '%s\n' "$@" | sort -n | head -n 1
}
# reads_go_on: waits until more reads end
reads_go_on() {
	local before
	before=$(on c1 "awk '{ print \$1 }' /sys/block/$disk/stat")
	must wait_until c1 60 "[ \$(awk '{ print \$1 }' /sys/block/$disk/stat) -gt $((before + 20)) ]"
}
# lost_path COMMAND: while a reader uses both paths in turn, the command loses the first path; sets $noticed, $stalled and $after,
# the time from the notice to the next request that ends
lost_path() {
	fresh
	reads_go_on
	must on c1 "$mark && $1"
	must disk_is c1 vol1 degraded
	reads_go_on
	noticed=$(span 'mark_write: mark' "$ending")
	after=$(span "$ending" "$done_")
	stalled=$(gap)
}

connect c1 vol1 --ctrl-loss-tmo 600 --keep-alive-tmo 1 --queues 1
add_path c1 vol1 1 10.77.2.1
must disk_is c1 vol1 live
must on c1 "echo round-robin > $initiator/vol1/policy"
spawn reader c1 "exec fio --name=r --filename=$device --direct=1 --ioengine=libaio --rw=randread --bs=4k --iodepth=1 --size=64m \
	--rate_iops=200 --time_based --runtime=600 > /dev/null"
reads_go_on

echo "# milliseconds, three times each, in order:"
for kind in port silent; do
	notices=() stalls=() afters=()
	for _ in 1 2 3; do
		if [ $kind = port ]; then
			lost_path 'ip link set port1 down'
			must on c1 'ip link set port1 up'
		else
			lost_path 'tc qdisc replace dev path1 root netem limit 10000 loss 100%'
			netem c1 path1
		fi
		notices+=("$noticed") stalls+=("$stalled") afters+=("$after")
		must disk_is c1 vol1 live
	done
	[ $kind = port ] && what="own port down" limit=1000 || what="peer silent, keep_alive_tmo 1 s" limit=2500
	echo "# $what: noticed after $(ascending "${notices[@]}")"
	within "$what: the loss is noticed in time" "$(least "${notices[@]}")" "$limit"
	echo "# $what: from the notice to the next request over the other path $(ascending "${afters[@]}")"
	within "$what: the other path is used at once" "$(least "${afters[@]}")" 1000
	echo "# $what: longest stall of a reader with a healthy second path $(ascending "${stalls[@]}")"
	within "$what: no request stalls much longer than the limit" "$(least "${stalls[@]}")" $((limit + 1500))
done

# The target disconnects: the time includes what the runner takes to start the command.
fresh
must on c1 "$mark"
must on target "rdma link delete ${rdma}1"
must disk_is c1 vol1 degraded
disconnected=$(span 'mark_write: mark' "$ending")
fresh
must on c1 "$mark"
must on target 'true'
must on c1 "echo end > $tracing/trace_marker"
echo "# the target's RDMA device is removed (its connection manager disconnects): noticed after $disconnected, of which a command takes $(span 'mark_write: mark' 'mark_write: end') to begin and end"
within "disconnected: the loss is noticed in time" "$disconnected" 10000
must on target "rdma link add ${rdma}1 type $rdma netdev path1"
must disk_is c1 vol1 live

# The only path returns: the client's packets are dropped for a while, and then pass again.
must on c1 "echo 0 > $initiator/vol1/paths/1/enable"
returns=() firsts=()
for _ in 1 2 3; do
	netem c1 path1 loss 100%
	must disk_is c1 vol1 queueing
	fresh
	must on c1 "$mark && tc qdisc replace dev path1 root netem limit 10000"
	must disk_is c1 vol1 live
	reads_go_on
	returns+=("$(span 'mark_write: mark' "$live")")
	firsts+=("$(span 'mark_write: mark' "$done_")")
done
echo "# the only path returns, reconnect_delay 1 s: session live after $(ascending "${returns[@]}"), first request done after $(ascending "${firsts[@]}")"
within "the first request ends soon after the only path returns" "$(least "${firsts[@]}")" 3000
must on c1 'kill $(pidof fio)'
! join reader
disconnect c1 vol1

# Queue pairs connect in parallel.
declare -A took=()
for queues in 1 4; do
	options="--queues 1"
	[ $queues = 1 ] || options="--queues 2 --poll-queues 2"
	connect c1 vol2 --ctrl-loss-tmo 600 "$options"
	times=()
	for _ in 1 2 3; do
		must on target 'hcablk target unexport --force vol2'
		must disk_is c1 vol2 queueing
		fresh
		export_volume vol2 "$drive2" c1
		must disk_is c1 vol2 live
		# The last attempt is the one that succeeds.
		times+=("$(on c1 "awk '
			{ for (i = 1; i <= NF; i++) if (\$i ~ /^[0-9]+\.[0-9]+:\$/) { at = \$i * 1000; break } }
			/hcablk_session:.*state=connecting/ { begin = at }
			/hcablk_session:.*state=live/ { printf \"%d\\n\", at - begin + 0.5; exit }' $tracing/trace")")
	done
	pairs=$(queue_pairs c1)
	same "the session has $queues queue pairs and the admin queue pair" $((queues + 1)) "$pairs"
	took[$queues]=$(least "${times[@]}")
	echo "# a session of $queues queue pairs and the admin queue pair is connected again within $(ascending "${times[@]}")"
	disconnect c1 vol2
done
echo "# four queue pairs take $((took[4] * 100 / (took[1] > 0 ? took[1] : 1)))% of the time of one"
within "four queue pairs come up in less than four times the time of one" "${took[4]}" $((took[1] * 4 + 20))
must on c1 "cd $tracing && echo 0 > events/enable && echo local > trace_clock && echo > trace"
