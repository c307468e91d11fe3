"""Random harm to the workers of this process: killed, or stopped for a while."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import psutil

_PAUSE_S = 0.3
_PAUSES = 0.2  # share of the harm that is a pause


def workers() -> list[int]:
    """Process ids of the workers and actors that this process uses now, starting ones included."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            words = process.cmdline()
            if any("mpfeed.backends.worker" in word or word.startswith("ray::Actor") for word in words):
                found.append(process.pid)
    return found


class Disturber:
    """Harms a random worker at random moments until it is left.

    Args:
        every_s: mean time between two.
        seed: of the moments and of the choice.
        kills: ends after so many, or None.
        progress: a count that rises between two acts of harm, however slowly workers start on a busy machine.
    """

    def __init__(self, every_s: float, seed: int, kills: int | None, progress: Callable[[], int]) -> None:
        self._progress = progress
        self._every_s = every_s
        self._random = random.Random(seed)
        self._kills = kills
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disturber", daemon=True)
        self.counts: Counter[str] = Counter()

    @property
    def done(self) -> bool:
        """Whether it has killed as often as it should."""
        return self._kills is not None and self.counts["killed"] >= self._kills

    def __enter__(self) -> Disturber:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._left.set()
        self._thread.join()

    def _run(self) -> None:
        seen = -1
        while not self.done and not self._left.wait(self._random.expovariate(1 / self._every_s)):
            if self._progress() > seen and (found := workers()):
                seen = self._progress()
                self._harm(self._random.choice(found))

    def _harm(self, pid: int) -> None:
        pause = self._random.random() < _PAUSES
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP if pause else signal.SIGKILL)
            self.counts["paused" if pause else "killed"] += 1
            if pause:
                self._left.wait(_PAUSE_S)
                os.kill(pid, signal.SIGCONT)
