"""Shared memory of one worker: slots that are lent to the consumer and come back when its arrays die.

One file without a name per worker, mapped once on each side. It is as long as the address space allows and takes
memory only where it was touched, so a slot may have any size and nothing is ever remapped. The writer (the
worker) gives out extents; the reader (the consumer) aliases them and, when the last array over a slot dies,
clears one byte in the table at the start of the file. Nothing is sent for it and nothing is locked, so that it
may happen on any thread and inside the garbage collector.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
import weakref
from bisect import bisect
from collections.abc import Callable
from typing import Any

import numpy as np

from mpfeed import _span
from mpfeed._errors import ArenaFull, MpfeedError
from mpfeed._layout import Bytes, heap
from mpfeed._leaves import Array

TABLE_BYTES = 1 << 16  # one byte a slot: 1 lent, 0 free
_PAGE = mmap.PAGESIZE
_SPAN_BYTES = 1 << 40  # address space, not memory
_SMALLEST_SPAN_BYTES = 1 << 30
# Freed memory that stays for the next slots: this much, and as many of the latest largest as can be in flight.
_KEPT_BYTES = 16 << 20
_KEPT_SLOTS = 8
_REAPS_BETWEEN_RETURNS = 64


def create_file() -> tuple[int, int]:
    """(descriptor, length) of a new nameless file for an arena; it ends with its last descriptor and mapping.

    Linux: a memfd, which no /dev/shm limits. Elsewhere an unlinked temporary file.
    """
    sealable = hasattr(os, "memfd_create")
    fd = os.memfd_create("mpfeed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) if sealable else _unlinked_file()
    length = _SPAN_BYTES
    while True:
        try:
            os.ftruncate(fd, length)
            mmap.mmap(fd, length).close()
            if sealable:
                _seal(fd)
            return fd, length
        except (OSError, ValueError, OverflowError) as error:
            length >>= 1
            if length < _SMALLEST_SPAN_BYTES:
                os.close(fd)
                raise MpfeedError(
                    f"no address space for shared memory ({error}): {2 * length} bytes were refused. Raise `ulimit -v` "
                    'or use backend=mpfeed.Process(transport="queue")'
                ) from error


def _seal(fd: int) -> None:
    """Keep a memfd's length as it is: who reads where another process cut it off is killed."""
    import fcntl  # not on Windows

    if hasattr(fcntl, "F_ADD_SEALS"):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def _unlinked_file() -> int:
    import tempfile

    fd, name = tempfile.mkstemp(prefix="mpfeed-")
    os.unlink(name)
    return fd


# A lent extent: its number in the table, where it starts, how many bytes are in use. A plain tuple, since one travels
# with every message, and pickling a class of its own takes several times as long.
Slot = tuple[int, int, int]


