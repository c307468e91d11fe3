"""Consumers that wait for workers: one of them drives the engine, for all.

No thread runs in the background. Whoever waits first waits for the engine's events and has the crew take them; who
waits meanwhile sleeps until there may be something for it, or until it is its turn to drive.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from mpfeed import _interrupts
from mpfeed._errors import FeedClosed, MpfeedError
from mpfeed._patience import Patience, Working
from mpfeed._sleepers import Sleepers, sleep
from mpfeed._uncollected import UncollectedLock
from mpfeed.backends.base import GRACE_S, Engine

T = TypeVar("T")
A = TypeVar("A", bound="Awaited")

# poll() takes 24 days at most, and `timeout=` may be more.
_LONGEST_S = 1e6


class Driven(Working, Protocol):
    """What waiting needs of the crew. All but ``wake`` are called with the lock held."""

    @property
    def closed(self) -> bool:
        """Whether nothing comes any more."""

    def engine(self) -> Engine:
        """The engine; FeedClosed after the end."""

    def wake(self) -> None:
        """End a wait for the engine's events, the present one or the next, if there is an engine. Any thread."""

    def stop(self) -> None:
        """Stop the engine, if there is one."""

    def take_events(self) -> None:
        """Take what has happened."""

    def served(self) -> None:
        """A wait was successful."""


class Awaited(Protocol):
    """What is meant for one consumer and nobody else.

    Attributes:
        place: where that consumer sleeps, once it did.
    """

    place: threading.Lock | None

    @property
    def answered(self) -> bool:
        """Whether it is there, or why it never will be."""

    @property
    def failed(self) -> bool:
        """Whether it never will be."""


