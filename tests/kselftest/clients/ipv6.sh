#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a target that listens at one port by IPv6 and at another by IPv4 serves at both and at no other, each until it ends.
# turn: 23
# takes: 20

. "${0%/*}/../lib/lib.sh"

# queues_at PORT: how many queue pairs of the target have been asked for there, and by which address of the client's.
queues_at() {
	on target 'rdma resource show cm_id' | tee /dev/stderr |
		sed -nE "s/.* state CONNECT .* src-addr \[?[^ ]*:$1 dst-addr \[?([0-9a-f.:]+)\]?:[0-9]+ ?.*/\1/p" | sort | uniq -c | xargs
}

must on target 'hcablk target listen --address :: --port 7750'
export_volume vol1 "$drive" --no-port c1 c2
like "nothing listens at the usual port" listens "$(on c2 "hcablk connect $target_address6 vol1" 2>&1)"
device=$(on c1 "hcablk connect $target_address6 vol1 --port 7750") || die "c1 connects by IPv6"
pass "c1 connects by IPv6"
like "its queue pairs are at that port, of its IPv6 address" "^[0-9]+ fd77::2\$" "$(queues_at 7750)"
check "data goes over it" on c1 "hcablk-scatter $device random 61 16"

must on target "hcablk target listen --address $target_address"
connect c2 vol1
like "the second port's queue pairs are there, of an IPv4 address" "^[0-9]+ 10.77.0.3\$" "$(queues_at 7744)"
like "the first port's are where they were" "^[0-9]+ fd77::2\$" "$(queues_at 7750)"

check "data goes over both" on c2 "hcablk-scatter $device random 62 16"
disconnect c1 vol1
like "this port is not for IPv6" "no target listens|not an hcablk target" "$(on c1 "hcablk connect $target_address6 vol1" 2>&1)"

must on target 'hcablk target unlisten 1'
like "the first port has ended" listens "$(on c1 "hcablk connect $target_address6 vol1 --port 7750" 2>&1)"
disconnect c2 vol1
connect c2 vol1
check "the second has not" on c2 "hcablk-scatter $device random 63 16"
