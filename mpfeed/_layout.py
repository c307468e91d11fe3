"""What travels: leaves as NumPy arrays, laid out in regions of bytes.

A message carries one element, or a stack of several along a new first axis. Its numeric leaves lie in one or
more *regions* (a slot of shared memory, an object in Ray's store, plain memory), each leaf on a 64-byte
boundary, which is where TensorFlow takes an array without a copy. Text travels beside them as Python objects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpfeed._errors import SignatureError
from mpfeed._structure import Treespec, paths, picker

# tensorflow/core/framework/tensor: Allocator::kAllocatorAlignment; py_func.cc copies what is not aligned to it.
ALIGNMENT = 64

Array = NDArray[Any]
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


# ------------------------------------------------------------------------------------------------ leaves

_PYTHON_NUMBERS = (int, float, bool, complex)
_PYTHON_NUMBER_OF = {"i": int, "u": int, "f": float, "b": bool, "c": complex}


def is_text(array: Array) -> bool:
    """Whether the leaf holds str or bytes objects."""
    return array.dtype == object


def as_leaf(value: Any, path: str) -> tuple[Array, bool]:
    """(the leaf as an array, whether it was a Python number).

    str stays str and bytes stays bytes, in object arrays; byte order becomes native.

    Raises:
        SignatureError: it cannot be a tensor: None, a ragged or other object, a masked or structured array.
    """
    if type(value) in _PYTHON_NUMBERS:
        array = np.asarray(value)
        if array.dtype == object:
            raise _refused(path, f"the integer {value} needs more than 64 bits", "use a float or split it")
        return array, True
    if isinstance(value, (str, bytes)):
        return _text([str(value) if isinstance(value, str) else bytes(value)], ()), False
    if type(value) is not np.ndarray:
        value = _to_array(value, path)
    return _check(value, path), False


def _to_array(value: Any, path: str) -> Array:
    if value is None:
        raise _refused(path, "is None", "give it a value, or leave it out of every element")
    if isinstance(value, np.ma.MaskedArray):
        raise _refused(path, "is a masked array", "yield .filled(value), or .data and .mask as two leaves")
    try:
        return np.asarray(value)
    except Exception as error:
        raise _refused(path, f"cannot become an array: {error}", "pad it, or yield its parts") from error


def _check(array: Array, path: str) -> Array:
    kind = array.dtype.kind
    if kind in "biufcmM":
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if kind in "SUTO":
        return _text_of(array, path)
    if array.dtype.names is None and array.dtype.subdtype is None and array.dtype.type is not np.void:
        return array  # bfloat16, float8 and int4 of ml_dtypes register as kind "V"
    raise _refused(path, f"is a structured array ({array.dtype})", "yield its fields as leaves of a dict")


def _text_of(array: Array, path: str) -> Array:
    values = array.ravel().tolist()
    kinds = {str if isinstance(v, str) else bytes if isinstance(v, bytes) else type(v) for v in values}
    if kinds <= {str} or kinds <= {bytes}:
        return _text([v if type(v) in (str, bytes) else kinds.copy().pop()(v) for v in values], array.shape)
    if kinds == {str, bytes}:
        raise _refused(path, "mixes str and bytes", "make them all one or the other")
    odd = next(i for i, v in enumerate(values) if not isinstance(v, (str, bytes)))
    what = f"holds objects of {type(values[odd]).__name__} (entry {odd}: {_short(values[odd])})"
    raise _refused(path, what, "only numbers, str and bytes can be tensors; pad ragged rows or yield them apart")


def _text(values: list[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _refused(path: str, what: str, remedy: str) -> SignatureError:
    return SignatureError(f"leaf {path} {what}, which cannot be a tensor: {remedy}")


def leaves_of(values: list[Any], treespec: Treespec) -> tuple[list[Array], tuple[bool, ...]]:
    """Every leaf as an array, and which were Python numbers; SignatureError names the leaf that cannot be."""
    arrays, weak = [], []
    for i, value in enumerate(values):
        if type(value) is np.ndarray and value.dtype.kind in "biufc" and value.dtype.isnative:
            arrays.append(value)
            weak.append(False)
            continue
        try:
            array, is_weak = as_leaf(value, "")
        except SignatureError:
            array, is_weak = as_leaf(value, paths(treespec)[i])  # paths are made only for an error
        arrays.append(array)
        weak.append(is_weak)
    return arrays, tuple(weak)


# ----------------------------------------------------------------------------------------------- packing


def pack(
    arrays: list[Array],
    weak: tuple[bool, ...],
    treespec: Treespec,
    allocator: Allocator,
    *,
    goes_on: bool = False,
) -> Payload:
    """One element as a message: adopted where its arrays already lie in a region, else copied once."""
    adopted = [None if _bare(a) else allocator.adopt(a, goes_on=goes_on) for a in arrays]
    total = 0
    places: list[tuple[int, int]] = []
    names: list[Any] = []
    for array, name in zip(arrays, adopted, strict=True):
        if name is not None:
            names.append(name)
            places.append((len(names), 0))
        elif _bare(array):
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


def _bare(array: Array) -> bool:
    """Whether a leaf takes no bytes of a region."""
    return is_text(array) or array.nbytes == 0


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
            if type(value) is kind and kind in _PYTHON_NUMBERS:
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
            return _text(column[row * size : (row + 1) * size], self._first[k].shape)
        return column[row].item() if self._weak[k] else np.array(column[row])

    def _open(self, arrays: list[Array], weak: tuple[bool, ...], treespec: Treespec) -> None:
        offsets, total = [], 0
        for array in arrays:
            offsets.append(total)
            total += 0 if _bare(array) else aligned(array.nbytes * self._rows)
        memory = None
        if total:
            name, memory = self._allocator.allocate(total)
            self._regions.append(name)
        leaves = []
        for array, is_weak, offset in zip(arrays, weak, offsets, strict=True):
            shape = (self._rows, *array.shape)
            leaves.append(Leaf(array.dtype, shape, is_weak, -1 if _bare(array) else 0, offset))
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
            (column, _PYTHON_NUMBER_OF[array.dtype.kind] if is_weak else array.dtype.type, array.dtype, array.shape)
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


def castable(array: Array, dtype: np.dtype[Any], weak: bool) -> bool:
    """Whether an array takes a dtype without loss: a safe cast, or Python numbers that fit it."""
    if is_text(array) is not (dtype == np.dtype(object)):
        return False
    if np.can_cast(array.dtype, dtype, "safe"):
        return True
    return weak and fits(array, dtype)


def fits(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether Python numbers keep their value in a dtype (a float its range, not its last digits)."""
    if array.dtype.kind in "mM" or dtype.kind in "mMO" or (array.dtype.kind == "c") != (dtype.kind == "c"):
        return False
    integral = dtype.kind in "iub" or "int" in dtype.name
    if array.dtype.kind == "f" and integral:
        return False
    with np.errstate(all="ignore"):
        there = array.astype(dtype)
        back = there.astype(array.dtype)
    if integral or array.dtype.kind in "iu":
        return dtype != np.dtype(bool) and bool(np.array_equal(back, array))
    return bool(np.array_equal(np.isfinite(back), np.isfinite(array)))


def unpack(payload: Payload, regions: list[Bytes]) -> list[Array]:
    """The leaves of a message as read-only arrays that alias the regions' bytes; a stack has ``count`` rows."""
    arrays: list[Array] = []
    texts = iter(payload.texts)
    for leaf in payload.layout.leaves:
        shape = (payload.count, *leaf.shape[1:]) if payload.stacked else leaf.shape
        if leaf.region >= 0:
            array: Array = np.ndarray(shape, leaf.dtype, regions[leaf.region], leaf.offset)
        elif leaf.dtype == object:
            array = _text(next(texts), shape)
        else:
            array = np.empty(shape, leaf.dtype)
        array.flags.writeable = False
        arrays.append(array)
    return arrays
