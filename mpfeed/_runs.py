"""One iteration of a feed: which work is asked for, and how the replies become one stream.

A run keeps a bounded number of units ahead of its consumer (credit), and gives *spans* in stream order: rows of a
message that follow one another in the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from mpfeed._crew import Crew
from mpfeed._errors import MpfeedError
from mpfeed._messages import Collate, Parcel, Reply
from mpfeed._serialize import error_of


@dataclass(slots=True)
class Span:
    """``count`` elements in stream order: rows ``start`` on of a message.

    Attributes:
        mark: what the run wants back when elements of it were consumed.
    """

    parcel: Parcel
    start: int
    count: int
    mark: Any = None


class End:
    """The run is over."""


END = End()


class Broken(Exception):
    """Carries an error to its place in the stream."""

    def __init__(self, error: MpfeedError) -> None:
        super().__init__()
        self.error = error


@dataclass(slots=True, eq=False)
class Made:
    """A unit's reply on its way to the consumer.

    Attributes:
        parcels: its messages that are not fully consumed.
        row: the next row of the first of them.
        error: what comes after them.
        more: another reply to the same unit follows.
    """

    parcels: deque[Parcel] = field(default_factory=deque)
    row: int = 0
    error: MpfeedError | None = None
    more: bool = False

    def take_reply(self, reply: Reply) -> None:
        """Append what came."""
        self.more = reply.more
        self.parcels.extend(reply.payloads)  # type: ignore[arg-type]
        if reply.failure is not None:
            self.error = error_of(reply.failure)

    def span(self, most: int | None = None) -> Span | None:
        """The rows that come next, at most so many; raises what comes after the last of them."""
        if not self.parcels:
            if self.error is not None:
                raise Broken(self.error)
            return None
        parcel = self.parcels[0]
        left = parcel.count - self.row
        count = left if most is None else min(most, left)
        span = Span(parcel, self.row, count)
        self.row += count
        if self.row == parcel.count:
            self.parcels.popleft()
            self.row = 0
        return span

    @property
    def rows(self) -> int:
        """Rows of the first message that are left."""
        return self.parcels[0].count - self.row if self.parcels else 0

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return not self.parcels and self.error is None


@dataclass(slots=True, eq=False)
class CollateUnit:
    """Raw samples to be collated on some worker."""

    samples: tuple[Any, ...]
    made: Made | None = None
    mark: Any = None


class BaseRun:
    """What runs of both kinds share.

    Args:
        crew: who does the work.
        epoch: which pass over the data.
        buffer: messages ready per worker.
    """

    def __init__(self, crew: Crew, epoch: int, buffer: int) -> None:
        self.crew = crew
        self.number = crew.new_run()
        crew.live.add(self)  # type: ignore[arg-type]
        self.epoch = epoch
        self.buffer = buffer
        self.closed = False
        # While priming, only what the very next element needs is asked for (`element_spec`).
        self.priming = False
        # Ahead of its time a run keeps `buffer` messages a worker, not one more in production.
        self.ahead = False
        self.skipped: list[tuple[int, str]] = []

    @property
    def credit(self) -> int:
        """Units a worker may have in hand: sent, or answered and not yet consumed."""
        return self.crew.credit(self.buffer if self.ahead else self.buffer + 1)

    def collate_request(self, number: int, unit: CollateUnit) -> Collate:
        """The request for raw samples."""
        return Collate(number, self.number, unit.samples, self.crew.traced)

    def pump(self) -> None:
        """Ask for as much as credit allows. The crew's lock is held."""
        raise NotImplementedError

    def next_span(self) -> Span | End | None:
        """What comes next in the stream, or None while it is not there. The crew's lock is held.

        Raises:
            Broken: an error comes next.
        """
        raise NotImplementedError

    def peek(self) -> Parcel | End | None:
        """The message that holds the next element, which stays; None while it is not there."""
        raise NotImplementedError

    def issued_all(self, worker: int) -> bool:
        """Whether a worker has been asked for all it has to do in this run."""
        raise NotImplementedError

    @property
    def exhausted(self) -> bool:
        """Whether it is certain that nothing comes any more. False as long as it is not."""
        return False

    def state(self) -> dict[str, Any]:
        """Where the consumer is, JSON-safe."""
        raise NotImplementedError

    def consumed(self, span: Span, count: int) -> None:
        """So many elements of a span have been handed out."""
        raise NotImplementedError

    def close(self) -> None:
        """End the run. The crew's lock is held."""
        if not self.closed:
            self.closed = True
            self.discard()
            self.crew.drop(self)  # type: ignore[arg-type]

    def holds(self, worker: int) -> bool:
        """See ``Run.holds``."""
        return False

    def resized(self) -> None:
        """See ``Run.resized``."""

    def discard(self) -> None:
        """Let go of what has come and was not consumed: it aliases the workers' memory."""
        raise NotImplementedError

    def answered(self, unit: Any) -> bool:
        """See ``Run.answered``."""
        return False

    def starves(self, unit: Any) -> bool:
        """See ``Run.starves``."""
        return isinstance(unit, CollateUnit)

    def position(self, unit: Any) -> Hashable:
        """See ``Run.position``."""
        raise NotImplementedError
