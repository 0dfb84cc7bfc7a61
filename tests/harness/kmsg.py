# SPDX-License-Identifier: GPL-2.0
"""What a kernel says when something is wrong with it."""

from __future__ import annotations

import re

TROUBLE = re.compile(
    r"""
      \bBUG\b | kernel\ BUG | \bWARNING: | \bOops\b | Kernel\ panic | general\ protection\ fault
    | Unable\ to\ handle | stack\ segment | invalid\ opcode | double\ fault | Call\ Trace:
    | rust_kernel:\ panicked
    | possible\ (circular|recursive)\ locking | inconsistent\ lock\ state | INFO:\ possible
    | suspicious\ RCU | held\ lock\ freed | lock\ held\ when\ returning | INFO:\ trying\ to\ register
    | self-detected\ stall | detected\ stalls | rcu_\w+\ kthread\ starved
    | soft\ lockup | hard\ LOCKUP | blocked\ for\ more\ than | blocked\ in\ I/O\ wait
    | KASAN | KCSAN | KMSAN | UBSAN | DMA-API:
    | refcount_t: | list_(add|del)\ corruption | ODEBUG: | \bslab\b.*(leak|still\ has\ objects|Objects\ remaining)
    | Objects\ remaining | scheduling\ while\ atomic | sleeping\ function\ called
    | page\ allocation\ failure | Out\ of\ memory: | oom-killer | Bad\ page
    | unregister_netdevice:\ waiting | non-zero\ pgtables_bytes
    """,
    re.VERBOSE,
)

# Said by the stock kernel on a sound machine, or told with all that is known of it by hcablk-reset (leaks).
HARMLESS = re.compile(
    r"""
      MDS\ CPU\ bug | Spectre | kmemleak:\ Kernel\ memory\ leak\ detector\ initialized
    | lockdep\ is\ turned\ off\b(?!.) | ODEBUG:\ selftest\ passed
    | DMA-API:\ (preallocated\ \d+\ debug\ entries|debugging\ enabled\ by\ kernel\ config)$
    """,
    re.VERBOSE,
)


# Mistakes of the kernel's own that tests run into, by what stands in their call trace. They do not fail a test.
KNOWN = re.compile(
    r"""
      # rxe's check_ack() calls answers to an RDMA READ that come out of order an error, but forgets to say which.
      WARNING:\ .*/rxe_comp\.c:\d+\ at\ rxe_completer\+
      # OCFS2's cluster takes its locks in one order when a node goes, or is removed, and in another one when it is made.
    | possible\ circular\ locking\ dependency\ detected\n (?:.*\n){3} .*\(\(wq_completion\)o2net\).*\n
      (?:.*\n){1,2} .*\ task\ is\ already\ holding\ lock:\n .*\(o2net_wq_mutex\).*\ at:\ o2net_flush_wq\+
    | possible\ circular\ locking\ dependency\ detected\n (?:.*\n){3} .*\(&p->frag_sem\).*\ at:\ configfs_rmdir\+.*\n
      (?:.*\n)*? .*\ Chain\ exists\ of:\n .*nn->nn_connect_work\)
      # rxe_resp_queue_pkt() and rxe_comp_queue_pkt() give a packet away, and its hold on the queue pair with it, and use
      # the queue pair after that, which may be gone by then.
    | WARNING:\ .*/rxe_task\.c:\d+\ at\ rxe_sched_task\+ .*\n (?:.*\n)*? .*\ rxe_udp_encap_recv\+
    """,
    re.VERBOSE,
)
# How soft-RoCE breaks a connection on a busy machine: when its peer was not scheduled for the two seconds of the
# transport's timeout it sends again, and carries out the registrations in the send queue a second time
# (rxe_requester() does not look at the state of a local operation). What hcablk-reset says then.
RXE_REPEATED = re.compile(r"hcablk-test: soft-RoCE carried out a registration twice")
# How it stands still without memory: its workqueue has no rescuer (rxe_alloc_wq()), so that its queue pairs do not even
# flush when kthreadd, which makes workers, waits for the disk that is to be connected again.
RXE_NO_DRAIN = re.compile(r"BUG: (send|receive) queue did not drain")
RXE_NO_WORKER = re.compile(r"INFO: task kthreadd:\d+ blocked")
# How no connection is made without memory: whoever receives a management datagram allocates room for the next one, and may
# write to a disk for that whose connection is to be made by this datagram (ib_mad_recv_done() of drivers/infiniband/core/mad.c).
MAD_NO_MEMORY = re.compile(
    r"INFO: task kworker/\S+ blocked in I/O wait (?:(?!</TASK>).|\n)*\b__alloc_pages_slowpath\b(?:(?!</TASK>).|\n)*\bib_mad_recv_done\+"
)
# How it connects nothing: a management datagram that it has no memory for, or that a network card refuses while it goes or comes,
# puts its GSI queue pair into the state ERR, in which the kernel leaves it (mad_error_handler()). What hcablk-reset says then.
RXE_NO_MANAGEMENT = re.compile(r"hcablk-test: soft-RoCE can send no management datagram")


def kernel_broke(text: str) -> str:
    """What the kernel's RDMA stack has done to a test by which it may have failed, if it has; "" otherwise."""
    if RXE_REPEATED.search(text):
        return "soft-RoCE carried out a registration twice and broke a connection"
    if RXE_NO_DRAIN.search(text) and RXE_NO_WORKER.search(text):
        return "soft-RoCE had no worker without memory, and flushed nothing"
    if RXE_NO_MANAGEMENT.search(text):
        return "soft-RoCE could not send a management datagram, and sends none since then"
    if MAD_NO_MEMORY.search(text):
        return "the kernel waited for this disk before it received what connects it"
    return ""


# No report is longer; it ends with its call trace.
REPORT_LINES = 400
TRACE_END = re.compile(r"</TASK>|</IRQ>")
# What a warning begins with, or a report of lockdep; this far before its call trace.
CUT = re.compile(r"-+\[ cut here \]-+|WARNING: possible (circular|recursive) locking")
HEAD_LINES = 150


def is_known(lines: list[str], at: int) -> bool:
    """Is the report that has this line of a mistake that we know and that is not ours?"""
    report: list[str] = []
    start = at
    for n in range(at, max(at - HEAD_LINES, -1), -1):
        if n < at and TRACE_END.search(lines[n]):
            break
        if CUT.search(lines[n]):
            start = n
            break
    for n, line in enumerate(lines[start : start + REPORT_LINES], start):
        # Of one line, and not the one whose call trace is next.
        if n > at and CUT.search(line):
            break
        report.append(line)
        if TRACE_END.search(line):
            break
    return bool(KNOWN.search("\n".join(report)))


def reports(text: str) -> bool:
    """Has the kernel reported anything at all, expected or not?"""
    return any(TROUBLE.search(line) and not HARMLESS.search(line) for line in text.splitlines())


def trouble(text: str, expected: list[str]) -> list[str]:
    """The lines of a kernel log that fail a test; `expected` are patterns that it may hold."""
    allowed = [re.compile(pattern) for pattern in expected]
    lines = text.splitlines()
    return [
        line
        for n, line in enumerate(lines)
        if TROUBLE.search(line)
        and not HARMLESS.search(line)
        and not any(pattern.search(line) for pattern in allowed)
        and not is_known(lines, n)
    ]
