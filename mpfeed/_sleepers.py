"""Consumers that wait while another one drives the engine for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Sleepers:
    """Each is woken when there may be something for it, not whenever anything came: of sixteen calls, the answered one.

    All methods are called with the lock held, which ``wait`` gives up meanwhile.

    Args:
        lock: the crew's.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._asleep: dict[threading.Condition, Callable[[], bool] | None] = {}

    def wait(self, timeout_s: float | None, served: Callable[[], bool] | None) -> None:
        """Sleep until woken, or for so long; ``served`` says whether there is something for it, None: nobody knows."""
        place = threading.Condition(self._lock)
        self._asleep[place] = served
        try:
            place.wait(timeout_s)
        finally:
            self._asleep.pop(place, None)

    def wake_served(self) -> None:
        """Wake those for whom there is something, or may be."""
        for place, served in self._asleep.items():
            if served is None or served():
                place.notify()

    def wake_one(self) -> None:
        """Wake one, to drive: the last that fell asleep. Its own is the furthest off, so it drives the longest."""
        for place in reversed(self._asleep):
            place.notify()
            return

    def wake_all(self) -> None:
        """Wake everyone: what they wait for will not come as it used to."""
        for place in self._asleep:
            place.notify()
