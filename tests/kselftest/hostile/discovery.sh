#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: whatever a target answers that is asked for its lists, and however a host asks for them, is refused for its own reason, and leaves nothing behind.
# turn: 3
# takes: 240
# skips: siw
# waits: yes
# timeout: 2000

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the peer's library speaks soft-RoCE only"

seed=${HCABLK_SEED:-1}
# Each takes a connection or two.
chances=100
[ -z "${HCABLK_WHOLE:-}" ] || chances=1500
chances=${HCABLK_MESSAGES:-$(few $chances)}
use_keys c1
id1=$(host_id c1) id2=$(host_id c2)
secret=$(key_digits c1 host) target_secret=$(key_digits target target)
for guest in c1 c2; do
	must on $guest "printf '$secret\n$target_secret\n' > /tmp/keys"
done

# First the target that lies, c2.
asker=/sys/kernel/config/hcablk_discovery/asker
must on c1 "modprobe hcablk && mkdir $asker && cd $asker && echo 10.77.0.3 > address && echo 7746 > port && echo $id1 > host_id"

# lists WRONG: c2 is a target that does this wrong, in place of what it was.
lists() {
	must on c2 "[ ! -e /tmp/pid ] || { kill \$(cat /tmp/pid); while kill -0 \$(cat /tmp/pid); do usleep 10000; done; } 2> /dev/null
		rm -f /tmp/lists
		hcablk-prove lists 7746 $1 $seed < /tmp/keys > /tmp/lists 2>&1 & echo \$! > /tmp/pid
		until grep -q listens /tmp/lists; do usleep 10000; done"
}
# answer QUESTION…: what c1's driver says of the answer to each, in one line.
answer() {
	local question script="cd $asker"
	for question; do
		script+="; if env echo $question > ask 2> /dev/null; then cat answer; else cat error; fi"
	done
	on c1 "$script" | paste -sd' '
}
# told WRONG WORDS [QUESTION…]: so the driver says what is wrong.
told() {
	lists "$1"
	same "$mode: of $1 the reason is told" "$2" "$(answer "${@:3}")"
}
# list WRONG WORDS: so the command does, which asks for all of a list.
list() {
	lists "$1"
	like "$mode: of $1 the command tells the reason" "$2" "$(on c1 "hcablk discover 10.77.0.3 --port 7746 --host-id $id1 ${3:-} 2>&1")"
}
volumes="volumes 0" portals="portals 0"
no="the target's answer makes no sense:" stranger="the peer is not an hcablk target"
good="count 2 revision 01020304 name good0 size_bytes 1048576 block_size 512 read_only 0 evicted 0 insecure 1 mode direct"
good+=" count 2 revision 01020304 count 1 revision 01020304 address 10.77.0.3 port 7746"
all_good() {
	told nothing "$good" "$volumes" "volumes 2" "$portals"
	same "$mode: no queue pair is left" 0 "$(queue_pairs c1)"
}
# chance: as many answers as $chances, each of which the driver takes or refuses as the target says that it has to.
chance() {
	local took
	lists by-chance
	took=$(ON_SECONDS=$((4 * chances + 300)) on c1 "cd $asker; n=0; while [ \$n -lt $chances ]; do
		list=volumes; [ \$((n % 3)) != 0 ] || list=portals
		if env echo \$list \$((n % 4)) > ask 2> /dev/null; then echo good; else echo bad \$(cat error); fi
		n=\$((n + 1))
	done")
	sort <<< "$took" | uniq -c | sort -rn | sed 's/^/# /' >&2
	same "$mode: $chances answers by seed $seed are taken and refused as they must" \
		"$(on c2 'grep -v listens /tmp/lists' | cat -n)" "$(cut -d' ' -f1 <<< "$took" | cat -n)"
	less "$mode: some are refused" 0 "$(grep -c bad <<< "$took")"
	less "$mode: some are taken" 0 "$(grep -c good <<< "$took")"
}

mode="by names"
all_good
told long "$good" "$volumes" "volumes 2" "$portals"
told twice "$good" "$volumes" "volumes 2" "$portals"
told empty "$stranger" "$volumes"
told hang-up "$stranger" "$volumes"
told short=4 "$stranger" "$volumes"
# What is missing comes as zeroes.
told short=10 "$no the list has no revision" "$volumes"
told short=12 "$no the list has no revision" "volumes 7"
told short=16 "$no an entry is missing" "$volumes"
told short=20 "$no the block size of the volume is none" "$volumes"
told short=48 "$no the port of the portal is none" "$portals"
told 0=73 "$stranger" "$volumes"
told 4=99 "$stranger" "$volumes"
told 4=12 "the target asks for a proof at the wrong time" "$volumes"
told 4=4 "the target does not allow this host to use the volume" "$volumes"
told challenges "the target asks for a proof at the wrong time" "$volumes"
told accept "$stranger" "$volumes"
told no-entry "$no an entry is missing" "$volumes"
told beyond "$no there is an entry beyond the last one" "volumes 2"
name="$no the name of the volume is none"
for byte in 16=0 16=46 17=0 17=10 17=27 17=47 17=32 17=200 31=65; do
	told $byte "$name" "$volumes"
done
size="$no the size of the volume is none"
for byte in 48=1 49=1 55=128 55=255; do
	told $byte "$size" "$volumes"
done
for byte in 56=0 56=8 56=13 56=64 56=255; do
	told $byte "$no the block size of the volume is none" "$volumes"
done
told 57=8 "$no the volume has flags that are not known" "$volumes"
told 58=4 "$no the mode of the volume is none" "$volumes"
told 59=1 "$no reserved bytes are not 0" "$volumes"
told 50=1 "$no the port of the portal is none" "$portals"
told 32=1 "$no reserved bytes are not 0" "$portals"
told 56=1 "$no reserved bytes are not 0" "$portals"
list same "is malformed: volume good0 twice"
list more "volumes keep changing"
list turns "volumes keep changing"
list many "is malformed: more than 4096 volumes"
list most "is malformed: more than 4096 volumes"
list 17=27 "$name"
chance
all_good

# Who says nothing: the question ends in time, and keeps nobody waiting for its end.
lists silent
silent=$(on c1 "cd $asker && echo 3 > connect_timeout && { env echo volumes 0 > ask 2> /dev/null & } &&
	until [ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) != 0 ]; do usleep 10000; done
	env echo portals 0 2>&1 > ask; wait; cat error; echo 10 > connect_timeout")
like "who asks meanwhile is refused" "busy" "$silent"
like "a target that says nothing is given up" "waiting for the target's answer took too long" "$silent"

mode="by proof"
must on c1 "cd $asker && echo $secret > host_key && echo $target_secret > target_key"
all_good
told long "$good" "$volumes" "volumes 2" "$portals"
told twice "$good" "$volumes" "volumes 2" "$portals"
other="the peer failed authentication: it does not hold the expected keys"
for wrong in host-key target-key unsealed reflected sealed-8=9 sealed-17=65 sealed-64=0 short=70 short=20; do
	told $wrong "$other" "$volumes"
done
lists replayed
answer "$volumes" > /dev/null
same "$mode: the answer to an earlier question is none" "$other" "$(answer "$volumes")"
told no-challenge "the peer asks for no proof, although keys are set: it is not the target, or too old" "$volumes"
told challenges "the target asks for a proof at the wrong time" "$volumes"
for byte in 9=64 10=1 11=128 12=1 48=1; do
	told challenge-$byte "$no the challenge is none" "$volumes"
done
told accept "$stranger" "$volumes"
told accept-proof "$stranger" "$volumes"
told hang-up "$stranger" "$volumes"
# What is wrong with who has the keys.
told 17=47 "$name" "$volumes"
told 55=128 "$size" "$volumes"
told beyond "$no there is an entry beyond the last one" "volumes 2"
chance
lists silent-then
must on c1 "echo 3 > $asker/connect_timeout"
same "by proof: a target that is silent then is given up" "waiting for the target's answer took too long" "$(answer "$volumes")"
must on c1 "echo 10 > $asker/connect_timeout"
all_good
must on c2 "kill \$(cat /tmp/pid)"
must on c1 "rmdir $asker"

# Then hosts that ask wrongly: c2 is one. The keyed volume is for c1, by proof, the open one for c2, by its name.
must on target "modprobe -a ext4 loop; mkfs.ext4 -q -F $drive2 64M && mkdir -p /mnt/files && mount $drive2 /mnt/files &&
	for name in keyed open; do truncate -s 1M /mnt/files/\$name; done"
export_volume keyed /mnt/files/keyed c1
must on target "hcablk target export open /mnt/files/open --insecure --allow $id2"

# asks "DESCRIPTION" ANSWERS LIST HOST plain|hello|proven WRONG
asks() {
	same "$1" "$2" "$(on c2 "hcablk-prove question $target_address 7744 ${*:3} < /tmp/keys" 2>&1 | paste -sd' ')"
}
nobody=00000000-0000-0000-0000-000000000000 unknown=11111111-0000-4000-8000-000000000001
asks "who asks rightly is told" "told 1 open" .volumes "$id2" plain nothing
asks "and where is listened" "told 1 7744" .portals "$id2" plain nothing
asks "of what is beyond the end, only the number" "told 1" .volumes "$id2" plain index=1
asks "however far" "told 1" .volumes "$id2" plain index=4294967295
asks "a later version is as good" "told 1 open" .volumes "$id2" plain 5=3
for list in .volumes .portals; do
	asks "who does not prove it has the name of another one for nothing ($list)" "told 0" "$list" "$id1" plain nothing
	asks "so has a stranger ($list)" "told 0" "$list" "$unknown" plain nothing
done
for byte in 0=73 4=3 5=1 6=2 7=1 8=0 8=254 9=2 10=1 11=128 12=1 19=1 20=1 23=255 40=118 47=122 52=1 55=255; do
	asks "byte $byte is malformed" 1 .volumes "$id2" plain "$byte"
done
asks "so is nobody's question" 1 .volumes "$nobody" plain nothing
asks "and a short one" 1 .volumes "$id2" plain short=40
asks "whoever says that it proves who it is, is challenged" challenged .volumes "$unknown" hello nothing
asks "but for what is malformed" 1 .volumes "$id1" hello 12=1
asks "who has the keys is told" "told 1 keyed" .volumes "$id1" proven nothing
asks "where is listened, too" "told 1 7744" .portals "$id1" proven nothing
for wrong in mac-bit no-mac host-key target-key keys-swapped other-host handle other-question share-is-point; do
	asks "a proof with $wrong is none" 13 .volumes "$id1" proven "$wrong"
done
asks "a proof is good for one answer" "told 1 keyed 13" .volumes "$id1" proven same-proof
asks "a host without a key cannot prove it" 13 .volumes "$id2" proven nothing
asks "nor can a stranger" 13 .volumes "$unknown" proven nothing
# More than one address may have challenges for; and then whoever comes.
output=$(ON_SECONDS=300 on c2 "hcablk-prove hellos $target_address 7744 $id1 16 $(few 40) < /tmp/keys")
like "many at once are challenged" "hellos, 0 processes failed" "$output"
output=$(ON_SECONDS=$((chances + 200)) on c2 "hcablk-prove questions $target_address 7744 $id2 1 $seed $((2 * chances)) < /tmp/keys")
echo "# $output" >&2
like "by seed $seed each question has the answer that it must" "of reason 14.* $((2 * chances)) in all" "$output"
same "who comes after all that is told" keyed "$(on c1 "hcablk discover $target_address --json" | jq -r '.volumes[].name')"
check "no queue pair is left" wait_until target 60 "$no_queue_pairs"
silent "nor a session" on target "cat $target/volumes/*/clients"
must on target 'hcablk target unexport keyed && hcablk target unexport open && umount /mnt/files'
