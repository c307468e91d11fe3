"""The rows of the transport benchmark: batches that cost nothing to make, and what carries them.

Each way is measured into NumPy arrays and into tensors. A workload that yields samples is batched by mpfeed, and
in rows that end in ``rebatch`` by the ``batch`` of tf.data.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from benchmarks import _ready_made
from benchmarks._backends import Backend
from benchmarks._job import Leaf, Workload
from benchmarks._ray import local_ray
from benchmarks._ready_made import marked
from benchmarks._source import Source
from benchmarks.references import Stream

CHUNK = 256
_IN_FLIGHT = 2

_Open = Callable[[Workload, int], AbstractContextManager[Stream]]


# -------------------------------------------------------------------------------------- limits, for NumPy


@contextmanager
def loop(workload: Workload, workers: int) -> Iterator[Stream]:
    """The measuring loop with nothing to do."""
    yield itertools.repeat(_batch(workload))


@contextmanager
def copyto(workload: Workload, workers: int) -> Iterator[Stream]:
    """One ``numpy.copyto`` of a batch's bytes, in one thread."""
    source = _batch(workload)
    target = np.empty_like(source)

    def copied() -> Iterator[Any]:
        while True:
            np.copyto(target, source)
            yield target

    yield copied()


@contextmanager
def bare_ray(workload: Workload, workers: int) -> Iterator[Stream]:
    """One actor that puts, and a driver that gets and asks again."""
    import ray

    with local_ray(1):
        actor = _putter(workload)
        yield (ray.get(ray.get(actor.put.remote())[0]) for _ in itertools.count())


@contextmanager
def ray_actors(workload: Workload, workers: int) -> Iterator[Stream]:
    """An actor a worker, two calls in flight to each, their results taken in turn."""
    import ray

    with local_ray(workers):
        actors = [_putter(workload) for _ in range(workers)]
        yield (ray.get(call) for call in _calls(actors))


def _calls(actors: list[Any]) -> Iterator[Any]:
    calls = [actor.get.remote() for _ in range(_IN_FLIGHT) for actor in actors]
    for actor in itertools.cycle(actors):
        yield calls.pop(0)
        calls.append(actor.get.remote())


def _putter(workload: Workload) -> Any:
    import ray

    class Putter:
        def __init__(self) -> None:
            self._batch = _batch(workload)

        def put(self) -> list[Any]:
            return [ray.put(self._batch)]

        def get(self) -> Any:
            return self._batch

    return ray.remote(num_cpus=1)(Putter).remote()


# ----------------------------------------------------------------------------------- limits, for tensors


@contextmanager
def prebuilt(workload: Workload, workers: int) -> Iterator[Stream]:
    """``from_generator`` over one aligned array, which it aliases."""
    yield _tensors(_batch(workload)).prefetch(_autotune())


@contextmanager
def prebuilt_samples(workload: Workload, workers: int) -> Iterator[Stream]:
    """``from_generator`` over one sample, batched by tf.data."""
    yield _tensors(_sample(workload)).batch(_batch_size(workload))


@contextmanager
def prebuilt_chunks(workload: Workload, workers: int) -> Iterator[Stream]:
    """``from_generator`` over one chunk of samples, split and batched by tf.data in C++."""
    leaf = workload.leaves[0]
    chunk = marked((CHUNK, *leaf.shape[1:]), leaf.dtype)
    yield _tensors(chunk).unbatch().batch(_batch_size(workload))


def _tensors(array: Any) -> Any:
    import tensorflow as tf

    spec = tf.TensorSpec(array.shape, array.dtype)
    return tf.data.Dataset.from_generator(lambda: itertools.repeat(array), output_signature=spec)


def _autotune() -> int:
    import tensorflow as tf

    return int(tf.data.AUTOTUNE)


# -------------------------------------------------------------------------------------------------- mpfeed


def _numpy(make: Callable[[], Any]) -> _Open:
    @contextmanager
    def open_feed(workload: Workload, workers: int) -> Iterator[Stream]:
        with _feed(workload, workers, make(), workload.source.batch_size) as feed:
            yield feed

    return open_feed


