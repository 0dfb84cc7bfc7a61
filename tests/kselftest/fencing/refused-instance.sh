#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a machine with another machine's host id that is refused for want of memory does not end the sessions of the other machine.
# turn: 16
# takes: 10

. "${0%/*}/../lib/lib.sh"

host=$(host_id c1)
share c1
disconnect c1 vol1
port=$(on target "echo $target/ports/*")
memory=$(on target "cat $port/memory_mib")
must on target "echo 1 > $port/memory_mib"
refuse "a second machine with the same id is refused" on c2 "hcablk connect $target_address vol1 --host-id $host --ctrl-loss-tmo 0"
check "the target logs that memory_mib is too small" wait_log target 20 "refused $host for volume vol1: it needs more than is left of the port's memory_mib"
must on target "echo $memory > $port/memory_mib"
must on c2 'hcablk disconnect --if-exists vol1'
connect c1 vol1
pass "the first machine connects again"
disconnect c1 vol1
connect c2 vol1 --host-id "$host"
pass "the second machine connects when memory_mib is large enough"
like "the first machine cannot connect after the second one has" "later instance of this host" "$(on c1 "hcablk connect $target_address vol1" 2>&1)"
must on c1 'hcablk disconnect --if-exists vol1'
disconnect c2 vol1
