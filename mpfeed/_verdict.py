"""What limits a feed, said from its figures, and what to change."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from mpfeed._stats import FeedStats, WorkerStats

Kind = Literal[
    "unknown", "consumer-bound", "io-bound", "cpu-bound", "gil-bound", "oversubscribed", "slow-worker", "slow-item",
    "jitter", "transport-bound", "uneven",
]  # fmt: skip

# Below this share of waiting there is nothing to gain.
LITTLE_WAITING = 0.05
_FEWEST_WAITS = 8
# Shares of time from which on something counts: estimates, to be held against benchmarks/verdicts.py.
_TRAVELS = 0.5
_QUEUED = 0.15
_IDLE = 0.12
_COMPUTES = 0.5
_SLOWER = 1.6
_OUTLIER = 6.0
_ONE_CORE = 0.8
_MOST_WORKERS_PER_CPU = 16
_KEPT_BUSY = 0.8


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a feed.

    Attributes:
        kind: "unknown": too little was seen. "consumer-bound": the feed keeps up. Input-bound are "io-bound" (workers
            mostly wait), "cpu-bound" (they compute), "gil-bound" (threads share one GIL), "oversubscribed" (more
            workers than CPUs), "slow-worker" (all wait for one worker), "slow-item" (... for one sample), "jitter"
            (workers are fast enough, but the buffer is too small for how much their times vary), "transport-bound"
            (messages are made in time but travel too long), "uneven" (some workers have nothing left to do).
        text: the same with figures, in a sentence.
        advice: what to change.
        workers: how many workers would do; None where their number is not what is wrong.
        buffer: what ``buffer=`` would do; None likewise.
    """

    kind: Kind
    text: str
    advice: str
    workers: int | None = None
    buffer: int | None = None

    @property
    def input_bound(self) -> bool:
        """Whether the consumer waits for its input."""
        return self.kind not in ("unknown", "consumer-bound")

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}. {self.advice}." if self.advice else f"{self.kind}: {self.text}."


@dataclass(frozen=True, slots=True)
class _Sums:
    """All workers together, in shares of their time."""

    busy: float
    room: float
    work: float
    cpu: float  # of busy
    queued: float  # of busy
    cores: float  # CPUs in use on average

    @classmethod
    def of(cls, workers: list[WorkerStats]) -> _Sums:
        total = sum(w.total_s for w in workers) or 1e-9
        busy = sum(w.busy_s for w in workers)
        cpu = sum(w.cpu_s for w in workers)
        longest = max((w.total_s for w in workers), default=0.0) or 1e-9
        return cls(
            busy=busy / total,
            room=sum(w.room_s for w in workers) / total,
            work=sum(w.work_s for w in workers) / total,
            cpu=cpu / (busy or 1e-9),
            queued=sum(w.queued_s for w in workers) / (busy or 1e-9),
            cores=cpu / longest,
        )


def judge(stats: FeedStats, waiting: float | None = None, step_s: float | None = None) -> Verdict:
    """The verdict for a feed's figures.

    Args:
        stats: of the feed; its own ``verdict`` is not read.
        waiting: share of its time that the training waits, where that was measured; else the consumer's.
        step_s: seconds between two of its waits, likewise.
    """
    workers = [w for w in stats.workers if w.messages and w.total_s]
    if stats.waits < _FEWEST_WAITS or not workers:
        return Verdict("unknown", "too little was seen", "Read more batches")
    if waiting is not None and waiting >= LITTLE_WAITING > stats.waiting:
        return _handed_over_late(stats, waiting)
    waiting = stats.waiting if waiting is None else waiting
    step_s = stats.step_s / stats.waits if step_s is None else step_s
    return _Case(stats, workers, waiting, step_s).verdict()


def judge_calls(stats: FeedStats) -> Verdict:
    """The verdict for a ``numpy_function``, which does not know who waits: do its workers keep up with the calls?

    Args:
        stats: ``elements`` are calls.
    """
    workers = [w for w in stats.workers if w.messages and w.total_s]
    if stats.elements < _FEWEST_WAITS or not workers:
        return Verdict("unknown", "too little was seen", "Make more calls")
    return _Calls(stats, workers).verdict()


def _handed_over_late(stats: FeedStats, waiting: float) -> Verdict:
    """The training waits, but what reads the feed for it does not."""
    text = (
        f"the training waits {waiting:.0%} of its time, but whoever reads the feed for it {stats.waiting:.0%}: the "
        "batches are there, and what lies between (TensorFlow's handing over, your own stages) takes the time"
    )
    return Verdict("transport-bound", text, "Use larger batches, and fewer or cheaper stages after dataset()")