class Writer:
    """The worker's side: allocates slots (an ``Allocator``).

    Args:
        fd: of the file; it stays the caller's.
        length: of the file.
        limit: bytes that may be in use at once, or None.
        wait_for_room: called when the limit is reached while slots are lent; returns when one may be free, True if
            none will be: then the message lies in private memory.
    """

    def __init__(
        self, fd: int, length: int, limit: int | None = None, wait_for_room: Callable[[], bool | None] | None = None
    ) -> None:
        self._map = mmap.mmap(fd, length)
        self._length = length
        self._limit = limit
        self._wait_for_room = wait_for_room
        self._numbers = list(range(TABLE_BYTES - 1, -1, -1))
        self._lent: dict[int, tuple[int, int]] = {}  # number -> (offset, size)
        self._free: list[tuple[int, int]] = []  # (offset, size), sorted, never adjacent
        self._end = TABLE_BYTES
        self._touched = TABLE_BYTES  # no byte at or above it holds memory
        self._largest = 0
        # Arrays of `empty` by the id of their bytes, and the slots that the source still holds.
        self._owners: dict[int, tuple[weakref.ref[Any], Slot, weakref.ref[Any]]] = {}
        self._owned: set[int] = set()
        self._reaped = 0
        self.waited_s = 0.0

    # -------------------------------------------------------------------------------- allocator

    def allocate(self, nbytes: int) -> tuple[Any, Bytes]:
        """A slot of at least ``nbytes``, lent at once; private memory, its own name, where its reader holds all room.

        Raises:
            ArenaFull: the limit does not even hold this one, nothing that is lent can come back, or there are as many
                slots as there can be and none will come back.
        """
        size = -(-max(nbytes, 1) // _PAGE) * _PAGE
        self._reap()
        self._await_number()  # before an extent, which would be lost where there is none
        while (offset := self._take(size)) is None:
            if self._make_room(nbytes, size):
                memory = heap(nbytes)
                return memory, memory
        number = self._numbers.pop()
        self._map[number] = 1
        self._lent[number] = (offset, size)
        return (number, offset, nbytes), self._bytes(offset, nbytes)

    def empty(self, shape: Any, dtype: Any) -> Array:
        """An array in a slot of its own; see ``mpfeed.empty``."""
        dtype = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if nbytes <= 0:
            return np.empty(shape, dtype)
        slot, memory = self.allocate(nbytes)
        array: Array = np.ndarray(shape, dtype, memory)
        if not isinstance(slot, tuple):
            return array
        number, key = slot[0], id(memory)
        self._owners[key] = (
            weakref.ref(memory, lambda _: self._unowned(key, number)),
            slot,
            weakref.ref(array),
        )
        self._owned.add(number)
        self._map[number] = 0
        return array

    def adopt(self, array: Array, *, goes_on: bool) -> Slot | None:
        """The slot of a whole array of ``empty`` of which no other view lives; it becomes read-only here."""
        memory = array.base
        owned = self._owners.get(id(memory)) if memory is not None else None
        if owned is None or memory is None:
            return None
        _, slot, made = owned
        # References to the bytes: `array.base`, the local name and getrefcount's argument. More are other views.
        if made() is not array or not array.flags.writeable or sys.getrefcount(memory) > 3:
            return None
        array.flags.writeable = False
        memory.flags.writeable = False
        self._map[slot[0]] = 1
        return slot

    # ---------------------------------------------------------------------------------- extents

    def _unowned(self, key: int, number: int) -> None:
        """The source dropped an array of ``empty``."""
        self._owners.pop(key, None)
        self._owned.discard(number)

    def _reap(self) -> None:
        """Take back the slots whose byte the reader cleared and that the source does not hold."""
        back = [number for number in self._lent if not self._map[number] and number not in self._owned]
        for number in back:
            offset, size = self._lent.pop(number)
            self._numbers.append(number)
            self._give(offset, size)
        self._reaped += len(back)
        if self._reaped >= _REAPS_BETWEEN_RETURNS:
            self._reaped = 0
            self._return_memory()

    def _take(self, size: int) -> int | None:
        self._largest = max(self._largest - self._largest // 64, size)
        if self._limit is not None and self._in_use() + size > self._limit:
            return None
        for i, (offset, room) in enumerate(self._free):
            if room >= size:
                self._free[i : i + 1] = [(offset + size, room - size)] if room > size else []
                self._touched = max(self._touched, offset + size)
                return offset
        if self._end + size > self._length:
            return None
        offset, self._end = self._end, self._end + size
        self._touched = max(self._touched, self._end)
        return offset

    def _give(self, offset: int, size: int) -> None:
        i = bisect(self._free, (offset, size))
        self._free.insert(i, (offset, size))
        if i + 1 < len(self._free) and offset + size == self._free[i + 1][0]:
            self._free[i : i + 2] = [(offset, size + self._free[i + 1][1])]
        if i and sum(self._free[i - 1]) == offset:
            self._free[i - 1 : i + 1] = [(self._free[i - 1][0], self._free[i - 1][1] + self._free[i][1])]
        if self._free and sum(self._free[-1]) == self._end:
            self._end = self._free.pop()[0]

    def _return_memory(self) -> None:
        """Give free memory back to the system after a peak, the highest first: first fit keeps slots low."""
        if not hasattr(mmap, "MADV_REMOVE"):
            return
        kept = _KEPT_BYTES + _KEPT_SLOTS * self._largest
        for offset, size in [*self._free, (self._end, self._touched - self._end)]:
            spare = size - max(kept, 0) // _PAGE * _PAGE
            if spare > 0:
                self._map.madvise(mmap.MADV_REMOVE, offset + size - spare, spare)
            kept -= size
        self._touched = min(self._touched, self._end + max(kept, 0) + _PAGE)

    def _in_use(self) -> int:
        return sum(size for _, size in self._lent.values())

    def _bytes(self, offset: int, nbytes: int) -> Bytes:
        # Straight over the mapping, so that it is the base of its views and its death says that they are gone.
        return np.ndarray((nbytes,), np.uint8, self._map, offset)

    def _make_room(self, nbytes: int, size: int) -> bool:
        """Wait for room; True where there will be none."""
        limit = self._limit if self._limit is not None else self._length - TABLE_BYTES
        if size > limit or not self._lent or self._wait_for_room is None:
            raise ArenaFull(
                f"a message of {nbytes:,} bytes has no room: its worker's share of memory_limit is {limit:,} bytes, "
                f"{self._in_use():,} in use. Raise memory_limit, use fewer workers, or make batches smaller"
            )
        return self._wait(self._wait_for_room)

    def _await_number(self) -> None:
        while not self._numbers:
            if self._wait_for_room is None or self._wait(self._wait_for_room):
                raise ArenaFull(
                    f"all {len(self._lent):,} slots of shared memory are in use, and none comes back: keep fewer "
                    "arrays of mpfeed.empty, or copies of them"
                )

    def _wait(self, wait_for_room: Callable[[], bool | None]) -> bool:
        begun_s = time.perf_counter()
        none = wait_for_room()
        ended_s = time.perf_counter()
        self.waited_s += ended_s - begun_s
        _span.add("wait for room", begun_s, ended_s)
        self._reap()
        return none is True


class _Loan(weakref.ref[Any]):
    """Watches the array that owns a slot's bytes in the reader."""

    __slots__ = ("nbytes", "number")
    nbytes: int
    number: int


class Reader:
    """The consumer's side: arrays over lent slots, returned when they die."""

    def __init__(self, fd: int, length: int) -> None:
        self._map = mmap.mmap(fd, length)
        self._loans: dict[int, _Loan] = {}
        self.lent_bytes = 0
        self.returns = 0
        # Called after each return while the writer waits for room.
        self.returned: Callable[[], None] | None = None
        _readers.add(self)

    @property
    def mapping(self) -> mmap.mmap:
        """What lives, with a descriptor of its own, as long as arrays over it."""
        return self._map

    @property
    def lent(self) -> int:
        """Slots that live arrays hold."""
        return len(self._loans)

    def lend(self, slot: Slot, *, writable: bool = False) -> Bytes:
        """The slot's bytes; it goes back to the writer when they and all views of them are dead."""
        number, offset, nbytes = slot
        owner = np.ndarray((nbytes,), np.uint8, self._map, offset)
        owner.flags.writeable = writable
        loan = _Loan(owner, self._returned)
        loan.number, loan.nbytes = number, nbytes
        self._loans[number] = loan
        self.lent_bytes += nbytes
        return owner

    def _returned(self, loan: Any) -> None:
        # Runs wherever the last array dies, also inside the garbage collector: it takes no lock.
        known: Any = self._loans.pop(loan.number, None)
        if known is loan:
            self.lent_bytes -= loan.nbytes
            self._map[loan.number] = 0
            self.returns += 1
            if self.returned is not None:
                self.returned()

    def disown(self) -> None:
        """After a fork, in the child: its copies of the arrays return nothing."""
        self._loans.clear()


_readers: weakref.WeakSet[Reader] = weakref.WeakSet()


def _disown_all() -> None:
    for reader in list(_readers):
        reader.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)


class Heap:
    """Private memory as an ``Allocator``: for transports that copy or pickle what they are given.

    Args:
        adopts: whether a contiguous array may be named itself, because it is copied before its source goes on.
    """

    _WORTH_ADOPTING_BYTES = 1 << 14

    def __init__(self, *, adopts: bool) -> None:
        self._adopts = adopts
        self.waited_s = 0.0

    def allocate(self, nbytes: int) -> tuple[Bytes, Bytes]:
        """New memory, which is its own name."""
        memory = heap(nbytes)
        return memory, memory

    def adopt(self, array: Array, *, goes_on: bool) -> Bytes | None:
        """The bytes of a large contiguous array, where this allocator adopts."""
        if goes_on or not self._adopts or array.nbytes < self._WORTH_ADOPTING_BYTES or not array.flags.c_contiguous:
            return None
        return array.reshape(-1).view(np.uint8)

    def empty(self, shape: Any, dtype: Any) -> Array:
        """Plain memory."""
        return np.empty(shape, dtype)
