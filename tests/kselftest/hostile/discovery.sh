#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a host refuses each malformed answer to its questions, and a target each malformed question, for the right reason, and nothing is left behind.
# turn: 3
# takes: 240
# skips: siw
# waits: yes
# timeout: 2000

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the peer's library speaks soft-RoCE only"

seed=${HCABLK_SEED:-1}
# Each answer takes a connection or two.
chances=100
[ -z "${HCABLK_WHOLE:-}" ] || chances=1500
chances=${HCABLK_MESSAGES:-$(few $chances)}
use_keys c1
id1=$(host_id c1) id2=$(host_id c2)
secret=$(key_digits c1 host) target_secret=$(key_digits target target)
for guest in c1 c2; do
	must on $guest "printf '$secret\n$target_secret\n' > /tmp/keys"
done

# First the malicious target, c2.
asker=/sys/kernel/config/hcablk_discovery/asker
must on c1 "modprobe hcablk && mkdir $asker && cd $asker && echo 10.77.0.3 > address && echo 7746 > port && echo $id1 > host_id"

# lists WRONG: makes c2 a target with this fault.
lists() {
	must on c2 "[ ! -e /tmp/pid ] || { kill \$(cat /tmp/pid); while kill -0 \$(cat /tmp/pid); do usleep 10000; done; } 2> /dev/null
		rm -f /tmp/lists
		hcablk-prove lists 7746 $1 $seed < /tmp/keys > /tmp/lists 2>&1 & echo \$! > /tmp/pid
		until grep -q listens /tmp/lists; do usleep 10000; done"
}
# answer QUESTION…: prints in one line the answer, or the error, that c1's driver has for each question.
answer() {
	local question script="cd $asker"
	for question; do
		script+="; if env echo $question > ask 2> /dev/null; then cat answer; else cat error; fi"
	done
	on c1 "$script" | paste -sd' '
}
# answered_as WRONG WORDS [QUESTION…]: checks the driver's answers, or its error, for a target with this fault.
answered_as() {
	lists "$1"
	same "$mode: the driver's answer for a target with the fault $1" "$2" "$(answer "${@:3}")"
}
# list WRONG WORDS: checks the error of the command, which asks for a whole list.
list() {
	lists "$1"
	like "$mode: the command's error for a target with the fault $1" "$2" "$(on c1 "hcablk discover 10.77.0.3 --port 7746 --host-id $id1 ${3:-} 2>&1")"
}
volumes="volumes 0" portals="portals 0"
no="the target's reply makes no sense:" stranger="the peer is not an hcablk target"
good="count 2 revision 01020304 name good0 size_bytes 1048576 block_size 512 read_only 0 evicted 0 insecure 1 mode direct"
good+=" count 2 revision 01020304 count 1 revision 01020304 address 10.77.0.3 port 7746"
all_good() {
	answered_as nothing "$good" "$volumes" "volumes 2" "$portals"
	same "$mode: no queue pair is left" 0 "$(queue_pairs c1)"
}
# chance: checks for $chances random answers that the driver accepts those, and only those, which the target counts as good.
chance() {
	local took
	lists by-chance
	took=$(ON_SECONDS=$((4 * chances + 300)) on c1 "cd $asker; n=0; while [ \$n -lt $chances ]; do
		list=volumes; [ \$((n % 3)) != 0 ] || list=portals
		if env echo \$list \$((n % 4)) > ask 2> /dev/null; then echo good; else echo bad \$(cat error); fi
		n=\$((n + 1))
	done")
	sort <<< "$took" | uniq -c | sort -rn | sed 's/^/# /' >&2
	same "$mode: the driver accepts the good ones of $chances answers of seed $seed, and refuses the others" \
		"$(on c2 'grep -v listens /tmp/lists' | cat -n)" "$(cut -d' ' -f1 <<< "$took" | cat -n)"
	less "$mode: the driver refuses some answers" 0 "$(grep -c bad <<< "$took")"
	less "$mode: the driver accepts some answers" 0 "$(grep -c good <<< "$took")"
}

mode="without proof"
all_good
answered_as long "$good" "$volumes" "volumes 2" "$portals"
answered_as twice "$good" "$volumes" "volumes 2" "$portals"
answered_as empty "$stranger" "$volumes"
answered_as hang-up "$stranger" "$volumes"
answered_as short=4 "$stranger" "$volumes"
# Bytes that are missing arrive as zeroes.
answered_as short=10 "$no the list has no revision" "$volumes"
answered_as short=12 "$no the list has no revision" "volumes 7"
answered_as short=16 "$no an entry is missing" "$volumes"
answered_as short=20 "$no the volume's block size is invalid" "$volumes"
answered_as short=48 "$no the portal's port is invalid" "$portals"
answered_as 0=73 "$stranger" "$volumes"
answered_as 4=99 "$stranger" "$volumes"
answered_as 4=12 "the target asks for a proof at the wrong time" "$volumes"
answered_as 4=4 "the target does not allow this host to use the volume" "$volumes"
answered_as challenges "the target asks for a proof at the wrong time" "$volumes"
answered_as accept "$stranger" "$volumes"
answered_as no-entry "$no an entry is missing" "$volumes"
answered_as beyond "$no there is an entry beyond the last one" "volumes 2"
name="$no the volume's name is invalid"
for byte in 16=0 16=46 17=0 17=10 17=27 17=47 17=32 17=200 31=65; do
	answered_as $byte "$name" "$volumes"
done
size="$no the volume's size is invalid"
for byte in 48=1 49=1 55=128 55=255; do
	answered_as $byte "$size" "$volumes"
done
for byte in 56=0 56=8 56=13 56=64 56=255; do
	answered_as $byte "$no the volume's block size is invalid" "$volumes"
done
answered_as 57=8 "$no the volume has unknown flags" "$volumes"
answered_as 58=4 "$no the volume's mode is invalid" "$volumes"
answered_as 59=1 "$no reserved bytes are not 0" "$volumes"
answered_as 50=1 "$no the portal's port is invalid" "$portals"
answered_as 32=1 "$no reserved bytes are not 0" "$portals"
answered_as 56=1 "$no reserved bytes are not 0" "$portals"
list same "is malformed: volume good0 twice"
list more "volumes keep changing"
list turns "volumes keep changing"
list many "is malformed: more than 4096 volumes"
list most "is malformed: more than 4096 volumes"
list 17=27 "$name"
chance
all_good

# A silent target: the question ends in time, and does not delay the next one.
lists silent
silent=$(on c1 "cd $asker && echo 3 > connect_timeout && { env echo volumes 0 > ask 2> /dev/null & } &&
	until [ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) != 0 ]; do usleep 10000; done
	env echo portals 0 2>&1 > ask; wait; cat error; echo 10 > connect_timeout")
like "a second question meanwhile is refused as busy" "busy" "$silent"
like "a question to a silent target ends in time" "waiting for the target's response took too long" "$silent"

mode="with proof"
must on c1 "cd $asker && echo $secret > host_key && echo $target_secret > target_key"
all_good
answered_as long "$good" "$volumes" "volumes 2" "$portals"
answered_as twice "$good" "$volumes" "volumes 2" "$portals"
other="the peer failed authentication: it does not hold the expected keys"
for wrong in host-key target-key unsealed reflected sealed-8=9 sealed-17=65 sealed-64=0 short=70 short=20; do
	answered_as $wrong "$other" "$volumes"
done
lists replayed
answer "$volumes" > /dev/null
same "$mode: an answer to an earlier question is refused" "$other" "$(answer "$volumes")"
answered_as no-challenge "the peer does not ask for a proof, although keys are set here: it is not the target, or of an older version" "$volumes"
answered_as challenges "the target asks for a proof at the wrong time" "$volumes"
for byte in 9=64 10=1 11=128 12=1 48=1; do
	answered_as challenge-$byte "$no the challenge is malformed" "$volumes"
done
answered_as accept "$stranger" "$volumes"
answered_as accept-proof "$stranger" "$volumes"
answered_as hang-up "$stranger" "$volumes"
# Malformed answers of a target that has the keys.
answered_as 17=47 "$name" "$volumes"
answered_as 55=128 "$size" "$volumes"
answered_as beyond "$no there is an entry beyond the last one" "volumes 2"
chance
lists silent-then
must on c1 "echo 3 > $asker/connect_timeout"
same "$mode: a question to a target that becomes silent ends in time" "waiting for the target's response took too long" "$(answer "$volumes")"
must on c1 "echo 10 > $asker/connect_timeout"
all_good
must on c2 "kill \$(cat /tmp/pid)"
must on c1 "rmdir $asker"

# Then hosts that send malformed questions: c2 is one. c1 may use the keyed volume with a proof, c2 the open one by its id.
must on target "modprobe -a ext4 loop; mkfs.ext4 -q -F $drive2 64M && mkdir -p /mnt/files && mount $drive2 /mnt/files &&
	for name in keyed open; do truncate -s 1M /mnt/files/\$name; done"
export_volume keyed /mnt/files/keyed c1
must on target "hcablk target export open /mnt/files/open --insecure --allow $id2"

# asks "DESCRIPTION" ANSWERS LIST HOST plain|hello|proven WRONG: checks the target's answers to c2's question
asks() {
	same "$1" "$2" "$(on c2 "hcablk-prove question $target_address 7744 ${*:3} < /tmp/keys" 2>&1 | paste -sd' ')"
}
nobody=00000000-0000-0000-0000-000000000000 unknown=11111111-0000-4000-8000-000000000001
asks "a good question for volumes is answered" "told 1 open" .volumes "$id2" plain nothing
asks "a good question for portals is answered" "told 1 7744" .portals "$id2" plain nothing
asks "a question for an index after the last volume is answered with the number only" "told 1" .volumes "$id2" plain index=1
asks "a question for the largest index is answered with the number only" "told 1" .volumes "$id2" plain index=4294967295
asks "a question of a later version is answered" "told 1 open" .volumes "$id2" plain 5=3
for list in .volumes .portals; do
	asks "a host that uses another host's id without a proof sees nothing ($list)" "told 0" "$list" "$id1" plain nothing
	asks "an unknown host sees nothing ($list)" "told 0" "$list" "$unknown" plain nothing
done
for byte in 0=73 4=3 5=1 6=2 7=1 8=0 8=254 9=2 10=1 11=128 12=1 19=1 20=1 23=255 40=118 47=122 52=1 55=255; do
	asks "a question with the byte $byte is malformed" 1 .volumes "$id2" plain "$byte"
done
asks "a question without a host id is malformed" 1 .volumes "$nobody" plain nothing
asks "a short question is malformed" 1 .volumes "$id2" plain short=40
asks "a host that announces a proof is challenged" challenged .volumes "$unknown" hello nothing
asks "a malformed announcement is not challenged" 1 .volumes "$id1" hello 12=1
asks "a host with the keys sees its volume" "told 1 keyed" .volumes "$id1" proven nothing
asks "a host with the keys sees the portals" "told 1 7744" .portals "$id1" proven nothing
for wrong in mac-bit no-mac host-key target-key keys-swapped other-host handle other-question share-is-point; do
	asks "a proof with $wrong is refused" 13 .volumes "$id1" proven "$wrong"
done
asks "a proof is accepted for one answer only" "told 1 keyed 13" .volumes "$id1" proven same-proof
asks "a proof of a host without a key is refused" 13 .volumes "$id2" proven nothing
asks "a proof of an unknown host is refused" 13 .volumes "$unknown" proven nothing
# One address sends more hellos than it may have open challenges; then random questions follow.
output=$(ON_SECONDS=300 on c2 "hcablk-prove hellos $target_address 7744 $id1 16 $(few 40) < /tmp/keys")
like "many hellos at a time are challenged" "hellos, 0 processes failed" "$output"
output=$(ON_SECONDS=$((chances + 200)) on c2 "hcablk-prove questions $target_address 7744 $id2 1 $seed $((2 * chances)) < /tmp/keys")
echo "# $output" >&2
like "random questions of seed $seed get the right answers" "of reason 14.* $((2 * chances)) in all" "$output"
same "an honest host sees its volume afterwards" keyed "$(on c1 "hcablk discover $target_address --json" | jq -r '.volumes[].name')"
check "the target has no queue pair left" wait_until target 60 "$no_queue_pairs"
silent "the target has no session left" on target "cat $target/volumes/*/clients"
must on target 'hcablk target unexport keyed && hcablk target unexport open && umount /mnt/files'
