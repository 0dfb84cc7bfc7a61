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
