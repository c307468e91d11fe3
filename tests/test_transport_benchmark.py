"""What the transport benchmark says of copies is so, and its rows survive being written down."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import _run, _transport
from benchmarks._job import Job, Limits
from benchmarks._places import copies, mark
from benchmarks._rows import Row, read, write

ROOT = Path(__file__).resolve().parents[1]
SHAPE = (1 << 20,)


def measured(backend: str) -> Row:
    workload = _transport.workload("1MiB", SHAPE, "uint8", None, workers=1)
    limits = Limits(warm_up=3, seconds=0.1, after_s=0.1)
    return _run.run(Job(workload, backend, limits, _transport.__name__), lambda progress: None)


def marked() -> Any:
    array = np.zeros(64, np.uint8)
    mark(array)
    return array


def test_an_array_is_where_its_source_had_it_and_its_copy_is_not() -> None:
    array = marked()
    assert copies(array) == (0, 0)
    assert copies(array.copy()) == (0, 1)


def test_one_file_mapped_twice_is_one_place() -> None:
    descriptor = os.memfd_create("places")
    os.ftruncate(descriptor, 2 * mmap.PAGESIZE)
    maps = [mmap.mmap(descriptor, 2 * mmap.PAGESIZE) for _ in range(2)]
    os.close(descriptor)
    first, second = (np.frombuffer(mapped, np.uint8)[mmap.PAGESIZE :] for mapped in maps)
    mark(first)
    assert copies(second) == (0, 0)
    second[64:128] = second[:64]
    assert copies(second[64:128]) == (1, 0)


def test_private_memory_of_another_process_was_copied_at_both_ends() -> None:
    code = "import numpy as np, sys; from benchmarks._places import mark; a = np.zeros(64, np.uint8); mark(a); "
    code += "sys.stdout.buffer.write(a.tobytes())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert copies(np.frombuffer(done.stdout, np.uint8)) == (1, 1)


def test_an_array_without_a_mark_tells_nothing() -> None:
    assert copies(np.zeros(64, np.uint8)) is None
    assert copies(np.zeros(4, np.uint8)) is None


@pytest.mark.parametrize(
    ("backend", "counted"),
    [("shared_memory/numpy", (1, 0)), ("empty/numpy", (0, 0)), ("queue/numpy", (1, 1)), ("inprocess/numpy", (0, 1))],
)
def test_copies_of_each_transport_into_numpy(backend: str, counted: tuple[int, int]) -> None:
    row = measured(backend)
    assert row.fault is None, row.error
    assert row.outcome is not None
    assert row.outcome.copies == counted
    assert row.outcome.batch_bytes == SHAPE[0]
    assert row.outcome.holds == "numpy.ndarray"


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    row = measured("loop")
    write([row], tmp_path / "rows.json")
    (again,) = read(tmp_path / "rows.json")
    assert again.to_json() == row.to_json()
