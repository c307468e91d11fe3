"""What a feed has seen of itself: cheap to count, read as an immutable snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

_KEPT_WAITS = 4096


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One worker.

    Attributes:
        worker: its index.
        messages: replies it gave.
        busy_s: seconds it spent in the user's code and in collating.
        restarts: how often it was replaced after it died.
    """

    worker: int
    messages: int
    busy_s: float
    restarts: int


@dataclass(frozen=True, slots=True)
class FeedStats:
    """A snapshot of a feed.

    Attributes:
        elements: delivered to the consumer, over all epochs.
        nbytes: bytes of the messages they came in.
        copies: messages copied because the consumer held more memory than may be lent.
        skipped: items left out by ``on_error="skip"``.
        first_s: seconds the first element took, start of the workers included; None before it.
        wait_mean_ms, wait_p50_ms, wait_p95_ms, wait_p99_ms, wait_max_ms: how long the consumer waited for an element,
            in milliseconds; the percentiles over the latest 4,096 elements.
        workers: one entry a worker.
    """

    elements: int
    nbytes: int
    copies: int
    skipped: int
    first_s: float | None
    wait_mean_ms: float
    wait_p50_ms: float
    wait_p95_ms: float
    wait_p99_ms: float
    wait_max_ms: float
    workers: tuple[WorkerStats, ...]

    def __str__(self) -> str:
        first = "-" if self.first_s is None else f"{self.first_s:.3f} s"
        lines = [
            f"{self.elements} elements, {self.nbytes / 1e6:.1f} MB, first after {first}, "
            f"{self.copies} copied, {self.skipped} skipped",
            f"waits (ms): mean {self.wait_mean_ms:.2f}  p50 {self.wait_p50_ms:.2f}  p95 {self.wait_p95_ms:.2f}  "
            f"p99 {self.wait_p99_ms:.2f}  max {self.wait_max_ms:.2f}",
        ]
        lines += [
            f"worker {w.worker}: {w.messages} messages, busy {w.busy_s:.2f} s, {w.restarts} restarts"
            for w in self.workers
        ]
        return "\n".join(lines)


@dataclass(slots=True)
class WorkerCount:
    """Counters of one worker."""

    messages: int = 0
    busy_s: float = 0.0
    restarts: int = 0


@dataclass(slots=True)
class Counters:
    """Counters of one feed; one thread at a time."""

    elements: int = 0
    nbytes: int = 0
    copies: int = 0
    skipped: int = 0
    first_s: float | None = None
    _sum_s: float = 0.0
    _max_s: float = 0.0
    _waits_s: list[float] = field(default_factory=list)
    _next: int = 0

    def waited(self, seconds: float) -> None:
        """The consumer has just waited so long for an element."""
        self.elements += 1
        self._sum_s += seconds
        self._max_s = max(self._max_s, seconds)
        if self.first_s is None:
            self.first_s = seconds
        if len(self._waits_s) < _KEPT_WAITS:
            self._waits_s.append(seconds)
        else:
            self._waits_s[self._next] = seconds
            self._next = (self._next + 1) % _KEPT_WAITS

    def snapshot(self, workers: list[WorkerCount]) -> FeedStats:
        """The counters as they are now."""
        kept = self._waits_s or [0.0]
        p50, p95, p99 = (float(p) * 1e3 for p in np.percentile(kept, (50, 95, 99)))
        return FeedStats(
            elements=self.elements,
            nbytes=self.nbytes,
            copies=self.copies,
            skipped=self.skipped,
            first_s=self.first_s,
            wait_mean_ms=self._sum_s / max(self.elements, 1) * 1e3,
            wait_p50_ms=p50,
            wait_p95_ms=p95,
            wait_p99_ms=p99,
            wait_max_ms=self._max_s * 1e3,
            workers=tuple(WorkerStats(i, w.messages, w.busy_s, w.restarts) for i, w in enumerate(workers)),
        )