def _tensor(make: Callable[[], Any]) -> _Open:
    @contextmanager
    def open_feed(workload: Workload, workers: int) -> Iterator[Stream]:
        with _feed(workload, workers, make(), workload.source.batch_size) as feed:
            yield feed.dataset()

    return open_feed


def _rebatch(make: Callable[[], Any]) -> _Open:
    @contextmanager
    def open_feed(workload: Workload, workers: int) -> Iterator[Stream]:
        with _feed(workload, workers, make(), None) as feed:
            yield feed.dataset().batch(_batch_size(workload))

    return open_feed


def _in_place(opened: _Open) -> _Open:
    """The same way for a source that makes its arrays where they travel from."""

    def open_feed(workload: Workload, workers: int) -> AbstractContextManager[Stream]:
        source = Source(f"{_ready_made.__name__}:in_place", workload.source.options)
        return opened(Workload(workload.name, source, workers, 0.0, workload.batches, workload.leaves), workers)

    return open_feed


def _feed(workload: Workload, workers: int, backend: Any, batch_size: int | None) -> Any:
    import mpfeed

    return mpfeed.from_generator(workload.source.function, workers=workers, batch_size=batch_size, backend=backend)


def _process(transport: str) -> Callable[[], Any]:
    def make() -> Any:
        import mpfeed

        return mpfeed.Process(transport=transport)  # type: ignore[arg-type]

    return make


# --------------------------------------------------------------------------------------------- the table


def _batch(workload: Workload) -> Any:
    return marked(workload.leaves[0].shape, workload.leaves[0].dtype)


def _sample(workload: Workload) -> Any:
    return marked(workload.leaves[0].shape[1:], workload.leaves[0].dtype)


def _batch_size(workload: Workload) -> int:
    assert workload.source.batch_size is not None
    return workload.source.batch_size


_WAYS: dict[str, tuple[str, Callable[[], Any]]] = {
    "inprocess": ("inprocess", lambda: "inprocess"),
    "shared_memory": ("shared_memory", _process("shared_memory")),
    "queue": ("queue", _process("queue")),
    "ray": ("ray", lambda: "ray"),
}


def _ways() -> Iterator[tuple[str, Backend]]:
    for name, (label, make) in _WAYS.items():
        row = functools.partial(Backend, parallel=name != "inprocess")
        yield f"{name}/numpy", row(f"mpfeed {label} → NumPy", _numpy(make), tensors=False)
        yield f"{name}/tensor", row(f"mpfeed {label} → tensor", _tensor(make))
        yield f"{name}/rebatch", row(f"mpfeed {label} → ds.batch", _rebatch(make))
        if name == "shared_memory":
            yield "empty/numpy", row("mpfeed.empty → NumPy", _in_place(_numpy(make)), tensors=False)
            yield "empty/tensor", row("mpfeed.empty → tensor", _in_place(_tensor(make)))


BACKENDS: dict[str, Backend] = {
    "loop": Backend("the loop alone", loop, parallel=False, tensors=False),
    "copyto": Backend("numpy.copyto", copyto, parallel=False, tensors=False),
    "prebuilt": Backend("prebuilt → from_generator", prebuilt, parallel=False),
    "prebuilt_samples": Backend("prebuilt samples → from_generator → ds.batch", prebuilt_samples, parallel=False),
    "prebuilt_chunks": Backend("prebuilt chunks → unbatch → ds.batch", prebuilt_chunks, parallel=False),
    "bare_ray": Backend("bare ray.put and ray.get, 1 actor", bare_ray, parallel=False, tensors=False),
    "bare_ray_actors": Backend("Ray actors by hand, {workers}", ray_actors, tensors=False),
    **dict(_ways()),
}


def workload(name: str, shape: tuple[int, ...], dtype: str, batch_size: int | None, workers: int) -> Workload:
    """Batches of one array, or samples of it where there is a batch size."""
    source = Source(f"{_ready_made.__name__}:ready_made", {"shape": list(shape), "dtype": dtype}, batch_size)
    batch = shape if batch_size is None else (batch_size, *shape)
    return Workload(name, source, workers, 0.0, 20_000, (Leaf(batch, dtype),), marked=True)
