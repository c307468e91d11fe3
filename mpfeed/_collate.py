"""Collate functions for ``collate=``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpfeed._errors import SignatureError
from mpfeed._leaves import Array, is_text, leaves_of
from mpfeed._structure import flatten, paths


@dataclass(frozen=True, slots=True)
class _Padded:
    value: Any

    def __call__(self, samples: list[Any]) -> Any:
        flat = [flatten(sample) for sample in samples]
        treespec = flat[0][1]
        for i, (_, other) in enumerate(flat):
            if other != treespec:
                raise SignatureError(f"sample {i} of a batch has the structure {other} where the first has {treespec}")
        arrays = [leaves_of(values, treespec)[0] for values, _ in flat]
        columns = zip(*arrays, strict=True)
        return treespec.unflatten([self._padded(list(c), k, paths(treespec)) for k, c in enumerate(columns)])

    def _padded(self, column: list[Array], k: int, names: list[str]) -> Array:
        ranks = {array.ndim for array in column}
        if len(ranks) > 1:
            raise SignatureError(f"leaf {names[k]} of a batch has {sorted(ranks)} dimensions: padding needs one number")
        shape = tuple(np.max([array.shape for array in column], axis=0)) if column[0].ndim else ()
        dtype = np.result_type(*column)
        out: Array = np.empty((len(column), *shape), dtype)
        if any(array.shape != shape for array in column):
            out[...] = _empty_text(column[0]) if is_text(column[0]) else self._fill(dtype, names[k])
        for i, array in enumerate(column):
            place: Any = (i, *map(slice, array.shape))
            out[place] = array[()]
        return out

    def _fill(self, dtype: np.dtype[Any], name: str) -> Any:
        """The value for a leaf of this dtype."""
        value = np.asarray(self.value)
        if dtype.kind == "b" and value.dtype.kind != "b":
            return False
        try:
            with np.errstate(all="ignore"):
                fill = value.astype(dtype)
            fits = _same(fill, value)
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise SignatureError(
                f"leaf {name} of a batch is {dtype}, which cannot hold the padding value {self.value!r}: give another "
                "(collate_padded(value)), cast the leaf in the source, or pad it there"
            )
        return fill


def _same(fill: Array, value: Array) -> bool:
    """Whether a cast kept the value; a float may have been rounded."""
    if fill.dtype.kind in "mM" or value.dtype.kind == "O":
        return True
    if value.dtype.kind == "c" and fill.dtype.kind != "c":
        return False
    if fill.dtype.kind in "fc" or (fill.dtype.kind == "V" and "int" not in fill.dtype.name):  # V: ml_dtypes
        return bool(np.all(np.isfinite(fill) == np.isfinite(value)))
    return bool(np.all(fill.astype(value.dtype) == value))


def collate_padded(value: Any = 0) -> Any:
    """A collate that pads each leaf to the largest shape in its batch, at the end of each axis, then stacks.

    Args:
        value: what numeric leaves are padded with; text is padded with empty strings, and bool with False where the
            value is no bool.

    Returns:
        A function for ``collate=``. It raises ``SignatureError`` where structures, or numbers of dimensions, differ, or
        a leaf that needs padding cannot hold the value.
    """
    return _Padded(value)


def _empty_text(array: Array) -> str | bytes:
    return b"" if isinstance(next(iter(array.flat), ""), bytes) else ""
