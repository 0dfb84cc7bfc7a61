# SPDX-License-Identifier: GPL-2.0
"""Assigns functions to the parts of the system through which an I/O passes."""

from __future__ import annotations

import re

# The parts, from the program that submits an I/O to the RDMA device, and then the rest.
PARTS = (
    "fio, system calls",
    "block layer, null_blk",
    "own modules",
    "ib_core",
    "RDMA device, network",
    "scheduler, interrupts",
    "rest of the kernel",
)
PROGRAM, BLOCK, OWN, CORE, DEVICE, SCHEDULER, REST = PARTS

# Prefixes of module names, and their parts; the longest prefix that matches counts. OWN are a peer's modules.
MODULES = {
    "user space": PROGRAM,
    "null_blk": BLOCK,
    "hcablk": OWN,
    "nvme": OWN,
    "rnbd": OWN,
    "rtrs": OWN,
    "nbd": OWN,
    "ublk": OWN,
    "ib_": CORE,
    "rdma_cm": CORE,
    "rdma_rxe": DEVICE,
    "hcablk_hca": DEVICE,
}

# Functions of the kernel itself, and their parts: the kernel does not say to which part a function belongs. These are
# prefixes of the functions that the benchmark's loads execute. The first that matches counts.
FUNCTIONS = (
    (PROGRAM, r"(__)?(io_(?!schedule)|x64_sys|do_sys|entry_SYSCALL|syscall|io_submit|io_getevents|aio_|kiocb|lookup_ioctx|read_events|fput|fget|"
              r"blkdev_|iov_iter|import_|copy_user|_copy_(to|from)_user|rep_movs|pin_user|gup_|try_grab|folio_|unpin_|"
              r"internal_get_user|get_user|do_io_|__io_|eventfd|ksys|vfs_|rw_verify|security_|apparmor|touch_atime)"),
    (BLOCK, r"(__)?(blk|bio|submit_bio|sbitmap|elv_|dd_|disk_|part_|req_|rq_|get_request|should_fail_bio|bdev_|bvec_|bvecs|"
            r"zero_fill_bio|mempool|update_io_ticks|wbt|throttle|ioprio|nvme_)"),
    (DEVICE, r"(__)?(skb|ip_|ip6_|udp|dev_|netif|net_|napi|eth_|loopback|sock_|neigh|inet|fib_|nf_|qdisc|pfifo|crc32|"
             r"kfree_skb|alloc_skb|build_skb|process_backlog|enqueue_to_backlog|sch_|dst_|validate_xmit|csum|consume_skb)"),
    (SCHEDULER, r"(__|do_|_)?(sched|schedule|try_to_wake|ttwu|wake_|update_(curr|load|rq|cfs|se|min|entity|blocked|tg)|pick_|put_prev|"
                r"enqueue_(task|entity|dl)|dequeue_|set_next|check_preempt|wakeup|place_entity|reweight|switch_|finish_task|"
                r"context_|native_(sched|apic|irq|halt|safe)|default_idle|cpu_idle|cpuidle|idle|irq|asm_|sysvec|handle_(irq|edge|softirqs)|"
                r"smp_|ipi|flush_smp|call_function|generic_smp|apic|x2apic|tick|hrtimer|timer|ktime|rcu|softirq|raise_softirq|"
                r"tasklet|worker|process_one_work|queue_work|kick_pool|pwq|insert_work|wq_|kthread|prepare_to|finish_wait|"
                r"autoremove|swait|complete|raw_spin_rq|resched|preempt|local_|common_interrupt|exit_to|ret_from|error_|"
                r"sync_regs|psi|cgroup_|cpuacct|avg_vruntime|vruntime|entity|clockevents|lapic|read_tsc|note_|do_idle|arch_)"),
)
COMPILED = tuple((part, re.compile(pattern)) for part, pattern in FUNCTIONS)


def part(module: str, function: str) -> str:
    """Returns the part to which a function of a module belongs."""
    fitting = [name for name in MODULES if module.startswith(name)]
    if fitting:
        return MODULES[max(fitting, key=len)]
    return next((of for of, pattern in COMPILED if pattern.match(function)), REST)


def parts(costs: list[tuple[str, str, float]]) -> dict[str, float]:
    """Returns the sums of instructions of each part, from the instructions of each module and function."""
    sums = dict.fromkeys(PARTS, 0.0)
    for module, function, instructions in costs:
        sums[part(module, function)] += instructions
    return sums
