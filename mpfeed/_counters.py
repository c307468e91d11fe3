"""Counts of a feed at work: cheap to add to, of bounded size. ``snapshot`` makes them ``FeedStats``."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mpfeed._cpus import usable_cpus
from mpfeed._effort import Effort, host
from mpfeed._stats import FeedStats, SlowestSample, WorkerStats
from mpfeed._verdict import Verdict, judge

_KEPT_WAITS = 4096
_KEPT_MESSAGES = 512
_KEPT_ASKS = 1024
_UNJUDGED = Verdict("unknown", "", "")


class _Ring:
    """The latest values, and the sum and the largest of all."""

    __slots__ = ("_kept", "_most", "_next", "count", "largest", "total")

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[float] = []
        self._next = 0
        self.count = 0
        self.total = self.largest = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)
        if len(self._kept) < self._most:
            self._kept.append(value)
        else:
            self._kept[self._next] = value
            self._next = (self._next + 1) % self._most

    @property
    def mean(self) -> float:
        return self.total / max(self.count, 1)

    def percentiles(self, *points: float) -> list[float]:
        """Of the latest values."""
        return [float(p) for p in np.percentile(self._kept or [0.0], points)]


@dataclass(slots=True)
class WorkerCount:
    """Counts of one worker. The crew's lock is held."""

    messages: int = 0
    elements: int = 0
    busy_s: float = 0.0
    collate_s: float = 0.0
    room_s: float = 0.0
    work_s: float = 0.0
    cpu_s: float = 0.0
    queued_s: float = 0.0
    memory_bytes: int = 0
    restarts: int = 0
    pid: int | None = None
    node: str = ""
    samples: int = 0
    slowest_s: float = 0.0
    slowest: tuple[int, int] = (-1, -1)
    # Of its clock against this process's; None while it is the same.
    clock_s: float | None = None
    busy: _Ring = field(default_factory=lambda: _Ring(_KEPT_MESSAGES))

    def replied(self, effort: Effort, elements: int, now_s: float, *, starved: bool) -> float:
        """Count a reply; when it was made, by this process's clock.

        Args:
            effort: of the reply.
            elements: in it.
            now_s: when it came.
            starved: the worker waited for work before it, not for room.
        """
        self.messages += 1
        self.elements += elements
        self.busy_s += effort.busy_s
        self.collate_s += effort.collate_s
        self.cpu_s += effort.cpu_s
        self.queued_s += effort.queued_s
        self.room_s += effort.room_s
        if starved:
            self.work_s += effort.idle_s
        else:
            self.room_s += effort.idle_s
        self.memory_bytes = effort.memory_bytes or self.memory_bytes
        self.samples += effort.samples
        self.busy.add(effort.busy_s)
        if effort.slowest_s > self.slowest_s:
            self.slowest_s, self.slowest = effort.slowest_s, effort.slowest
        return effort.done_s if self._same_clock(effort, now_s) else effort.done_s + (self.clock_s or 0.0)

    def _same_clock(self, effort: Effort, now_s: float) -> bool:
        if effort.host:
            self.clock_s = None if effort.host == host() else now_s - effort.done_s
        if self.clock_s is not None:  # the quickest reply so far tells the clocks' difference best
            self.clock_s = min(self.clock_s, now_s - effort.done_s)
        return self.clock_s is None

    def snapshot(self, worker: int) -> WorkerStats:
        """As it is now."""
        return WorkerStats(
            worker=worker, messages=self.messages, elements=self.elements, busy_s=self.busy_s,
            collate_s=self.collate_s, room_s=self.room_s, work_s=self.work_s, cpu_s=self.cpu_s, queued_s=self.queued_s,
            memory_bytes=self.memory_bytes, restarts=self.restarts, pid=self.pid, node=self.node,
        )  # fmt: skip


