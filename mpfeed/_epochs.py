"""Which epoch comes next, and its run as far as it was begun before anybody reads it."""

from __future__ import annotations

from mpfeed._crew import Crew
from mpfeed._errors import FeedClosed
from mpfeed._options import Options
from mpfeed._plans import FeedPlan
from mpfeed._position import Position
from mpfeed._runs import BaseRun


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
        run = self._primed or self._ahead
        if run is None:
            run = self._new(crew)
        elif run is self._primed:
            self._primed = None
        else:
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
        state = None if self.begin is None else self.begin.at
        with crew.lock:
            return self._run(crew, state)

    def _run(self, crew: Crew, state: dict[str, object] | None) -> BaseRun:
        epoch = self.next_epoch
        return self._plan.run(crew, epoch, epoch if self._options.vary_epochs else 0, state)

    def prime(self, crew: Crew) -> BaseRun:
        """The next iterator's run, for its first element, which stays."""
        if self._primed is None:
            self._primed, self._ahead = self._ahead or self._new(crew), None
            self._primed.priming = True
        return self._primed

    def unprime(self) -> None:
        """Forget what was primed: it failed."""
        run, self._primed = self._primed, None
        _close(run)

    def read_ahead(self, run: BaseRun) -> None:
        """Let workers that have nothing left to do in a run begin the next epoch. The crew's lock is held."""
        crew = run.crew
        if self._primed is not None or not any(run.issued_all(worker) for worker in crew.roster.at_work):
            return
        if self._ahead is None and run.epoch + 1 == self.next_epoch and not self._is_beyond(self.next_epoch):
            self._ahead = self._run(crew, None)
            self._ahead.ahead = True
        if self._ahead is not None and all(run.issued_all(worker) for worker in range(crew.roster.most)):
            self._ahead.pump()

    def move(self, position: Position) -> None:
        """Let the next iterator begin there."""
        self.discard()
        self.next_epoch = position.epoch
        self.begin = position if position.taken else None

    def discard(self) -> None:
        """Let go of what was begun: it holds memory of the workers."""
        for run in (self._primed, self._ahead):
            _close(run)
        self._primed = self._ahead = None


def _close(run: BaseRun | None) -> None:
    if run is not None:
        with run.crew.lock:
            run.close()
