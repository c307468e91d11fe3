"""A long stream whose batches vary in size leaves memory, descriptors and threads as it found them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import mpfeed
from mpfeed import Feed

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
BATCHES, WARM_UP = 20_000, 1_000
GROWTH_BYTES = 32 << 20  # the largest batch has 2 MB


def varying(shard: mpfeed.Shard) -> Iterator[Any]:
    for number in shard.of(range(BATCHES)):
        rows = 1 + number * 7919 % 500 if number % 50 else 5000
        yield {"rows": np.full((rows, 100), number % 251, np.float32), "number": np.int64(number)}


def held() -> tuple[int, int, int]:
    """(bytes of this process and its children but for files, such as libraries; descriptors; threads)."""
    process = psutil.Process()
    family = [process, *process.children(recursive=True)]
    return sum(own_bytes(p.pid) for p in family), process.num_fds(), threading.active_count()


def own_bytes(pid: int) -> int:
    """Anonymous and shared memory, the latter in parts of those who map it (Linux: Documentation/filesystems/proc)."""
    entries = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(entry[1]) << 10 for entry in entries if entry[0] in ("Pss_Anon:", "Pss_Shmem:"))


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("transport", ["shared_memory", "queue"])
def test_batches_of_varying_size_leave_everything_flat(
    transport: Any, tensors: bool, keep: Callable[[Feed], Feed]
) -> None:
    feed = keep(mpfeed.from_generator(varying, workers=2, backend=mpfeed.Process(transport=transport)))
    batches: Any = feed
    if tensors:
        tf = pytest.importorskip("tensorflow")
        spec = {"rows": tf.TensorSpec((None, 100), tf.float32), "number": tf.TensorSpec((), tf.int64)}
        batches = feed.dataset(output_signature=spec)
    before = (0, 0, 0)
    for number, batch in enumerate(batches):
        assert int(batch["number"]) == number
        if number == WARM_UP:
            before = held()
    after = held()
    assert number == BATCHES - 1
    assert after[0] - before[0] < GROWTH_BYTES
    assert after[1:] == before[1:]
