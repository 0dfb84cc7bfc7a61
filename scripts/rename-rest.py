#!/usr/bin/env python3
"""The rest of the names of the stranger's list. Run in a checkout, after rename-once.py."""
import re,subprocess
G=[('goes_within','is_removed_within'),('tell_loss','report_loss'),('forget_told_loss','forget_reported_loss'),('was_loss_told','is_loss_reported'),
('loss_told','loss_reported'),('comes_to','trace_state'),('founder','backing_volume'),('Overtaken','DropCachedPages'),('Unstable','FlushDrive'),
('Formers','ReplacedHwQueues'),
('what_took_long_is_given_twice_that','an_attempt_after_a_slow_one_has_twice_its_time'),
('what_is_inside_passes_for_every_operation','an_extent_inside_the_volume_passes_for_every_operation'),
('a_part_of_a_block_at_the_end_is_none','a_part_of_a_block_at_the_end_is_not_readable'),
('so_many_former_ones_are_known','a_limited_number_of_former_instances_is_known'),
('a_signaled_request_frees_those_before_it','a_signaled_work_request_frees_the_ones_before_it')]
L=[('hcablk_target/io/queue_volume.rs','let_go','change_volume'),('initiator/connect/attempt.rs','let_go','release_links'),
('initiator/device/path.rs','let_go','release_links'),
('initiator/device/attempt.rs','let_go','stop_device_watch'),('initiator/device/paths.rs','let_go','stop_device_watch'),
('initiator/session.rs','let_go','stop_device_watch'),('initiator/session/teardown.rs','let_go','stop_device_watch'),
('docs/design/locking.md','let_go','stop_device_watch'),('docs/design/memory-safety.md','let_go','stop_device_watch'),
('rust/blkdev/held.rs','let_go','release_hold'),('rust/blkdev/requests.rs','let_go','release_hold'),
('hcablk_target/session/attachment.rs','Asked','RequestedChange'),('hcablk_target/session.rs','Asked','Detaching'),
('hcablk_target/session/watched.rs','Begun','WatchStart'),('hcablk_target/admin/serve.rs','Begun','WatchStart'),
('hcablk_target/session/changer.rs','Asked','RequestedChange'),
]
fs=subprocess.run(['git','ls-files','*.rs','*.md','*.patch','*.h','*.c'],capture_output=True,text=True).stdout.split()
for f in fs:
    s=open(f).read(); t=s
    for a,b in G: t=re.sub(r'\b%s\b'%a,b,t)
    for g,a,b in L:
        if g==f and b!='?': t=re.sub(r'\b%s\b'%a,b,t)
    if t!=s: open(f,'w').write(t)
