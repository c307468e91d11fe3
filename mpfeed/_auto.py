"""Carries out ``workers="auto"``: adds up what a crew has seen, has ``Sizing`` decide, and resizes the crew."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING

from mpfeed._cpus import cpu_times, usable_cpus
from mpfeed._memory import resident_bytes, usable_memory
from mpfeed._sizing import Resizing, Sizing, Totals

if TYPE_CHECKING:
    from mpfeed._crew import Crew

log = logging.getLogger("mpfeed")

_LOOK_S = 0.02  # between two looks at the counts, which cost 5 µs
_KEPT = 64  # the latest changes, for the stats
_MEMORY_LEFT = 0.1  # of all memory, which new workers leave free
_MESSAGES_HELD = 4  # by a worker: those ready, one in production, one at the consumer


class Auto:
    """The number of workers of one crew.

    Args:
        most: workers there may be.
    """

    def __init__(self, most: int) -> None:
        self._crew: Crew | None = None
        self._sizing = Sizing(most, usable_cpus(), self._spare)
        self._begun_s = time.monotonic()
        self._next_s = 0.0
        self.resizings: deque[Resizing] = deque(maxlen=_KEPT)

    def consider(self, crew: Crew) -> None:
        """Change the number of workers if it is time to and something is to be gained. The crew's lock is held."""
        now_s = time.monotonic()
        if now_s < self._next_s or crew.roster.coming:
            return
        self._next_s = now_s + _LOOK_S
        messages = sum(count.messages for count in crew.roster.counts())
        if not self._sizing.due(messages, now_s, crew.workers):
            return
        self._crew = crew
        before = crew.workers
        decided = self._sizing.look(_totals(crew), before)
        if decided is None:
            return
        workers, reason = decided
        self.resizings.append(Resizing(now_s - self._begun_s, messages, before, workers, reason))
        log.info("%d workers instead of %d: %s", workers, before, reason)
        if crew.trace is not None:
            crew.trace.note(f"{workers} workers instead of {before}: {reason}")
        crew.resize(workers)

    def failed(self, workers: int) -> None:
        """A worker that was added could not start: stay with so many."""
        log.warning("another worker could not start: the feed goes on with %d", workers)
        self._sizing.failed(workers)

    def _spare(self) -> int:
        """How many more workers there is memory for, each as large as the largest."""
        memory, crew = usable_memory(), self._crew
        if memory is None or crew is None:
            return 1
        each = max((resident_bytes(pid) for pid in crew.roster.pids()), default=0) + _MESSAGES_HELD * crew.largest_bytes
        free = memory.available - _MEMORY_LEFT * memory.total
        return max(0, int(free // max(each, 1)))


def _totals(crew: Crew) -> Totals:
    counts = crew.roster.counts()
    cpu_s = sum(count.cpu_s for count in counts)
    machine = cpu_times()
    return Totals(
        now_s=time.monotonic(),
        waited_s=crew.waited_s,
        messages=sum(count.messages for count in counts),
        busy_s=sum(count.busy_s for count in counts),
        queued_s=sum(count.queued_s for count in counts),
        cpu_s=cpu_s,
        used_s=cpu_s + time.process_time(),
        **({} if machine is None else {"idle_s": machine[1] - machine[0]}),
    )
