"""One row of ``benchmarks.storage``, in a process of its own: objects read as fast as they come."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

BUCKET = "images"
KEYS = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}


@dataclass(frozen=True, slots=True)
class Reading:
    """How a row reads.

    Attributes:
        form: "mpfeed", "threads" (mpfeed in-process) or "tf.data" (``map`` of ``numpy_function``).
        in_flight: reads of a worker at a time.
        objects: in the bucket.
        seconds: to measure; None: two whole epochs, the second from ``cache``.
    """

    form: str
    workers: int
    in_flight: int
    url: str
    objects: int
    seconds: float | None = 4.0
    cache: str | None = None

    @property
    def label(self) -> str:
        kind = {"mpfeed": "processes", "threads": "threads", "tf.data": "tf.data threads"}[self.form]
        return f"{self.workers} {kind} × {self.in_flight} reads"


def file_system(reading: Reading) -> Any:
    """What reads, with connections of its own."""
    import fsspec

    # s3fs asks for the size of an object before it reads it, in parts if it is large; not with one part at a time.
    options = {"endpoint_url": reading.url, "config_kwargs": {"max_pool_connections": 64}, "max_concurrency": 1}
    if reading.cache is None:
        return fsspec.filesystem("s3", **options)
    return fsspec.filesystem("simplecache", target_protocol="s3", target_options=options, cache_storage=reading.cache)


def paths(objects: int) -> list[str]:
    """The names of the objects."""
    return [f"{BUCKET}/{number:05d}.jpg" for number in range(objects)]


def _source(reading: Reading) -> Callable[[Any], Iterator[Any]]:
    import cv2
    import numpy as np

    import mpfeed

    def ahead(names: Iterable[str]) -> Iterator[bytes]:
        files, pool = mpfeed.worker().state
        window: deque[Any] = deque()
        for name in names:
            window.append(pool.submit(files.cat_file, name))
            if len(window) > reading.in_flight:
                yield window.popleft().result()
        for future in window:
            yield future.result()

    def source(shard: Any) -> Iterator[Any]:
        for data in ahead(shard.of(paths(reading.objects))):
            yield cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)

    return source


def _feed(reading: Reading) -> Any:
    import mpfeed

    def opened() -> Any:
        return file_system(reading), ThreadPoolExecutor(reading.in_flight)

    return mpfeed.from_generator(
        _source(reading), workers=reading.workers, worker_init=opened,
        backend="process" if reading.form == "mpfeed" else "inprocess",
    )  # fmt: skip


def _tf_data(reading: Reading) -> Iterator[Any]:
    import cv2
    import numpy as np
    import tensorflow as tf

    files = file_system(reading)

    def load(name: bytes) -> Any:
        return cv2.imdecode(np.frombuffer(files.cat_file(name.decode()), np.uint8), cv2.IMREAD_COLOR)

    names = tf.data.Dataset.from_tensor_slices(paths(reading.objects)).repeat()
    parallel = reading.workers * reading.in_flight
    return iter(
        names.map(lambda name: tf.numpy_function(load, [name], tf.uint8), num_parallel_calls=parallel).prefetch(16)
    )


def _timed(elements: Iterator[Any], warm_up: int, seconds: float) -> tuple[int, float]:
    """(elements taken, seconds they took), after a warm-up."""
    for _ in range(warm_up):
        next(elements)
    begun = time.perf_counter()
    end, taken = begun + seconds, 0
    while time.perf_counter() < end:
        next(elements)
        taken += 1
    return taken, time.perf_counter() - begun


def _latency_s(reading: Reading) -> float:
    """The median of single reads, one after the other, with nothing else going on."""
    files, took = file_system(reading), []
    for name in paths(25):
        begun = time.perf_counter()
        files.cat_file(name)
        took.append(time.perf_counter() - begun)
    return statistics.median(took[5:])


def _endless(feed: Any) -> Iterator[Any]:
    while True:
        yield from feed


def measure(reading: Reading) -> dict[str, Any]:
    """The row's figures."""
    import psutil

    psutil.cpu_percent()
    if reading.seconds is None:
        return _epochs(reading)
    latency_s = _latency_s(reading)
    warm_up = 4 * reading.workers * reading.in_flight
    if reading.form == "tf.data":
        elements = _tf_data(reading)
        psutil.cpu_percent()
        taken, took_s = _timed(elements, warm_up, reading.seconds)
    else:
        with _feed(reading) as feed:
            psutil.cpu_percent()
            taken, took_s = _timed(_endless(feed), warm_up, reading.seconds)
    rate, ideal = taken / took_s, reading.workers * reading.in_flight / latency_s
    cpu = psutil.cpu_percent() / 100
    return {
        "latency_ms": latency_s * 1e3,
        "reads_per_s": rate,
        "ideal_per_s": ideal,
        "of_ideal": rate / ideal,
        "cpu": cpu,
    }


def _epochs(reading: Reading) -> dict[str, Any]:
    rates = []
    with _feed(reading) as feed:
        feed.element_spec  # noqa: B018 - the workers are up before the clock starts
        for _ in range(2):
            begun = time.perf_counter()
            count = sum(1 for _ in feed)
            rates.append(count / (time.perf_counter() - begun))
    return {"first_epoch_per_s": rates[0], "second_epoch_per_s": rates[1]}


if __name__ == "__main__":
    os.environ |= KEYS
    asked = Reading(**json.loads(sys.argv[1]))
    print(json.dumps({"reading": asdict(asked), "label": asked.label, **measure(asked)}))
    sys.stdout.flush()
    os._exit(0)  # connections of a file system may linger
