#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a target that listens at one port over IPv6 and at another over IPv4 serves only at these two ports, and at each only until that port is removed.
# turn: 23
# takes: 20

. "${0%/*}/../lib/lib.sh"

# queues_at PORT: prints how many queue pairs of the target were requested at the port, and from which client address.
queues_at() {
	on target 'rdma resource show cm_id' | tee /dev/stderr |
		sed -nE "s/.* state CONNECT .* src-addr \[?[^ ]*:$1 dst-addr \[?([0-9a-f.:]+)\]?:[0-9]+ ?.*/\1/p" | sort | uniq -c | xargs
}

must on target 'hcablk target listen --address :: --port 7750'
export_volume vol1 "$drive" --no-port c1 c2
like "nothing listens at the usual port" listens "$(on c2 "hcablk connect $target_address6 vol1" 2>&1)"
device=$(on c1 "hcablk connect $target_address6 vol1 --port 7750") || die "c1 cannot connect over IPv6"
pass "c1 connects over IPv6"
like "the queue pairs of c1 are at that port, from its IPv6 address" "^[0-9]+ fd77::2\$" "$(queues_at 7750)"
check "c1 moves data over IPv6" on c1 "hcablk-scatter $device random 61 16"

must on target "hcablk target listen --address $target_address"
connect c2 vol1
like "the queue pairs of c2 are at the second port, from its IPv4 address" "^[0-9]+ 10.77.0.3\$" "$(queues_at 7744)"
like "the queue pairs of c1 are still at the first port" "^[0-9]+ fd77::2\$" "$(queues_at 7750)"

check "c2 moves data over IPv4" on c2 "hcablk-scatter $device random 62 16"
disconnect c1 vol1
like "the IPv4 port refuses IPv6" "no target listens|not an hcablk target" "$(on c1 "hcablk connect $target_address6 vol1" 2>&1)"

must on target 'hcablk target unlisten 1'
like "the removed port refuses connections" listens "$(on c1 "hcablk connect $target_address6 vol1 --port 7750" 2>&1)"
disconnect c2 vol1
connect c2 vol1
check "the second port still serves" on c2 "hcablk-scatter $device random 63 16"
