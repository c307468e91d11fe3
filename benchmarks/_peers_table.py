"""The rows of the comparison with others, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from benchmarks import _peers_arrays as arrays
from benchmarks import _peers_tensors as tensors
from benchmarks import _ready_made, references
from benchmarks._backends import ONE_THREAD, Backend
from benchmarks._job import Workload
from benchmarks._peers import Open, into_tensors
from benchmarks._source import Source
from benchmarks.references import Stream

IN_PLACE = "empty/tensor"
_WITH_KERAS = {**ONE_THREAD, "TF_USE_LEGACY_KERAS": "0"}  # these two look for it


def _mpfeed(make: Callable[[], Any], *, into_tensor: bool) -> Open:
    @contextmanager
    def open_feed(workload: Workload, workers: int) -> Iterator[Stream]:
        """`mpfeed.from_generator`."""
        import mpfeed

        with mpfeed.from_generator(workload.source.function, workers=workers, backend=make()) as feed:
            yield feed.dataset(output_signature=references.signature(workload)) if into_tensor else feed

    return open_feed


@contextmanager
def _empty(workload: Workload, workers: int) -> Iterator[Stream]:
    """`mpfeed.from_generator` over arrays of `mpfeed.empty`, which nothing is written into."""
    source = Source(f"{_ready_made.__name__}:tuples", {**workload.source.options, "made_in_place": True})
    opened = _mpfeed(lambda: "process", into_tensor=True)
    with opened(replace(workload, source=source), workers) as stream:
        yield stream


def _peer(label: str, opened: Open, **options: Any) -> Backend:
    return Backend(label, opened, environment=ONE_THREAD, **options)


def _array(label: str, opened: Open) -> Backend:
    return _peer(label, opened, tensors=False)


# mpfeed first, then those that end in a tensor, then those that stop before.
BACKENDS: dict[str, Backend] = {
    "mpfeed/tensor": Backend("mpfeed process", _mpfeed(lambda: "process", into_tensor=True)),
    IN_PLACE: Backend("mpfeed process, mpfeed.empty", _empty),
    "ray/tensor": Backend("mpfeed ray", _mpfeed(lambda: "ray", into_tensor=True)),
    "plain": Backend("tf.data from_generator", references.plain, parallel=False),
    "tf_map": _peer("tf.data map(numpy_function), {workers} threads", tensors.tf_map),
    "mp_queue": _peer("multiprocessing.Queue by hand", references.mp_queue),
    "ray_actors": _peer("Ray actors by hand", into_tensors(tensors.ray_actors)),
    "ray_data": _peer("Ray Data", tensors.ray_data),
    "keras": Backend("Keras PyDataset", tensors.keras, environment=_WITH_KERAS),
    "hugging_face": _peer("HF to_tf_dataset", tensors.hugging_face),
    "torch/tensor": _peer("PyTorch DataLoader → from_generator", into_tensors(arrays.torch)),
    "grain/tensor": _peer("Grain mp_prefetch → from_generator", into_tensors(arrays.grain)),
    "spdl_pool/tensor": _peer("SPDL segment pool → from_generator", into_tensors(arrays.spdl_pool)),
    "mpfeed/numpy": Backend("mpfeed process, NumPy", _mpfeed(lambda: "process", into_tensor=False), tensors=False),
    "torch": _array("PyTorch DataLoader", arrays.torch),
    "grain": _array("Grain mp_prefetch", arrays.grain),
    "spdl_pool": _array("SPDL segment pool", arrays.spdl_pool),
    "spdl": _array("SPDL", arrays.spdl),
    "batchgenerators": _array("batchgenerators", arrays.batchgenerators),
    "tensorpack": Backend("tensorpack ZMQ", arrays.tensorpack, tensors=False, environment=_WITH_KERAS),
}
