"""Samples on their way into a message: batches, and chunks of small samples."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mpfeed._layout import Allocator, Layout, Leaf, Payload, pack
from mpfeed._leaves import leaves_of, weight
from mpfeed._messages import Failure, Reply
from mpfeed._stack import Stack
from mpfeed._structure import Treespec, flatten, map_leaves

# A message of small samples holds at most this much, and what was ready within this time (DESIGN: chunks).
CHUNK_BYTES = 1 << 20
CHUNK_S = 0.010
# Results of calls that share a message wait for one another no longer than this. What a message costs is shared by more
# calls where it is longer: `python -m benchmarks.pipeline --part calls`.
ANSWERS_S = 0.040
MAX_ROWS = 4096
_IDLE_S = 1.0


def taken(sample: Any) -> tuple[list[Any], tuple[bool, ...], Treespec]:
    """(leaves as arrays, which were Python numbers, the structure) of a sample."""
    values, treespec = flatten(sample)
    arrays, weak = leaves_of(values, treespec)
    return arrays, weak, treespec


class Batch:
    """Samples on their way to one batch: stacked at once, or kept for the user's collate.

    Args:
        allocator: where the batch will lie.
        collate: the user's, or None to stack.
        rows: how many samples it takes.
        keep: collect the samples themselves, for ``samples``.
    """

    def __init__(
        self,
        allocator: Allocator,
        collate: Callable[[list[Any]], Any] | None,
        rows: int,
        *,
        keep: bool = False,
    ) -> None:
        self._allocator = allocator
        self._collate = collate
        self._rows = rows
        self._kept: list[Any] = []
        self._stack = None if keep or collate is not None else Stack(allocator, rows)
        self.skipped: list[tuple[int, str]] = []

    @property
    def count(self) -> int:
        """Samples so far."""
        return len(self._kept) if self._stack is None else self._stack.count

    @property
    def full(self) -> bool:
        """Whether it takes no more."""
        return self.count == self._rows

    def add(self, sample: Any) -> None:
        """Take a sample, by value: its source may refill its arrays."""
        if self._stack is None:
            self._kept.append(map_leaves(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, sample))
        elif not self._stack.take(sample):
            self._stack.add(*taken(sample))

    def skip(self, index: int, text: str) -> None:
        """An item was left out."""
        self.skipped.append((index, text))

    def samples(self) -> list[Any]:
        """The samples so far."""
        return self._kept if self._stack is None else self._stack.samples()

    def finish(self) -> Payload:
        """The batch; what collate raises passes through."""
        if self._stack is None:
            assert self._collate is not None
            return pack(*taken(self._collate(self._kept)), self._allocator)
        return as_element(self._stack.finish())


def as_element(payload: Payload) -> Payload:
    """A stack seen as one element: the first axis is the batch's."""
    leaves = tuple(
        Leaf(leaf.dtype, (payload.count, *leaf.shape[1:]), leaf.weak, leaf.region, leaf.offset)
        for leaf in payload.layout.leaves
    )
    return Payload(Layout(payload.layout.treespec, leaves), payload.regions, payload.texts, 1, False)


