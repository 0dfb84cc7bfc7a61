#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Checks a file in the trace event format, which ui.perfetto.dev and chrome://tracing read.

traceevent.py FILE: prints the mistakes, and the numbers of slices and arrows; fails if it finds a mistake.
The rules are those of the document "Trace Event Format" for the phases X, M, s and f: members and their types; slices
of a thread nest or follow each other; arrows come in pairs, do not point back in time, and each end is within a slice
of its thread; each used thread and process has a name."""

import json
import sys
from numbers import Real

MEMBERS = {
    "X": {"name": str, "cat": str, "ts": Real, "dur": Real, "args": dict},
    "M": {"name": str, "args": dict},
    "s": {"name": str, "cat": str, "ts": Real, "id": int},
    "f": {"name": str, "cat": str, "ts": Real, "id": int, "bp": str},
}
METADATA = {"process_name": ("name", str), "thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}
# Half a nanosecond in microseconds: times are decimal.
CLOSE = 0.0005


def members(event):
    """Yields the mistakes in one event."""
    if not isinstance(event, dict):
        yield f"not an object: {event!r}"
        return
    known = MEMBERS.get(event.get("ph"))
    if known is None:
        yield f"unknown phase: {event}"
        return
    for name, kind in {"pid": int, "tid": int, **known}.items():
        if not isinstance(event.get(name), kind) or isinstance(event.get(name), bool):
            yield f"{name} is missing or of a wrong type: {event}"
            return
    if event["ph"] == "X" and (event["dur"] < 0 or event["ts"] < 0):
        yield f"negative time: {event}"
    if event["ph"] == "M":
        member, kind = METADATA.get(event["name"], ("", object))
        if not isinstance(event["args"].get(member), kind) or not member:
            yield f"unknown metadata: {event}"


def slices_nest(threads):
    """Yields slices of a thread that overlap."""
    for thread, slices in threads.items():
        ends = []
        for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
            end = event["ts"] + event["dur"]
            while ends and ends[-1] <= event["ts"] + CLOSE:
                ends.pop()
            if ends and end > ends[-1] + CLOSE:
                yield f"slices of thread {thread} overlap at {event['ts']}: {event}"
            ends.append(end)


def arrows_fit(arrows, threads):
    """Yields arrows that lack a beginning, an end, or a slice at one of them."""
    for (category, number), ends in arrows.items():
        if sorted(end["ph"] for end in ends) != ["f", "s"]:
            yield f"arrow {category} {number} has ends {[end['ph'] for end in ends]}"
            continue
        for end in ends:
            within = threads.get((end["pid"], end["tid"]), [])
            if not any(one["ts"] - CLOSE <= end["ts"] <= one["ts"] + one["dur"] + CLOSE for one in within):
                yield f"no slice at this end of an arrow: {end}"


def problems(trace):
    """Yields all mistakes in a trace."""
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        yield "there is no list traceEvents"
        return
    if trace.get("displayTimeUnit") not in (None, "ms", "ns"):
        yield "displayTimeUnit is neither ms nor ns"
    wrong = [why for event in trace["traceEvents"] for why in members(event)]
    yield from wrong
    if wrong:
        return
    threads, arrows, named = {}, {}, set()
    for event in trace["traceEvents"]:
        place = (event["pid"], event["tid"])
        if event["ph"] == "X":
            threads.setdefault(place, []).append(event)
        elif event["ph"] == "M":
            named.add((event["name"], *(place if event["name"] == "thread_name" else place[:1])))
        else:
            arrows.setdefault((event["cat"], event["id"]), []).append(event)
    for pid, tid in threads:
        if ("thread_name", pid, tid) not in named or ("process_name", pid) not in named:
            yield f"process {pid}, thread {tid} has no name"
    yield from slices_nest(threads)
    yield from arrows_fit(arrows, threads)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        trace = json.load(file)
    wrong = list(problems(trace))
    for why in wrong:
        print(why)
    phases = [event["ph"] for event in trace.get("traceEvents", [])] if not wrong else []
    print(f"{phases.count('X')} slices, {phases.count('s')} arrows, {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
