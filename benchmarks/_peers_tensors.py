"""Peers that end in TensorFlow's tensors, each as its own documentation recommends."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import references
from benchmarks._job import Workload
from benchmarks._peers import MANY, Numbered, shard_batches
from benchmarks._ray import local_ray
from benchmarks.references import Stream

_SHARED_MEMORY = Path("/dev/shm")

_IN_FLIGHT = 2
_ITEMS = 4096
_BLOCK_BYTES = 64 << 20


@contextmanager
def ray_actors(workload: Workload, workers: int) -> Iterator[Stream]:
    """An actor a worker, two calls in flight to each, their results in turn through `ray.get`."""
    import ray

    class Maker:
        def __init__(self, index: int) -> None:
            self._batches = shard_batches(workload, index, workers)

        def next(self) -> Any:
            return next(self._batches)

    def batches(actors: list[Any]) -> Iterator[Any]:
        calls = [actor.next.remote() for _ in range(_IN_FLIGHT) for actor in actors]
        for actor in itertools.cycle(actors):
            yield ray.get(calls.pop(0))
            calls.append(actor.next.remote())

    with local_ray(workers):
        actors = [ray.remote(num_cpus=1)(Maker).remote(index) for index in range(workers)]
        yield batches(actors)


@contextmanager
def ray_data(workload: Workload, workers: int) -> Iterator[Stream]:
    """`ray.data.range().map_batches().iter_tf_batches()`, in blocks of about 64 MB."""
    import ray
    from ray.data import DataContext

    numbered = Numbered(workload)
    rows = workload.leaves[0].shape[0]
    size = sum(leaf.nbytes for leaf in workload.leaves)
    blocks = _ITEMS // max(1, _BLOCK_BYTES // size)

    def make(numbers: dict[str, Any]) -> dict[str, Any]:
        batch = numbered(numbers["id"][0])
        return {
            str(i): leaf if len(leaf) == rows else np.repeat(leaf, rows) for i, leaf in enumerate(batch)
        }  # a column has as many rows as the others: the batch's number is repeated

    with local_ray(workers):
        DataContext.get_current().enable_progress_bars = False
        made = ray.data.range(_ITEMS, override_num_blocks=blocks).map_batches(make, batch_size=1, zero_copy_batch=True)
        yield made.iter_tf_batches(batch_size=rows)


@contextmanager
def keras(workload: Workload, workers: int) -> Iterator[Stream]:
    """`PyDataset(workers=, use_multiprocessing=True)`, as `model.fit` reads it."""
    import keras as library
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    numbered = Numbered(workload)

    class Batches(library.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return MANY

        def __getitem__(self, number: int) -> Any:
            return numbered(number)

    adapter = PyDatasetAdapter(Batches(workers=workers, use_multiprocessing=True), shuffle=False)
    made = adapter.get_tf_dataset()
    adapter.on_epoch_begin()
    try:
        yield made
    finally:
        adapter.on_epoch_end()


class Collated:
    """Makes a batch of the one row it is given; it can be pickled."""

    def __init__(self, numbered: Numbered) -> None:
        self._numbered = numbered

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        return self._numbered.named(int(rows[0]["number"]))


@contextmanager
def hugging_face(workload: Workload, workers: int) -> Iterator[Stream]:
    """`Dataset.to_tf_dataset(num_workers=, collate_fn=)`; it makes every integer an int64."""
    from datasets import Dataset

    numbers = Dataset.from_dict({"number": list(range(MANY))})
    before = set(_SHARED_MEMORY.glob("dw_*"))
    try:
        yield numbers.to_tf_dataset(
            batch_size=1, collate_fn=Collated(Numbered(workload)), num_workers=workers, num_test_batches=1
        )
    finally:  # its workers and their shared memory outlive an iteration that is not read to its end
        for process in psutil.Process().children():
            process.kill()
            process.wait()
        for left in set(_SHARED_MEMORY.glob("dw_*")) - before:
            left.unlink(missing_ok=True)


@contextmanager
def tf_map(workload: Workload, workers: int) -> Iterator[Stream]:
    """`Dataset.range().map(tf.numpy_function)` with a thread a worker, in the training process."""
    import tensorflow as tf

    numbered = Numbered(workload)
    specs = references.signature(workload)

    def made(number: Any) -> Any:
        tensors = tf.numpy_function(numbered, [number], [spec.dtype for spec in specs])
        for tensor, spec in zip(tensors, specs, strict=True):
            tensor.set_shape(spec.shape)
        return tuple(tensors)

    options = tf.data.Options()
    options.threading.private_threadpool_size = workers + 2  # otherwise as many threads as cores
    mapped = tf.data.Dataset.range(10**9).map(made, num_parallel_calls=workers)
    yield mapped.prefetch(tf.data.AUTOTUNE).with_options(options)