class Chunk:
    """Small samples travelling together; one that is large, or unlike the one before, begins a new message.

    Args:
        allocator: where they will lie.
        rows: how many samples it takes.
        early: sends what is ready when the next sample takes long, or None.
        number: of the request.
    """

    longest_s = CHUNK_S

    def __init__(self, allocator: Allocator, rows: int, early: EarlySender | None, number: int) -> None:
        self._allocator = allocator
        self._rows = rows
        self._number = number
        self._stack: Stack | None = None
        self._done: list[Payload] = []
        self._skipped: list[tuple[int, str]] = []
        self._bytes = 0
        self._lock = threading.Lock()
        self._early = early if rows > 1 else None
        self.count = 0
        if self._early is not None:
            self._early.watch(self)

    @property
    def full(self) -> bool:
        """Whether it takes no more."""
        return self.count >= self._rows or self._bytes >= CHUNK_BYTES

    @property
    def lone(self) -> bool:
        """Whether one sample fills it."""
        return self.count == 1 and self._bytes >= CHUNK_BYTES

    def add(self, sample: Any) -> None:
        """Take a sample, by value."""
        with self._lock:
            stack = self._stack
            if stack is not None and not stack.full and stack.take(sample):
                self.count += 1
                self._bytes += stack.row_bytes
                return
        arrays, weak, treespec = taken(sample)
        nbytes = sum(map(weight, arrays))
        with self._lock:
            if nbytes >= CHUNK_BYTES // 4 or self._rows == 1:
                self._flush()
                self._done.append(pack(arrays, weak, treespec, self._allocator, goes_on=self._early is not None))
            else:
                if self._stack is None or not self._stack.accepts(arrays, weak, treespec):
                    self._flush()
                    room = max(1, (CHUNK_BYTES - self._bytes) // max(nbytes, 1))
                    self._stack = Stack(self._allocator, min(self._rows - self.count, room))
                self._stack.add(arrays, weak, treespec)
            self.count += 1
            self._bytes += nbytes

    def skip(self, index: int, text: str) -> None:
        """An item was left out."""
        with self._lock:
            self._skipped.append((index, text))

    def send_early(self, emit: Callable[[Reply], None]) -> None:
        """Send what is ready, from another thread."""
        with self._lock:
            self._flush()
            if self._done or self._skipped:
                done, self._done = self._done, []
                skipped, self._skipped = self._skipped, []
                emit(Reply(self._number, tuple(done), skipped=tuple(skipped), more=True))

    def close(self) -> tuple[tuple[Payload, ...], tuple[tuple[int, str], ...]]:
        """(the messages, the items left out) that were not sent early."""
        if self._early is not None:
            self._early.watch(None)
        with self._lock:
            self._flush()
            done, self._done = self._done, []
            skipped, self._skipped = self._skipped, []
            return tuple(done), tuple(skipped)

    def _flush(self) -> None:
        if self._stack is not None:
            self._done.append(self._stack.finish())
            self._stack = None


class Answers:
    """Results of calls that came in one message: they leave together, but none waits long for a slow one behind it.

    Args:
        number: of the request.
        early: sends what is ready when the next result takes long; None where there is only one.
    """

    longest_s = ANSWERS_S

    def __init__(self, number: int, early: EarlySender | None) -> None:
        self._number = number
        self._early = early
        self._done: list[Payload] = []
        self._failure: Failure | None = None
        self._lock = threading.Lock()
        if early is not None:
            early.watch(self)

    def add(self, result: Payload) -> None:
        """The next call's result."""
        with self._lock:
            self._part()
            self._done.append(result)

    def fail(self, failure: Failure) -> None:
        """The next call raised."""
        with self._lock:
            self._part()
            self._failure = failure

    def send_early(self, emit: Callable[[Reply], None]) -> None:
        """Send what is ready, from another thread."""
        with self._lock:
            if self._done or self._failure is not None:
                emit(self._reply(more=True))

    def close(self) -> Reply:
        """What was not sent yet."""
        if self._early is not None:
            self._early.watch(None)
        with self._lock:
            return self._reply(more=False)

    def _part(self) -> None:
        """A reply ends with a failure: send it before there is more."""
        if self._failure is not None and self._early is not None:
            self._early.emit(self._reply(more=True))

    def _reply(self, *, more: bool) -> Reply:
        reply = Reply(self._number, tuple(self._done), failure=self._failure, more=more)
        self._done, self._failure = [], None
        return reply


class _Open(Protocol):
    """What ``EarlySender`` watches.

    Attributes:
        longest_s: how long it may be open before what is ready leaves.
    """

    longest_s: float

    def send_early(self, emit: Callable[[Reply], None]) -> None: ...


class EarlySender:
    """Sends the samples of a chunk that has been open for long, so that none waits for a slow one behind it.

    Its thread looks at the open chunk now and then while there is one, and sleeps on an event while there is none.
    """

    def __init__(self, emit: Callable[[Reply], None]) -> None:
        self.emit = emit
        self._chunk: _Open | None = None
        self._awake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, chunk: _Open | None) -> None:
        """The chunk that is open now."""
        self._chunk = chunk
        if chunk is not None and not self._awake.is_set():
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mpfeed-early", daemon=True)
                self._thread.start()
            self._awake.set()

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._chunk = None
        self._awake.set()

    def _run(self) -> None:
        while not self._closed:
            self._awake.wait()
            idle_since = time.monotonic()
            while time.monotonic() - idle_since < _IDLE_S and self._open():
                before = self._chunk
                time.sleep(CHUNK_S if before is None else before.longest_s)
                if before is not None:
                    idle_since = time.monotonic()
                    if before is self._chunk:
                        self._send(before)
            self._awake.clear()
            if self._chunk is not None:
                self._awake.set()  # one was opened in between

    def _open(self) -> bool:
        return not self._closed

    def _send(self, chunk: _Open) -> None:
        try:
            chunk.send_early(self.emit)
        except OSError:
            self._closed = True  # the driver is gone, and soon this process
