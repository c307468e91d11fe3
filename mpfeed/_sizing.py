"""How many workers ``workers="auto"`` means, decided anew while a feed runs.

More workers help while the consumer waits, cores are idle and memory is free; fewer do where they only wait. What is
needed follows from the time a message takes a worker and the time the consumer takes for one; what there is room for
from the CPU a worker uses while it is busy, so that a source that waits for I/O gets more workers than cores. A change
that did not help is taken back, and not tried again for a while.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

# Shares of the consumer's time spent waiting: above the one it wants more, below the other fewer may do.
_WAITS, _SATISFIED = 0.04, 0.02
_SHORTEST_S = 0.25  # of a window: shorter ones say nothing about shares of time
_FEWEST_MESSAGES = 6
_FASTEST_GROWTH = 4
# Workers beyond what the averages ask for, since times vary; when there are to be fewer, more beyond it.
_HEADROOM, _CAUTION = 1.2, 1.6
_HELPED = 1.04
_CALM_WINDOWS = 3  # before fewer are tried
_MEMORY = 20  # windows until what did not help is tried again
_LITTLE_CPU = 0.02
_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Resizing:
    """A change of the number of workers under ``workers="auto"``.

    Attributes:
        after_s: seconds since the first worker started.
        messages: that the workers had made by then.
        before, workers: how many there were, and how many there are to be.
        reason: why, with figures.
    """

    after_s: float
    messages: int
    before: int
    workers: int
    reason: str

    def __str__(self) -> str:
        return f"after {self.after_s:.1f} s {self.workers} workers instead of {self.before}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the feed began, in seconds.

    Attributes:
        now_s: of the clock.
        waited_s: by the consumer.
        messages: made by all workers.
        busy_s: of all workers; ``queued_s`` of it ready to run but without a CPU.
        cpu_s: CPU time of it.
        used_s: CPU time of this process and its workers.
        idle_s: time in which a CPU of the machine was idle, over all CPUs; infinite where that is unknown.
    """

    now_s: float = 0.0
    waited_s: float = 0.0
    messages: float = 0.0
    busy_s: float = 0.0
    queued_s: float = 0.0
    cpu_s: float = 0.0
    used_s: float = 0.0
    idle_s: float = math.inf

    def since(self, earlier: Totals) -> Totals:
        """What came since."""
        passed = {f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)}
        return Totals(**passed) if math.isfinite(self.idle_s) else Totals(**{**passed, "idle_s": math.inf})


class _Window:
    """What a stretch of time says: shares, and seconds a message."""

    def __init__(self, seen: Totals, cpus: int) -> None:
        wall_s = seen.now_s
        self.waiting = min(1.0, seen.waited_s / wall_s)
        self.rate = seen.messages / wall_s
        self.each_s = max(0.0, seen.busy_s - seen.queued_s) / seen.messages
        self.step_s = max(wall_s - seen.waited_s, 1e-3 * wall_s) / seen.messages
        self.cpu = max(seen.cpu_s / max(seen.busy_s - seen.queued_s, 1e-9), _LITTLE_CPU)
        self.idle_cpus = max(0.0, min(cpus - seen.used_s / wall_s, seen.idle_s / wall_s))

    def needed(self, headroom: float) -> int:
        """Workers that keep up with the consumer."""
        return math.ceil(headroom * self.each_s / self.step_s)


@dataclass(slots=True)
class _Bound:
    """A number of workers that was tried and did not do, for so many windows."""

    workers: int
    left: int = _MEMORY


