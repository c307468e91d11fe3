"""Consumers that wait while another one drives the engine for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mpfeed._uncollected import UncollectedLock


class Sleepers:
    """Each is woken when there may be something for it, not whenever anything came: of sixteen calls, the answered one.

    All methods are called with the lock held, which ``wait`` gives up meanwhile.

    Args:
        lock: the crew's.
    """

    def __init__(self, lock: UncollectedLock) -> None:
        self._lock = lock
        # A bare lock for each, which waking it releases.
        self._asleep: dict[threading.Lock, Callable[[], bool] | None] = {}

    def wait(self, timeout_s: float | None, served: Callable[[], bool] | None) -> None:
        """Sleep until woken, or for so long; ``served`` says whether there is something for it, None: nobody knows."""
        place = threading.Lock()
        place.acquire()
        self._asleep[place] = served
        self._lock.release()
        try:
            place.acquire(timeout=-1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))
        finally:
            self._lock.acquire()
            self._asleep.pop(place, None)

    def wake_served(self) -> None:
        """Wake those for whom there is something, or may be."""
        for place in [place for place, served in self._asleep.items() if served is None or served()]:
            self._wake(place)

    def wake_one(self) -> None:
        """Wake one, to drive: the last that fell asleep. Its own is the furthest off, so it drives the longest."""
        if self._asleep:
            self._wake(next(reversed(self._asleep)))

    def wake_all(self) -> None:
        """Wake everyone: what they wait for will not come as it used to."""
        for place in list(self._asleep):
            self._wake(place)

    def _wake(self, place: threading.Lock) -> None:
        del self._asleep[place]
        place.release()
