"""How long a wait for workers may last, and what is said of one that lasts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from mpfeed._errors import FeedTimeout

log = logging.getLogger("mpfeed")
# Without a timeout, a wait of this long is worth a word.
SILENCE_S = 60.0


class Working(Protocol):
    """What is known of those who are waited for."""

    @property
    def remote(self) -> bool:
        """Whether the workers run elsewhere than in this process."""

    def overdue(self, waited_s: float) -> str:
        """What the workers are doing, in words."""


class Patience:
    """One wait: it ends in ``FeedTimeout``, or says after a while that it is long.

    Args:
        crew: who is waited for.
        limit_s: longest wait, or None.

    Attributes:
        begun_s: when it began, by ``time.monotonic``.
        since: from when on it counts, where that is later than its beginning.
    """

    __slots__ = ("_crew", "_limit_s", "_warned", "begun_s", "since")

    def __init__(self, crew: Working, limit_s: float | None) -> None:
        self._crew = crew
        self._limit_s = limit_s
        self._warned = False
        self.begun_s = time.monotonic()
        self.since: Callable[[], float] | None = None

    def left(self) -> float | None:
        """Seconds until somebody should look again; None: no need to. The crew's lock is held."""
        limit_s = self._limit_s
        counted_s = self._counted_s()
        if limit_s is not None:
            if counted_s < limit_s:
                return limit_s - counted_s
            if self._crew.remote:
                raise FeedTimeout(self._crew.overdue(counted_s))
            return None  # the source runs in this process: it must be let run to come to an end
        if not self._warned and counted_s >= SILENCE_S:
            self._warned = True
            log.warning("%s", self._crew.overdue(counted_s))
        if not self._crew.remote:
            return None
        return SILENCE_S if self._warned else SILENCE_S - counted_s

    def rewarded(self) -> None:
        """What was waited for is there."""
        if self._limit_s is not None and (counted_s := self._counted_s()) > self._limit_s:
            log.warning("an element took %.1f s, more than timeout=%s", counted_s, self._limit_s)

    def _counted_s(self) -> float:
        since_s = self.begun_s if self.since is None else max(self.begun_s, self.since())
        return time.monotonic() - since_s
