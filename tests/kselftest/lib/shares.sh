# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and the rest is in lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# Functions of the tests of the target's buffers.

# The port of these tests.
port=$target/ports/1

# memory_of NAME: prints a line of the port's `memory`, in bytes (limit, used, reserved) or in waiting queues (waiting)
memory_of() {
	on target "awk '\$1 == \"$1\" { print \$2 }' $port/memory"
}

# least_of DEPTH: sets $least to the bytes of memory that a session with one queue of DEPTH requests needs at least: the eager ring,
# the buffers of one request, its messages, and the state of its requests, which all depend on the RDMA device. Port 1 must
# listen, and vol1 must be exported to c1.
least_of() {
	connect c1 vol1 --queues 1 --queue-depth "$1"
	least=$(memory_of reserved)
	disconnect c1 vol1
	less "a session needs memory" 0 "$least"
	must wait_until target 60 "awk '\$1 == \"used\" { exit \$2 != 0 }' $port/memory"
}

# mib_for BYTES: prints the least memory_mib with that many bytes
mib_for() {
	echo $((($1 + (1 << 20) - 1) >> 20))
}

# class_of BYTES total|borrowed: prints the number of shared buffers of this length
class_of() {
	local field=3
	[ "$2" = total ] || field=4
	on target "awk '\$1 == \"size_class\" && \$2 == $1 { print \$$field }' $port/memory"
}

# slow_drive NAME MILLISECONDS: makes /dev/mapper/NAME, which is the target's first drive with this delay for each write.
slow_drive() {
	must on target "modprobe -a dm_mod dm_delay && echo \"0 \$(blockdev --getsz $drive) delay $drive 0 0 $drive 0 $2\" | dmsetup create $1 && dmsetup mknodes"
}

# watch_memory: counts on the target how often it has read `used`, and how often that was more than `limit`; `watched` ends this and
# prints both.
watch_memory() {
	must on target "touch /tmp/watching; (
		looks=0 passed=0
		while [ -e /tmp/watching ]; do
			set -- \$(awk '\$1 == \"limit\" || \$1 == \"used\" { print \$2 }' $port/memory)
			looks=\$((looks + 1))
			[ \$2 -le \$1 ] || passed=\$((passed + 1))
		done
		echo \$looks \$passed > /tmp/watched.new; mv /tmp/watched.new /tmp/watched
	) < /dev/null > /dev/null 2>&1 & "
}
watched() {
	on target 'rm /tmp/watching
		while [ ! -e /tmp/watched ]; do usleep 10000; done
		cat /tmp/watched; rm /tmp/watched'
}
