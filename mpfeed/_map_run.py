"""One iteration of a ``from_map`` feed: batches go to whichever worker is free, and are delivered in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from mpfeed._collating import CHUNK_BYTES, CHUNK_S
from mpfeed._crew import Crew
from mpfeed._cutter import Cutter
from mpfeed._errors import MpfeedError
from mpfeed._items import EpochItems
from mpfeed._leaves import weight
from mpfeed._messages import Collate, MakeItems, Parcel, Reply
from mpfeed._options import Options
from mpfeed._runs import END, BaseRun, CollateUnit, End, Made, Span
from mpfeed._serialize import error_of, failure_of, loads
from mpfeed._split import Part

_MAX_CHUNK = 1024


@dataclass(slots=True, eq=False)
class _ItemsUnit:
    """Items that travel together. ``positions`` are places in the stream of items, ``indices`` the items' own."""

    positions: tuple[int, ...]
    indices: tuple[int, ...]
    items: Any
    made: Made | None = None
    raw: bool = False
    rest: tuple[Any, ...] = ()
    skipped: frozenset[int] = frozenset()
    done: int = 0  # items that have come, or were left out
    given: int = 0

    def places(self) -> list[int]:
        """Where the samples that were made lie in the stream of items."""
        return [p for p, i in zip(self.positions, self.indices, strict=True) if i not in self.skipped]

    def next_place(self) -> int:
        """The place after that of the sample that is handed out now."""
        self.given += 1
        places = self.places()
        return places[self.given - 1] + 1


