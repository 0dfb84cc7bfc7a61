# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and from lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# Functions of the tests of `hcablk bench`.

# bench EXPERIMENT OPTION…: runs it on c1, with its folder /tmp/EXPERIMENT; prints its output
bench() {
	local experiment=$1
	shift
	ON_SECONDS=1800 on c1 "rm -rf /tmp/$experiment; hcablk bench $experiment --address $target_address --output /tmp/$experiment $* 2>&1"
}

# result EXPERIMENT FILTER: prints a part of the experiment's numbers
result() {
	on c1 "jq -r '$2' /tmp/$1/result.json"
}

# serve: starts the target's part of one run, which c1 reaches through $through. It ends with the connection: `join part`.
through="nc $target_address 9999"
serve() {
	ON_SECONDS=1800 spawn part target "printf '#!/bin/sh\nexec hcablk-bench selftest --role target\n' > /tmp/part && chmod +x /tmp/part &&
		nc -l -p 9999 -e /tmp/part"
	must wait_until target 30 'netstat -ltn | grep -q :9999'
}

# serve_client: starts the part of c2, a further client of one run, which c1 reaches through $client_through. `join further`.
client_through="nc 10.77.0.3 9999"
serve_client() {
	ON_SECONDS=1800 spawn further c2 "printf '#!/bin/sh\nexec hcablk-bench selftest --role target\n' > /tmp/part && chmod +x /tmp/part &&
		nc -l -p 9999 -e /tmp/part"
	must wait_until c2 30 'netstat -ltn | grep -q :9999'
}

# footprint GUEST: prints all that a run may leave on the machine
footprint() {
	on "$1" "hcablk list --json; hcablk target list --json; lsmod | sort | cut -d' ' -f1; ls /sys/class/nvme /sys/kernel/config
		rdma resource show qp | grep -vc 'type GSI'; ip -o address; ip route; ls /dev/nvme* /tmp/part"
}

# remember: sets $client and $server to the state of both machines before a run.
remember() {
	client=$(footprint c1)
	server=$(footprint target)
}

# unchanged "RUN": joins the target's part of a run, and compares both machines with their state at `remember`.
unchanged() {
	check "$1: the target's part ends" join part
	must wait_until target 30 "$no_queue_pairs"
	same "$1: the run leaves the client as it was" "$client" "$(footprint c1)"
	same "$1: the run leaves the target as it was" "$server" "$(footprint target)"
}

# page EXPERIMENT: checks that the experiment's page is complete, needs no other file, and begins with the sentence about its times.
page() {
	same "$1: the first line of the page says whether its times are real" "$(result "$1" .times)" \
		"$(on c1 "sed -n 's/^<p class=\"[a-z]*\">\(.*\)<\/p>$/\1/p' /tmp/$1/index.html" | head -n 1)"
	same "$1: the page has its last line" '</body></html>' "$(on c1 "tail -n 1 /tmp/$1/index.html")"
	refuse "$1: the page refers to a file elsewhere" on c1 \
		"sed 's,http://www.w3.org/2000/svg,,g' /tmp/$1/index.html | grep -E 'https?:|src=|<link|<script|@import'"
}
