"""A worker's shared memory in the consumer's hands: what is lent of it, and when a copy is the better thing to have."""

from __future__ import annotations

import weakref
from typing import Any

from mpfeed._leaves import is_text
from mpfeed._messages import Parcel
from mpfeed.transport.arena import Reader

# Batches of one worker that a consumer may hold in place; beyond it gets copies (DESIGN: cache() holds all of them,
# shuffle(20) 22), so that what it keeps is ordinary memory.
LEASES_PER_WORKER = 64
# Workers of the past of whose memory the consumer of a feed may hold batches in place: each takes a descriptor.
_MOST_LEFT = 8


class WorkerMemory:
    """The memory that one worker writes and this process reads.

    Args:
        fd: of its file; it stays the caller's.
        length: of the file.
        left: the mappings of the feed's workers of the past that arrays still hold.
        limit: bytes that may be in use at once, or None.

    Attributes:
        reader: what lends its slots.
        tight: the worker waited for room in vain, so that the consumer gets copies from now on.
    """

    def __init__(self, fd: int, length: int, left: weakref.WeakSet[Any], limit: int | None = None) -> None:
        self.reader = Reader(fd, length)
        self.tight = False
        self._left = left
        self._limit = limit

    def resolve(self, name: Any) -> Any:
        """The bytes of a region: of a slot, or those that are their own name."""
        return self.reader.lend(name) if isinstance(name, tuple) else name

    def crowded(self, parcel: Parcel) -> bool:
        """Whether the consumer holds so much of this worker's memory that it should get a copy."""
        if self._limit is not None:
            nbytes = sum(array.nbytes for array in parcel.arrays if not is_text(array))
            if self.reader.lent_bytes + nbytes > self._limit:
                return True
        return self.tight or self.reader.lent > LEASES_PER_WORKER or len(self._left) > _MOST_LEFT

    def leave(self) -> None:
        """The worker is of the past, but for what the consumer holds of its memory."""
        self._left.add(self.reader.mapping)
