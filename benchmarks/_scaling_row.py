"""One row of ``benchmarks.scaling``, in a process of its own: reads the row as JSON, answers with what it saw."""

from __future__ import annotations

import functools
import itertools
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks._nodes import Nodes
from benchmarks.workloads import spin

_AHEAD = 3  # calls of one actor: buffer + 1


def source(shard: Any, sleep_s: float, spin_steps: int, nbytes: int) -> Iterator[Any]:
    """Endless elements: so much waiting, so much Python, so many bytes."""
    for number in itertools.count(shard.index, shard.count):
        if sleep_s:
            time.sleep(sleep_s)
        spin(spin_steps)
        yield np.full(nbytes, number % 251, np.uint8)


def measure(row: dict[str, Any]) -> dict[str, Any]:
    """Batches as fast as they come, for about ``seconds`` after the first ``warm_up`` of them."""
    samples = row["samples"] or 1
    make = functools.partial(
        source, sleep_s=row["sleep_s"], spin_steps=row["spin_steps"] // samples, nbytes=row["nbytes"] // samples
    )
    with ExitStack() as stack:
        batches = _bare_ray(row, make) if row["backend"] == "bare ray" else _fed(row, make, stack)
        begun_s = time.perf_counter()
        next(batches)
        first_s = time.perf_counter() - begun_s
        for _ in range(row["warm_up"]):
            next(batches)
        waits_ms, wall_s, cpu_s = _timed(batches, row["seconds"], row["workers"])
    return {"waits_ms": waits_ms, "wall_s": wall_s, "cpu_s": cpu_s, "first_s": first_s}


def _fed(row: dict[str, Any], make: Callable[[Any], Iterator[Any]], stack: ExitStack) -> Iterator[Any]:
    import mpfeed

    def shards(shard: Any) -> Iterator[Any]:
        yield from make(shard)

    backend = _backend(row, stack)
    feed = mpfeed.from_generator(shards, workers=row["workers"], backend=backend, batch_size=row["samples"])
    return iter(stack.enter_context(feed))


def _bare_ray(row: dict[str, Any], make: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
    """What Ray alone reaches: the same batches, by actors with as many calls ahead as a feed keeps."""
    import ray

    @ray.remote
    class Source:
        def __init__(self, index: int) -> None:
            self._batches = make(SimpleNamespace(index=index, count=row["workers"]))

        def next(self) -> Any:
            return np.stack(list(itertools.islice(self._batches, row["samples"])))

    ray.init(num_cpus=row["workers"], include_dashboard=False, log_to_driver=False, logging_level="warning")
    actors = [Source.remote(index) for index in range(row["workers"])]
    calls = deque((actor, actor.next.remote()) for _ in range(_AHEAD) for actor in actors)
    while True:
        actor, call = calls.popleft()
        yield ray.get(call)
        calls.append((actor, actor.next.remote()))


def _backend(row: dict[str, Any], stack: ExitStack) -> Any:
    import mpfeed

    if row["backend"] == "process":
        return "process"
    address = row["address"]
    if row["nodes"] and not address:
        nodes = stack.enter_context(Nodes(row["workers"]))
        nodes.add(row["nodes"])
        nodes.ready()
        address = nodes.address
    return mpfeed.Ray(address=address)


def _timed(batches: Iterator[Any], seconds: float, workers: int) -> tuple[list[float], float, float]:
    """(waits, seconds, CPU seconds) of whole rounds over the workers: they may come in bursts."""
    waits_ms: list[float] = []
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    while time.perf_counter() - begun_s < seconds or len(waits_ms) % workers:
        asked_s = time.perf_counter()
        next(batches)
        waits_ms.append((time.perf_counter() - asked_s) * 1e3)
    return waits_ms, time.perf_counter() - begun_s, time.process_time() - cpu_s


if __name__ == "__main__":
    print("\n" + json.dumps(measure(json.loads(sys.argv[1]))), flush=True)
