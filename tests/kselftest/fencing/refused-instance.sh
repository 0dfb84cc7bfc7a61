#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a machine with another one's host id that is refused for want of memory does not put that one out.
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
check "for want of memory" wait_log target 20 "refused $host for volume vol1: it needs more than is left of the port's memory_mib"
must on target "echo $memory > $port/memory_mib"
must on c2 'hcablk disconnect --if-exists vol1'
connect c1 vol1
pass "the first one is let in again"
disconnect c1 vol1
connect c2 vol1 --host-id "$host"
pass "the second one is, when there is memory for it"
like "then it has put the first one out" "later instance of this host" "$(on c1 "hcablk connect $target_address vol1" 2>&1)"
must on c1 'hcablk disconnect --if-exists vol1'
disconnect c2 vol1
