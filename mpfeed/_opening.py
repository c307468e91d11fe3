"""Waiting for room for the first workers, before there is anything else to wait for."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from mpfeed import _interrupts
from mpfeed._errors import FeedClosed, FeedTimeout


class Opening:
    """A wait that ends with the feed, with its time, and with Ctrl-C, as every wait does.

    Args:
        closed: whether the feed was closed meanwhile.
        timeout_s: longest wait from now on, or None.
    """

    def __init__(self, closed: Callable[[], bool], timeout_s: float | None) -> None:
        self._closed = closed
        self._timeout_s = timeout_s
        self.begun_s = [time.monotonic()]
        self._ended = threading.Event()
        self._unheard = False
        _interrupts.watch(self)

    @property
    def overdue(self) -> bool:
        """Whether its time is over."""
        return self._left_s() <= 0

    def pause(self, seconds: float, why: Callable[[], str]) -> None:
        """Wait for so long, or less.

        Raises:
            FeedClosed: the feed was closed.
            FeedTimeout: the time is over, with ``why()`` in its message.
            Interrupted: Ctrl-C came while the main thread cannot raise KeyboardInterrupt.
        """
        self._ended.wait(min(seconds, max(0.0, self._left_s())))
        if self._ended.is_set():
            raise _interrupts.Interrupted(unheard=self._unheard)
        if self._closed():
            raise FeedClosed("the feed was closed while its workers were to be started")
        if self.overdue:
            raise FeedTimeout(f"no worker could be started within timeout={self._timeout_s:g} s: {why()}")

    def interrupt(self, until_s: float, *, unheard: bool) -> None:
        """See ``Interruptible``."""
        if self.begun_s[0] <= until_s:
            self._unheard = unheard
            self._ended.set()

    def _left_s(self) -> float:
        return math.inf if self._timeout_s is None else self.begun_s[0] + self._timeout_s - time.monotonic()
