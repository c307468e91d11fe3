"""One epoch of a feed in its consumer's hands."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mpfeed._errors import FeedClosed
from mpfeed._layout import Array, heap
from mpfeed._map_run import Part
from mpfeed._runs import BaseRun, Broken, End, Span

if TYPE_CHECKING:
    from mpfeed._feed import Feed


class FeedIterator(Iterator[Any]):
    """One epoch of a feed. ``close()`` ends it and keeps the workers."""

    def __init__(self, feed: Feed, run: BaseRun, taken: int) -> None:
        self._feed = feed
        self._run = run
        self.epoch = run.epoch
        self.taken = taken
        self.finished = False
        self._span: Span | None = None
        self._arrays: list[Array] = []
        self._row = 0
        self._ended = False
        self._left_s: float | None = None  # when the latest element was handed over
        self._group = _Group(feed.filter) if feed.filter is not None else None
        self._finalizer = weakref.finalize(self, run.crew.abandon, run)  # type: ignore[arg-type]
        self._finalizer.atexit = False

    def __iter__(self) -> FeedIterator:
        return self

    def __next__(self) -> Any:
        """The next element.

        Raises:
            StopIteration: the epoch is over, or the iterator was closed.
            WorkerError, WorkerDied, FeedTimeout, SignatureError, FeedClosed: and the iterator is over.
        """
        if self._group is not None:
            return self._group.next(self)
        return self.next_element()

    def next_element(self) -> Any:
        """The next element of the whole stream."""
        start = time.perf_counter()
        if self._span is None:
            self._fetch(start)
        elif self._feed.closed:
            raise FeedClosed("the feed was closed while it was being read")
        span = self._span
        assert span is not None
        parcel = span.parcel
        leaves = [_row(array, self._row) for array in self._arrays] if parcel.stacked else self._arrays
        self._advance(span, 1)
        now = time.perf_counter()
        self._feed.counters.waited(start, now, self._left_s)
        self._left_s = now
        return parcel.layout.treespec.unflatten(leaves)

    def next_chunk(self) -> tuple[list[Array], int]:
        """(leaves with elements along their first axis, how many): what is there of the stream."""
        start = time.perf_counter()
        if self._span is None:
            self._fetch(start, rows=True)
        span = self._span
        assert span is not None
        count = span.count - (self._row - span.start)
        if span.parcel.stacked:
            arrays = [array[self._row : self._row + count] for array in self._arrays]
        else:
            arrays = [array[None] for array in self._arrays]
        self._advance(span, count)
        now = time.perf_counter()
        self._feed.counters.waited(start, now, self._left_s, count)
        self._left_s = now
        return arrays, count

    def _fetch(self, asked_s: float, *, rows: bool = False) -> None:
        """The next span, waiting for it since ``asked_s``."""
        if self._ended:
            raise StopIteration
        run = self._run
        take = run.next_rows if rows else run.next_span  # type: ignore[attr-defined]
        try:
            span = run.crew.wait_for(lambda: pumped(run, take, self._feed))
            if not isinstance(span, End):
                self._arrays = self._feed.deliver(span, self.taken)
        except Broken as broken:
            self._stop()
            raise broken.error from broken.error.__cause__
        except BaseException:
            self._stop()
            raise
        if run.skipped:
            skipped, run.skipped = run.skipped, []
            self._feed.count_skipped(skipped)
        if isinstance(span, End):
            self.finished = True
            self._stop()
            raise StopIteration
        if span.start == 0:
            self._feed.counters.took(asked_s, span.parcel.ready_s, time.perf_counter())
        self._span, self._row = span, span.start

    def _advance(self, span: Span, count: int) -> None:
        self._row += count
        self.taken += count
        self._run.consumed(span, count)
        if self._row == span.start + span.count:
            self._span, self._arrays = None, []

    def state(self) -> dict[str, Any]:
        """The run's own position."""
        return self._run.state()

    def _stop(self) -> None:
        self._ended = True
        self._span, self._arrays = None, []
        self._finalizer.detach()
        with self._run.crew.lock:
            self._run.close()

    def close(self) -> None:
        """End this iteration; the workers stop making its elements. Idempotent, from any thread."""
        if not self._ended:
            self._stop()


class _Group:
    """Chooses a part's elements out of the whole stream, n at a time."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._first: list[Any] = []

    def next(self, iterator: FeedIterator) -> Any:
        """The part's element of the next group."""
        part, mine, got = self._part, None, 0
        for i in range(part.count):
            try:
                element = iterator.next_element()
            except StopIteration:
                break
            got += 1
            if part.remainder == "pad" and len(self._first) < part.count:
                self._first.append(element)
            if i == part.index:
                mine = element
        if got == part.count or (part.remainder == "keep" and got > part.index):
            return mine
        if part.remainder == "pad" and got:
            return mine if got > part.index else self._first[(part.index - got) % len(self._first)]
        raise StopIteration


def pumped(run: BaseRun, take: Callable[[], Any], feed: Feed | None = None) -> Any:
    """Take what is there, and ask for what may be asked for then: what was taken makes room."""
    value = take()
    if value is None:  # asking may show that there is nothing left to ask for: the end
        run.pump()
        value = take()
    if value is None or not run.priming:
        run.pump()
    if value is not None and not run.priming and feed is not None:
        feed.read_ahead(run)
    return value


def _row(array: Array, row: int) -> Array:
    # array[row] of a one-dimensional array is a scalar, or the object itself; elements are arrays.
    return array[row] if array.ndim > 1 else array[row : row + 1].reshape(())


def copied(array: Array) -> Array:
    """Private memory with the same contents, aligned for TensorFlow and read-only."""
    if array.dtype == object or not array.nbytes:
        return array
    copy: Array = np.ndarray(array.shape, array.dtype, heap(array.nbytes))
    copy[...] = array
    copy.flags.writeable = False
    return copy
