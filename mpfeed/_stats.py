"""What a feed has seen of itself, as an immutable snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from mpfeed._sizing import Resizing
from mpfeed._verdict import Verdict


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One worker. Its times are those until its latest reply, and add up to the time since its first request.

    Attributes:
        worker: its index.
        messages: replies it gave.
        elements: elements (batches, or samples without ``batch_size``) in them.
        busy_s: seconds in the user's code and in collating, time without a CPU included.
        collate_s: of these, seconds in collating and copying; 0 where samples take under 50 µs.
        room_s: seconds waiting for room: its messages were ready, and the consumer took none (or ``memory_limit``
            was reached).
        work_s: seconds waiting for work: there was nothing left for it to do (other shards were still running, the next
            epoch had not begun, no call came).
        cpu_s: CPU seconds of its process; in-process, of its thread while it was busy.
        queued_s: seconds it could have run but had no CPU; 0 where the system does not tell.
        memory_bytes: resident memory of its process, shared memory included; 0 in-process and where unknown.
        restarts: how often it was replaced after it died.
        pid: of its process, or None.
        node: name of the machine it runs on, where that may be another (Ray).
    """

    worker: int
    messages: int
    elements: int
    busy_s: float
    collate_s: float
    room_s: float
    work_s: float
    cpu_s: float
    queued_s: float
    memory_bytes: int
    restarts: int
    pid: int | None = None
    node: str = ""

    @property
    def total_s(self) -> float:
        """Seconds since its first request, until its latest reply."""
        return self.busy_s + self.room_s + self.work_s

    @property
    def elements_per_s(self) -> float:
        """Elements a second over that time."""
        return self.elements / self.total_s if self.total_s else 0.0


@dataclass(frozen=True, slots=True)
class SlowestSample:
    """The sample that took longest.

    Attributes:
        seconds: in the user's code.
        where: in words: "item 5", "element 3 of shard 1", "a call".
    """

    seconds: float
    where: str


@dataclass(frozen=True, slots=True)
class FeedStats:
    """A snapshot of a feed. Its ``repr`` is a table that ends in the verdict.

    The consumer is whoever takes elements from the feed: your loop, or TensorFlow's prefetch, which waits while the
    training does not. What the training itself waits, ``mpfeed.keras.InputMonitor`` and ``mpfeed.monitor`` measure.

    Attributes:
        backend: its name, with the transport ("process/shared_memory").
        buffer: messages kept ready for each worker.
        elements: delivered to the consumer, over all epochs.
        nbytes: bytes of the messages they came in.
        copied_held: messages copied because the consumer held more memory than may be lent.
        copied_cast: messages copied because a leaf had to be cast to the declared dtype.
        skipped: items left out by ``on_error="skip"``.
        first_s: seconds the first element took, start of the workers included; None before it. It is in none of the
            figures below.
        waits: how often the consumer asked; for TensorFlow, small elements come several at a time.
        wait_s: seconds it waited, in all.
        wait_mean_ms, wait_p50_ms, wait_p95_ms, wait_p99_ms, wait_max_ms: how long it waited for an element, in
            milliseconds; the percentiles over the latest 4,096.
        step_s: seconds between a wait and the next, in all: what the consumer did in between.
        travel_s: of the waits, seconds in which the element was made already and on its way.
        buffer_fill: share of the buffers that was full when it asked, 0 to 1; None where nobody could tell.
        message_mean_ms, message_p95_ms, message_max_ms: how long the workers were busy with a message, in milliseconds;
            the percentile over the latest 512.
        slowest: the sample that took longest; None where none was timed (they take under 50 µs).
        cpus: that this process may use.
        workers: one entry a worker.
        verdict: what limits the feed, and what to change.
        resizings: the latest changes of the number of workers by ``workers="auto"``, at most 64.
    """

    backend: str
    buffer: int
    elements: int
    nbytes: int
    copied_held: int
    copied_cast: int
    skipped: int
    first_s: float | None
    waits: int
    wait_s: float
    wait_mean_ms: float
    wait_p50_ms: float
    wait_p95_ms: float
    wait_p99_ms: float
    wait_max_ms: float
    step_s: float
    travel_s: float
    buffer_fill: float | None
    message_mean_ms: float
    message_p95_ms: float
    message_max_ms: float
    slowest: SlowestSample | None
    cpus: int
    workers: tuple[WorkerStats, ...]
    verdict: Verdict
    resizings: tuple[Resizing, ...] = ()

    @property
    def copies(self) -> int:
        """Messages that were copied in this process, for whatever reason."""
        return self.copied_held + self.copied_cast

    @property
    def waiting(self) -> float:
        """Share of the consumer's time spent waiting, 0 to 1; the first element and pauses between epochs left out."""
        return self.wait_s / (self.wait_s + self.step_s) if self.wait_s + self.step_s else 0.0

    def __repr__(self) -> str:
        return "\n".join([*self._consumer(), *_table(self.workers), *map(str, self.resizings[-3:]), str(self.verdict)])

    __str__ = __repr__

    def _consumer(self) -> list[str]:
        if self.elements and self.first_s is None:  # calls of a `numpy_function`, which does not know who waits
            first, waits = "", []
        else:
            first = f", first after {'-' if self.first_s is None else f'{self.first_s:.2f} s'}"
            waits = [self._waits()]
        copied = f", {self.copied_cast} copied to cast" if self.copied_cast else ""
        copied += f", {self.copied_held} copied because so much is held" if self.copied_held else ""
        skipped = f", {self.skipped} items skipped" if self.skipped else ""
        return [
            f"{self.backend}: {self.elements:,} elements, {self.nbytes / 1e6:,.1f} MB{first}"
            f"{copied or ', none copied'}{skipped}",
            *waits,
        ]

    def _waits(self) -> str:
        fill = "" if self.buffer_fill is None else f", buffers {self.buffer_fill:.0%} full when asked"
        return (
            f"waits: {self.waiting:.1%} of the time{fill}; ms: mean {self.wait_mean_ms:.2f}, "
            f"p50 {self.wait_p50_ms:.2f}, p95 {self.wait_p95_ms:.2f}, p99 {self.wait_p99_ms:.2f}, "
            f"max {self.wait_max_ms:.2f}"
        )


_HEAD = "worker  busy %  room %  work %  elements/s  CPU %  memory MB  restarts"


def _table(workers: tuple[WorkerStats, ...]) -> list[str]:
    """One line a worker; room and work are what it waited for."""
    return [_HEAD, *map(_line, workers)] if workers else []


def _line(w: WorkerStats) -> str:
    busy, room, work, cpu = (100 * s / w.total_s if w.total_s else 0 for s in (w.busy_s, w.room_s, w.work_s, w.cpu_s))
    memory = f"{w.memory_bytes / 1e6:9,.0f}" if w.memory_bytes else "        -"
    return (
        f"{w.worker:6}  {busy:6.1f}  {room:6.1f}  {work:6.1f}  {w.elements_per_s:10.1f}  {cpu:5.0f}  {memory}  "
        f"{w.restarts:8}"
    )
