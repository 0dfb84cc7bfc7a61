# SPDX-License-Identifier: GPL-2.0
"""The messages of a kernel in trouble."""

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

# Messages of the stock kernel on a sound machine, and of leaks, which hcablk-reset reports in full.
HARMLESS = re.compile(
    r"""
      MDS\ CPU\ bug | Spectre | kmemleak:\ Kernel\ memory\ leak\ detector\ initialized
    | lockdep\ is\ turned\ off\b(?!.) | ODEBUG:\ selftest\ passed
    | DMA-API:\ (preallocated\ \d+\ debug\ entries|debugging\ enabled\ by\ kernel\ config)$
    """,
    re.VERBOSE,
)


# Known bugs of the kernel that tests trigger, by their call traces. They do not fail a test.
KNOWN = re.compile(
    r"""
      # rxe's check_ack() treats responses to an RDMA READ that are out of order as an error, but sets no error code.
      WARNING:\ .*/rxe_comp\.c:\d+\ at\ rxe_completer\+
      # OCFS2's cluster takes its locks in one order when a node leaves or is removed, and in another when one is created.
    | possible\ circular\ locking\ dependency\ detected\n (?:.*\n){3} .*\(\(wq_completion\)o2net\).*\n
      (?:.*\n){1,2} .*\ task\ is\ already\ holding\ lock:\n .*\(o2net_wq_mutex\).*\ at:\ o2net_flush_wq\+
    | possible\ circular\ locking\ dependency\ detected\n (?:.*\n){3} .*\(&p->frag_sem\).*\ at:\ configfs_rmdir\+.*\n
      (?:.*\n)*? .*\ Chain\ exists\ of:\n .*nn->nn_connect_work\)
      # rxe_resp_queue_pkt() and rxe_comp_queue_pkt() hand over a packet with its reference to the queue pair, and use
      # the queue pair afterwards, when it may be freed.
    | WARNING:\ .*/rxe_task\.c:\d+\ at\ rxe_sched_task\+ .*\n (?:.*\n)*? .*\ rxe_udp_encap_recv\+
    """,
    re.VERBOSE,
)
# How soft-RoCE breaks a connection on a busy machine: when its peer was not scheduled for the two seconds of the
# transport's timeout it sends again, and carries out the registrations in the send queue a second time (rxe_requester()
# does not check the state of a local operation). hcablk-reset then logs this.
RXE_REPEATED = re.compile(r"hcablk-test: soft-RoCE carried out a registration twice")
# How soft-RoCE hangs when memory is short: its workqueue has no rescuer (rxe_alloc_wq()), so that its queue pairs do
# not even flush while kthreadd, which creates workers, waits for the disk that must be reconnected.
RXE_NO_DRAIN = re.compile(r"BUG: (send|receive) queue did not drain")
RXE_NO_WORKER = re.compile(r"INFO: task kthreadd:\d+ blocked")
# How the kernel fails to connect when memory is short: the receiver of a management datagram allocates memory for the
# next one. To free memory the kernel may write to a disk whose connection needs this datagram (ib_mad_recv_done() of
# drivers/infiniband/core/mad.c).
MAD_NO_MEMORY = re.compile(
    r"INFO: task kworker/\S+ blocked in I/O wait (?:(?!</TASK>).|\n)*\b__alloc_pages_slowpath\b(?:(?!</TASK>).|\n)*\bib_mad_recv_done\+"
)
# How the kernel stops connecting: a management datagram without memory, or one that a network card refuses while it
# is being removed or added, puts its GSI queue pair into the state ERR, where the kernel leaves it
# (mad_error_handler()). hcablk-reset then logs this.
RXE_NO_MANAGEMENT = re.compile(r"hcablk-test: soft-RoCE can send no management datagram")


def kernel_broke(text: str) -> str:
    """Return the failure of the kernel's RDMA stack that may have failed a test; "" if there is none."""
    if RXE_REPEATED.search(text):
        return "soft-RoCE carried out a registration twice and broke a connection"
    if RXE_NO_DRAIN.search(text) and RXE_NO_WORKER.search(text):
        return "soft-RoCE had no worker without memory, and flushed nothing"
    if RXE_NO_MANAGEMENT.search(text):
        return "soft-RoCE could not send a management datagram, and sends none since then"
    if MAD_NO_MEMORY.search(text):
        return "the kernel waited for this disk before it received the datagram that connects the disk"
    return ""


# The largest length of a report, which ends with its call trace.
REPORT_LINES = 400
TRACE_END = re.compile(r"</TASK>|</IRQ>")
# The first line of a warning, or of a lockdep report.
CUT = re.compile(r"-+\[ cut here \]-+|WARNING: possible (circular|recursive) locking")
HEAD_LINES = 150


def is_known(lines: list[str], at: int) -> bool:
    """Return whether the report with this line is of a known bug of the kernel."""
    report: list[str] = []
    start = at
    for n in range(at, max(at - HEAD_LINES, -1), -1):
        if n < at and TRACE_END.search(lines[n]):
            break
        if CUT.search(lines[n]):
            start = n
            break
    for n, line in enumerate(lines[start : start + REPORT_LINES], start):
        # The line is a report of its own: the next call trace belongs to another.
        if n > at and CUT.search(line):
            break
        report.append(line)
        if TRACE_END.search(line):
            break
    return bool(KNOWN.search("\n".join(report)))


def reports(text: str) -> bool:
    """Return whether the kernel has reported any trouble, expected or not."""
    return any(TROUBLE.search(line) and not HARMLESS.search(line) for line in text.splitlines())


def trouble(text: str, expected: list[str]) -> list[str]:
    """Return the lines of a kernel log that fail a test; `expected` are patterns of allowed lines."""
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
