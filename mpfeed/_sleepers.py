"""Consumers that wait while another one drives the engine for all of them."""

from __future__ import annotations

import threading

from mpfeed._uncollected import UncollectedLock


class Sleepers:
    """Each is woken when there may be something for it, not whenever anything came: of sixteen calls, the answered one.

    All methods are called with the lock held, which ``wait`` gives up meanwhile; but for ``wake_served``.

    Args:
        lock: the crew's.

    Attributes:
        called: the place of the one that was woken to drive, until it rises.
    """

    def __init__(self, lock: UncollectedLock) -> None:
        self._lock = lock
        # The value says whether any event may be for it; if not, it is woken for what is its own.
        self._asleep: dict[threading.Lock, bool] = {}
        self._served: dict[threading.Lock, None] = {}
        self.called: threading.Lock | None = None

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until something has come for anybody, or for so long."""
        place = self.lie_down(stirs=True)
        self._lock.release()
        try:
            sleep(place, timeout_s)
        finally:
            self._lock.acquire()
            self.rise(place)

    def lie_down(self, *, stirs: bool = False) -> threading.Lock:
        """A place to ``sleep`` at, as soon as the lock is given up.

        With ``stirs`` whatever comes wakes who sleeps there, else only what is its own.
        """
        place = threading.Lock()
        place.acquire()
        self._asleep[place] = stirs
        return place

    def rise(self, place: threading.Lock) -> None:
        """Who slept there is awake."""
        self._asleep.pop(place, None)
        if self.called is place:
            self.called = None

    def serve(self, place: threading.Lock) -> None:
        """Who sleeps there, or is about to, is among those to be woken by ``wake_served``."""
        if self._asleep.pop(place, None) is not None:
            self._served[place] = None

    def wake_served(self) -> None:
        """Wake those that were served. With the lock or, just before their waker gives up the GIL, without."""
        for place in list(self._served):
            if place.locked():  # not by another thread meanwhile
                place.release()
            self._served.pop(place, None)  # only now: Ctrl-C may come between any two lines

    def stir(self) -> None:
        """Serve those for whom anything that came may be."""
        for place in [place for place, stirs in self._asleep.items() if stirs]:
            self.serve(place)

    def call_one(self) -> None:
        """Wake one, to drive: the last that lay down. Its own is the furthest off, so it drives the longest."""
        place = next(reversed(self._asleep), None)
        if place is not None:
            del self._asleep[place]
            self.called = place
            place.release()

    def wake_all(self) -> None:
        """Wake everyone: what they wait for will not come as it used to."""
        for place in list(self._asleep):
            self.serve(place)
        self.wake_served()


def sleep(place: threading.Lock, timeout_s: float | None) -> bool:
    """Until woken there, or for so long; whether it was woken. Without the lock."""
    return place.acquire(timeout=-1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))