class _Case:
    """One feed's figures, and what they mean."""

    def __init__(self, stats: FeedStats, workers: list[WorkerStats], waiting: float, step_s: float) -> None:
        self._stats = stats
        self._workers = workers
        self._waiting = waiting
        self._step_s = step_s
        self._sums = _Sums.of(workers)
        self._inprocess = stats.backend == "inprocess"

    def verdict(self) -> Verdict:
        """The first that holds, the most telling before the others."""
        found = (
            self._consumer_bound() or self._transport_bound() or self._in_the_way() or self._slow_worker()
            or self._unsteady() or self._uneven() or self._gil_bound() or self._oversubscribed() or self._io_bound()
        )  # fmt: skip
        return found or self._cpu_bound()

    def _waits(self) -> str:
        return f"the consumer waits {self._waiting:.0%} of its time"

    # ------------------------------------------------------------------------------------- the verdicts

    def _consumer_bound(self) -> Verdict | None:
        if self._waiting >= LITTLE_WAITING:
            return None
        enough = max(1, math.ceil(len(self._workers) * self._sums.busy * 1.2))
        text = f"{self._waits()}, workers are busy {self._sums.busy:.0%} of theirs"
        spare = enough < len(self._workers) and not self._inprocess
        advice = f"Nothing to gain here; workers={enough} would do" if spare else "Nothing to gain here"
        return Verdict("consumer-bound", text, advice, workers=enough if spare else None)

    def _transport_bound(self) -> Verdict | None:
        share = self._stats.travel_s / (self._stats.wait_s or 1e-9)
        wait_s = self._step_s * self._waiting / max(1 - self._waiting, 1e-9)  # of the training, each
        if share < _TRAVELS or self._stats.travel_s / self._stats.waits < _TRAVELS * wait_s:
            return None
        text = f"{self._waits()}, and in {share:.0%} of it the batch was ready and on its way"
        if self._stats.backend == "process/queue":
            advice = 'Use transport="shared_memory", which copies nothing in this process'
        elif self._stats.backend == "ray":
            advice = 'On one machine use backend="process"; on a cluster yield less (uint8 instead of float32)'
        else:
            advice = "Yield less (uint8 instead of float32, cast on the accelerator), or larger batches"
        return Verdict("transport-bound", text, advice)

    def _in_the_way(self) -> Verdict | None:
        """One in-process worker: the source runs while the training waits."""
        if not self._inprocess or len(self._workers) > 1:
            return None
        text = f"{self._waits()}: the source runs in the training's own thread"
        if self._sums.cpu < _COMPUTES:
            advice = f"It mostly waits ({self._sums.cpu:.0%} CPU): threads would do (workers={self._wanted(8)})"
            return Verdict("io-bound", text, advice, workers=self._wanted(8))
        return Verdict("cpu-bound", text, f'Use backend="process" with workers={self._stats.cpus}', self._stats.cpus)

    def _slow_worker(self) -> Verdict | None:
        means = {w.worker: w.busy_s / w.messages for w in self._workers}
        if len(means) < 2:
            return None
        slow = max(means, key=lambda worker: means[worker])
        others = statistics.median(mean for worker, mean in means.items() if worker != slow)
        idle = [(w.room_s + w.work_s) / w.total_s for w in self._workers if w.worker != slow]
        if means[slow] < _SLOWER * others or statistics.mean(idle) < _IDLE or self._one_sample():
            return None
        text = (
            f"{self._waits()} for worker {slow}, which takes {means[slow] * 1e3:.1f} ms a message where the others "
            f"take {others * 1e3:.1f} ms and then wait"
        )
        advice = "Use from_map, whose batches go to whoever is free, more shards than workers, or ordered=False"
        return Verdict("slow-worker", text, advice)

    def _one_sample(self) -> bool:
        """Whether a single sample stands out from all messages."""
        slowest = self._stats.slowest
        return slowest is not None and slowest.seconds * 1e3 > _OUTLIER * self._stats.message_p95_ms

    def _unsteady(self) -> Verdict | None:
        s = self._stats
        if self._sums.room < _IDLE:
            return None
        room = f"{self._waits()} although workers wait for room {self._sums.room:.0%} of theirs"
        longest_ms = s.message_max_ms if self._one_sample() else s.message_p95_ms
        wanted = max(s.buffer + 1, math.ceil(longest_ms / max(s.message_mean_ms, 1e-6)) + 1, 2 * s.buffer)
        wanted = min(wanted, 16 * s.buffer)
        if self._one_sample() and s.slowest is not None:
            usual = f"a message takes {s.message_mean_ms:.1f} ms"
            text = f"{room}: {usual}, but {s.slowest.where} alone took {s.slowest.seconds:.2f} s"
            return Verdict("slow-item", text, f"Mend that one, or bridge it with buffer={wanted}", buffer=wanted)
        text = f"{room}: a message takes {s.message_mean_ms:.1f} ms, one in twenty over {s.message_p95_ms:.1f} ms"
        return Verdict("jitter", text, f"Give the jitter more buffer: buffer={wanted}", buffer=wanted)

    def _uneven(self) -> Verdict | None:
        if self._sums.work < 2 * _IDLE:
            return None
        text = f"{self._waits()} while workers have nothing left to do {self._sums.work:.0%} of theirs"
        return Verdict("uneven", text, "Cut the work finer: more shards, smaller batches, or from_map")

    def _gil_bound(self) -> Verdict | None:
        if not self._inprocess or self._sums.cores < _ONE_CORE or self._sums.cpu > _ONE_CORE:
            return None
        text = f"{self._waits()}: {len(self._workers)} threads use {self._sums.cores:.1f} CPUs, as they share one GIL"
        return Verdict("gil-bound", text, f'Use backend="process" with workers={self._stats.cpus}', self._stats.cpus)

    def _oversubscribed(self) -> Verdict | None:
        if self._sums.queued < _QUEUED or len(self._workers) <= self._stats.cpus:
            return None
        text = (
            f"{self._waits()}: {len(self._workers)} workers share {self._stats.cpus} CPUs, and could run but have none "
            f"{self._sums.queued:.0%} of their time"
        )
        advice = f"Use workers={self._stats.cpus}, more CPUs, or cheaper preprocessing"
        return Verdict("oversubscribed", text, advice, workers=self._stats.cpus)

    def _io_bound(self) -> Verdict | None:
        if self._sums.cpu + self._sums.queued > _COMPUTES:
            return None
        wanted = self._wanted(_MOST_WORKERS_PER_CPU * self._stats.cpus)
        text = f"{self._waits()}, workers are busy {self._sums.busy:.0%} of theirs but use {self._sums.cpu:.0%} CPU"
        advice = f"More workers than CPUs overlap the waiting: workers={wanted}"
        advice += "" if self._inprocess else '; threads would do too (backend="inprocess")'
        return Verdict("io-bound", text, advice, workers=wanted)

    def _cpu_bound(self) -> Verdict:
        text = f"{self._waits()}, workers are busy {self._sums.busy:.0%} of theirs, computing"
        if len(self._workers) < self._stats.cpus:
            wanted = self._wanted(self._stats.cpus)
            return Verdict("cpu-bound", text, f"Use more workers: workers={wanted}", workers=wanted)
        text += f", and all {self._stats.cpus} CPUs are taken"
        return Verdict("cpu-bound", text, "Make it cheaper, store it ready-made, or add CPUs (Ray on a cluster)")

    def _wanted(self, most: int) -> int:
        """Workers that keep up with the step: busy time a message over time a step; at most so many."""
        n = len(self._workers)
        messages = sum(w.messages for w in self._workers)
        each_s = sum(w.busy_s for w in self._workers) / messages
        if self._step_s <= 1e-3 * each_s:  # the consumer would take any number
            return max(n, min(most, 4 * n))
        per_wait = messages / self._stats.waits
        return max(n, min(most, math.ceil(1.1 * each_s * per_wait / self._step_s)))


class _Calls(_Case):
    """The figures of a ``numpy_function``."""

    def __init__(self, stats: FeedStats, workers: list[WorkerStats]) -> None:
        super().__init__(stats, workers, waiting=1.0, step_s=0.0)

    def verdict(self) -> Verdict:
        """See ``_Case``."""
        if self._sums.busy < _KEPT_BUSY:
            text = f"workers are busy {self._sums.busy:.0%} of their time, as they are asked for no more"
            advice = "Where training waits all the same, give map num_parallel_calls=tf.data.AUTOTUNE"
            return Verdict("consumer-bound", text, f"{advice} and the dataset with_options(f.options())")
        return self._gil_bound() or self._oversubscribed() or self._io_bound() or self._cpu_bound()

    def _waits(self) -> str:
        return "calls come faster than they are answered"
