"""Elements that look like the one before, as messages: their leaves go where that one's went, without a closer look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpfeed._layout import Allocator, Layout, Payload, aligned, bare, lay_out
from mpfeed._leaves import Array, leaves_of
from mpfeed._structure import Treespec, flatten, picker


class Packing:
    """Makes messages of one element each.

    Args:
        allocator: where they lie.
    """

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._pick: Callable[[Any], Any] | None = None
        self._layout: Layout | None = None  # of the latest, if the next may go the same way
        self._likes: list[tuple[Any, np.dtype[Any], tuple[int, ...], int]] = []
        self._nbytes = 0

    def pack(self, element: Any, *, goes_on: bool = False) -> Payload:
        """An element as a message; with ``goes_on`` more of the user's code runs before it leaves."""
        values = self._pick(element) if self._pick is not None else None
        layout = self._layout
        if values is None or layout is None or not self._alike(values):
            values, treespec = flatten(element)
            self._pick = picker(treespec)
            return self._pack_anew(values, treespec, goes_on=goes_on)
        return self._pack_alike(values, layout, goes_on=goes_on)

    def pack_leaves(self, values: list[Any], treespec: Treespec) -> Payload:
        """The same for an element that is flattened already."""
        layout = self._layout
        if layout is None or layout.treespec != treespec or not self._alike(values):
            return self._pack_anew(values, treespec, goes_on=False)
        return self._pack_alike(values, layout, goes_on=False)

    def _alike(self, values: Sequence[Any]) -> bool:
        for value, (kind, dtype, shape, _) in zip(values, self._likes, strict=True):
            if type(value) is not kind or value.dtype != dtype or value.shape != shape:
                return False
        return True

    def _pack_alike(self, values: Sequence[Any], layout: Layout, *, goes_on: bool) -> Payload:
        names = [self._adopted(value, goes_on=goes_on) for value in values]
        if any(name is not None for name in names):
            arrays, weak = leaves_of(list(values), layout.treespec)
            return lay_out(arrays, weak, layout.treespec, names, self._allocator)
        name, memory = self._allocator.allocate(self._nbytes)
        for value, (_, dtype, shape, offset) in zip(values, self._likes, strict=True):
            np.ndarray(shape, dtype, memory, offset)[...] = value
        return Payload(layout, [name], [], 1, False)

    def _pack_anew(self, values: list[Any], treespec: Treespec, *, goes_on: bool) -> Payload:
        arrays, weak = leaves_of(values, treespec)
        names = [self._adopted(array, goes_on=goes_on) for array in arrays]
        payload = lay_out(arrays, weak, treespec, names, self._allocator)
        self._layout = None
        if all(map(_is_plain, values, arrays)) and all(name is None for name in names):
            self._layout = payload.layout
            self._likes = [
                (type(value), leaf.dtype, leaf.shape, leaf.offset)
                for value, leaf in zip(values, payload.layout.leaves, strict=True)
            ]
            self._nbytes = sum(aligned(array.nbytes) for array in arrays)
        return payload

    def _adopted(self, value: Any, *, goes_on: bool) -> Any | None:
        if type(value) is not np.ndarray or bare(value):
            return None
        return self._allocator.adopt(value, goes_on=goes_on)


def _is_plain(value: Any, array: Array) -> bool:
    """Whether a leaf is the value itself, or a NumPy scalar's, and takes bytes."""
    given = value is array or isinstance(value, np.generic)
    return given and value.dtype == array.dtype and not bare(array)
