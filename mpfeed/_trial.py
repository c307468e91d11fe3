"""One setting, tried on one source: in a fresh process, ``python -m mpfeed._trial FD`` with the trial on its stdin."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mpfeed._factories import from_generator, from_map
from mpfeed._feed import Feed
from mpfeed._loop import Loop, named
from mpfeed._structure import flatten
from mpfeed._verdict import judge

_LONGEST_WARM_UP_S = 3.0
_REPORT_S = 0.25
_PATIENCE = 4  # times the seconds asked for, where batches are slow


@dataclass(frozen=True, slots=True)
class Source:
    """A source by name.

    Attributes:
        name: ``module:function``, for ``from_generator``; or of one item, where there are ``items``.
        items: ``module:name`` of what ``from_map`` takes; None for ``from_generator``.
        batch_size: None where the source makes batches itself.
    """

    name: str
    items: str | None = None
    batch_size: int | None = None

    def feed(self, backend: str, workers: int) -> Feed:
        """The feed of it.

        Raises:
            ValueError: nothing has that name.
            TypeError: what has it is no source.
        """
        function = named(self.name)
        options: Any = {"backend": backend, "workers": workers, "batch_size": self.batch_size}
        return (
            from_generator(function, **options)
            if self.items is None
            else from_map(function, named(self.items), **options)
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """What is chosen for a feed: ``backend=`` and ``workers=``."""

    backend: str
    workers: int

    def __str__(self) -> str:
        kind = "threads" if self.backend == "inprocess" and self.workers > 1 else self.backend
        return f"{kind}, {self.workers} worker{'s' if self.workers > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Trial:
    """What to try, and for how long.

    Attributes:
        step_s: seconds of the training step, which is a sleep.
        seconds: to measure, longer where batches are slow.
        tensors: read ``dataset()`` rather than NumPy arrays.
    """

    source: Source
    setting: Setting
    step_s: float
    seconds: float
    tensors: bool

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Trial:
        """From what ``asdict`` made of one."""
        return cls(**{**data, "source": Source(**data["source"]), "setting": Setting(**data["setting"])})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was seen.

    Attributes:
        waits_ms: of each measured batch.
        wall_s, cpu_s: of those; the CPU time is the training process's own.
        first_s: until the first batch, start of the workers included.
        batch_bytes: of one batch.
        verdict: what the feed says limits it.
    """

    waits_ms: tuple[float, ...]
    wall_s: float
    cpu_s: float
    first_s: float
    batch_bytes: int
    verdict: str

    @property
    def rate(self) -> float:
        """Batches a second."""
        return len(self.waits_ms) / self.wall_s

    @property
    def waiting(self) -> float:
        """Share of the time spent waiting."""
        return sum(self.waits_ms) / 1e3 / self.wall_s

    @property
    def cpu_ms(self) -> float:
        """CPU time of the training process, a batch."""
        return self.cpu_s / len(self.waits_ms) * 1e3

    def wait_ms(self, percent: float) -> float:
        """A percentile of the waits."""
        return float(np.percentile(self.waits_ms, percent))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Outcome:
        """From what ``asdict`` made of one."""
        return cls(**{**data, "waits_ms": tuple(data["waits_ms"])})


def run(trial: Trial, report: Callable[[int], None]) -> Outcome:
    """Try it here and now; ``report`` hears how many batches were measured."""
    seen_bytes: list[int] = []

    def look(batch: Any) -> None:
        if not seen_bytes:
            seen_bytes.append(sum(np.asarray(leaf).nbytes for leaf in flatten(batch)[0]))

    if trial.tensors:
        import tensorflow as tf

        next(iter(tf.data.Dataset.range(1)))  # paid by every training, whatever feeds it
    with trial.source.feed(trial.setting.backend, trial.setting.workers) as feed:
        begun = time.perf_counter()
        loop = Loop(_stream(feed, trial.tensors), trial.step_s, look)
        loop.take()
        first_s = time.perf_counter() - begun - trial.step_s
        _warm_up(loop, max(3, trial.setting.workers))
        waits_ms: list[float] = []
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        for wait_s in _measured(loop, trial):
            waits_ms.append(wait_s * 1e3)
            report(len(waits_ms))
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        loop.drop()
        verdict = _verdict(feed, waits_ms, wall_s)
    return Outcome(tuple(waits_ms), wall_s, cpu_s, first_s, seen_bytes[0], verdict)


def _verdict(feed: Feed, waits_ms: list[float], wall_s: float) -> str:
    """What limits the loop: its own waits count, not those of TensorFlow's prefetch."""
    waited_s = sum(waits_ms) / 1e3
    return str(judge(feed.stats(), waited_s / wall_s, (wall_s - waited_s) / len(waits_ms)))


def _stream(feed: Feed, tensors: bool) -> Iterable[Any]:
    return feed.dataset() if tensors else feed


def _warm_up(loop: Loop, batches: int) -> None:
    begun = time.perf_counter()
    for _ in range(batches):
        loop.take()
        if time.perf_counter() - begun > _LONGEST_WARM_UP_S:
            return


def _measured(loop: Loop, trial: Trial) -> Iterator[float]:
    """Waits for so long; slow batches get more time, so that several rounds of all workers are seen."""
    fewest = 2 + 2 * trial.setting.workers
    begun, done = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - begun) < trial.seconds or (
        done < fewest and passed_s < _PATIENCE * trial.seconds
    ):
        yield loop.take()
        done += 1


@contextmanager
def _channel(fd: int) -> Iterator[Callable[[str, Any], None]]:
    with os.fdopen(fd, "w", buffering=1) as lines:
        yield lambda kind, content: print(json.dumps({kind: content}), file=lines)


def main() -> int:
    """Run the trial that stdin describes and say on the descriptor what became of it."""
    trial = Trial.from_json(json.load(sys.stdin))
    latest = 0.0
    with _channel(int(sys.argv[1])) as send:

        def report(done: int) -> None:
            nonlocal latest
            if time.perf_counter() - latest > _REPORT_S:
                latest = time.perf_counter()
                send("measured", done)

        try:
            send("outcome", asdict(run(trial, report)))
        except Exception as error:
            traceback.print_exc()
            send("error", f"{type(error).__name__}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # TensorFlow's own exit can hang while a generator's thread waits for the GIL
