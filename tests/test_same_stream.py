"""One stream of shuffled, augmented batches: any backend, any number of workers, any resume, any death of a worker."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import psutil
import pytest
from streams import copied, digest

import mpfeed
from mpfeed._options import BackendName

Keep = Callable[[mpfeed.Feed], mpfeed.Feed]


def augmented(**options: Any) -> mpfeed.Feed:
    def sample(i: int, rng: np.random.Generator) -> Any:
        image = np.full((8, 9, 3), i, np.uint8)
        noise = cv2.randu(np.empty((8, 9, 3), np.uint8), 0, 255)
        turned = np.rot90(cv2.add(image, noise), int(rng.integers(4)), (0, 1))
        return {
            "image": cv2.resize(np.ascontiguousarray(turned), (5, 4)),
            "drawn": np.array([rng.random(), random.random(), np.random.random()]),
            "index": np.int64(i),
        }

    return mpfeed.from_map(sample, range(16), shuffle=True, seed=4, batch_size=3, **options)


@pytest.fixture(scope="module")
def alone() -> list[list[Any]]:
    """Two epochs as one worker in this process makes them."""
    with augmented(backend="inprocess") as feed:
        return [[copied(batch) for batch in feed] for _ in range(2)]


def pids(feed: mpfeed.Feed) -> list[int]:
    """The processes of its workers that live: one that was killed is replaced when there is work for it again."""
    assert feed._crew is not None
    known = [member.pid for member in feed._crew.roster.members if member.pid is not None]
    return [pid for pid in known if psutil.pid_exists(pid)]


_SHORT = {("inprocess", 1), ("process", 3)}  # the contract has others of them, on every backend
WHERE = [
    pytest.param(backend, workers, marks=() if (backend, workers) in _SHORT else pytest.mark.long)
    for backend, counts in (("inprocess", [1]), ("process", [1, 2, 3, 5]), ("ray", [1, 2, 3, 5]))
    for workers in counts
]


@pytest.mark.parametrize(("where", "workers"), WHERE)
def test_the_stream_is_the_same_after_a_resume_at_any_batch_and_after_any_worker_was_killed(
    where: BackendName, workers: int, alone: list[list[Any]], keep: Keep, request: pytest.FixtureRequest
) -> None:
    if where == "ray":
        request.getfixturevalue("local_ray")
    feed = keep(augmented(backend=where, workers=workers))
    iterator = iter(feed)
    states = []
    for batch in alone[0]:
        states.append(feed.state_dict())
        assert digest([next(iterator)]) == digest([batch])
    assert next(iterator, None) is None
    assert digest(feed) == digest(alone[1])
    for position, state in enumerate(states):
        feed.load_state_dict(state)
        iterator = iter(feed)
        got = [copied(next(iterator))]
        if where != "inprocess" and position in (0, 3):
            for pid in pids(feed)[:1] if position else pids(feed):  # one at a time, and all at once
                with contextlib.suppress(ProcessLookupError):  # it may end from the death before
                    os.kill(pid, signal.SIGKILL)
        got += [copied(batch) for batch in iterator]
        assert digest(got) == digest(alone[0][position:]), position
    assert digest(feed) == digest(alone[1])
