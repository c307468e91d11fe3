"""``mpfeed.monitor``: how long a loop waits for its input, whatever makes it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from mpfeed._feed import Feed
from mpfeed._verdict import LITTLE_WAITING, Verdict, judge

T_co = TypeVar("T_co", covariant=True)


class Monitor(Generic[T_co]):
    """An iterable that passes another one's elements on, and times the waits for them; made by ``monitor``.

    Attributes:
        steps: elements passed on, but for the first.
        first_s: seconds the first took; None before it. It is in none of the other figures.
        wait_s: seconds the loop waited, in all.
        step_s: seconds between two waits, in all: the loop's own work. Pauses between iterations are left out.
        longest_s: the longest wait.
    """

    def __init__(self, iterable: Iterable[T_co]) -> None:
        self._iterable = iterable
        self.feed = feed_of(iterable)
        self.steps = 0
        self.first_s: float | None = None
        self.wait_s = self.step_s = self.longest_s = 0.0
        self._left_s: float | None = None

    def __iter__(self) -> Iterator[T_co]:
        iterator = iter(self._iterable)
        self._left_s = None
        try:
            while True:
                try:
                    yield self._next(iterator)  # held by no name: a batch dies when the loop drops it
                except StopIteration:
                    return
        finally:
            close = getattr(iterator, "close", None)
            if callable(close):
                close()

    def _next(self, iterator: Iterator[T_co]) -> T_co:
        begun_s = time.perf_counter()
        element = next(iterator)
        now_s = time.perf_counter()
        if self.first_s is None:
            self.first_s = now_s - begun_s
        else:
            self.steps += 1
            self.wait_s += now_s - begun_s
            self.longest_s = max(self.longest_s, now_s - begun_s)
            self.step_s += 0.0 if self._left_s is None else begun_s - self._left_s
        self._left_s = now_s
        return element

    def __len__(self) -> int:
        """Of what is monitored; TypeError where that has none."""
        return len(self._iterable)  # type: ignore[arg-type]

    @property
    def waiting(self) -> float:
        """Share of the loop's time spent waiting, 0 to 1."""
        return self.wait_s / (self.wait_s + self.step_s) if self.wait_s + self.step_s else 0.0

    @property
    def verdict(self) -> Verdict:
        """What limits the loop; where no feed of mpfeed's is monitored, no more than whether it waits."""
        return verdict_for(self.feed, self.waiting, self.steps, self.step_s)

    def __repr__(self) -> str:
        mean_ms = 1e3 * self.wait_s / max(self.steps, 1)
        first = "-" if self.first_s is None else f"{self.first_s:.2f} s"
        return (
            f"waits: {self.waiting:.1%} of the time in {self.steps:,} steps, first after {first}; "
            f"ms: mean {mean_ms:.2f}, max {1e3 * self.longest_s:.2f}\n{self.verdict}"
        )


def monitor(iterable: Iterable[T_co]) -> Monitor[T_co]:
    """Time what a loop waits for its input: ``for batch in (watched := mpfeed.monitor(batches)): ...``.

    Args:
        iterable: a feed, a ``tf.data.Dataset``, a ``DataLoader``, a generator: anything to iterate, once or often.

    Returns:
        An iterable of the same elements with ``waiting``, ``wait_s``, ``step_s`` and ``verdict``, which its ``repr``
        says.
    """
    return Monitor(iterable)


def feed_of(source: Any) -> Feed | None:
    """The feed that an iterable is, or that a dataset was made from."""
    while source is not None and not isinstance(source, Feed):
        feed = getattr(source, "_mpfeed_feed", None)
        source = feed if isinstance(feed, Feed) else getattr(source, "_input_dataset", None)
    return source


def verdict_for(feed: Feed | None, waiting: float, steps: int, step_s: float) -> Verdict:
    """The verdict for a training that waits so much; ``step_s`` in ``steps``, in all."""
    if feed is not None:
        return judge(feed.stats(), waiting, step_s / max(steps, 1))
    if not steps:
        return Verdict("unknown", "too little was seen", "Read more batches")
    text = f"the loop waits {waiting:.0%} of its time"
    if waiting < LITTLE_WAITING:
        return Verdict("consumer-bound", text, "Nothing to gain here")
    return Verdict("unknown", text, "Its input is not made by mpfeed, so the cause is not known")
