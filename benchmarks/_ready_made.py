"""Sources that make nothing, so that what carries their batches is all there is to measure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks._places import mark

_ALIGNMENT = 64  # from where on TensorFlow takes an array without a copy


def ready_made(shard: Any, shape: tuple[int, ...], dtype: str) -> Iterator[Any]:
    """One array, again and again."""
    return itertools.repeat(marked(tuple(shape), dtype))


def in_place(shard: Any, shape: tuple[int, ...], dtype: str) -> Iterator[Any]:
    """Arrays of ``mpfeed.empty``, whose values are whatever is there."""
    import mpfeed

    while True:
        array = mpfeed.empty(tuple(shape), dtype)
        mark(array)
        yield array


def tuples(shard: Any, shape: tuple[int, ...], dtype: str, made_in_place: bool = False) -> Iterator[Any]:
    """Either of these in a tuple, as most sources have several arrays."""
    made = in_place if made_in_place else ready_made
    return ((array,) for array in made(shard, shape, dtype))


def marked(shape: tuple[int, ...], dtype: str) -> Any:
    """An aligned array of random bytes that begins with its own place."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    memory = memory[start : start + nbytes]
    memory[:] = np.random.default_rng(0).integers(0, 64, nbytes, np.uint8)  # below 64: no float is NaN
    mark(memory)
    return memory.view(dtype).reshape(shape)
