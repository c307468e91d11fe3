"""Sources as every row sees them: found by name, given a shard, cut into batches.

The rows that are not mpfeed's run the very functions that mpfeed's rows run, with the stand-ins below for
what mpfeed gives them: a ``Shard``, and batches of a number of samples.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from mpfeed._loop import named

T = TypeVar("T")


@dataclass(slots=True)
class Shard:
    """Part ``index`` of ``count``, as far as the sources use ``mpfeed.Shard``."""

    index: int = 0
    count: int = 1
    epoch: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng((self.epoch, self.index))

    def of(self, samples: Sequence[T]) -> Iterator[T]:
        return (samples[i] for i in range(self.index, len(samples), self.count))


def resolve(name: str) -> Callable[..., Iterable[Any]]:
    """The function that ``module:function`` names.

    Raises:
        ValueError: there is none.
    """
    found = named(name)
    if not callable(found):
        raise ValueError(f"{name!r} is {type(found).__name__}: a source is a function that yields batches")
    function: Callable[..., Iterable[Any]] = found
    return function


def takes_shard(function: Callable[..., Any]) -> bool:
    """Whether a source is to be given a shard, as ``mpfeed.from_generator`` sees it."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == "shard" or (p.kind in positional and p.default is p.empty) for p in parameters)


@dataclass(frozen=True, slots=True)
class Source:
    """What makes the batches of one row; plain data that can be pickled.

    Attributes:
        name: ``module:function``.
        options: keyword arguments of that function.
        batch_size: samples to a batch, where the function yields samples; None where it yields batches.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    batch_size: int | None = None

    @property
    def function(self) -> Callable[..., Iterable[Any]]:
        function = resolve(self.name)
        return functools.partial(function, **self.options) if self.options else function

    def batches(self, shard: Shard) -> Iterator[Any]:
        """The batches of one shard, as a row without mpfeed makes them."""
        function = self.function
        made = iter(function(shard) if takes_shard(function) else function())
        return made if self.batch_size is None else _batched(made, self.batch_size)


def _batched(samples: Iterator[Any], size: int) -> Iterator[Any]:
    while chosen := list(islice(samples, size)):
        yield _stack(chosen)


def _stack(samples: list[Any]) -> Any:
    first = samples[0]
    if isinstance(first, dict):
        return {key: _stack([sample[key] for sample in samples]) for key in first}
    if isinstance(first, (tuple, list)):
        return tuple(_stack(list(leaf)) for leaf in zip(*samples, strict=True))
    return np.stack([np.asarray(sample) for sample in samples])


def leaves(element: Any) -> list[Any]:
    """The arrays of a structure, in order."""
    if isinstance(element, dict):
        return [leaf for value in element.values() for leaf in leaves(value)]
    if isinstance(element, (tuple, list)):
        return [leaf for value in element for leaf in leaves(value)]
    return [element]
