"""One epoch of a feed in its consumer's hands."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mpfeed._errors import FeedClosed, MpfeedError
from mpfeed._layout import heap, row_of
from mpfeed._leaves import Array
from mpfeed._position import Passage, Position
from mpfeed._runs import END, BaseRun, Broken, End, Span
from mpfeed._split import Part
from mpfeed._structure import Treespec, flatten

if TYPE_CHECKING:
    from mpfeed._feed import Feed
    from mpfeed._spec import Signature

T = TypeVar("T")


class FeedIterator(Iterator[Any]):
    """One epoch of a feed. ``close()`` ends it and keeps the workers, and so does letting go of it.

    Threads may share it: each element goes to one of them.
    """

    def __init__(self, feed: Feed, reading: Reading) -> None:
        self._feed = feed  # for whoever made it on the way: for batch in mpfeed.from_map(...)
        self._reading = reading
        self._turns = threading.Lock()  # threads may share an iterator: each element goes to one of them
        # The feed keeps the reading, for its position, and not this object, whose end ends it.
        weakref.finalize(self, _forget, weakref.ref(reading), reading.run).atexit = False

    def __iter__(self) -> FeedIterator:
        return self

    def __next__(self) -> Any:
        """The next element.

        Raises:
            StopIteration: the epoch is over, or the iterator was closed.
            WorkerError, WorkerDied, FeedTimeout, SignatureError, FeedClosed: and the iterator is over.
        """
        with self._turns:
            return self._reading.next()

    def next_chunk(self) -> tuple[list[Array], int]:
        """(leaves with elements along their first axis, how many): what is there of the stream."""
        with self._turns:
            return self._reading.next_chunk()

    def close(self) -> None:
        """End this iteration; the workers stop making its elements. Idempotent, from any thread.

        A thread that waits for its next element gets ``StopIteration``.
        """
        if not self._turns.acquire(blocking=False):
            self._reading.end()
            return
        try:
            self._reading.close()
        finally:
            self._turns.release()


def _forget(reference: weakref.ref[Reading], run: BaseRun) -> None:
    """The iterator was collected, on any thread."""
    reading = reference()
    if reading is not None:
        reading.forget()
    run.crew.abandon(run.close)


class Reading:
    """How far one iteration has come, and the elements that it holds."""

    def __init__(self, feed: Feed, run: BaseRun, begin: Position, signature: Signature | None = None) -> None:
        # The feed keeps this: held in turn, a feed that was dropped would keep its workers until the next collection.
        self._feed: Feed = weakref.proxy(feed)
        self.run = run
        self._signature = signature
        self._discard = begin.discard
        self.passage = Passage(begin, begin.taken)
        self._span: Span | None = None
        self._arrays: list[Array] = []
        self._treespec: Treespec | None = None  # of the span's elements
        self._row = 0
        self._ended = False
        self._left_s: float | None = None  # when the latest element was handed over
        self._group = _Group(feed.filter) if feed.filter is not None else None

    def next(self) -> Any:
        """See ``FeedIterator.__next__``."""
        if self._discard:
            self._catch_up()
        element = self.next_element() if self._group is None else self._group.next(self)
        self.passage.taken += 1
        return element

    def _catch_up(self) -> None:
        """Make again, and throw away, what lies between where the run began and where the consumer was."""
        try:
            while self._discard:
                _ = self.next_element() if self._group is None else self._group.next(self)
                self._discard -= 1
        except StopIteration:
            raise MpfeedError(
                f"epoch {self.run.epoch} ended {self._discard} elements before the place that the state is of: a "
                "source must yield the same again when it is replayed"
            ) from None

    def next_element(self) -> Any:
        """The next element of the whole stream."""
        start = time.perf_counter()
        if self._span is None:
            self._fetch(start)
        elif self._feed.closed:
            raise FeedClosed("the feed was closed while it was being read")
        elif self.run.closed:
            self._stop()
            raise StopIteration
        span = self._span
        assert span is not None
        parcel = span.parcel
        leaves = [row_of(array, self._row) for array in self._arrays] if parcel.stacked else self._arrays
        self._advance(span, 1)
        now = time.perf_counter()
        self._waited(start, now, 1)
        assert self._treespec is not None
        return self._treespec.unflatten(leaves)

    def next_chunk(self) -> tuple[list[Array], int]:
        """See ``FeedIterator.next_chunk``."""
        if self._group is not None:
            return [np.asarray(leaf)[None] for leaf in flatten(self.next())[0]], 1
        if self._discard:
            self._catch_up()
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
        self.passage.taken += count
        now = time.perf_counter()
        self._waited(start, now, count)
        return arrays, count

    def _waited(self, start: float, now: float, count: int) -> None:
        self._feed.counters.waited(start, now, self._left_s, count)
        trace = self.run.crew.trace
        if trace is not None:
            trace.waited(start, now, self._left_s)
        self._left_s = now

    def _fetch(self, asked_s: float, *, rows: bool = False) -> None:
        """The next span, waiting for it since ``asked_s``."""
        if self._ended:
            raise StopIteration
        run = self.run
        take = run.next_rows if rows else run.next_span  # type: ignore[attr-defined]
        try:
            span = unbroken(lambda: run.crew.wait_for(lambda: END if run.closed else pumped(run, take, self._feed)))
            if not isinstance(span, End):
                self._arrays, self._treespec = self._feed.deliver(span, self.passage.taken, self._signature)
        except BaseException:
            self._stop()
            raise
        if run.skipped:
            skipped, run.skipped = run.skipped, []
            self._feed.count_skipped(skipped)
        if isinstance(span, End):
            self.passage.over |= not run.closed
            self._stop()
            raise StopIteration
        if span.start == 0:
            self._feed.counters.took(asked_s, span.parcel.ready_s, time.perf_counter())
        self._span, self._row = span, span.start

    def _advance(self, span: Span, count: int) -> None:
        self._row += count
        self.run.consumed(span, count)
        if self._row == span.start + span.count:
            self._span, self._arrays = None, []

    def position(self) -> Position:
        """Where the consumer is; after the last element, where that is certain, at the beginning of the next epoch."""
        passage, group = self.passage, self._group
        if self._over():
            return Position(self.run.epoch + 1)
        if not passage.taken:
            return Position(self.run.epoch)
        if self._discard or (group is not None and group.repeats):
            return passage.after(passage.taken)
        return Position(self.run.epoch, passage.taken, self.run.state())

    def _over(self) -> bool:
        if self._span is None and self._group is None and not self._discard and self.run.exhausted:
            self.passage.over = True
        return self.passage.over

    def _stop(self) -> None:
        self._over()
        self._ended = True
        self._span, self._arrays = None, []
        if self.run.crew.forked():
            return  # a thread of the parent's may have held the lock
        with self.run.crew.lock:
            self.run.close()
        self.run.crew.close_dropped()

    def let_go(self) -> None:
        """The feed was closed: what has come is memory of the workers. The position stays."""
        self._over()
        with self.run.crew.lock:
            self.run.close()

    def forget(self) -> None:
        """Nobody reads on; the run is about to be closed. The position stays."""
        self._over()
        self._ended = True
        self._span, self._arrays = None, []

    def close(self) -> None:
        """See ``FeedIterator.close``."""
        if not self._ended:
            self._stop()

    def end(self) -> None:
        """Close it while another thread reads, which then lets go of what it holds."""
        if not self.run.crew.forked():
            with self.run.crew.lock:
                self.run.close()


class _Group:
    """Chooses a part's elements out of the whole stream, n at a time."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._first: list[Any] = []

    @property
    def repeats(self) -> bool:
        """Whether it may come to repeat the epoch's first elements, which must then be made again."""
        return self._part.remainder == "pad"

    def next(self, reading: Reading) -> Any:
        """The part's element of the next group."""
        part, mine, got = self._part, None, 0
        for i in range(part.count):
            try:
                element = reading.next_element()
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


def unbroken(wait: Callable[[], T]) -> T:
    """What a wait gives; an error of the stream is raised as it is, in no cycle that would keep the feed."""
    try:
        return wait()
    except Broken as broken:
        error = broken.error
    try:
        raise error from error.__cause__
    finally:
        del error


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


def copied(array: Array) -> Array:
    """Private memory with the same contents, aligned for TensorFlow and read-only."""
    if array.dtype == object or not array.nbytes:
        return array
    copy: Array = np.ndarray(array.shape, array.dtype, heap(array.nbytes))
    copy[...] = array
    copy.flags.writeable = False
    return copy
