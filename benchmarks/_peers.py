"""What the ways of others have in common: sources as they want them, and tensors where they stop before.

A peer that runs a generator in every worker gets the shards that mpfeed gets. A peer that calls a function with a
number, as datasets with random access do, gets a function that makes the batch of that number.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import numpy as np

from benchmarks import references
from benchmarks._job import Workload
from benchmarks._source import Shard, leaves
from benchmarks.references import Stream

MANY = 20_000  # batches, where a peer wants to know how many: more than are measured

Open = Callable[[Workload, int], AbstractContextManager[Stream]]
T = TypeVar("T")


class Item(Shard):
    """The shard whose first batch has the number ``index``, and which chooses among all samples."""

    __slots__ = ()

    def of(self, samples: Sequence[T]) -> Iterator[T]:
        return iter(samples)


class Numbered:
    """A source as a function of the batch's number; it can be pickled.

    A source that costs nothing, because it yields one array again and again, costs nothing here either.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._made: tuple[int, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Numbered, (self._workload,)

    def __call__(self, number: int) -> tuple[Any, ...]:
        source = self._workload.source
        if not self._workload.marked:
            return tuple(leaves(next(source.batches(Item(int(number))))))
        if self._made is None or self._made[0] != os.getpid():  # a fork's own, so that copies can be told
            self._made = os.getpid(), tuple(leaves(next(source.batches(Shard()))))
        batch: tuple[Any, ...] = self._made[1]
        return batch

    def named(self, number: int) -> dict[str, Any]:
        """The batch as a dict, its arrays in order."""
        return {str(i): leaf for i, leaf in enumerate(self(number))}


def shard_batches(workload: Workload, index: int, count: int) -> Iterator[tuple[Any, ...]]:
    """The batches of one shard as tuples of arrays."""
    return (tuple(leaves(batch)) for batch in workload.source.batches(Shard(index, count)))


def into_tensors(opened: Open) -> Open:
    """The same peer behind ``from_generator`` and ``prefetch``, which take its arrays as they are."""

    @functools.wraps(opened)
    @contextmanager
    def open_tensors(workload: Workload, workers: int) -> Iterator[Stream]:
        import tensorflow as tf

        with opened(workload, workers) as stream:

            def batches() -> Iterator[Any]:
                return (tuple(np.asarray(leaf) for leaf in leaves(batch)) for batch in stream)

            made = tf.data.Dataset.from_generator(batches, output_signature=references.signature(workload))
            yield made.prefetch(tf.data.AUTOTUNE)

    return open_tensors
