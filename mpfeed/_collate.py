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
        fill = _empty_text(column[0]) if is_text(column[0]) else self.value
        out: Array = np.full((len(column), *shape), fill, dtype)
        for i, array in enumerate(column):
            place: Any = (i, *map(slice, array.shape))
            out[place] = array[()]
        return out


def collate_padded(value: Any = 0) -> Any:
    """A collate that pads each leaf to the largest shape in its batch, at the end of each axis, then stacks.

    Args:
        value: what numeric leaves are padded with; text is padded with empty strings.

    Returns:
        A function for ``collate=``. It raises ``SignatureError`` where structures, or numbers of dimensions, differ.
    """
    return _Padded(value)


def _empty_text(array: Array) -> str | bytes:
    return b"" if isinstance(next(iter(array.flat), ""), bytes) else ""
