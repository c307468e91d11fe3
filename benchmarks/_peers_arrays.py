"""Peers that end in NumPy arrays or PyTorch tensors, each as its own documentation recommends."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks._job import Workload
from benchmarks._peers import MANY, Numbered, shard_batches
from benchmarks.references import Stream

_AHEAD = 2  # batches a worker, as mpfeed's own default and PyTorch's
_HELD = 4  # segments of SPDL's pool beside those: what a consumer that prefetches holds on to


@contextmanager
def torch(workload: Workload, workers: int) -> Iterator[Stream]:
    """`DataLoader` over an `IterableDataset` that shards itself by `get_worker_info`, `batch_size=None`."""
    from torch.utils import data

    class Shards(data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            info = data.get_worker_info()
            return shard_batches(workload, info.id, info.num_workers)

    yield data.DataLoader(Shards(), batch_size=None, num_workers=workers, prefetch_factor=_AHEAD)


@contextmanager
def grain(workload: Workload, workers: int) -> Iterator[Stream]:
    """`MapDataset.range().map()`, no reading threads as for data in memory, and `mp_prefetch`."""
    import grain as library

    options = library.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=_AHEAD)
    numbers = library.MapDataset.range(MANY).map(Numbered(workload))
    reading = library.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    iterator = iter(numbers.to_iter_dataset(reading).mp_prefetch(options))
    try:
        yield iterator
    finally:
        iterator.close()


@contextmanager
def spdl_pool(workload: Workload, workers: int) -> Iterator[Stream]:
    """`iterate_in_subprocess` with a `SharedMemorySegmentPool`, a subprocess a worker, taken in turn."""
    from spdl.pipeline import SharedMemorySegmentPool

    size = sum(leaf.nbytes for leaf in workload.leaves) + (1 << 16)
    with _spdl(workload, [SharedMemorySegmentPool(size, _AHEAD + _HELD) for _ in range(workers)]) as stream:
        yield stream


@contextmanager
def spdl(workload: Workload, workers: int) -> Iterator[Stream]:
    """`iterate_in_subprocess` as it is, a subprocess a worker, taken in turn."""
    with _spdl(workload, [None] * workers) as stream:
        yield stream


@contextmanager
def _spdl(workload: Workload, arenas: list[Any]) -> Iterator[Stream]:
    from spdl.pipeline import iterate_in_subprocess

    count = len(arenas)
    shards = [
        iterate_in_subprocess(
            functools.partial(shard_batches, workload, index, count), buffer_size=_AHEAD, arena=arena, daemon=True
        )
        for index, arena in enumerate(arenas)
    ]
    with ExitStack() as ended:
        iterators = [iter(shard) for shard in shards]
        for iterator in iterators:
            ended.callback(getattr(iterator, "close", lambda: None))
        yield _in_turn(iterators)


def _in_turn(iterators: list[Iterator[Any]]) -> Iterator[Any]:
    while True:
        for iterator in iterators:
            yield next(iterator)


@contextmanager
def batchgenerators(workload: Workload, workers: int) -> Iterator[Stream]:
    """`MultiThreadedAugmenter` (which has processes) over a `SlimDataLoaderBase`."""
    from batchgenerators.dataloading.data_loader import SlimDataLoaderBase
    from batchgenerators.dataloading.multi_threaded_augmenter import MultiThreadedAugmenter

    class Loader(SlimDataLoaderBase):  # type: ignore[misc]
        batches: Iterator[Any] | None = None

        def generate_train_batch(self) -> dict[str, Any]:
            if self.batches is None:
                self.batches = shard_batches(workload, self.thread_id, workers)
            return {str(i): leaf for i, leaf in enumerate(next(self.batches))}

    loader = Loader(None, 1, number_of_threads_in_multithreaded=workers)
    augmenter = MultiThreadedAugmenter(loader, None, workers, num_cached_per_queue=_AHEAD)
    try:
        yield augmenter
    finally:
        augmenter._finish()


@contextmanager
def tensorpack(workload: Workload, workers: int) -> Iterator[Stream]:
    """`MultiProcessRunnerZMQ` over a `DataFlow`, whose queue holds 50 batches as it comes."""
    from tensorpack.dataflow import DataFlow, MultiProcessRunnerZMQ

    started = multiprocessing.get_context("fork").Value("i", 0)

    class Flow(DataFlow):  # type: ignore[misc]
        def reset_state(self) -> None:
            with started.get_lock():
                self.index = started.value
                started.value += 1

        def __iter__(self) -> Iterator[Any]:
            return (list(batch) for batch in shard_batches(workload, self.index, workers))

    runner = MultiProcessRunnerZMQ(Flow(), num_proc=workers)
    runner.reset_state()
    yield runner