class _UnreadableError(Exception):
    """Reading the item at a position raised its cause."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position


@dataclass(frozen=True, slots=True)
class Course:
    """What a run makes of an epoch's items.

    Attributes:
        items: of the epoch.
        part: which elements it delivers.
        skips: failing items are left out and the rest is cut anew.
        start: items consumed before it began.
    """

    items: EpochItems
    part: Part
    skips: bool
    start: int = 0


class MapRun(BaseRun):
    """See ``BaseRun``.

    Args:
        options: of the feed.
        course: what to make of which items.
    """

    def __init__(self, crew: Crew, epoch: int, options: Options, course: Course) -> None:
        super().__init__(crew, epoch, options.buffer)
        batch_size, collates, start = options.batch_size, options.collate is not None, course.start
        self._items = course.items
        self._batch_size = batch_size
        self._drop_remainder = options.drop_remainder
        self._ordered = options.ordered
        self._part = course.part
        self._recuts = course.skips and batch_size is not None
        self._raw = self._recuts and collates
        self._unit_size = batch_size or 1  # items an element is made of
        self._stride = self._unit_size * course.part.count  # from one element of the part to the next
        self._next = self._first_element(start)  # the next element of this part to ask for
        self._start = start if course.skips else None
        self._consumed = start
        self._pending: deque[_ItemsUnit] = deque()
        self._arrived: deque[Made] = deque()
        self._waiting = 0  # unordered: units without a reply
        self._chunk = 1
        self._asked_all = False
        self._failed: _ItemsUnit | None = None  # reading failed: what comes last
        self._cutter = Cutter(self, batch_size or 1) if self._recuts else None

    def _first_element(self, start: int) -> int:
        elements = -(-start // self._unit_size)
        return elements // self._part.count

    def discard(self) -> None:
        self._items.close()
        self._pending.clear()
        self._arrived.clear()
        self._cutter = self._failed = None  # an exception holds on to the frames that it came through

    # ------------------------------------------------------------------------------------------- asking

    def _positions(self, element: int) -> range | None:
        """The places in the stream of items that make this part's ``element``; None beyond the last."""
        if self._start is not None:  # cut anew later: plain slices from where this run began
            first = self._start + (element - self._first_element(self._start)) * self._unit_size
        else:
            number = element * self._part.count + self._part.index
            if self._part.count > 1:
                total = self._elements()
                if element >= self._part.length(total):
                    return None
                number %= total
            first = number * self._unit_size
        if not self._items.has(first):
            return None
        last = first
        while last + 1 < first + self._unit_size and self._items.has(last + 1):
            last += 1
        positions = range(first, last + 1)
        if self._drop_remainder and not self._recuts and len(positions) < self._unit_size:
            return None
        return positions

    def _elements(self) -> int:
        """Elements of the whole stream, of which this run makes a part: only items with a length are split so."""
        assert self._items.length is not None
        full, rest = divmod(self._items.length, self._unit_size)
        return full + (rest > 0 and not self._drop_remainder)

    def pump(self) -> None:
        if self.closed:
            return
        window = 1 if self.priming else self.crew.workers * self.credit
        while not self._asked_all and self._in_hand() < window:
            worker = self.crew.roster.freest()
            # A worker that is slow now must not hoard what the others could do.
            if self.crew.roster.load(worker) >= max(self.buffer, 1):
                return
            unit = self._new_unit()
            if unit is None:
                return
            self._send(unit, worker)

    def _in_hand(self) -> int:
        """Units that were asked for and not consumed, those that the cutter made batches of among them."""
        cut = 0 if self._cutter is None else self._cutter.held
        return len(self._pending) + len(self._arrived) + self._waiting + cut

    def _send(self, unit: _ItemsUnit, worker: int) -> None:
        if self._ordered:
            self._pending.append(unit)
        else:
            self._waiting += 1
        if unit.made is not None:  # reading an item failed, here
            if not self._ordered:
                self._came(unit, unit.made)
            return
        self.crew.submit(self, unit, worker)

    def _new_unit(self) -> _ItemsUnit | None:
        if self._failed is not None:
            self._asked_all = True
            return self._failed
        read: dict[int, Any] = {}
        try:
            self._read_on(read)
            items = self.crew.freeze(tuple(read.values()))
        except Exception as error:
            return self._stopped(read, error)
        if not read:
            return None
        return _ItemsUnit(tuple(read), tuple(map(self._items.index, read)), items, raw=self._raw)

    def _read_on(self, read: dict[int, Any]) -> None:
        """Read the next element, or chunk of them, by position; further ones where all of those are left out."""
        left = 1 if self._batch_size is not None or self.priming else self._chunk
        while left > 0 or not read:
            found = self._positions(self._next)
            if found is None:
                self._asked_all = True
                return
            self._next += 1
            left -= 1
            for position in found:
                self._read(position, read)

    def _read(self, position: int, read: dict[int, Any]) -> None:
        try:
            read[position] = self._items[position]
        except Exception as error:
            if self._start is None:
                raise _UnreadableError(position) from error
            self.skipped.append((self._items.index(position), f"{type(error).__name__}: {error}"))
        self._items.forget(position)

    def _stopped(self, read: dict[int, Any], error: Exception) -> _ItemsUnit:
        """What to send when reading failed: single samples that come before are not lost with the one that failed."""
        at = self._position_of(read, error)
        cause = error.__cause__ if isinstance(error, _UnreadableError) else error
        index = self._items.index(at)
        if at in read:  # it was read, and could not be made ready to travel
            cause = TypeError(
                f"an item cannot be sent to a worker: {type(error).__name__}: {error}. Give items that travel, such as "
                "paths or indices, and open what they stand for in the function or in worker_init"
            )
            cause.__cause__ = error
        assert isinstance(cause, Exception)
        failure = failure_of(cause, f"item {index} (reading items)", remote=False, index=index)
        self._failed = _ItemsUnit((at,), (), None, made=Made(error=error_of(failure)))
        before = {position: value for position, value in read.items() if position < at}
        if before and self._batch_size is None:
            items = self.crew.freeze(tuple(before.values()))
            return _ItemsUnit(tuple(before), tuple(map(self._items.index, before)), items, raw=self._raw)
        self._asked_all = True
        return self._failed

    def _position_of(self, read: dict[int, Any], error: Exception) -> int:
        """Where reading failed: at an item, in an iterable's own code, or where an item cannot travel to a worker."""
        if isinstance(error, _UnreadableError):
            return error.position
        for position, value in read.items():
            try:
                self.crew.freeze((value,))
            except Exception:
                return position
        return max(read, default=self._next * self._unit_size - 1) + 1

    def issued_all(self, worker: int) -> bool:
        return self._asked_all

    # ---------------------------------------------------------------------------------- the crew's side

    def request(self, number: int, unit: Any, worker: int, incarnation: int) -> MakeItems | Collate:
        if isinstance(unit, CollateUnit):
            return self.collate_request(number, unit)
        return MakeItems(number, self.number, self.epoch, unit.indices, unit.items, unit.raw, self.crew.traced)

    def receive(self, unit: Any, reply: Reply) -> None:
        if isinstance(unit, CollateUnit):
            unit.made = Made()
            unit.made.take_reply(reply)
            return
        made = unit.made if self._ordered and unit.made is not None else Made()
        made.take_reply(reply)
        unit.made = made
        unit.done += sum(parcel.count for parcel in reply.payloads) + len(reply.skipped)
        unit.rest = reply.rest
        unit.skipped |= {index for index, _ in reply.skipped}
        self.skipped += reply.skipped
        if not reply.more:
            unit.items = None
            if self._batch_size is None:
                self._adapt_chunk(unit, reply)
        if not self._ordered:
            self._came(unit, made)

    def _came(self, unit: _ItemsUnit, made: Made) -> None:
        self._waiting -= not made.more
        if self._cutter is not None:
            self._pending.append(unit)
        elif not made.spent:
            self._arrived.append(made)

    def _adapt_chunk(self, unit: _ItemsUnit, reply: Reply) -> None:
        """As many samples a message as are ready within CHUNK_S and fit CHUNK_BYTES, growing twofold."""
        by_time = CHUNK_S / max(reply.busy_s / len(unit.positions), 1e-9)
        parcels: Any = reply.payloads
        rows = sum(parcel.count for parcel in parcels)
        nbytes = sum(weight(array) for parcel in parcels for array in parcel.arrays)
        by_size = CHUNK_BYTES / max(nbytes / max(rows, 1), 1.0)
        self._chunk = int(max(1, min(by_time, by_size, 2 * self._chunk, _MAX_CHUNK)))

    def fail(self, unit: Any, error: MpfeedError) -> None:
        if isinstance(unit, CollateUnit) or unit.made is None or not self._ordered:
            unit.made = Made()
        unit.made.error, unit.made.more = error, False
        if not isinstance(unit, CollateUnit) and not self._ordered:
            self._came(unit, unit.made)

    def position(self, unit: Any) -> Hashable:
        return ("tail", id(unit)) if isinstance(unit, CollateUnit) else unit.positions[0]

    def describe(self, unit: Any) -> str:
        if isinstance(unit, CollateUnit):
            return "a batch of raw samples"
        few = ", ".join(map(str, unit.indices[:4])) + (", ..." if len(unit.indices) > 4 else "")
        return f"item{'s' if len(unit.indices) > 1 else ''} {few} (epoch {self.epoch})"

    def retry(self, unit: Any) -> list[Any]:
        if isinstance(unit, CollateUnit) or self._batch_size is not None or len(unit.indices) == 1:
            return [unit]
        return self._singles(unit)

    def narrow(self, unit: Any, error: MpfeedError) -> list[Any]:
        if not self._ordered or isinstance(unit, CollateUnit) or unit.done == len(unit.indices):
            return []
        units = self.retry(unit)
        if units == [unit]:
            return []
        after = self._pending.index(units[-1]) + 1
        self._pending.insert(after, _ItemsUnit((), (), None, made=Made(error=error)))
        return units

    def _singles(self, unit: _ItemsUnit) -> list[_ItemsUnit]:
        """One unit for each item that has not come, so that those before a deadly one arrive and it is named."""
        values = loads(unit.items)
        singles = [
            _ItemsUnit((unit.positions[i],), (unit.indices[i],), self.crew.freeze((values[i],)), raw=unit.raw)
            for i in range(unit.done, len(unit.indices))
        ]
        if not self._ordered:
            self._waiting += len(singles) - 1
            return singles
        at = self._pending.index(unit)
        for i, single in enumerate(singles):
            self._pending.insert(at + 1 + i, single)
        unit.positions, unit.indices = unit.positions[: unit.done], unit.indices[: unit.done]
        if unit.made is None or (unit.made.spent and unit.made.more):
            del self._pending[at]
        else:
            unit.made.more = False
        return singles

    # --------------------------------------------------------------------------------------- delivering

    def peek(self) -> Parcel | End | None:
        if self._cutter is not None:
            return self._cutter.peek()
        made = self._current()
        if isinstance(made, Made):
            if not made.parcels:
                made.span()  # raises
            return made.parcels[0]
        return made

    def next_span(self) -> Span | End | None:
        if self._cutter is not None:
            return self._cutter.next_span()
        made = self._current()
        if not isinstance(made, Made):
            return made
        span = made.span(1 if self._start is not None else None)
        assert span is not None
        if self._start is not None and self._ordered:  # items were left out: the state counts those too
            span.mark = self._pending[0].next_place()
        if made.spent and not self._ordered:
            self._arrived.popleft()
        elif made.spent and not made.more:
            self._pending.popleft()
        return span

    next_rows = next_span

    def _current(self) -> Made | End | None:
        if not self._ordered:
            if self._arrived:
                return self._arrived[0]
            return END if self._asked_all and not self._waiting else None
        while self._pending:
            made = self._pending[0].made
            if made is None:
                return None
            if not made.spent:
                return made
            if made.more:
                return None
            unit = self._pending.popleft()
            if self._start is not None and unit.positions:
                self._consumed = unit.positions[-1] + 1  # the last items of it were skipped
        return END if self._asked_all else None

    def next_unit(self) -> _ItemsUnit | End | None:
        """For the cutter: the next unit that is answered."""
        if self._pending and self._pending[0].made is not None:
            return self._pending.popleft()
        if self._pending or self._waiting:
            return None
        return END if self._asked_all else None

    def consumed(self, span: Span, count: int) -> None:
        if span.mark is not None:
            self._consumed = span.mark
        else:
            self._consumed += count * self._stride

    @property
    def drops_remainder(self) -> bool:
        """Whether a short last batch is dropped."""
        return self._drop_remainder

    @property
    def raw(self) -> bool:
        """Whether samples come one by one, to be collated once their batch is known."""
        return self._raw

    @property
    def exhausted(self) -> bool:
        if self.closed or self._cutter is not None or not self._asked_all:
            return False
        return not (self._pending or self._arrived or self._waiting)

    def state(self) -> dict[str, Any]:
        length = self._items.length
        bounded = length is not None and self._part.count == 1
        return {"items": min(self._consumed, length) if bounded and length is not None else self._consumed}
