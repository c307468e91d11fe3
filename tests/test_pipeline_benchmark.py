"""The pipeline benchmark compares like with like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import pipeline
from benchmarks._job import Workload
from benchmarks._pipeline import BACKENDS, BATCH, KINDS
from benchmarks._source import Source

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.timeout(120, method="thread")


def batches(row: str) -> list[Any]:
    source = Source("benchmarks._augment:bare", {"images": 2 * BATCH})
    with BACKENDS[row].open(Workload("test", source, 2, 0.0, 2), 2) as stream:
        return [np.array(batch) for batch in stream]


@pytest.mark.parametrize("step", ["serial", "parallel"])
def test_the_python_kinds_do_the_same_work(step: str) -> None:
    first = batches(f"numpy_function/{step}")
    assert [batch.shape for batch in first] == [(BATCH, 224, 224, 3)] * 2
    for kind in ("py_function", "mpfeed"):
        np.testing.assert_array_equal(batches(f"{kind}/{step}"), first)


def test_every_row_that_is_asked_for_is_there() -> None:
    jobs = list(pipeline._jobs(list(KINDS), ["steps", "calls"], 2000, 2, 1.0))
    assert {job.backend for job in jobs} == set(BACKENDS)
    assert len({(job.workload.name, job.backend) for job in jobs}) == len(jobs)
