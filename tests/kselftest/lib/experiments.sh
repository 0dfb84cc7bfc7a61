# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and from lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# What the tests of `hcablk bench` share.

# serve: the target's part of the next run, which c1 reaches by $through.
through="nc $target_address 9999"
serve() {
	ON_SECONDS=1800 spawn part target "printf '#!/bin/sh\nexec hcablk-bench selftest --role target\n' > /tmp/part && chmod +x /tmp/part &&
		nc -l -p 9999 -e /tmp/part"
	must wait_until target 30 'netstat -ltn | grep -q :9999'
}

# bench EXPERIMENT OPTION…: runs it on c1, with its folder /tmp/EXPERIMENT; prints what it says
bench() {
	local experiment=$1
	shift
	ON_SECONDS=1800 on c1 "rm -rf /tmp/$experiment; hcablk bench $experiment --address $target_address --output /tmp/$experiment $* 2>&1"
}

# result EXPERIMENT FILTER: a part of its numbers
result() {
	on c1 "jq -r '$2' /tmp/$1/result.json"
}

# state GUEST: all that a run could have left there
state() {
	on "$1" "hcablk list --json; hcablk target list --json; lsmod | sort | cut -d' ' -f1; ls /sys/class/nvme /sys/kernel/config
		rdma resource show qp | grep -vc 'type GSI'; ip -o address; ip route; ls /dev/nvme* /tmp/part"
}

# page EXPERIMENT: its page is whole and needs nothing from elsewhere; its first line says what its numbers do of the times
page() {
	same "$1: the page's first line says whether times are real" "$(result "$1" .times)" \
		"$(on c1 "sed -n 's/^<p class=\"[a-z]*\">\(.*\)<\/p>$/\1/p' /tmp/$1/index.html" | head -n 1)"
	same "$1: the page ends where it should" '</body></html>' "$(on c1 "tail -n 1 /tmp/$1/index.html")"
	refuse "$1: the page names nothing that is elsewhere" on c1 \
		"sed 's,http://www.w3.org/2000/svg,,g' /tmp/$1/index.html | grep -E 'https?:|src=|<link|<script|@import'"
}
