"""Which worker has which shards of a ``from_generator`` feed, and how much of each it has in hand."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from mpfeed._errors import MpfeedError
from mpfeed._runs import Made


@dataclass(slots=True, eq=False)
class ShardProgress:
    """A shard as its consumer sees it. Positions count samples from its beginning."""

    index: int
    worker: int
    taken: int = 0  # handed to the consumer
    received: int = 0  # in replies
    asked: int = 0  # units unanswered
    held: int = 0  # units sent, or answered and not yet consumed
    ended: bool = False
    incarnation: int = 0  # of the worker that holds its iterator
    careful_until: int = 0  # a worker died on it: up to this position one sample a message, so that it is named
    verdict: MpfeedError | None = None  # raised when so much work found no sample that is deadly once more
    careful_s: float = 0.0
    queue: deque[Made] = field(default_factory=deque)
    rest: tuple[Any, ...] = ()

    @property
    def begun(self) -> bool:
        """Whether a worker was asked for it, so that it holds its iterator."""
        return self.incarnation > 0 or self.asked > 0


class Deal:
    """The shards of one run, dealt to workers.

    Args:
        shards: each names its worker.
        workers: how many there may be.

    Attributes:
        of: the shards of each worker.
        held: units of each worker that were sent, or answered and not yet consumed.
    """

    def __init__(self, shards: list[ShardProgress], workers: int) -> None:
        self._shards = shards
        self._turns = [0] * workers
        self.held = [0] * workers
        self.of: list[list[ShardProgress]] = [[] for _ in range(workers)]
        self._collect()

    def _collect(self) -> None:
        self.of = [[shard for shard in self._shards if shard.worker == worker] for worker in range(len(self.of))]

    def next_of(self, worker: int) -> ShardProgress | None:
        """The worker's shard whose turn it is to be asked: the order of delivery."""
        shards = self.of[worker]
        for _ in range(len(shards)):
            shard = shards[self._turns[worker] % len(shards)]
            self._turns[worker] += 1
            if not shard.ended:
                return shard
        return None

    def hold(self, shard: ShardProgress, units: int) -> None:
        """So many units more (or, negative, fewer) of a shard are in hand."""
        shard.held += units
        self.held[shard.worker] += units

    def move(self, shard: ShardProgress, worker: int) -> None:
        """A shard's own worker is away: another runs it again up to where it is, and goes on."""
        self.of[shard.worker].remove(shard)
        self.of[worker].append(shard)
        self.held[shard.worker] -= shard.held
        self.held[worker] += shard.held
        shard.worker, shard.incarnation = worker, 0

    def anew(self, workers: list[int]) -> None:
        """Deal the shards that no worker has begun to those with the fewest; another would have to be run anew."""
        waiting = [shard for shard in self._shards if not shard.begun and not shard.ended]
        load = {worker: sum(shard.begun and not shard.ended for shard in self.of[worker]) for worker in workers}
        for shard in waiting:
            shard.worker = min(load, key=lambda worker: load[worker])
            load[shard.worker] += 1
        self._collect()
