"""A feed against a plain list, whatever is done to it and its workers in between."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from streams import in_turn

import mpfeed
from mpfeed import Shard

_LENGTHS = (7, 12)


def source(shard: Shard) -> Iterator[Any]:
    for i in range(_LENGTHS[shard.index]):
        yield np.array([shard.epoch, shard.index, i, shard.rng.integers(1000)])


def expected(epoch: int) -> list[list[int]]:
    """The elements of an epoch."""
    shards = [Shard(index, len(_LENGTHS), epoch, 0) for index in range(len(_LENGTHS))]
    return in_turn([[element.tolist() for element in source(shard)] for shard in shards])


class FeedMachine(RuleBasedStateMachine):
    """Reads, breaks, kills, closes and resumes in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.feed = self.opened()
        self.iterator: mpfeed.FeedIterator | None = None
        self.epoch = 0  # of the next iterator
        self.place = 0  # of the element that comes next
        self.left: tuple[int, int] | None = None  # where the last iterator was left, to which a state goes back

    @staticmethod
    def opened() -> mpfeed.Feed:
        return mpfeed.from_generator(source, shards=2, workers=2, backend="process", max_restarts=50, timeout=100)

    def teardown(self) -> None:
        self.feed.close()

    @rule()
    def begin(self) -> None:
        """The next epoch, or where a state pointed to; an iterator that is still held goes on to be valid."""
        if self.iterator is not None:
            self.leave()
        self.iterator, self.left = iter(self.feed), None

    @precondition(lambda self: self.iterator is not None)
    @rule(count=st.integers(1, 25))
    def read(self, count: int) -> None:
        want = expected(self.epoch)[self.place : self.place + count]
        got = []
        assert self.iterator is not None
        for element in self.iterator:
            got.append(element.tolist())
            if len(got) == count:
                break
        assert got == want
        self.place += len(got)
        if len(got) < count:
            self.finish()

    def finish(self) -> None:
        self.iterator = None
        self.epoch, self.place = self.epoch + 1, 0

    @precondition(lambda self: self.iterator is not None)
    @rule()
    def leave(self) -> None:
        """As ``break`` does."""
        assert self.iterator is not None
        self.iterator.close()
        self.left = self.epoch, self.place
        self.finish()

    @rule(choice=st.integers(0, 100))
    def kill(self, choice: int) -> None:
        workers = [p for p in psutil.Process().children() if "mpfeed.backends.worker" in " ".join(p.cmdline())]
        if workers:
            os.kill(workers[choice % len(workers)].pid, signal.SIGKILL)

    @rule()
    def resume(self) -> None:
        """In another feed, where the consumer was."""
        state = self.feed.state_dict()
        self.feed.close()
        self.feed = self.opened()
        self.feed.load_state_dict(state)
        if self.iterator is not None:
            self.iterator = iter(self.feed)
        elif self.left is not None:
            self.epoch, self.place = self.left

    @precondition(lambda self: self.iterator is not None)
    @rule()
    def close(self) -> None:
        assert self.iterator is not None
        self.feed.close()
        with pytest.raises(mpfeed.FeedClosed):
            next(self.iterator)
        self.feed = self.opened()
        self.iterator, self.epoch, self.place, self.left = None, 0, 0, None

    @invariant()
    def never_more_workers_than_asked_for(self) -> None:
        count = sum(
            "mpfeed.backends.worker" in " ".join(p.cmdline()) for p in psutil.Process().children() if p.is_running()
        )
        assert count <= 2


_QUIETED = settings(
    deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate), derandomize=True
)


class LongFeedMachine(FeedMachine):
    """The same, for longer."""


TestFeed = FeedMachine.TestCase
TestFeed.settings = settings(_QUIETED, max_examples=6, stateful_step_count=10)
TestFeedAtLength = pytest.mark.long(LongFeedMachine.TestCase)
TestFeedAtLength.settings = settings(_QUIETED, max_examples=60, stateful_step_count=30)
