"""``workers="auto"``: what it decides for sources of known cost, and that the stream never shows it."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpfeed
from mpfeed._feed import Feed
from mpfeed._sizing import Sizing, Totals


@dataclass(frozen=True)
class _Machine:
    """Workers of known cost on a machine of known size; times are seconds a message."""

    cpu_s: float
    io_s: float
    step_s: float
    cpus: int = 2
    others: float = 0.0  # CPUs that other programs take
    most_rate: float = float("inf")  # of a device that all share

    def rate(self, workers: int) -> float:
        """Messages a second."""
        made = min(workers / (self.cpu_s + self.io_s), (self.cpus - self.others) / max(self.cpu_s, 1e-9))
        return min(made, self.most_rate, 1 / self.step_s)

    def after(self, totals: Totals, workers: int) -> Totals:
        """The sums one message later."""
        passed_s = 1 / self.rate(workers)
        alone_s = self.cpu_s + self.io_s
        limited = self.rate(workers) < min(1 / self.step_s, self.most_rate) * 0.999
        busy_s = max(alone_s, workers * passed_s) if limited or self.most_rate == self.rate(workers) else alone_s
        return Totals(
            now_s=totals.now_s + passed_s,
            waited_s=totals.waited_s + max(0.0, passed_s - self.step_s),
            messages=totals.messages + 1,
            busy_s=totals.busy_s + busy_s,
            queued_s=totals.queued_s + (busy_s - alone_s if self.most_rate > self.rate(workers) else 0.0),
            cpu_s=totals.cpu_s + self.cpu_s,
            used_s=totals.used_s + self.cpu_s,
            idle_s=totals.idle_s + (self.cpus - self.others) * passed_s - self.cpu_s,
        )


def _run(machine: _Machine, messages: int, *, start: int = 2, most: int = 16, spare: int = 100) -> list[int]:
    """The number of workers at each message."""
    sizing = Sizing(most, machine.cpus, lambda: spare)
    totals, workers, course = Totals(idle_s=0.0), start, []
    for _ in range(messages):
        totals = machine.after(totals, workers)
        if sizing.due(int(totals.messages), totals.now_s, workers):
            decided = sizing.look(totals, workers)
            workers = decided[0] if decided is not None else workers
        course.append(workers)
    return course


MIXES = {
    "waits for I/O": _Machine(cpu_s=0.005, io_s=0.2, step_s=0.02),
    "waits for I/O, and no step": _Machine(cpu_s=0.02, io_s=0.2, step_s=1e-4),
    "computes": _Machine(cpu_s=0.1, io_s=0.0, step_s=0.01),
    "computes, on a machine others use too": _Machine(cpu_s=0.1, io_s=0.0, step_s=0.01, others=0.8),
    "keeps up": _Machine(cpu_s=0.01, io_s=0.02, step_s=0.1),
    "a shared disk": _Machine(cpu_s=0.005, io_s=0.2, step_s=0.01, most_rate=10.0),
}


@pytest.mark.parametrize("mix", MIXES)
def test_auto_comes_near_the_best_number_within_100_messages_and_stays(mix: str) -> None:
    machine = MIXES[mix]
    best = max(machine.rate(workers) for workers in range(1, 17))
    course = _run(machine, 600)
    assert all(machine.rate(workers) >= 0.9 * best for workers in course[100:])


def test_a_source_that_computes_gets_no_more_workers_than_cores() -> None:
    assert set(_run(MIXES["computes"], 400)) == {2}


def test_a_source_that_waits_gets_more_workers_than_cores_and_no_more_than_there_may_be() -> None:
    course = _run(_Machine(cpu_s=0.001, io_s=1.0, step_s=0.01), 300, most=12)
    assert course[-1] == max(course) == 12


def test_workers_that_only_wait_are_let_go() -> None:
    course = _run(_Machine(cpu_s=0.01, io_s=0.0, step_s=0.1), 300, start=8, most=16)
    assert course[-1] == 1


def test_more_workers_that_did_not_help_are_taken_back() -> None:
    course = _run(MIXES["a shared disk"], 200)
    assert max(course) > 2
    assert course[-1] == 2


def test_there_are_no_more_workers_than_there_is_memory_for() -> None:
    assert set(_run(MIXES["waits for I/O"], 200, spare=0)) == {2}


def test_workers_that_cannot_start_are_not_tried_again() -> None:
    machine, sizing = MIXES["waits for I/O"], Sizing(16, 2, lambda: 100)
    sizing.failed(2)
    totals = Totals(idle_s=0.0)
    for _ in range(200):
        totals = machine.after(totals, 2)
        assert not sizing.due(int(totals.messages), totals.now_s, 2) or sizing.look(totals, 2) is None


class _Scripted(Sizing):
    """Another number of workers every few messages, whatever they do."""

    def __init__(self, every: int, numbers: list[int]) -> None:
        super().__init__(16, 2, lambda: 100)
        self._every = every
        self._numbers = itertools.cycle(numbers)
        self._latest = 0

    def due(self, messages: int, now_s: float, workers: int) -> bool:
        return messages >= self._latest + self._every

    def look(self, totals: Totals, workers: int) -> tuple[int, str]:
        self._latest = int(totals.messages)
        return next(self._numbers), "scripted"


def _noisy(item: int, rng: np.random.Generator) -> Any:
    return item + rng.random(), np.full(200, item)


def _shard(shard: mpfeed.Shard) -> Any:
    for item in shard.of(range(600)):
        yield item + shard.rng.random(), np.full(200, item)


def _feed(kind: str, batch_size: int | None, **options: Any) -> Feed:
    if kind == "map":
        return mpfeed.from_map(_noisy, range(600), shuffle=True, batch_size=batch_size, **options)
    return mpfeed.from_generator(_shard, shards=5, batch_size=batch_size, **options)


def _plain(elements: Any) -> list[Any]:
    return [[np.asarray(leaf).tolist() for leaf in element] for element in elements]


def _resizings(feed: Feed) -> list[Any]:
    return list(feed.stats().resizings)


@pytest.mark.parametrize(("kind", "batch_size"), [("map", None), ("map", 4), ("generator", None), ("generator", 4)])
def test_the_stream_is_the_same_while_workers_come_and_go(
    kind: str, batch_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpfeed._auto.Sizing", lambda *_: _Scripted(15, [4, 1, 3, 2]))
    with (
        _feed(kind, batch_size, backend="inprocess", workers=1) as same,
        _feed(kind, batch_size, backend="process", workers="auto") as feed,
    ):
        while len(_resizings(feed)) < 4:
            assert _plain(feed) == _plain(same)
        assert [change.workers for change in _resizings(feed)][:4] == [4, 1, 3, 2]


def test_decisions_are_in_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpfeed._auto.Sizing", lambda *_: _Scripted(15, [3]))
    with _feed("map", 4, backend="process", workers="auto", epochs=1) as feed:
        iterator = iter(feed)
        next(iterator)
        with feed.trace(tmp_path / "trace.json"):
            _ = list(iterator)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    notes = [event["name"] for event in events if event.get("cat") == "note"]
    assert (
        [note for note in notes if note.startswith("3 workers instead of") and note.endswith("scripted")] == notes != []
    )


def test_a_position_taken_while_workers_come_and_go_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpfeed._auto.Sizing", lambda *_: _Scripted(5, [3, 1]))
    for kind in ("map", "generator"):
        with _feed(kind, 4, backend="process", workers="auto") as feed:
            iterator = iter(feed)
            _ = [next(iterator) for _ in range(60)]
            state = feed.state_dict()
            rest = _plain(iterator)
        with _feed(kind, 4, backend="inprocess", workers=1) as feed:
            feed.load_state_dict(state)
            assert _plain(feed) == rest
