"""Which epoch comes next, and its run as far as it was begun before anybody reads it."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

from mpfeed._crew import Crew
from mpfeed._errors import FeedClosed
from mpfeed._options import Options
from mpfeed._plans import FeedPlan
from mpfeed._position import Position
from mpfeed._runs import BaseRun

log = logging.getLogger("mpfeed")


class Epochs:
    """The epochs of one feed, one run each.

    Args:
        plan: makes the runs.
        options: of the feed.

    Attributes:
        next_epoch: the next iterator's.
        begin: the place in it where that begins; None: at its beginning.
    """

    def __init__(self, plan: FeedPlan, options: Options) -> None:
        self._plan = plan
        self._options = options
        self.next_epoch = 0
        self.begin: Position | None = None
        # Begun for its first element alone (`element_spec`); begun because workers had nothing else to do.
        self._primed: BaseRun | None = None
        self._ahead: BaseRun | None = None
        self._unready: int | None = None  # an epoch whose items could not be had before its turn
        self._seen: dict[str, Any] = {}  # of the user's items, when the latest were read ahead

    @property
    def position(self) -> Position:
        """Where the next iterator begins."""
        return self.begin or Position(self.next_epoch)

    def _is_beyond(self, epoch: int) -> bool:
        return self._options.epochs is not None and epoch >= self._options.epochs

    def take(self, crew: Crew) -> tuple[BaseRun, Position]:
        """The next iterator's run, and where it begins.

        Raises:
            FeedClosed: the feed's ``epochs`` are over.
        """
        with crew.lock:  # under which other iterators read ahead
            self._forget_outdated()
            run = self._primed or self._ahead or self._new(crew)
            if run is self._primed:
                self._primed = None
            elif run is self._ahead:
                self._ahead = None
            run.priming = run.ahead = False
            self.next_epoch = run.epoch + 1
            begin, self.begin = self.begin, None
            return run, begin or Position(run.epoch)

    def _new(self, crew: Crew) -> BaseRun:
        if self._is_beyond(self.next_epoch):
            limit = self._options.epochs
            raise FeedClosed(
                f"the feed was built with epochs={limit}, and they are over; raise epochs=, or leave it out"
            )
        return self._run(crew, self.next_epoch, None if self.begin is None else self.begin.at)

    def _run(self, crew: Crew, epoch: int, state: dict[str, object] | None) -> BaseRun:
        return self._plan.run(crew, epoch, epoch if self._options.vary_epochs else 0, state)

    def prime(self, crew: Crew) -> BaseRun:
        """The next iterator's run, for its first element, which stays."""
        with crew.lock:
            self._forget_outdated()
            if self._primed is None:
                self._primed, self._ahead = self._ahead or self._new(crew), None
                self._primed.priming = True
            return self._primed

    def prime_after(self, run: BaseRun) -> BaseRun | None:
        """Of what was primed nothing is left, as a state was taken there: the run after it, where there may be one."""
        with run.crew.lock:
            if self.begin is None or self._is_beyond(run.epoch + 1):
                return None
            ahead = self._ahead or self._begun_ahead(run.crew, run.epoch + 1)
            ahead.priming = True
            return ahead

    def read_ahead(self, run: BaseRun) -> None:
        """Let workers that have nothing left to do in a run begin the next epoch. The crew's lock is held."""
        crew = run.crew
        if self._primed is not None or not any(run.issued_all(worker) for worker in crew.roster.at_work):
            return
        self._forget_outdated()
        follows = run.epoch + 1 == self.next_epoch and self.begin is None
        if self._ahead is None and follows and not self._is_beyond(self.next_epoch):
            self._try_ahead(crew)
        if self._ahead is not None and all(run.issued_all(worker) for worker in range(crew.roster.most)):
            self._ahead.pump()
            self._seen = self._plan.attributes()  # reading may change them too

    def _try_ahead(self, crew: Crew) -> None:
        if self._unready == self.next_epoch:
            return
        try:
            self._begun_ahead(crew, self.next_epoch)
        except Exception:  # of the user's items, which is raised when it is their turn, if it still is one then
            self._unready = self.next_epoch
            log.debug("epoch %d cannot be read ahead", self.next_epoch, exc_info=True)

    def _begun_ahead(self, crew: Crew, epoch: int) -> BaseRun:
        self._ahead, self._seen = self._run(crew, epoch, None), {}
        self._ahead.ahead = True
        return self._ahead

    def _forget_outdated(self) -> None:
        """Let go of what was read ahead from items that their user has changed since, for the next epoch."""
        if self._ahead is None or not self._seen:
            return
        now = self._plan.attributes()
        if now.keys() != self._seen.keys() or any(now[name] is not value for name, value in self._seen.items()):
            self._ahead.close()
            self._ahead = None

    def move(self, position: Position, crew: Crew | None) -> None:
        """Let the next iterator begin there."""
        with nullcontext() if crew is None else crew.lock:
            self._close_runs()
            self.next_epoch = position.epoch
            self.begin = position if position.taken else None

    def discard(self, crew: Crew) -> None:
        """Let go of what was begun: it failed, or holds memory of the workers."""
        if not crew.forked():  # a thread of the parent's may have held the lock
            with crew.lock:
                self._close_runs()

    def _close_runs(self) -> None:
        for run in (self._primed, self._ahead):
            if run is not None:
                run.close()
        self._primed = self._ahead = None
