"""What a row is to measure, as data: it travels to the row's process as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks._source import Source


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a batch."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Workload:
    """A source, and the training loop it is made for.

    Attributes:
        leaves: the arrays of a batch, a tuple of these; empty where only the source knows.
        numbered: the first value of a batch's last array is the batch's own number, by which one that comes
            twice is seen.
        marked: a batch begins with the place where its source had it (``benchmarks._places``), by which copies
            are seen.
        step_s: seconds of a training step.
        batches: batches to measure.
    """

    name: str
    source: Source
    workers: int
    step_s: float
    batches: int
    leaves: tuple[Leaf, ...] = ()
    numbered: bool = False
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """When a row has seen enough.

    Attributes:
        warm_up: batches before the measured ones; a row is spared the rest of them after three in a row that
            each took longer than ``slow_s``.
        seconds: the measured batches, at least five, end after so many; None: not before they are done.
        after_s: seconds for which the loop goes on unmeasured while the memory is looked at.
        silence_s: a row that shows no sign of life for so long has failed.
    """

    warm_up: int = 10
    slow_s: float = 0.3
    seconds: float | None = 5.5
    after_s: float = 0.6
    silence_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Job:
    """One row to measure: a workload through a backend, as the module ``table`` names it in ``BACKENDS``."""

    workload: Workload
    backend: str
    limits: Limits
    table: str = "benchmarks._backends"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Job:
        workload = dict(data["workload"])
        workload["source"] = Source(**workload["source"])
        workload["leaves"] = tuple(Leaf(tuple(leaf["shape"]), leaf["dtype"]) for leaf in workload["leaves"])
        return cls(Workload(**workload), data["backend"], Limits(**data["limits"]), data["table"])
