"""Rows of several shards' messages in the order of the stream, as one message: for small samples, in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from mpfeed._layout import Layout, Leaf
from mpfeed._messages import Parcel
from mpfeed._runs import Span


class Counted(Protocol):
    """What counts the samples that were handed out."""

    taken: int


class Interleaved:
    """Stands for several shards, in turn, as the origin of a span."""

    def __init__(self, shards: Sequence[Counted]) -> None:
        self._shards = shards
        self._seen = 0

    @property
    def taken(self) -> int:
        """Rows of all of them that were handed out."""
        return self._seen

    @taken.setter
    def taken(self, value: int) -> None:
        for turn, shard in enumerate(self._shards):
            shard.taken += len(range(turn, value, len(self._shards))) - len(range(turn, self._seen, len(self._shards)))
        self._seen = value


def alike(one: Parcel, other: Parcel) -> bool:
    """Whether rows of two messages can follow one another in a third."""
    if one.layout is other.layout:
        return True
    return one.layout.treespec == other.layout.treespec and all(
        a.dtype == b.dtype and a.shape[1:] == b.shape[1:]
        for a, b in zip(one.layout.leaves, other.layout.leaves, strict=True)
    )


def interleaved(spans: list[Span]) -> Parcel:
    """Row r of every span, then row r + 1: one copy of small samples."""
    first = spans[0].parcel
    arrays = []
    for k in range(len(first.arrays)):
        columns = [span.parcel.arrays[k][span.start : span.start + span.count] for span in spans]
        merged = np.stack(columns, axis=1).reshape(-1, *columns[0].shape[1:])
        merged.flags.writeable = False
        arrays.append(merged)
    count = spans[0].count * len(spans)
    leaves = tuple(Leaf(f.dtype, (count, *f.shape[1:]), f.weak, -1, 0) for f in first.layout.leaves)
    return Parcel(Layout(first.layout.treespec, leaves), arrays, count, True, 0)
