"""The items of a ``from_map`` feed, and in which order an epoch visits them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from types import GeneratorType
from typing import Any

from mpfeed._shuffle import Permutation
from mpfeed._source import refuse_live_iterator

log = logging.getLogger("mpfeed")


class Items:
    """Random access where there is a length; one pass after another where there is none.

    Raises:
        TypeError: it is a live iterator, a mapping, a scalar, or cannot be shuffled as asked.
    """

    def __init__(self, items: Any, *, shuffle: bool) -> None:
        if getattr(items, "ndim", None) == 0:
            raise TypeError("items is a 0-d array: it has no items")
        refuse_live_iterator(items, "from_map (items)", "list(...) of it")
        if isinstance(items, Mapping):
            raise TypeError("items is a mapping: pass list(items.items()), or from_map(items.__getitem__, list(items))")
        if isinstance(items, (set, frozenset)):
            raise TypeError("items is a set, whose order changes from run to run: pass sorted(items)")
        self._items = items
        self._shuffle = shuffle
        self.length: int | None = None
        if hasattr(items, "__len__") and hasattr(items, "__getitem__"):
            self.length = len(items)
        elif not isinstance(items, Iterable):
            raise TypeError(f"items must be a sequence or an iterable, not {type(items).__name__}")
        elif shuffle:
            raise TypeError(
                f"shuffle=True needs items with a length and random access; {type(items).__name__} has not: list(items)"
            )

    def attributes(self) -> dict[str, Any]:
        """Those of the user's object as they are now: what changes them between epochs may change its items."""
        return dict(getattr(self._items, "__dict__", {}))

    def epoch(self, seed: int, epoch: int) -> EpochItems:
        """The items in the order of an epoch."""
        return EpochItems(
            self._items, self.length, Permutation(self.length or 0, seed, epoch) if self._shuffle else None
        )


class EpochItems:
    """Items of one epoch by position in the stream."""

    def __init__(self, items: Any, length: int | None, order: Permutation | None) -> None:
        self._items = items
        self._order = order
        self.length = length
        self._iterator: Iterator[Any] | None = None if length is not None else iter(items)
        self._closed = False
        self._read = 0
        self._window: dict[int, Any] = {}

    def index(self, position: int) -> int:
        """The own index of the item at a position."""
        return position if self._order is None else self._order[position]

    def has(self, position: int) -> bool:
        """Whether there is an item at a position; reads on in an iterable without length.

        Whatever reading raises passes through.
        """
        if self.length is not None:
            return position < self.length
        assert self._iterator is not None
        while self._read <= position and not self._closed:
            try:
                self._window[self._read] = next(self._iterator)
            except StopIteration:
                self.length = self._read
                return False
            self._read += 1
        return position < self._read

    def __getitem__(self, position: int) -> Any:
        """The item at a position, read here in the calling process."""
        if self._iterator is None:
            return self._items[self.index(position)]
        return self._window[position]

    def close(self) -> None:
        """No more is read: where items are made by a generator, it is closed."""
        self._closed = True
        if isinstance(self._iterator, GeneratorType):  # another iterator may be the user's own object, read again
            try:
                self._iterator.close()
            except Exception:
                log.warning("the items raised while they were closed", exc_info=True)

    def forget(self, position: int) -> None:
        """The item will not be asked for again."""
        self._window.pop(position, None)
