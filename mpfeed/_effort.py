"""What a worker spends on its replies: measured where the work is done, and sent along with each reply."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from mpfeed import _span

# Samples that take less are not timed one by one: reading the clock (0.08 µs) would show beside them.
_TIMED_FROM_S = 50e-6
# Memory and the time in the run queue come from files of /proc, which take 30 µs to read.
_LOOK_S = 0.25


@dataclass(slots=True)
class Effort:
    """What one reply took. Times are seconds of the worker's monotonic clock, and since its reply before.

    Attributes:
        done_s: when it was done, as ``time.perf_counter`` counts: on Linux the same clock in all processes of a host.
        busy_s: in the user's code and in laying out the message.
        collate_s: of these, in collating and copying; 0 where samples are too quick to be timed one by one.
        room_s: waiting for room in shared memory.
        idle_s: without a request.
        cpu_s: CPU time of its process (in-process: of its thread).
        queued_s: ready to run, but without a CPU; of its thread alone.
        memory_bytes: resident; 0 where it was not looked at, or the process is the caller's.
        samples: made.
        slowest_s, slowest: the slowest sample and where it lies: (index of the item, -1), or (shard, position in it).
        host: which machine, in a worker's first reply.
        spans: where the request was traced: what was done when, the wait for it (named "") first.
    """

    done_s: float = 0.0
    busy_s: float = 0.0
    collate_s: float = 0.0
    room_s: float = 0.0
    idle_s: float = 0.0
    cpu_s: float = 0.0
    queued_s: float = 0.0
    memory_bytes: int = 0
    samples: int = 0
    slowest_s: float = 0.0
    slowest: tuple[int, int] = (-1, -1)
    host: str = ""
    spans: list[_span.Stretch] = field(default_factory=list)

    def values(self) -> tuple[Any, ...]:
        """Of its fields, in their order."""
        return (
            self.done_s, self.busy_s, self.collate_s, self.room_s, self.idle_s, self.cpu_s, self.queued_s,
            self.memory_bytes, self.samples, self.slowest_s, self.slowest, self.host, self.spans,
        )  # fmt: skip


class Meter:
    """Measures one worker, from request to reply. One thread.

    Args:
        owns_process: whether the process is the worker's own.
    """

    def __init__(self, *, owns_process: bool) -> None:
        self._owns_process = owns_process
        self._cpu = time.process_time if owns_process else time.thread_time
        self._host = host()
        self._free_since_s: float | None = None
        self._begun_s = self._mark_s = 0.0
        self._room_s = 0.0
        self._cpu_s: float | None = None
        self._looked_s = 0.0
        self._queued_s: float | None = None
        self._effort = Effort()
        self._traced = False
        # Whether samples are slow enough to be timed one by one: learnt from the message before.
        self.fine = True

    def begin(self, room_s: float, *, traced: bool = False) -> None:
        """A request is taken up; ``room_s`` is what was ever spent waiting for room."""
        self._begun_s = self._mark_s = now = time.perf_counter()
        self._room_s = room_s
        if self._cpu_s is None or not self._owns_process:  # its thread did the caller's work in between
            self._cpu_s = self._cpu()
        self._effort = Effort(idle_s=now - self._free_since_s if self._free_since_s is not None else 0.0)
        self._traced = traced
        if traced:
            _span.record(self._effort.spans)
            _span.add("", now - self._effort.idle_s, now)

    def made(self, first: int, second: int = -1) -> None:
        """The user's code has made a sample; see ``Effort.slowest`` for its name."""
        now = time.perf_counter()
        took, self._mark_s = now - self._mark_s, now
        effort = self._effort
        if took > effort.slowest_s:
            effort.slowest_s, effort.slowest = took, (first, second)
        if self._traced:
            _span.add("compute", now - took, now)

    def mark(self) -> None:
        """What is to be timed begins now."""
        self._mark_s = time.perf_counter()

    def added(self) -> None:
        """What was made, or since ``mark``, was collated."""
        now = time.perf_counter()
        self._effort.collate_s += now - self._mark_s
        if self._traced:
            _span.add("collate", self._mark_s, now)
        self._mark_s = now

    def end(self, samples: int, room_s: float) -> Effort:
        """The reply is complete."""
        effort = self._effort
        effort.done_s = now = time.perf_counter()
        effort.room_s = room_s - self._room_s
        effort.busy_s = now - self._begun_s - effort.room_s
        effort.collate_s = max(0.0, effort.collate_s - effort.room_s)  # room is sought while collating
        if self._traced:
            _span.record(None)
            effort.spans.append((f"message of {samples}", self._begun_s, now))
        effort.samples = samples
        self.fine = effort.busy_s >= samples * _TIMED_FROM_S
        cpu_s = self._cpu()
        effort.cpu_s, self._cpu_s = cpu_s - (self._cpu_s or 0.0), cpu_s
        if now - self._looked_s >= _LOOK_S:
            self._look(effort)
        effort.host, self._host = self._host, ""
        self._free_since_s = time.perf_counter()
        return effort

    def _look(self, effort: Effort) -> None:
        self._looked_s = effort.done_s
        queued_s = _queued_s()
        effort.queued_s = 0.0 if self._queued_s is None else max(0.0, queued_s - self._queued_s)
        self._queued_s = queued_s
        if self._owns_process:
            effort.memory_bytes = _resident_bytes()


def host() -> str:
    """What tells machines apart whose clocks differ."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return "?"


def _queued_s() -> float:
    """Seconds the calling thread was ever ready to run but had no CPU (<Documentation/scheduler/sched-stats.rst>)."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
