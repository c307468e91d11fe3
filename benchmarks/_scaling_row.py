"""One row of ``benchmarks.scaling``, in a process of its own: reads the row as JSON, answers with what it saw."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks._nodes import Nodes
from benchmarks.workloads import spin


def source(shard: Any, sleep_s: float, spin_steps: int, nbytes: int) -> Iterator[Any]:
    """Endless batches: so much waiting, so much Python, so many bytes."""
    for number in itertools.count(shard.index, shard.count):
        if sleep_s:
            time.sleep(sleep_s)
        spin(spin_steps)
        yield np.full(nbytes, number % 251, np.uint8)


def measure(row: dict[str, Any]) -> dict[str, Any]:
    """Batches as fast as they come, for ``seconds`` after the first ``warm_up`` of them."""
    import functools

    import mpfeed

    make = functools.partial(source, sleep_s=row["sleep_s"], spin_steps=row["spin_steps"], nbytes=row["nbytes"])
    with ExitStack() as stack:
        backend = _backend(row, stack)
        workers = row["workers"]

        def shards(shard: Any) -> Iterator[Any]:
            yield from make(shard)

        feed = stack.enter_context(mpfeed.from_generator(shards, workers=workers, backend=backend))
        batches = iter(feed)
        begun_s = time.perf_counter()
        next(batches)
        first_s = time.perf_counter() - begun_s
        for _ in range(row["warm_up"]):
            next(batches)
        waits_ms, wall_s, cpu_s = _timed(batches, row["seconds"])
        batches.close()
    return {"waits_ms": waits_ms, "wall_s": wall_s, "cpu_s": cpu_s, "first_s": first_s}


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


def _timed(batches: Iterator[Any], seconds: float) -> tuple[list[float], float, float]:
    waits_ms = []
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    while time.perf_counter() - begun_s < seconds:
        asked_s = time.perf_counter()
        next(batches)
        waits_ms.append((time.perf_counter() - asked_s) * 1e3)
    return waits_ms, time.perf_counter() - begun_s, time.process_time() - cpu_s


if __name__ == "__main__":
    print("\n" + json.dumps(measure(json.loads(sys.argv[1]))), flush=True)
