"""The user's side: shards, and the three kinds of source a worker can run.

Everything here is plain data plus the user's functions; a worker receives it in one pickle.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from mpfeed import _seed

T = TypeVar("T")


class Shard:
    """One of the disjoint parts of a ``from_generator`` source, handed to the function that makes it.

    Attributes:
        index: which part, ``0 <= index < count``.
        count: number of parts; the same for all workers and independent of how many there are.
        epoch: number of the pass over the data, from 0.
    """

    __slots__ = ("_rng", "_seed", "count", "epoch", "index")

    def __init__(self, index: int, count: int, epoch: int = 0, seed: int = 0) -> None:
        self.index = index
        self.count = count
        self.epoch = epoch
        self._seed = seed
        self._rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        """A generator seeded by (the feed's seed, epoch, index) alone."""
        if self._rng is None:
            self._rng = _seed.generator(self._seed, _seed.SHARD, self.epoch, self.index)
        return self._rng

    def of(self, samples: Iterable[T]) -> Iterator[T]:
        """This shard's part of the samples: ``index``, ``index + count``, ... Together the parts are complete.

        A sequence is indexed, so that the other shards' samples are never touched; any other iterable is walked.
        """
        sequence: Any = samples
        if hasattr(sequence, "__len__") and hasattr(sequence, "__getitem__") and not isinstance(sequence, Mapping):
            return (sequence[i] for i in range(self.index, len(sequence), self.count))
        return islice(samples, self.index, None, self.count)

    def __repr__(self) -> str:
        return f"Shard(index={self.index}, count={self.count}, epoch={self.epoch})"


@dataclass(frozen=True, slots=True)
class GeneratorSource:
    """``functions[0]`` run once a shard, or (``each``) one function a shard."""

    functions: tuple[Callable[..., Iterable[Any]], ...]
    takes_shard: bool
    each: bool = False

    def iterate(self, shard: Shard) -> Iterator[Any]:
        """Start the shard's iterator.

        Raises:
            TypeError: the function returned something that cannot be iterated.
        """
        function = self.functions[shard.index if self.each else 0]
        made = _call_with_shard(function, shard) if self.takes_shard else function()
        try:
            return iter(made)
        except TypeError:
            raise TypeError(
                f"{name_of(function)} returned {type(made).__name__}, which cannot be iterated: "
                "write it as a generator (yield), or return an iterable"
            ) from None


@dataclass(frozen=True, slots=True)
class MapSource:
    """A function of one item, and what becomes of items that fail."""

    function: Callable[..., Any]
    takes_rng: bool
    skip_errors: bool = False

    def sample(self, item: Any, seed: int, epoch: int, index: int) -> Any:
        """The sample of one item; ``rng`` depends on (seed, epoch, index) alone."""
        if self.takes_rng:
            return self.function(item, rng=_seed.generator(seed, _seed.ITEM, epoch, index))
        return self.function(item)


@dataclass(frozen=True, slots=True)
class CallSource:
    """A function of arrays, for ``numpy_function``."""

    function: Callable[..., Any]
    takes_rng: bool

    def call(self, arguments: tuple[Any, ...], seed: int) -> Any:
        """The result for one set of arguments; with ``rng`` the last one seeds it and is not passed on."""
        if not self.takes_rng:
            return self.function(*arguments)
        *rest, key = arguments
        return self.function(*rest, rng=_seed.generator(seed, _seed.CALL, int(key) & 0xFFFFFFFFFFFFFFFF))


Source = GeneratorSource | MapSource | CallSource


# ------------------------------------------------------------------------- reading the user's functions


def name_of(function: Any) -> str:
    """Module and qualified name, for messages and fingerprints."""
    while isinstance(function, functools.partial):
        function = function.func
    module = getattr(function, "__module__", None) or "?"
    return f"{module}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _parameters(function: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None  # builtins without a signature: nothing is known


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _required(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    return [p for p in parameters if p.default is p.empty and p.kind in (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)]


def takes_shard(function: Any) -> bool:
    """Whether a source function takes a ``Shard``: a required positional parameter, or one named ``shard``.

    Raises:
        TypeError: it requires more than that.
    """
    parameters = _parameters(function)
    if parameters is None:
        return False
    required = [p for p in _required(parameters) if p.name != "shard"]
    named = any(p.name == "shard" for p in parameters)
    if len(required) > (0 if named else 1) or any(p.kind is p.KEYWORD_ONLY for p in required):
        names = ", ".join(p.name for p in required)
        raise TypeError(
            f"{name_of(function)} requires ({names}): a source function takes one Shard or nothing. "
            "Give the other parameters defaults, or bind them with functools.partial"
        )
    return named or bool(required)


def _call_with_shard(function: Any, shard: Shard) -> Any:
    named = next((p for p in _parameters(function) or () if p.name == "shard"), None)
    if named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY:
        return function(shard=shard)
    return function(shard)


def takes_rng(function: Any) -> bool:
    """Whether a function has a parameter named ``rng`` that ``functools.partial`` has not bound."""
    if any(p.name == "rng" for p in _parameters(function) or ()):
        return not isinstance(function, functools.partial) or "rng" not in function.keywords
    return False


def check_call(function: Any, arguments: int) -> None:
    """TypeError unless the function of ``numpy_function`` takes so many; the last seeds `rng` where it has that."""
    parameters = _parameters(function)
    if parameters is None:
        return
    seeded = takes_rng(function)
    count = arguments - seeded
    try:
        inspect.signature(function).bind(*range(count), **({"rng": None} if seeded else {}))
    except TypeError as error:
        seed = ", the last of which seeds its rng" if seeded else ""
        raise TypeError(
            f"{name_of(function)} is called with {arguments} arguments{seed}: {error}. A structure is one argument: "
            "of a zipped dataset ds.map gives a pair as one, so ds.map(lambda pair, number: f(*pair, number))"
        ) from None


def _takes_item(parameter: inspect.Parameter, place: int) -> bool:
    """Whether a parameter is the one that the item is passed to."""
    return place == 0 and parameter.kind in _POSITIONAL


def check_map_function(function: Any) -> None:
    """TypeError unless the function can be called with one item (and ``rng``)."""
    if not callable(function):
        raise TypeError(f"from_map needs a function of one item, not {type(function).__name__}")
    if inspect.isgeneratorfunction(function):
        raise TypeError(
            f"{name_of(function)} yields, and from_map needs a function that returns one sample for its item: let it "
            "return, or use from_generator"
        )
    parameters = _parameters(function)
    if parameters is None:
        return
    rng = next((i for i, p in enumerate(parameters) if p.name == "rng"), None)
    if rng is not None and (
        parameters[rng].kind is inspect.Parameter.POSITIONAL_ONLY or _takes_item(parameters[rng], rng)
    ):
        raise TypeError(
            f"{name_of(function)}{inspect.signature(function)}: from_map passes the item first and rng by name: "
            "write it as fn(item, rng)"
        )
    required = [p for p in _required(parameters) if p.name != "rng"]
    room = any(p.kind in (*_POSITIONAL, inspect.Parameter.VAR_POSITIONAL) and p.name != "rng" for p in parameters)
    if not room or len(required) > 1 or any(p.kind is p.KEYWORD_ONLY for p in required):
        raise TypeError(
            f"{name_of(function)}{inspect.signature(function)} cannot be called with one item: from_map calls "
            "fn(item), or fn(item, rng=...) where it has a parameter named rng. Bind others with functools.partial"
        )


def refuse_live_iterator(value: Any, call: str, instead: str = "the function that makes it (fn, not fn())") -> None:
    """TypeError where a running generator or iterator was passed instead of what makes one."""
    if hasattr(value, "__next__") and not isinstance(value, type):  # a class of iterators makes them
        name = getattr(value, "__qualname__", type(value).__name__)
        raise TypeError(
            f"{call} was given a live {type(value).__name__} ({name}): it can be read once only and cannot travel "
            f"to a worker. Pass {instead}, or a sequence"
        )


def generator_source(fn: Any) -> GeneratorSource:
    """Read what ``from_generator`` was given.

    Raises:
        TypeError: it is neither a function nor a sequence of functions that take nothing.
    """
    refuse_live_iterator(fn, "from_generator")
    if callable(fn):
        return GeneratorSource((fn,), takes_shard(fn))
    if not isinstance(fn, Sequence) or isinstance(fn, (str, bytes)) or not fn:
        raise TypeError(
            f"from_generator needs a generator function or a non-empty sequence of them, not {type(fn).__name__}; "
            "for a sequence of items use from_map(function, items)"
        )
    for i, function in enumerate(fn):
        refuse_live_iterator(function, f"from_generator (function {i})")
        if not callable(function):
            raise TypeError(
                f"function {i} of the sequence is {type(function).__name__}, which cannot be called; "
                "for a sequence of items use from_map(function, items)"
            )
        if takes_shard(function):
            raise TypeError(
                f"function {i} of the sequence ({name_of(function)}) takes a shard; a sequence of functions is one "
                "shard each, so they take nothing. Pass a single function with shards= instead"
            )
    return GeneratorSource(tuple(fn), takes_shard=False, each=True)
