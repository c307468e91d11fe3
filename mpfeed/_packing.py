"""Elements that look like one before, as messages: their leaves go where that one's went, without a closer look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpfeed._layout import Allocator, Layout, Payload, aligned, bare, lay_out
from mpfeed._leaves import PYTHON_NUMBERS, Array, is_text, leaves_of
from mpfeed._structure import Treespec, flatten, picker

# Shapes or structures that come in turn.
_REMEMBERED = 4
_INT64 = range(-(1 << 63), 1 << 63)


class _Like(NamedTuple):
    """What a leaf must be, and where it goes. Text goes nowhere: ``offset`` is -1."""

    kind: Any
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    def admits(self, value: Any) -> bool:
        """Whether a leaf is such a one."""
        if type(value) is not self.kind:
            return False
        if self.kind in PYTHON_NUMBERS or self.offset < 0:
            return self.kind is not int or value in _INT64
        return bool(value.dtype == self.dtype and value.shape == self.shape)


class _Known:
    """How elements of one look are laid out."""

    __slots__ = ("_likes", "_nbytes", "layout", "pick")

    def __init__(self, layout: Layout, likes: list[_Like], nbytes: int) -> None:
        self.layout = layout
        self.pick = picker(layout.treespec)
        self._likes = likes
        self._nbytes = nbytes

    @classmethod
    def of(cls, values: Sequence[Any], arrays: list[Array], layout: Layout) -> _Known | None:
        """That of an element with these leaves, of which none lay in a region already; None: it needs a closer look."""
        likes = []
        for value, array, leaf in zip(values, arrays, layout.leaves, strict=True):
            text = type(value) in (str, bytes)
            number = type(value) in PYTHON_NUMBERS
            itself = value is array or isinstance(value, np.generic)
            if number and array.dtype.kind == "u":  # larger than those that follow
                return None
            if not (text or number or (itself and value.dtype == array.dtype and not bare(array))):
                return None
            likes.append(_Like(type(value), leaf.dtype, leaf.shape, leaf.offset if not text else -1))
        return cls(layout, likes, sum(aligned(array.nbytes) for array in arrays if not is_text(array)))

    def admits(self, values: Sequence[Any]) -> bool:
        """Whether an element of the same structure looks the same."""
        return all(like.admits(value) for like, value in zip(self._likes, values, strict=True))

    def lay_out(self, values: Sequence[Any], allocator: Allocator) -> Payload:
        """Such an element as a message."""
        texts = [[value] for like, value in zip(self._likes, values, strict=True) if like.offset < 0]
        if not self._nbytes:
            return Payload(self.layout, [], texts, 1, False)
        name, memory = allocator.allocate(self._nbytes)
        for like, value in zip(self._likes, values, strict=True):
            if like.offset >= 0:
                np.ndarray(like.shape, like.dtype, memory, like.offset)[...] = value
        return Payload(self.layout, [name], texts, 1, False)


class Packing:
    """Makes messages of one element each.

    Args:
        allocator: where they lie.
    """

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._known: list[_Known] = []  # the latest first

    def pack(self, element: Any, *, goes_on: bool = False) -> Payload:
        """An element as a message; with ``goes_on`` more of the user's code runs before it leaves."""
        for known in self._known:
            values = known.pick(element)
            if values is not None and known.admits(values):
                return self._pack(values, known, goes_on=goes_on)
        return self._pack_anew(*flatten(element), goes_on=goes_on)

    def pack_leaves(self, values: list[Any], treespec: Treespec) -> Payload:
        """The same for an element that is flattened already, and that nothing refills before it leaves."""
        for known in self._known:
            if known.layout.treespec == treespec and known.admits(values):
                return self._pack(values, known, goes_on=False)
        return self._pack_anew(values, treespec, goes_on=False)

    def _pack(self, values: Sequence[Any], known: _Known, *, goes_on: bool) -> Payload:
        names = [self._adopted(value, goes_on=goes_on) for value in values]
        if any(name is not None for name in names):
            arrays, weak = leaves_of(list(values), known.layout.treespec)
            return lay_out(arrays, weak, known.layout.treespec, names, self._allocator)
        if known is not self._known[0]:
            self._known.remove(known)
            self._known.insert(0, known)
        return known.lay_out(values, self._allocator)

    def _pack_anew(self, values: list[Any], treespec: Treespec, *, goes_on: bool) -> Payload:
        arrays, weak = leaves_of(values, treespec)
        names = [self._adopted(array, goes_on=goes_on) for array in arrays]
        payload = lay_out(arrays, weak, treespec, names, self._allocator)
        if all(name is None for name in names) and (known := _Known.of(values, arrays, payload.layout)) is not None:
            self._known[:] = [known, *self._known[: _REMEMBERED - 1]]
        return payload

    def _adopted(self, value: Any, *, goes_on: bool) -> Any | None:
        if type(value) is not np.ndarray or bare(value):
            return None
        return self._allocator.adopt(value, goes_on=goes_on)
