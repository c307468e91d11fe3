"""Samples of one kind as one message: stacked in the region that it travels from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpfeed._errors import SignatureError
from mpfeed._layout import Allocator, Layout, Leaf, Payload, aligned, bare
from mpfeed._leaves import PYTHON_NUMBER_OF, PYTHON_NUMBERS, Array, castable, is_text, text
from mpfeed._structure import Treespec, paths, picker


class Stack:
    """Samples collated along a new first axis, each copied straight to its row of the outgoing region."""

    def __init__(self, allocator: Allocator, rows: int) -> None:
        self._allocator = allocator
        self._rows = rows
        self.count = 0
        self._treespec: Treespec | None = None
        self._first: list[Array] = []
        self._weak: tuple[bool, ...] = ()
        self._leaves: tuple[Leaf, ...] = ()
        self._columns: list[Array | list[Any]] = []
        self._regions: list[Any] = []
        self._pick: Callable[[Any], Any] | None = None  # None: no sample is taken without a closer look
        self._likes: list[tuple[Array, type, np.dtype[Any], tuple[int, ...]]] = []
        self.row_bytes = 0

    @property
    def full(self) -> bool:
        """Whether every row is taken."""
        return self.count == self._rows

    def add(self, arrays: list[Array], weak: tuple[bool, ...], treespec: Treespec) -> None:
        """Copy one sample to the next row.

        Raises:
            SignatureError: its structure or a leaf's shape differs from the first sample's, or a dtype does not
                cast to it safely; the stack stays as it was.
        """
        if self._treespec is None:
            self._open(arrays, weak, treespec)
        elif problem := self._mismatch(arrays, weak, treespec):
            raise SignatureError(
                f"sample {self.count} of a batch cannot be stacked: {problem}. Make them alike, pad them "
                "(collate=mpfeed.collate_padded()), or batch in a collate= of your own"
            )
        for column, array in zip(self._columns, arrays, strict=True):
            if isinstance(column, list):
                column.extend(array.ravel().tolist())
            else:
                column[self.count] = array
        self.count += 1

    def take(self, sample: Any) -> bool:
        """Copy a sample to the next row if it is plainly like the first; False where ``add`` must look closer."""
        values = self._pick(sample) if self._pick is not None else None
        if values is None:
            return False
        row = self.count
        for value, (column, kind, dtype, shape) in zip(values, self._likes, strict=True):
            if type(value) is kind and kind in PYTHON_NUMBERS:
                try:
                    column[row] = value
                except OverflowError:
                    return False
            elif type(value) in (np.ndarray, kind) and value.dtype is dtype and value.shape == shape:
                column[row] = value
            else:
                return False
        self.count += 1
        return True

    def accepts(self, arrays: list[Array], weak: tuple[bool, ...], treespec: Treespec) -> bool:
        """Whether a sample is exactly like those before it, so that nothing would be cast."""
        return self._treespec is None or (
            not self.full
            and treespec == self._treespec
            and weak == self._weak
            and all(a.dtype == f.dtype and a.shape == f.shape for a, f in zip(arrays, self._first, strict=True))
        )

    def finish(self) -> Payload:
        """The rows so far as one message. ValueError where there are none."""
        if self._treespec is None:
            raise ValueError("an empty stack has no layout")
        texts = [column for column in self._columns if isinstance(column, list)]
        return Payload(Layout(self._treespec, self._leaves), self._regions, texts, self.count, True)

    def samples(self) -> list[Any]:
        """Its rows as separate structures that own their memory, Python numbers as such."""
        if self._treespec is None:
            return []
        return [
            self._treespec.unflatten([self._cell(i, k) for k in range(len(self._columns))]) for i in range(self.count)
        ]

    def _cell(self, row: int, k: int) -> Any:
        column = self._columns[k]
        if isinstance(column, list):
            size = self._first[k].size
            return text(column[row * size : (row + 1) * size], self._first[k].shape)
        return column[row].item() if self._weak[k] else np.array(column[row])

    def _open(self, arrays: list[Array], weak: tuple[bool, ...], treespec: Treespec) -> None:
        offsets, total = [], 0
        for array in arrays:
            offsets.append(total)
            total += 0 if bare(array) else aligned(array.nbytes * self._rows)
        memory = None
        if total:
            name, memory = self._allocator.allocate(total)
            self._regions.append(name)
        leaves = []
        for array, is_weak, offset in zip(arrays, weak, offsets, strict=True):
            shape = (self._rows, *array.shape)
            leaves.append(Leaf(array.dtype, shape, is_weak, -1 if bare(array) else 0, offset))
            if is_text(array):
                self._columns.append([])
            elif array.nbytes == 0:
                self._columns.append(np.empty(shape, array.dtype))
            else:
                self._columns.append(np.ndarray(shape, array.dtype, memory, offset))
        # Only shapes and dtypes of the first sample are needed; its memory may be refilled by the source.
        self._first = [np.broadcast_to(np.empty((), a.dtype), a.shape) for a in arrays]
        self._treespec, self._weak, self._leaves = treespec, weak, tuple(leaves)
        self.row_bytes = sum(array.nbytes for array in arrays)
        self._likes = [
            (column, PYTHON_NUMBER_OF[array.dtype.kind] if is_weak else array.dtype.type, array.dtype, array.shape)
            for column, array, is_weak in zip(self._columns, arrays, weak, strict=True)
            if not isinstance(column, list)
        ]
        if len(self._likes) == len(arrays):
            self._pick = picker(treespec)

    def _mismatch(self, arrays: list[Array], weak: tuple[bool, ...], treespec: Treespec) -> str | None:
        if treespec != self._treespec:
            return f"its structure is {treespec} where the first has {self._treespec}"
        for k, (array, first) in enumerate(zip(arrays, self._first, strict=True)):
            if array.shape != first.shape:
                return f"leaf {paths(treespec)[k]} has shape {array.shape} where the first has {first.shape}"
            if array.dtype != first.dtype and not castable(array, first.dtype, weak[k]):
                return f"leaf {paths(treespec)[k]} is {array.dtype} where the first is {first.dtype}"
        return None
