# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and from lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# What the tests of `hcablk bench` share.

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