class Sizing:
    """Decides how many workers there are to be.

    Args:
        most: workers there may be.
        cpus: that may be used.
        spare: how many more workers there is memory for.
    """

    def __init__(self, most: int, cpus: int, spare: Callable[[], int]) -> None:
        self._most = most
        self._cpus = cpus
        self._spare = spare
        self._begun: Totals | None = None
        self._settles_at: float | None = None
        self._before: _Window | None = None  # of the change that is being watched
        self._previous = 0
        self._calm = 0
        self._fewest = 0  # the number the latest time there were to be fewer
        self._ceiling: _Bound | None = None
        self._floor: _Bound | None = None

    def due(self, messages: int, now_s: float, workers: int) -> bool:
        """Whether it is time to look; the first messages after a start or a change do not count."""
        if self._begun is None:
            return self._settles_at is None or messages >= self._settles_at
        return messages >= self._begun.messages + max(_FEWEST_MESSAGES, 2 * workers) and (
            now_s - self._begun.now_s >= _SHORTEST_S
        )

    def look(self, totals: Totals, workers: int) -> tuple[int, str] | None:
        """(workers there are to be, why) where that is another number than now."""
        if self._begun is None:
            self._settle(totals, workers)
            return None
        window = _Window(totals.since(self._begun), self._cpus)
        self._begun = totals
        self._age()
        decided = self._decide(window, workers)
        if decided is None:
            self._before = None
            return None
        self._previous, self._begun, self._settles_at, self._calm = workers, None, None, 0
        return decided

    def failed(self, workers: int) -> None:
        """More than so many workers cannot start."""
        self._ceiling, self._before = _Bound(workers, 1 << 30), None

    def _settle(self, totals: Totals, workers: int) -> None:
        if self._settles_at is None:  # everyone's first message has its imports in it
            self._settles_at = totals.messages + workers
        else:
            self._begun, self._settles_at = totals, None

    def _age(self) -> None:
        for bound in (self._ceiling, self._floor):
            if bound is not None:
                bound.left -= 1
        self._ceiling = self._ceiling if self._ceiling is not None and self._ceiling.left > 0 else None
        self._floor = self._floor if self._floor is not None and self._floor.left > 0 else None

    def _decide(self, window: _Window, workers: int) -> tuple[int, str] | None:
        if (back := self._taken_back(window, workers)) is not None:
            return back
        if window.waiting > _WAITS:
            self._calm = 0
            return self._grown(window, workers)
        self._calm = self._calm + 1 if window.waiting < _SATISFIED else 0
        return self._shrunk(window, workers) if self._calm >= _CALM_WINDOWS else None

    def _taken_back(self, window: _Window, workers: int) -> tuple[int, str] | None:
        """The number before the latest change, where that change was wrong."""
        before, self._before = self._before, None
        if before is None or self._previous == workers:
            return None
        if workers > self._previous and window.waiting > _WAITS and window.rate < _HELPED * before.rate:
            self._ceiling = _Bound(self._previous)
            rates = f"{before.rate:.3g} messages/s with {self._previous}, {window.rate:.3g} with {workers}"
            return self._previous, f"more workers did not help: {rates}"
        if workers < self._previous and window.waiting > _WAITS:
            self._floor = _Bound(self._previous)
            return self._previous, f"the consumer waits {window.waiting:.0%} of its time with {workers}"
        return None

    def _grown(self, window: _Window, workers: int) -> tuple[int, str] | None:
        # Workers that hardly compute find their share of a CPU also where other programs leave none idle.
        idle_cpus = max(window.idle_cpus, _SHARE * self._cpus)
        room = math.floor(idle_cpus / window.cpu + 0.3)
        ceiling = self._most if self._ceiling is None else min(self._most, self._ceiling.workers)
        wanted = max(window.needed(_HEADROOM), workers + 1)
        target = min(wanted, workers + room, ceiling, _FASTEST_GROWTH * workers)
        if target > workers:
            target = min(target, workers + self._spare())
        if target <= workers:
            return None
        self._before = window
        if workers <= self._fewest:  # there had been too few
            self._floor = _Bound(target)
        return target, (
            f"the consumer waits {window.waiting:.0%} of its time, {window.idle_cpus:.1f} of {self._cpus} CPUs "
            f"are idle, and a busy worker uses {window.cpu:.2f}"
        )

    def _shrunk(self, window: _Window, workers: int) -> tuple[int, str] | None:
        floor = 1 if self._floor is None else self._floor.workers
        target = max(1, floor, window.needed(_CAUTION))
        if target >= workers:
            return None
        self._before, self._fewest = window, target
        busy = window.each_s * window.rate / workers
        return target, f"the consumer waits {window.waiting:.0%} of its time, and workers are busy {busy:.0%} of theirs"
