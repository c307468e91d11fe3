"""A backend that is not mpfeed's own, passed as an instance, delivers the same stream as the three that are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from streams import copied, digest
from toy_backend import Turns

import mpfeed
from mpfeed import Shard


def generated(**options: Any) -> mpfeed.Feed:
    def source(shard: Shard) -> Iterator[Any]:
        for i in shard.of(range(23)):
            yield {"x": shard.rng.random(3), "n": i}

    return mpfeed.from_generator(source, shards=3, batch_size=4, **options)


def mapped(**options: Any) -> mpfeed.Feed:
    return mpfeed.from_map(lambda i, rng: (i, rng.random()), range(23), shuffle=True, batch_size=4, **options)


def two_epochs(feed: mpfeed.Feed) -> str:
    with feed:
        return str(digest([[copied(element) for element in feed] for _ in range(2)]))


@pytest.mark.parametrize("make", [generated, mapped])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_stream_is_that_of_the_other_backends(make: Callable[..., mpfeed.Feed], workers: int) -> None:
    assert two_epochs(make(backend=Turns(), workers=workers)) == two_epochs(make(backend="inprocess", workers=1))


def test_errors_positions_and_worker_init_are_those_of_the_other_backends() -> None:
    entered: list[str] = []

    class Open:
        def __enter__(self) -> str:
            entered.append("in")
            return "state"

        def __exit__(self, *exc: object) -> None:
            entered.append("out")

    def sample(i: int) -> str:
        return f"{mpfeed.worker().state} {10 // (5 - i)}"

    with mpfeed.from_map(sample, range(8), worker_init=Open, backend=Turns(), workers=2) as feed:
        elements = iter(feed)
        assert [str(next(elements)) for _ in range(5)] == [f"state {10 // (5 - i)}" for i in range(5)]
        with pytest.raises(mpfeed.WorkerError) as raised:
            next(elements)
    assert (raised.value.index, type(raised.value.__cause__)) == (5, ZeroDivisionError)
    assert sorted(entered) == ["in", "in", "out", "out"]


def test_a_state_taken_there_goes_on_elsewhere() -> None:
    with mapped(backend=Turns(), workers=2) as feed:
        elements = iter(feed)
        next(elements)
        state = feed.state_dict()
        rest = [copied(element) for element in elements]
    with mapped(backend="inprocess") as feed:
        feed.load_state_dict(state)
        assert digest([copied(element) for element in feed]) == digest(rest)
    assert len(rest) == 5
    assert isinstance(rest[0][0], np.ndarray)
