"""Batches cut anew after items were left out, as if those had never been there."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from mpfeed._collating import as_element
from mpfeed._layout import row_of, unpack
from mpfeed._messages import Parcel
from mpfeed._runs import END, Broken, CollateUnit, End, Span
from mpfeed._stack import Stack
from mpfeed.transport.arena import Heap

if TYPE_CHECKING:
    from mpfeed._map_run import MapRun


class Cutter:
    """Cuts batches anew after items were skipped, as if the bad items had never been there."""

    def __init__(self, run: MapRun, size: int) -> None:
        self._run = run
        self._size = size
        self._rows: deque[tuple[Parcel, int, int]] = deque()  # (message, row, place in the stream of items)
        self._raw: deque[tuple[Any, int]] = deque()
        self._collating: deque[CollateUnit] = deque()
        self._ready: Span | None = None

    @property
    def held(self) -> int:
        """Batches it has cut that were not taken; what is left over, less than one, waits for more to be asked for."""
        return len(self._collating) + (self._ready is not None)

    def peek(self) -> Parcel | End | None:
        if self._ready is None:
            span = self.next_span()
            if not isinstance(span, Span):
                return span
            self._ready = span
        return self._ready.parcel

    def next_span(self) -> Span | End | None:
        if self._ready is not None:
            span, self._ready = self._ready, None
            return span
        return self._next_raw() if self._run.raw else self._next_cut()

    def _next_cut(self) -> Span | End | None:
        while len(self._rows) < self._size:
            unit = self._run.next_unit()
            if unit is None:
                return None
            if isinstance(unit, End):
                return self._last()
            made = unit.made
            assert made is not None
            if made.error is not None:
                raise Broken(made.error)
            places = unit.places()
            for parcel in made.parcels:
                if len(places) == self._size and not self._rows:
                    return Span(parcel, 0, 1, places[-1] + 1)
                self._rows.extend((parcel, row, place) for row, place in enumerate(places))
        return self._cut(self._size)

    def _last(self) -> Span | End:
        if not self._rows or self._run.drops_remainder:
            return END
        return self._cut(len(self._rows))

    def _cut(self, count: int) -> Span:
        rows = [self._rows.popleft() for _ in range(count)]
        return Span(_joined(rows), 0, 1, rows[-1][2] + 1)

    def _next_raw(self) -> Span | End | None:
        while True:
            ended = self._fill()
            if self._collating:
                unit = self._collating[0]
                if unit.made is None:
                    return None
                self._collating.popleft()
                span = unit.made.span()
                assert span is not None
                span.mark = unit.mark
                return span
            return END if ended else None

    def _fill(self) -> bool:
        """Send what is enough for a batch to be collated; whether there is nothing more."""
        while True:
            unit = self._run.next_unit()
            if unit is None:
                return False
            if isinstance(unit, End):
                if self._raw and not self._run.drops_remainder:
                    self._collate(len(self._raw))
                self._raw.clear()
                return True
            assert unit.made is not None
            if unit.made.error is not None:
                self._collating.append(CollateUnit((), unit.made))
                return False
            places = unit.places()
            self._raw.extend(zip(unit.rest, places, strict=True))
            while len(self._raw) >= self._size:
                self._collate(self._size)

    def _collate(self, count: int) -> None:
        taken = [self._raw.popleft() for _ in range(count)]
        unit = CollateUnit(tuple(sample for sample, _ in taken), mark=taken[-1][1] + 1)
        self._collating.append(unit)
        self._run.crew.submit(self._run, unit, self._run.crew.roster.freest())


def _joined(rows: list[tuple[Parcel, int, int]]) -> Parcel:
    """A batch of rows of several messages, in one copy, by the rules that a worker stacks samples by.

    Raises:
        SignatureError: they cannot be stacked.
    """
    batch = Stack(Heap(adopts=False), len(rows))
    for parcel, row, _ in rows:
        layout = parcel.layout
        weak = tuple(leaf.weak for leaf in layout.leaves)
        batch.add([row_of(array, row) for array in parcel.arrays], weak, layout.treespec)
    payload = as_element(batch.finish())
    return Parcel(payload.layout, unpack(payload, payload.regions), 1, False, 0)
