"""Loaders over items: mpfeed's ``from_map`` on every backend, and PyTorch's DataLoader as its own guide shows it.

This module runs in two environments, so that it imports mpfeed and torch only where they are used.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

SLOW_EVERY, SLOWER = 20, 10


def path_length(path: str) -> Any:
    """Next to no work: what the loader itself costs is what remains."""
    return np.int64(len(path))


def busy(item: int, cost_s: float) -> Any:
    """Python that holds the GIL for so long; one item in twenty takes ten times as long. Gives the seconds it took."""
    begun = time.perf_counter()
    limit = cost_s * (SLOWER if random.Random(item).randrange(SLOW_EVERY) == 0 else 1)
    while time.perf_counter() - begun < limit:
        sum(range(50))
    return np.float64(time.perf_counter() - begun)


def waiting(item: int, cost_s: float) -> Any:
    """As ``busy``, for a source that waits (disk, network): any number of workers can do so at a time."""
    begun = time.perf_counter()
    time.sleep(cost_s * (SLOWER if random.Random(item).randrange(SLOW_EVERY) == 0 else 1))
    return np.float64(time.perf_counter() - begun)


def even(item: int, cost_s: float) -> Any:
    """Every item takes equally long to wait for."""
    time.sleep(cost_s)
    return np.float64(cost_s)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "path": path_length, "busy": busy, "waiting": waiting, "even": even,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Load:
    """What is loaded.

    Attributes:
        function: by name.
        cost_s: of an item; 0 where the function has none.
        items: how many; paths for "path", numbers elsewhere.
    """

    function: str
    items: int
    workers: int
    batch_size: int | None
    cost_s: float = 0.0
    shuffle: bool = True

    def call(self) -> Callable[[Any], Any]:
        function = FUNCTIONS[self.function]
        return partial(function, cost_s=self.cost_s) if self.cost_s else function

    def sequence(self) -> Any:
        if self.function == "path":
            return [f"/data/train/images/class_{i % 1000:04d}/image_{i:08d}.jpg" for i in range(self.items)]
        return range(self.items)


@contextmanager
def mpfeed_map(
    load: Load, *, tensors: bool = False, repeats: bool = False, **options: Any
) -> Iterator[Callable[[], Iterable[Any]]]:
    """One epoch at each call.

    Args:
        load: what is loaded.
        tensors: an iteration of the ``tf.data.Dataset``, rather than NumPy batches.
        repeats: the next part of one iteration of its ``repeat()``.
        options: of the feed.
    """
    import mpfeed

    with mpfeed.from_map(
        load.call(), load.sequence(), shuffle=load.shuffle, workers=load.workers, batch_size=load.batch_size, **options
    ) as feed:
        if repeats:
            endless = iter(feed.dataset().repeat())
            yield lambda: itertools.islice(endless, len(feed))
        elif tensors:
            dataset = feed.dataset()
            yield lambda: dataset
        else:
            yield lambda: feed


@contextmanager
def mpfeed_generator(load: Load, **options: Any) -> Iterator[Callable[[], Iterable[Any]]]:
    """The same work as a generator of shards: one epoch at each call."""
    import mpfeed

    function, count = load.call(), load.items

    def source(shard: Any) -> Iterator[Any]:
        return (function(number) for number in shard.of(range(count)))

    with mpfeed.from_generator(source, workers=load.workers, batch_size=load.batch_size, **options) as feed:
        yield lambda: feed


class Items:
    """A dataset of PyTorch's kind: a list, and a function that is applied to one of its items."""

    def __init__(self, sequence: Any, function: Callable[[Any], Any]) -> None:
        self.sequence, self.function = sequence, function

    def __len__(self) -> int:
        return len(self.sequence)

    def __getitem__(self, index: int) -> Any:
        return self.function(self.sequence[index])


@contextmanager
def torch_loader(load: Load, **options: Any) -> Iterator[Callable[[], Iterable[Any]]]:
    """PyTorch's DataLoader with its defaults (on Linux: forked workers), workers kept over epochs."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        Items(load.sequence(), load.call()), batch_size=load.batch_size, shuffle=load.shuffle, num_workers=load.workers,
        **{"persistent_workers": True, **options},
    )  # fmt: skip
    yield lambda: loader


LOADERS: dict[str, Callable[..., Any]] = {
    "mpfeed": mpfeed_map, "generator": mpfeed_generator, "torch": torch_loader,
}  # fmt: skip
