#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: LIO passes reservations of iSCSI initiators on to our disks, and all of libiscsi's reservation tests pass that any drive below LIO can pass.
# turn: 12
# takes: 30
# timeout: 900
# skips: debug

. "${0%/*}/../lib/lib.sh"

! on c1 '[ -e /sys/kernel/debug/kmemleak ]' || skip "the debug kernel has no LIO"

# LIO's name for each client's disk, and the clients' addresses. Both clients present the same logical unit.
name=iqn.2026-01.hcablk.test:disk
declare -A address=([c1]=10.77.0.2 [c2]=10.77.0.3) disks
lio=/sys/kernel/config/target

# offer GUEST: offers its disk at one port. With `pgr_support` 0 LIO passes reservations on instead of keeping them itself.
offer() {
	must on "$1" "modprobe -a target_core_iblock iscsi_target_mod && mkdir -p $lio/iscsi $lio/core/iblock_0/disk && cd $lio/core/iblock_0/disk &&
		env echo udev_path=${disks[$1]} > control && env echo 1 > enable && env echo 4c7f5d2e-7a0e-4d35-a1c5-5f9d0a3b6c18 > wwn/vpd_unit_serial &&
		env echo 1 > attrib/emulate_pr && env echo 0 > attrib/pgr_support &&
		mkdir -p $lio/iscsi/$name/tpgt_1/lun/lun_0 && cd $lio/iscsi/$name/tpgt_1 && ln -s $lio/core/iblock_0/disk lun/lun_0/disk &&
		for attribute in authentication=0 generate_node_acls=1 cache_dynamic_acls=1 demo_mode_write_protect=0; do
			env echo \${attribute#*=} > attrib/\${attribute%=*} || exit
		done
		mkdir np/${address[$1]}:3260 && env echo 1 > enable"
}
withdraw() {
	must on "$1" "cd $lio/iscsi/$name/tpgt_1 && env echo 0 > enable && rm lun/lun_0/disk && rmdir lun/lun_0 np/* && cd / &&
		rmdir $lio/iscsi/$name/tpgt_1 $lio/iscsi/$name $lio/iscsi $lio/core/iblock_0/disk $lio/core/iblock_0 &&
		rmmod iscsi_target_mod target_core_iblock target_core_mod"
}
# tests GUEST…: runs libiscsi's tests: the first initiator logs in at the first guest, the second at the last. Prints for each
# test "SUITE.TEST passed", "failed", or "skipped".
tests() {
	local urls=() guest
	for guest; do
		urls+=("iscsi://${address[$guest]}/$name/0")
	done
	ON_SECONDS=300 on c1 "iscsi-test-cu --dataloss --test='ALL.Pr[io]*' ${urls[*]} > /tmp/tests 2>&1; cat /tmp/tests >&2
		awk '
			function report() { if (test != \"\") print suite \".\" test, how; test = \"\" }
			/^Suite: / { report(); suite = \$2 }
			/^ *Test: / { report(); test = \$2; how = \"unfinished\" }
			/SKIPPED/ { skipped = suite \".\" test }
			/passed\$/ { how = skipped == suite \".\" test ? \"skipped\" : \"passed\" }
			/(^|\\.\\.\\.)FAILED/ { how = \"failed\" }
			END { report() }' /tmp/tests"
}

must on target "$(keep /run/reservations) && modprobe hcablk_target && env echo /run/reservations > $target/reservations"
export_volume vol1 "$drive" c1 c2
for guest in c1 c2; do
	connect $guest vol1 --ctrl-loss-tmo -1
	disks[$guest]=$device
	offer $guest
done

# With any drive, LIO's passthrough refuses READ FULL STATUS, for which it would have to know initiators, and answers a
# nonexistent service action as if PERSISTENT RESERVE IN did not exist (target_try_pr_in_pt(), iblock_execute_pr_in()). This test
# expects success for the former, and takes the latter for a target without reservations.
range=PrinServiceactionRange.Range
alone=(PrinReadKeys.Simple PrinReadKeys.Truncate PrinReportCapabilities.Simple ProutRegister.Simple ProutReserve.Simple
	ProutClear.Simple)
# These have two initiators. The block layer's pr_ops do not name the initiator (iblock_pr_report_caps()), so that all initiators
# of one port are one registrant, the host with the port, and no drive can tell them apart: the second initiator's key replaces
# the first one's.
together=(ProutReserve.Access{EA,WE,EARO,WERO,EAAR,WEAR} ProutReserve.Ownership{EA,WE,EARO,WERO,EAAR,WEAR}
	ProutPreempt.RemoveRegistration)

# had "DESCRIPTION" OUTPUT HOW TEST…: checks that these tests ended so.
had() {
	local what=$1 output=$2 how=$3 test
	shift 3
	for test; do
		same "$what: $test" "$test $how" "$(grep "^$test " <<< "$output")"
	done
}
count=$((1 + ${#alone[@]} + ${#together[@]}))
output=$(tests c1)
same "one port: all tests ran" $count "$(wc -l <<< "$output")"
had "one port" "$output" passed "${alone[@]}"
had "one port, tests that no drive passes" "$output" failed $range "${together[@]}"
# Clears what a failed test has left.
must on c1 "hcablk-pr ${disks[c1]} ignore 1 && hcablk-pr ${disks[c1]} clear 1"
output=$(tests c1 c2)
same "a port of each of two hosts: all tests ran" $count "$(wc -l <<< "$output")"
had "a port of each of two hosts" "$output" passed "${alone[@]}" "${together[@]}"
had "a port of each of two hosts, tests that no drive passes" "$output" failed $range

for guest in c1 c2; do
	withdraw $guest
	disconnect $guest vol1
done
must on target 'hcablk target unexport vol1'
