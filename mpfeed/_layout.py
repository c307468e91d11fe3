"""What travels: leaves as NumPy arrays, laid out in regions of bytes.

A message carries one element, or a stack of several along a new first axis. Its numeric leaves lie in one or
more *regions* (a slot of shared memory, an object in Ray's store, plain memory), each leaf on a 64-byte
boundary, which is where TensorFlow takes an array without a copy. Text travels beside them as Python objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpfeed._leaves import Array, is_text, text
from mpfeed._structure import Treespec

# tensorflow/core/framework/tensor: Allocator::kAllocatorAlignment; py_func.cc copies what is not aligned to it.
ALIGNMENT = 64

Bytes = NDArray[np.uint8]


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def heap(nbytes: int) -> Bytes:
    """Private memory of ``nbytes`` bytes that starts on a 64-byte boundary."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a message.

    Attributes:
        dtype: native byte order; ``object`` for text.
        shape: of the whole leaf; for a stack its first axis is the number of rows that fit.
        weak: it was a Python number, which takes the declared dtype when it fits.
        region: index of the region it lies in, -1 where it takes no bytes (text, zero-size).
        offset: of its first byte in the region.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    weak: bool
    region: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Structure and leaves of a message; compared by identity, since equal ones are interned."""

    treespec: Treespec
    leaves: tuple[Leaf, ...]

    def key(self) -> tuple[Treespec, tuple[Leaf, ...]]:
        """What makes two layouts the same."""
        return self.treespec, self.leaves


@dataclass(slots=True)
class Payload:
    """A message on its way: where the bytes are, as the backend names them, and how they are laid out."""

    layout: Layout
    regions: list[Any]
    texts: list[list[Any]]
    count: int
    stacked: bool

    def values(self) -> tuple[Any, ...]:
        """Of its fields, in their order."""
        return self.layout, self.regions, self.texts, self.count, self.stacked

    @property
    def nbytes(self) -> int:
        """Bytes of its numeric leaves (of a stack: of the rows it has room for)."""
        return sum(
            leaf.dtype.itemsize * int(np.prod(leaf.shape, dtype=np.int64))
            for leaf in self.layout.leaves
            if leaf.region >= 0
        )


class Allocator(Protocol):
    """Where a producer's bytes lie."""

    waited_s: float
    """Seconds ever spent waiting for room."""

    def allocate(self, nbytes: int) -> tuple[Any, Bytes]:
        """(the name of a new region, its bytes, writable and aligned)."""

    def adopt(self, array: Array, *, goes_on: bool) -> Any | None:
        """The name of a region that this array already is, or None where it must be copied into one.

        With ``goes_on`` the source may run on, and refill its arrays, before the message has left.
        """

    def empty(self, shape: Any, dtype: Any) -> Array:
        """An array for ``mpfeed.empty``."""


def pack(
    arrays: list[Array],
    weak: tuple[bool, ...],
    treespec: Treespec,
    allocator: Allocator,
    *,
    goes_on: bool = False,
) -> Payload:
    """One element as a message: adopted where its arrays already lie in a region, else copied once."""
    adopted = [None if bare(a) else allocator.adopt(a, goes_on=goes_on) for a in arrays]
    return lay_out(arrays, weak, treespec, adopted, allocator)


def lay_out(
    arrays: list[Array], weak: tuple[bool, ...], treespec: Treespec, adopted: list[Any | None], allocator: Allocator
) -> Payload:
    """One element as a message: what has no name of a region in ``adopted`` is copied to a new one."""
    total = 0
    places: list[tuple[int, int]] = []
    names: list[Any] = []
    for array, name in zip(arrays, adopted, strict=True):
        if name is not None:
            names.append(name)
            places.append((len(names), 0))
        elif bare(array):
            places.append((-1, 0))
        else:
            places.append((0, total))
            total += aligned(array.nbytes)
    if total:
        shared, memory = allocator.allocate(total)
        for array, (region, offset) in zip(arrays, places, strict=True):
            if region == 0:
                np.ndarray(array.shape, array.dtype, memory, offset)[...] = array
        names.insert(0, shared)
    shift = 0 if total else 1
    leaves = tuple(
        Leaf(a.dtype, a.shape, w, region if region < 0 else region - shift, offset)
        for a, w, (region, offset) in zip(arrays, weak, places, strict=True)
    )
    texts = [a.ravel().tolist() for a in arrays if is_text(a)]
    return Payload(Layout(treespec, leaves), names, texts, 1, False)


def row_of(array: Array, row: int) -> Array:
    """One row of a stack, as an array also where it has no dimension left."""
    return array[row] if array.ndim > 1 else array[row : row + 1].reshape(())


def bare(array: Array) -> bool:
    """Whether a leaf takes no bytes of a region."""
    return is_text(array) or array.nbytes == 0


def unpack(payload: Payload, regions: list[Bytes]) -> list[Array]:
    """The leaves of a message as read-only arrays that alias the regions' bytes; a stack has ``count`` rows."""
    arrays: list[Array] = []
    texts = iter(payload.texts)
    for leaf in payload.layout.leaves:
        shape = (payload.count, *leaf.shape[1:]) if payload.stacked else leaf.shape
        if leaf.region >= 0:
            array: Array = np.ndarray(shape, leaf.dtype, regions[leaf.region], leaf.offset)
        elif leaf.dtype == object:
            array = text(next(texts), shape)
        else:
            array = np.empty(shape, leaf.dtype)
        array.flags.writeable = False
        arrays.append(array)
    return arrays
