"""The process of one row of ``benchmarks.map``: reads what to measure from stdin, writes what it saw to stdout."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

from benchmarks._map_loaders import LOADERS, Load

Epochs = Callable[[], Iterable[Any]]
_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """A row to measure.

    Attributes:
        question: "items", "slow" or "boundary".
        loader: by name, and its options.
        batches: to read in all ("items").
        epochs: to measure, beside those of the warm-up.
        step_s: of a training step ("boundary").
    """

    question: str
    load: Load
    loader: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    batches: int = 0
    epochs: int = 0
    step_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Wanted:
        return cls(**{**data, "load": Load(**data["load"])})


def first_batch_and_memory(epochs: Epochs, wanted: Wanted) -> dict[str, Any]:
    """Seconds from ``iter()`` to the first batch, start of the workers included; then what the workers hold."""
    begun = time.perf_counter()
    iterator = iter(epochs())
    next(iterator)
    first_s = time.perf_counter() - begun
    for _ in range(wanted.batches - 1):
        next(iterator)
    passed_s = time.perf_counter() - begun
    workers = [child.memory_full_info() for child in psutil.Process().children(recursive=True)]
    return {
        "first_batch_s": first_s,
        "batches_per_s": (wanted.batches - 1) / (passed_s - first_s),
        "own_bytes": [memory.uss for memory in workers],
        "share_bytes": [memory.pss for memory in workers],
    }


def work_and_wall(epochs: Epochs, wanted: Wanted) -> dict[str, Any]:
    """Each epoch's wall time, and the time that its items took in the workers, as they say themselves."""
    for _ in range(_WARM_UP):
        _read(epochs)
    rows = []
    for _ in range(wanted.epochs):
        begun = time.perf_counter()
        work_s = _read(epochs)
        rows.append((work_s, time.perf_counter() - begun))
    work_s, wall_s = (sum(column) for column in zip(*rows, strict=True))
    return {"epochs": rows, "of_ideal": work_s / wanted.load.workers / wall_s}


def _read(epochs: Epochs) -> float:
    return sum(float(batch.sum()) for batch in epochs())


def boundaries(epochs: Epochs, wanted: Wanted) -> dict[str, Any]:
    """Each epoch's waits, iterator and all; the first of an epoch beside the others, and beside those of its own turn.

    In order, batch k is worker k mod n's, so that where workers keep in step the waits alternate, and which of them is
    the median of the others is chance.
    """
    waits_ms = [_waits_ms(epochs, wanted.step_s) for _ in range(_WARM_UP + wanted.epochs)][_WARM_UP:]
    median_ms = statistics.median(wait for epoch in waits_ms for wait in epoch[1:])
    turn = wanted.load.workers
    firsts_ms = [epoch[0] for epoch in waits_ms]
    return {
        "waits_ms": waits_ms,
        "median_ms": median_ms,
        "turn_ms": statistics.median(wait for epoch in waits_ms for wait in epoch[turn::turn]),
        "first_median_ms": statistics.median(firsts_ms),
        "first_max_ms": max(firsts_ms),
        "ratio": statistics.median(firsts_ms) / median_ms,
    }


def _waits_ms(epochs: Epochs, step_s: float) -> list[float]:
    waits, asked = [], time.perf_counter()
    for _ in epochs():
        waits.append((time.perf_counter() - asked) * 1e3)
        time.sleep(step_s)
        asked = time.perf_counter()
    return waits


QUESTIONS: dict[str, Callable[[Epochs, Wanted], dict[str, Any]]] = {
    "items": first_batch_and_memory, "slow": work_and_wall, "boundary": boundaries,
}  # fmt: skip


def main() -> None:
    wanted = Wanted.from_json(json.load(sys.stdin))
    with LOADERS[wanted.loader](wanted.load, **wanted.options) as epochs:
        seen = QUESTIONS[wanted.question](epochs, wanted)
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
