"""The training loop of a row: takes batches, times the taking alone, and lets the step pass.

The training step is a sleep: the CPU is as idle as while an accelerator works. A batch is dropped after its
step, as Keras does, so that what the dropping costs is in the wall time and not in the next batch's wait.

Left out: the copy to an accelerator (and the page faults of reading a batch for it), the work of the step's
own Python, and, in the waits, the batches of the warm-up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import psutil

from benchmarks._backends import backend_of
from benchmarks._job import Job, Limits
from benchmarks._places import copies
from benchmarks._source import leaves
from benchmarks.references import Stream
from mpfeed._loop import Loop

_FEWEST = 5
_REPORT_S = 0.25


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one row saw.

    Attributes:
        waits_ms: of each measured batch, how long the loop waited for it.
        warm_up: batches before those.
        first_batch_s: from asking for the stream until its first batch, start of all workers included.
        wall_s, cpu_s: of the measured batches; the CPU time is this process's, all its threads included.
        workers_cpu_s: CPU time of the processes that it started, and of theirs.
        others: share of the CPUs that processes of others used meanwhile.
        batch_bytes: bytes of a batch.
        holds: what the loop got for an array, as a type's name.
        seen: batches whose number was looked at, all phases included.
        repeated: how many of those had come before.
        copies: of a batch before it reached this process, and in it, as far as addresses tell; None if unknown.
    """

    waits_ms: tuple[float, ...]
    warm_up: int
    first_batch_s: float
    wall_s: float
    cpu_s: float
    workers_cpu_s: float
    others: float
    batch_bytes: int
    holds: str
    seen: int
    repeated: int
    copies: tuple[int, int] | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Outcome:
        copies = None if data["copies"] is None else tuple(data["copies"])
        return cls(**{**data, "waits_ms": tuple(data["waits_ms"]), "copies": copies})

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "waits_ms": [round(wait_ms, 4) for wait_ms in self.waits_ms]}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a row is. ``phase``: start, warm-up, measured, after."""

    phase: str
    done: int = 0
    wait_ms: float = 0.0


Report = Callable[[Progress], None]


class _Consumer(Loop):
    """A training loop that looks at its batches: their size, what holds them, which have come before."""

    def __init__(self, stream: Stream, step_s: float, numbered: bool) -> None:
        super().__init__(stream, step_s, self._look_at)
        self._numbered = numbered
        self._numbers: set[int] = set()
        self.looks_for_copies = False
        self.copies: tuple[int, int] | None = None
        self.batch_bytes = 0
        self.holds = ""
        self.seen = 0

    @property
    def repeated(self) -> int:
        return self.seen - len(self._numbers)

    def _look_at(self, batch: Any) -> None:
        if not self.batch_bytes:
            self.batch_bytes = sum(np.asarray(leaf).nbytes for leaf in leaves(batch))
            self.holds = _type_name(leaves(batch)[0])
        if self.looks_for_copies and (found := copies(np.asarray(leaves(batch)[0]))) is not None:
            self.copies = max(self.copies or found, found)
        if self._numbered:
            self.seen += 1
            self._numbers.add(int(np.asarray(leaves(batch)[-1]).flat[0]))


def measure(job: Job, report: Report) -> Outcome:
    """Open the job's backend and run the loop through its phases."""
    backend = backend_of(job)
    workload = job.workload
    if backend.tensors:
        _wake_tensorflow()
    report(Progress("start"))
    begun = time.perf_counter()
    with backend.open(workload, backend.workers(workload.workers)) as stream:
        step_s = workload.step_s if backend.trains else 0.0
        consumer = _Consumer(stream, step_s, workload.numbered and backend.numbers)
        opened_s = time.perf_counter() - begun
        first_batch_s = opened_s + consumer.take()
        outcome = _run(consumer, job, first_batch_s, _throttled(report))
        consumer.drop()
    return outcome


def _run(consumer: _Consumer, job: Job, first_batch_s: float, report: Report) -> Outcome:
    limits = job.limits
    warm_up = 1
    for wait_s in _for_warm_up(consumer, limits):
        warm_up += 1
        report(Progress("warm-up", warm_up, wait_s * 1e3))
    waits_ms: list[float] = []
    workers_cpu_s, busy_s = _cpu_of_workers_s(), _busy_s()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    while not _enough(len(waits_ms), job.workload.batches, time.perf_counter() - wall_s, limits.seconds):
        waits_ms.append(consumer.take() * 1e3)
        report(Progress("measured", len(waits_ms), waits_ms[-1]))
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    worked_s = sum(max(0.0, s - workers_cpu_s.get(pid, 0.0)) for pid, s in _cpu_of_workers_s().items())
    others_s = _busy_s() - busy_s - worked_s - cpu_s
    consumer.looks_for_copies = job.workload.marked
    _go_on(consumer, limits.after_s, report)
    return Outcome(
        waits_ms=tuple(waits_ms),
        warm_up=warm_up,
        first_batch_s=first_batch_s,
        wall_s=wall_s,
        cpu_s=cpu_s,
        workers_cpu_s=worked_s,
        others=round(min(1.0, max(0.0, others_s / wall_s / (os.cpu_count() or 1))), 3),
        batch_bytes=consumer.batch_bytes,
        holds=consumer.holds,
        seen=consumer.seen,
        repeated=consumer.repeated,
        copies=consumer.copies,
    )


def _busy_s() -> float:
    """CPU seconds that this machine has spent, on whomever."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _type_name(leaf: Any) -> str:
    """The type with the package it is of."""
    kind = type(leaf)
    return f"{kind.__module__.split('.')[0]}.{kind.__name__}"


def _cpu_of_workers_s() -> dict[int, float]:
    """CPU seconds of each process below this one, by process id."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def _for_warm_up(consumer: _Consumer, limits: Limits) -> Iterator[float]:
    slow = 0
    for _ in range(1, limits.warm_up):
        begun = time.perf_counter()
        yield consumer.take()
        slow = slow + 1 if time.perf_counter() - begun > limits.slow_s else 0
        if slow == 3:
            return


def _enough(done: int, batches: int, passed_s: float, seconds: float | None) -> bool:
    return done >= batches or (seconds is not None and done >= _FEWEST and passed_s >= seconds)


def _go_on(consumer: _Consumer, seconds: float, report: Report) -> None:
    report(Progress("after"))
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        consumer.take()


def _throttled(report: Report) -> Report:
    """Reports of a phase at most four times a second: they are read by another process on the same cores."""
    last = Progress(""), 0.0

    def throttled(progress: Progress) -> None:
        nonlocal last
        now = time.perf_counter()
        if progress.phase != last[0].phase or now - last[1] > _REPORT_S:
            last = progress, now
            report(progress)

    return throttled


def _wake_tensorflow() -> None:
    """Import and first op: paid by every training program, whatever feeds it."""
    import tensorflow as tf

    next(iter(tf.data.Dataset.range(1)))
