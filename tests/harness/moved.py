#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Checks whether the output of `hcablk trace show --json` on standard input is possible.

Prints a line "MACHINES REQUESTS CHUNKED" and fails, with the mistakes, if the chunks of a request do not cover it exactly,
an event precedes its cause, or the times of both sides contradict each other by more than their uncertainty."""

import json
import sys

CLIENT = ("queued_ns", "sent_ns", "answered_ns", "completed_ns")
TARGET = ("received_ns", "drive_start_ns", "drive_end_ns", "target_answered_ns", "target_completed_ns")


def in_order(what, times):
    """Yields times that decrease."""
    known = [time for time in times if time is not None]
    if known != sorted(known):
        yield f"{what}: not in order: {times}"


def of_chunks(name, request):
    """Yields the mistakes in the chunks of a request."""
    place = 0
    for chunk in request["chunks"]:
        if chunk["offset"] != place:
            yield f"{name}: a chunk begins at {chunk['offset']} and not at {place}"
        place = chunk["offset"] + chunk["bytes"]
        drive, wire = ("drive_start_ns", "drive_end_ns"), ("posted_ns", "wire_start_ns", "completed_ns")
        steps = drive + wire if request["op"] == "read" else wire + drive
        times = [chunk[step] for step in steps]
        if request["is_chunked"] and None in times:
            yield f"{name}: the chunk at {chunk['offset']} lacks a time: {times}"
        if request["is_chunked"] or request["op"] == "read":
            yield from in_order(f"{name}, chunk at {chunk['offset']}", times)
        if chunk["memory"] == "none":
            yield f"{name}: the chunk at {chunk['offset']} is nowhere"
    if place != request["bytes"]:
        yield f"{name}: its chunks have {place} bytes of {request['bytes']}"


def of_request(request):
    """Yields the mistakes in a request."""
    name, times, off = f"request {request['number']}", request["times"], request["uncertainty_ns"]
    yield from in_order(f"{name} at the client", [times[one] for one in CLIENT])
    yield from in_order(f"{name} at the target", [times[one] for one in TARGET])
    if request["chunks"]:
        yield from of_chunks(name, request)
    if request["client"] is None:
        return
    if off is None or off < 0:
        yield f"{name}: the uncertainty of its times is not known"
        return
    for before, after in (("sent_ns", "received_ns"), ("target_answered_ns", "answered_ns")):
        if None not in (times[before], times[after]) and times[before] > times[after] + off:
            yield f"{name}: {before} is after {after} by {times[before] - times[after]} ns, although its times are off by {off} ns at most"


def main():
    shown = json.load(sys.stdin)
    requests = shown["requests"]
    wrong = [why for request in requests for why in of_request(request)]
    print("\n".join(wrong), file=sys.stderr)
    print(len(shown["machines"]), len(requests), sum(request["is_chunked"] for request in requests))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