class _Fill:
    """How many messages lay ready when the consumer asked.

    A message tells when it was made only as it arrives, which may be long after; so each is counted when it is taken:
    once for every time that the consumer asked since it was made.
    """

    __slots__ = ("_asks", "_before", "ready")

    def __init__(self) -> None:
        self._asks: list[float] = []
        self._before = 0
        self.ready = 0

    def asked(self, now_s: float) -> None:
        """The consumer asks for a message."""
        self._asks.append(now_s)
        if len(self._asks) > 2 * _KEPT_ASKS:
            self._before += _KEPT_ASKS
            del self._asks[:_KEPT_ASKS]

    def taken(self, made_s: float) -> None:
        """It was given one that was made then."""
        self.ready += len(self._asks) - bisect_left(self._asks, made_s)

    @property
    def asks(self) -> int:
        """How often it asked."""
        return self._before + len(self._asks)


@dataclass(slots=True)
class Counters:
    """Counts of one feed; one thread at a time.

    Attributes:
        room: messages that may lie ready for the consumer, of all workers together.
    """

    backend: str = ""
    buffer: int = 0
    elements: int = 0
    nbytes: int = 0
    copied_held: int = 0
    copied_cast: int = 0
    skipped: int = 0
    first_s: float | None = None
    step_s: float = 0.0
    travel_s: float = 0.0
    room: int = 0
    waits: _Ring = field(default_factory=lambda: _Ring(_KEPT_WAITS))
    fill: _Fill = field(default_factory=_Fill)

    def waited(self, begun_s: float, now_s: float, left_s: float | None, count: int = 1) -> None:
        """The consumer has just been given ``count`` elements.

        Args:
            begun_s: when it asked.
            now_s: now.
            left_s: when it was given the ones before in this iteration, or None.
            count: how many.
        """
        self.elements += count
        if self.first_s is None:
            self.first_s = now_s - begun_s
            return
        self.waits.add(now_s - begun_s)
        if left_s is not None:
            self.step_s += begun_s - left_s

    def took(self, begun_s: float, made_s: float, now_s: float) -> None:
        """A message that was made then (0: nobody knows) was taken for the consumer, who asked at ``begun_s``."""
        if self.first_s is None:
            return
        self.fill.asked(begun_s)
        if made_s:
            self.fill.taken(made_s)
            self.travel_s += now_s - max(begun_s, made_s)

    def snapshot(self, workers: list[WorkerCount]) -> FeedStats:
        """As they are now."""
        waits = self.waits
        p50, p95, p99 = (1e3 * p for p in waits.percentiles(50, 95, 99))
        kept = [value for worker in workers for value in worker.busy._kept] or [0.0]
        messages = sum(worker.messages for worker in workers)
        stats = FeedStats(
            backend=self.backend,
            buffer=self.buffer,
            elements=self.elements,
            nbytes=self.nbytes,
            copied_held=self.copied_held,
            copied_cast=self.copied_cast,
            skipped=self.skipped,
            first_s=self.first_s,
            waits=waits.count,
            wait_s=waits.total,
            wait_mean_ms=waits.mean * 1e3,
            wait_p50_ms=p50,
            wait_p95_ms=p95,
            wait_p99_ms=p99,
            wait_max_ms=waits.largest * 1e3,
            step_s=self.step_s,
            travel_s=self.travel_s,
            buffer_fill=self._filled(),
            message_mean_ms=sum(worker.busy_s for worker in workers) / max(messages, 1) * 1e3,
            message_p95_ms=float(np.percentile(kept, 95)) * 1e3,
            message_max_ms=max((worker.busy.largest for worker in workers), default=0.0) * 1e3,
            slowest=_slowest(workers),
            cpus=usable_cpus(),
            workers=tuple(worker.snapshot(i) for i, worker in enumerate(workers)),
            verdict=_UNJUDGED,
        )
        return replace(stats, verdict=judge(stats))

    def _filled(self) -> float | None:
        if not self.fill.asks or not self.room:
            return None
        return min(1.0, self.fill.ready / self.fill.asks / self.room)


def _slowest(workers: list[WorkerCount]) -> SlowestSample | None:
    seconds, place = max(((w.slowest_s, w.slowest) for w in workers), default=(0.0, (-1, -1)))
    if not seconds:
        return None
    first, second = place
    where = "a call" if first < 0 else f"item {first}" if second < 0 else f"element {second} of shard {first}"
    return SlowestSample(seconds, where)


def label(backend: Any) -> str:
    """A backend's name, with its transport where it has a choice."""
    transport = getattr(backend, "transport", None)
    return backend.name if transport is None else f"{backend.name}/{transport}"
