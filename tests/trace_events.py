"""Reads a trace as the Trace Event format says it must be (JSON object form, complete events and metadata)."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

_META = {"process_name", "thread_name"}


def read(path: Any) -> list[dict[str, Any]]:
    """The complete events of a file; AssertionError where a viewer would stumble over it."""
    with open(path) as file:
        data = json.load(file)
    assert isinstance(data, dict)
    assert data["displayTimeUnit"] in ("ms", "ns")
    events = data["traceEvents"]
    named = set()
    complete = []
    for event in events:
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert isinstance(event["name"], str)
        assert event["name"]
        if event["ph"] == "M":
            assert event["name"] in _META
            assert event["args"]["name"]
            named.add((event["name"], event["pid"], event["tid"]))
        else:
            complete.append(_complete(event))
    tracks = {(event["pid"], event["tid"]) for event in complete}
    assert {("process_name", pid, 0) for pid, _ in tracks} <= named
    assert {("thread_name", *track) for track in tracks} <= named
    _check_nesting(complete)
    return complete


def _complete(event: dict[str, Any]) -> dict[str, Any]:
    assert event["ph"] == "X"
    assert isinstance(event["cat"], str)
    for key in ("ts", "dur"):
        assert isinstance(event[key], (int, float))
        assert event[key] >= 0
    return event


def _check_nesting(events: list[dict[str, Any]]) -> None:
    """Events of one track lie within or beside one another, and come in the order in which they begin."""
    tracks = defaultdict(list)
    for event in events:
        tracks[event["pid"], event["tid"]].append(event)
    for track in tracks.values():
        open_until: list[float] = []
        latest = 0.0
        for event in track:
            begin, end = event["ts"], event["ts"] + event["dur"]
            assert begin >= latest
            latest = begin
            while open_until and begin >= open_until[-1] - 0.002:  # rounded to nanoseconds
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 0.002, f"{event} reaches beyond what contains it"
            open_until.append(end)


def within(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    """Whether an event lies in another, on the same track."""
    same = (inner["pid"], inner["tid"]) == (outer["pid"], outer["tid"])
    end = inner["ts"] + inner["dur"]
    return same and outer["ts"] - 0.002 <= inner["ts"] and end <= outer["ts"] + outer["dur"] + 0.002
