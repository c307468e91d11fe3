"""Six sources of known cost, and what a training that reads them must wait, worked out beforehand.

A message takes as long as its source says: it sleeps, or spins until the clock says so, so that what it costs does
not depend on what else runs. ``simulated`` then plays the feed's own rules: element k comes from shard k modulo the
workers, a worker keeps so many messages ahead, and TensorFlow so many elements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Cost = Callable[[int, int], float]  # (shard, number of the message in it) -> seconds
_SMALL = (8, 1, 64)
_HUGE = (16, 1024, 1024)  # of float32: 64 MiB


@dataclass(frozen=True, slots=True)
class Mix:
    """A source and its consumer.

    Attributes:
        kind: the verdict that names its cause.
        cost_s: of each message; None where the transport is what costs.
        step_s: of a training step.
        spins: it computes rather than sleeps.
        transport: of the process backend.
        shape: of a batch's first leaf.
    """

    kind: str
    cost_s: Cost | None
    step_s: float
    spins: bool = False
    workers: int = 2
    steps: int = 80
    transport: Literal["shared_memory", "queue"] = "shared_memory"
    shape: tuple[int, ...] = _SMALL

    def source(self) -> Callable[[Any], Iterator[Any]]:
        """For ``from_generator``; endless."""
        cost_s, spins, shape = self.cost_s, self.spins, self.shape

        def batches(shard: Any) -> Iterator[Any]:

            import numpy as np

            images, labels = np.zeros(shape, np.float32), np.zeros(shape[0], np.int32)
            number = 0
            while True:
                if cost_s is not None:
                    until_s = time.perf_counter() + cost_s(shard.index, number)
                    if not spins:
                        time.sleep(max(0.0, until_s - time.perf_counter()))
                    while time.perf_counter() < until_s:
                        pass
                number += 1
                yield images, labels

        return batches


def _jitter(shard: int, number: int) -> float:
    """One message in ten takes 30 times as long as the others; the shards' at different times."""
    return 0.6 if (number + 5 * shard) % 10 == 9 else 0.02


MIXES = {
    "I/O-bound": Mix("io-bound", lambda shard, number: 0.2, 0.05),
    "CPU-bound": Mix("cpu-bound", lambda shard, number: 0.2, 0.05, spins=True),
    "one slow worker": Mix("slow-worker", lambda shard, number: 0.25 if shard == 1 else 0.05, 0.05),
    "jitter": Mix("jitter", _jitter, 0.05, steps=160),
    "huge batches": Mix("transport-bound", None, 0.05, transport="queue", shape=_HUGE, steps=40),
    "slow consumer": Mix("consumer-bound", lambda shard, number: 0.03, 0.1),
}


def simulated(mix: Mix, step_s: float, *, credit: int, ahead: int) -> float:
    """The share of waiting that follows from the costs.

    Args:
        mix: whose costs are known.
        step_s: what a step takes in truth, measured without any wait.
        credit: messages that a worker may have in hand, the one in production included.
        ahead: elements that TensorFlow takes before they are asked for.
    """
    assert mix.cost_s is not None
    count = mix.steps
    taken, fetched = np.zeros(count), np.zeros(count)
    done = np.zeros(count)
    waited_s, free_s = 0.0, 0.0  # free_s: when the training asks next
    for k in range(count):
        shard, number = k % mix.workers, k // mix.workers
        begin_s = done[k - mix.workers] if k >= mix.workers else 0.0
        if number >= credit:
            begin_s = max(begin_s, taken[k - credit * mix.workers])
        done[k] = begin_s + mix.cost_s(shard, number)
        taken[k] = max(done[k], taken[k - 1] if k else 0.0, fetched[k - ahead] if k >= ahead else 0.0)
        fetched[k] = max(free_s, taken[k])
        waited_s += fetched[k] - free_s if k else 0.0
        free_s = fetched[k] + step_s
    return float(waited_s / (free_s - fetched[0] - step_s))
