"""The rows that are not mpfeed: what people do without it, each as its own documentation recommends.

Every row of several workers gives each a shard of its own. ``ray.util.iter.from_iterators([g] * n)``, as it
is often copied, would deliver every batch n times: it would look n times faster than it is.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks._job import Workload
from benchmarks._ray import local_ray
from benchmarks._source import Shard, Source

Stream = Iterable[Any]


@contextmanager
def bare(workload: Workload, workers: int) -> Iterator[Stream]:
    """The source's own loop, nothing around it: what one process makes."""
    yield workload.source.batches(Shard())


@contextmanager
def bare_parallel(workload: Workload, workers: int) -> Iterator[Stream]:
    """So many bare loops at once that only report that a batch is done: what this machine allows at most."""
    reader, writer = os.pipe()
    started = [_start(_tick, writer, workload.source, Shard(i, workers)) for i in range(workers)]
    try:
        yield iter(functools.partial(os.read, reader, 1), b"")
    finally:
        _end(started)
        os.close(reader)
        os.close(writer)


def _tick(writer: int, source: Source, shard: Shard) -> None:
    for _ in source.batches(shard):
        os.write(writer, b".")


@contextmanager
def plain(workload: Workload, workers: int) -> Iterator[Stream]:
    """``from_generator`` and ``prefetch``: what tf.data's own guide shows."""
    yield _dataset(workload, lambda: workload.source.batches(Shard()))


@contextmanager
def interleave(workload: Workload, workers: int) -> Iterator[Stream]:
    """One ``from_generator`` a shard, run by as many threads of tf.data's ``interleave``."""
    import tensorflow as tf

    spec = signature(workload)

    def shard(index: Any) -> Any:
        def batches(index: Any) -> Iterator[Any]:
            return _tensors(workload.source.batches(Shard(int(index), workers)))

        return tf.data.Dataset.from_generator(batches, output_signature=spec, args=(index,))

    shards = tf.data.Dataset.range(workers)
    merged = shards.interleave(shard, cycle_length=workers, num_parallel_calls=workers, deterministic=False)
    # Without it TensorFlow has as many threads as cores, and no more generators run at a time.
    options = tf.data.Options()
    options.threading.private_threadpool_size = workers + 2
    yield merged.prefetch(tf.data.AUTOTUNE).with_options(options)


@contextmanager
def mp_queue(workload: Workload, workers: int) -> Iterator[Stream]:
    """Processes that put their batches into one ``multiprocessing.Queue``, and a generator that gets them."""

    def generator() -> Iterator[Any]:
        queue = _FORK.Queue(maxsize=2 * workers)  # as many batches ahead as mpfeed's default
        started = [_start(_put, queue, workload.source, Shard(i, workers)) for i in range(workers)]
        running = workers
        try:
            while running:
                batch = queue.get()
                if batch is None:
                    running -= 1
                elif isinstance(batch, str):
                    raise RuntimeError(batch)
                else:
                    yield batch
        finally:
            _end(started)

    yield _dataset(workload, generator)


def _put(queue: Any, source: Source, shard: Shard) -> None:
    try:
        for batch in source.batches(shard):
            queue.put(batch)
        queue.put(None)
    except Exception:
        queue.put(traceback.format_exc())


@contextmanager
def ray_iter(workload: Workload, workers: int) -> Iterator[Stream]:
    """``ray.util.iter.from_iterators(...).gather_async()``, deprecated and still copied."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.util import iter as parallel

    parts = [functools.partial(workload.source.batches, Shard(i, workers)) for i in range(workers)]
    with local_ray(workers):
        yield _dataset(workload, lambda: iter(parallel.from_iterators(parts).gather_async()))


# ------------------------------------------------------------------------------------- shared by the rows

# What a script on Linux gets when it asks for nothing; later Pythons no longer fork by default.
_FORK = multiprocessing.get_context("fork")


def _start(target: Callable[..., None], *arguments: Any) -> Any:
    process = _FORK.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def _end(processes: list[Any]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()


def _dataset(workload: Workload, generator: Callable[[], Iterator[Any]]) -> Any:
    import tensorflow as tf

    made = tf.data.Dataset.from_generator(lambda: _tensors(generator()), output_signature=signature(workload))
    return made.prefetch(tf.data.AUTOTUNE)


def _tensors(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches with tuples in place of lists, which TensorFlow would take for one array."""
    return map(_tuples, batches)


def _tuples(element: Any) -> Any:
    if isinstance(element, dict):
        return {key: _tuples(value) for key, value in element.items()}
    return tuple(_tuples(value) for value in element) if isinstance(element, (tuple, list)) else element


def signature(workload: Workload) -> Any:
    """What a batch looks like to TensorFlow; another's source is asked for one, of any batch size."""
    import tensorflow as tf

    if workload.leaves:
        return tuple(tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in workload.leaves)
    first = next(workload.source.batches(Shard()), None)
    if first is None:
        raise ValueError(f"the source {workload.source.name} gave no batch")
    return tf.nest.map_structure(_any_batch, _tuples(first))


def _any_batch(leaf: Any) -> Any:
    import tensorflow as tf

    array = np.asarray(leaf)
    dtype = tf.string if array.dtype.kind in "USO" else tf.dtypes.as_dtype(array.dtype)
    return tf.TensorSpec((None, *array.shape[1:]) if array.ndim else (), dtype)
