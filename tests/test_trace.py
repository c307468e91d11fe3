"""Traces: what a viewer needs, what a source names, and when the file is written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import trace_events
from trace_events import within

import mpfeed
from mpfeed._options import BackendName


def _named(shard: mpfeed.Shard) -> Iterator[int]:
    for number in shard.of(range(24)):
        with mpfeed.span("read"), mpfeed.span("decode"):
            value = sum(range(20_000)) * 0 + number  # long enough to be timed one by one
        yield value


def _of(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == name]


def test_a_trace_shows_messages_and_in_them_what_the_source_names(backend: BackendName, tmp_path: Any) -> None:
    path = tmp_path / "trace.json"
    with mpfeed.from_generator(_named, shards=2, workers=2, batch_size=4, backend=backend, epochs=1) as feed:
        with feed.trace(path):
            assert len(list(feed)) == 6
        events = trace_events.read(path)
    messages = [event for event in events if event["name"].startswith("message of ")]
    computes, decodes = _of(events, "compute"), _of(events, "decode")
    assert len(decodes) == len(_of(events, "read")) == 24
    assert {event["pid"] for event in messages} == {2, 3}
    assert all(any(within(decode, compute) for compute in computes) for decode in decodes)
    assert all(any(within(compute, message) for message in messages) for compute in computes)
    assert len(_of(events, "collate")) >= 6
    assert len(_of(events, "wait")) == 6
    assert len(_of(events, "step")) == 5


def test_quick_samples_travel_in_traced_messages_too(backend: BackendName, tmp_path: Any) -> None:
    path = tmp_path / "trace.json"
    with mpfeed.from_map(abs, range(5000), workers=1, backend=backend, epochs=1) as feed:
        with feed.trace(path):
            assert sum(1 for _ in feed) == 5000
        events = trace_events.read(path)
    messages = [event for event in events if event["name"].startswith("message of ")]
    assert sum(int(event["name"].split()[-1]) for event in messages) == 5000


def test_a_trace_is_written_when_its_feed_closes_and_ends_once(tmp_path: Any) -> None:
    path = tmp_path / "trace.json"
    with mpfeed.from_map(abs, range(8), workers=1, backend="inprocess") as feed:
        trace = feed.trace(path)
        list(feed)
    assert _of(trace_events.read(path), "wait")
    before = path.read_bytes()
    trace.close()
    assert path.read_bytes() == before


def test_a_trace_is_written_at_the_end_of_a_program_and_where_it_was_asked_for(tmp_path: Any) -> None:
    program = (
        "import os, mpfeed\n"
        "feed = mpfeed.from_map(abs, range(8), workers=1, backend='process')\n"
        "feed.trace('trace.json')\n"
        "print(len(list(feed)))\n"
        "os.chdir('/')\n"
    )
    words = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("8\n", "")
    assert len(_of(trace_events.read(tmp_path / "trace.json"), "wait")) == 8


def test_only_what_happens_before_its_end_is_in_a_trace(tmp_path: Any) -> None:
    with mpfeed.from_map(abs, range(8), workers=1, batch_size=2, backend="inprocess") as feed:
        with feed.trace(tmp_path / "first.json"):
            list(feed)
        list(feed)
        with feed.trace(tmp_path / "second.json"):
            list(feed)
    counts = [len(_of(trace_events.read(tmp_path / name), "wait")) for name in ("first.json", "second.json")]
    assert counts == [4, 4]


def test_a_second_trace_at_once_a_closed_feed_and_a_bad_path_are_refused(tmp_path: Any) -> None:
    with mpfeed.from_map(abs, range(8), workers=1, backend="inprocess") as feed:
        with pytest.raises(OSError, match="nowhere"):
            feed.trace(tmp_path / "nowhere" / "trace.json")
        with feed.trace(tmp_path / "one.json"), pytest.raises(mpfeed.MpfeedError, match=r"one\.json"):
            feed.trace(tmp_path / "two.json")
    with pytest.raises(mpfeed.FeedClosed):
        feed.trace(tmp_path / "three.json")


def test_notes_have_a_track_of_their_own(tmp_path: Any) -> None:
    with mpfeed.from_map(abs, range(8), workers=1, backend="inprocess") as feed:
        with feed.trace(tmp_path / "trace.json") as trace:
            list(feed)
            trace.note("3 workers instead of 2")
        (note,) = _of(trace_events.read(tmp_path / "trace.json"), "3 workers instead of 2")
    assert (note["dur"], note["cat"]) == (0, "note")


def test_a_full_trace_drops_what_comes_after(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpfeed._trace._MOST_EVENTS", 5)
    with mpfeed.from_map(abs, range(8), workers=1, batch_size=2, backend="inprocess") as feed:
        with feed.trace(tmp_path / "trace.json") as trace:
            list(feed)
        assert trace.dropped > 0
    assert len(trace_events.read(tmp_path / "trace.json")) == 5


def test_a_span_outside_a_worker_and_without_a_trace_costs_nothing_and_lets_errors_pass() -> None:
    with mpfeed.span("anything"):
        pass
    with pytest.raises(KeyError), mpfeed.span("anything"):
        raise KeyError