class Waits:
    """The waits for one crew's workers.

    Args:
        crew: whose.
        timeout_s: longest wait, or None.

    Attributes:
        lock: the crew's; notified when a driver has left.
        begun_s: when each of the present waits began.
        waited_s: seconds that all consumers have waited in ``wait_for``, over all elements.
    """

    def __init__(self, crew: Driven, timeout_s: float | None) -> None:
        self._crew = crew
        self._timeout_s = timeout_s
        lock = UncollectedLock()
        self.lock = threading.Condition(lock)  # type: ignore[arg-type]
        self._sleepers = Sleepers(lock)
        self._driver: int | None = None
        self.begun_s: list[float] = []
        self.waited_s = 0.0
        self._interrupted_s = -math.inf  # Ctrl-C ended the waits that had begun by then
        self._unheard = False
        self._abandoned: list[Callable[[], None]] = []
        self._pid = os.getpid()
        _interrupts.watch(self)

    @property
    def driven(self) -> bool:
        """Whether somebody waits for the engine's events."""
        return self._driver is not None

    def forked(self) -> bool:
        """Whether this process is a fork of the one that the workers belong to."""
        return os.getpid() != self._pid

    def refuse_fork(self) -> None:
        """MpfeedError where ``forked``."""
        if self.forked():
            raise MpfeedError(
                "this feed was started in another process, of which this one is a fork: build a feed of its own here"
            )

    def wait_for(self, ready: Callable[[], T | None], timeout_s: float | None) -> T:
        """See ``Crew.wait_for``."""
        self.refuse_fork()
        patience = Patience(self._crew, timeout_s if timeout_s is not None else self._timeout_s)
        start = patience.begun_s
        with self.lock:
            self.begun_s.append(start)
            try:
                while True:
                    self._check(start)
                    self._bury_abandoned()
                    if (value := ready()) is not None:
                        patience.rewarded()
                        self.waited_s += time.monotonic() - start
                        self._crew.served()
                        return value
                    self._drive(patience.left())
            finally:
                self._leave(start)

    def wait_for_answer(self, ask: Callable[[], A], since: Callable[[A], float]) -> A:
        """See ``Crew.wait_for_answer``. Who sleeps meanwhile leaves without the lock, which the driver may hold."""
        self.refuse_fork()
        patience = Patience(self._crew, self._timeout_s)
        awaited: A | None = None
        well = False
        self.begun_s.append(patience.begun_s)
        try:
            with self.lock:
                awaited = self._asked(ask)
                patience.since = functools.partial(since, awaited)
                left_s = self._take_turn(awaited, patience)
            while not awaited.answered:
                assert awaited.place is not None
                sleep(awaited.place, left_s)
                if not awaited.answered:
                    with self.lock:
                        left_s = self._take_turn(awaited, patience)
            if self._timeout_s is not None and not awaited.failed:
                patience.rewarded()
            well = True
            return awaited
        finally:
            try:
                self._rise(None if awaited is None else awaited.place, well=well)
            finally:
                self.begun_s.remove(patience.begun_s)

    def _asked(self, ask: Callable[[], A]) -> A:
        self._refuse_itself()
        try:
            return ask()
        finally:
            self._sleepers.wake_served()  # who asks may fail what others wait for

    def _take_turn(self, awaited: Awaited, patience: Patience) -> float | None:
        """Drive until it is answered; where another does, lie down. How long to sleep there. The lock is held."""
        if awaited.place is not None:
            self._sleepers.rise(awaited.place)
        if self._driver is not None or self._sleepers.called is not None:
            if awaited.answered:
                return None
            self._check(patience.begun_s)
            left_s = patience.left()
            awaited.place = self._sleepers.lie_down()
            return left_s
        try:
            while not awaited.answered:
                self._check(patience.begun_s)
                self._bury_abandoned()
                self._drive(patience.left())
        finally:
            self._sleepers.call_one()
            self._sleepers.wake_served()
        return None

    def _rise(self, place: threading.Lock | None, *, well: bool) -> None:
        """Who slept there is off; another drives if this one was called to, or did and was interrupted."""
        if well and (place is None or self._sleepers.called is not place):
            return
        with self.lock:
            if place is not None:
                self._sleepers.rise(place)
            self._sleepers.wake_served()
            if self._driver is None and self._sleepers.called is None:
                self._sleepers.call_one()

    def hand_over(self, awaited: Awaited) -> None:
        """Have who waits for it woken, when whoever holds the lock gives it up."""
        if awaited.place is not None:
            self._sleepers.serve(awaited.place)

    def _check(self, start: float) -> None:
        if start <= self._interrupted_s:
            raise _interrupts.Interrupted(unheard=self._unheard)
        if self._crew.closed:
            raise FeedClosed("the feed was closed while it was being read")

    def _leave(self, start: float) -> None:
        self.begun_s.remove(start)
        self._sleepers.stir()  # what was done meanwhile may have failed the units of others
        self._sleepers.wake_served()
        if self._driver is None:
            self._sleepers.call_one()

    def _refuse_itself(self) -> None:
        if self._driver == threading.get_ident():
            raise MpfeedError("a source read the very feed it makes: it would wait for itself")

    def _drive(self, timeout_s: float | None) -> None:
        """Wait for events, or for the consumer that does. The lock is held, but for the wait itself."""
        self._refuse_itself()
        if self._driver is not None:
            self._sleepers.wait(timeout_s)
            return
        self._wait_for_events(self._crew.engine(), timeout_s)
        if not self._crew.closed:
            self._crew.take_events()
            self._sleepers.stir()

    def _wait_for_events(self, engine: Engine, timeout_s: float | None) -> None:
        self._driver = threading.get_ident()
        try:
            self.lock.release()
            try:
                self._sleepers.wake_served()
                engine.wait(None if timeout_s is None else min(timeout_s, _LONGEST_S))
            finally:
                self.lock.acquire()
        finally:
            self._driver = None
            if self._crew.closed:
                self._crew.stop()  # step 2 of the close order fell to this thread
                self.lock.notify_all()
                self._sleepers.wake_all()

    def drive_once(self, timeout_s: float) -> None:
        """Take what has happened, or happens within this time, where nobody else does. The lock is held."""
        if self._driver is None and not self._crew.closed:
            self._drive(timeout_s)
            self._sleepers.wake_served()

    def interrupt(self, until_s: float, *, unheard: bool) -> None:
        """End the waits that began by then with ``Interrupted``. Any thread."""
        self._unheard = unheard
        self._interrupted_s = until_s
        if not self.forked():
            self._crew.wake()
        if self.lock.acquire(timeout=GRACE_S):
            try:
                self._sleepers.wake_all()
            finally:
                self.lock.release()

    def wake(self) -> None:
        """Have the present waits look anew at what they wait for. The lock is held."""
        if self.begun_s:
            self._crew.wake()
            self._sleepers.wake_all()

    def abandon(self, close: Callable[[], None]) -> bool:
        """Have a run closed whose iterator was collected: now, if nobody holds the lock, or else by who does.

        Any thread, also inside the garbage collector. True where it is closed now.
        """
        self._abandoned.append(close)
        if self.driven or not self.lock.acquire(blocking=False):
            return False
        try:
            self._bury_abandoned()
        finally:
            self.lock.release()
        return True

    def _bury_abandoned(self) -> None:
        while self._abandoned:
            self._abandoned.pop()()

    def end(self) -> None:
        """Steps 1 and 2 of the close order, once the crew is marked closed: end every wait, stop the engine."""
        self._crew.wake()
        with self.lock:
            self._sleepers.wake_all()
            if self._driver not in (None, threading.get_ident()):
                self.lock.wait_for(lambda: self._driver is None, GRACE_S)
            if self._driver is None:
                self._crew.stop()
