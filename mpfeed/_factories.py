"""``from_generator`` and ``from_map``: arguments checked, a feed made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Unpack

import numpy as np

from mpfeed._feed import Feed
from mpfeed._items import Items
from mpfeed._options import FeedOptions, Options, backend_of, worker_count
from mpfeed._plans import GeneratorPlan, MapPlan
from mpfeed._source import MapSource, check_map_function, generator_source, name_of, takes_rng


def from_generator(
    fn: Callable[..., Iterable[Any]] | Iterable[Callable[[], Iterable[Any]]],
    *,
    shards: int | None = None,
    **options: Unpack[FeedOptions],
) -> Feed:
    """A feed over a generator function, run in shards by workers.

    Args:
        fn: a function that takes a ``Shard`` and yields that shard's elements; or one that takes nothing (exactly one
            shard); or a sequence of functions that take nothing (one shard each). It may be a lambda or a closure.
        shards: number of shards; default one per worker. Fix it to make the stream independent of ``workers``.
        **options: see ``FeedOptions``.

    Returns:
        A ``Feed``. No worker starts before it is read.

    Raises:
        TypeError: a live generator, a function that requires other arguments, an option of a wrong type, or a part of
            the source that cannot travel to a worker (named).
        ValueError: an option out of range, or several shards of a function that takes none.
    """
    source = generator_source(fn)
    checked = Options.of(options, "from_generator", "shards")
    backend = backend_of(checked.backend)
    workers = worker_count(checked.workers, backend)
    fixed = _fixed_shards(source, shards, checked, workers)
    return Feed(GeneratorPlan(source, checked, fixed), checked, checked.drawn_seed())


def _fixed_shards(source: Any, shards: Any, options: Options, workers: int) -> int | None:
    if shards is not None and (not isinstance(shards, (int, np.integer)) or isinstance(shards, bool)):
        raise TypeError(f"shards={shards!r}: give a whole number of at least 1, or None")
    if shards is not None and shards < 1:
        raise ValueError(f"shards={shards}: give at least 1")
    if source.takes_shard:
        return None if shards is None else int(shards)
    own = len(source.functions)
    asked = shards if shards is not None else own
    if asked != own or (not source.each and options.workers != "auto" and workers > 1):
        name = name_of(source.functions[0])
        wanted = f"shards={shards}" if asked != own else f"workers={workers}"
        raise ValueError(
            f"{wanted}, but {name} takes no shard, so each of them would deliver every element again. Let it take "
            "one (def fn(shard): for x in shard.of(samples): ...), use from_map(function, items), or pass a sequence "
            "of functions, one per shard; as it is, use workers=1"
        )
    return own


def from_map(
    fn: Callable[..., Any],
    items: Any,
    *,
    shuffle: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    **options: Unpack[FeedOptions],
) -> Feed:
    """A feed over items with random access and a function of one item.

    Args:
        fn: called with an item; where it has a parameter ``rng``, also with a ``numpy.random.Generator`` seeded by
            (seed, epoch, the item's own index).
        items: a sequence (list, range, array, anything with ``__len__`` and ``__getitem__``), read in the calling
            process; or an iterable that can be iterated again, unshuffled.
        shuffle: visit the items in another order every epoch, from (seed, epoch) alone.
        on_error: "raise", or "skip" to leave out items whose function raises; they are counted, and logged once.
        **options: see ``FeedOptions``.

    Returns:
        A ``Feed``. No worker starts before it is read.

    Raises:
        TypeError: a live iterator, a function that cannot be called so, an option of a wrong type, or a part of the
            source that cannot travel to a worker (named).
        ValueError: an option out of range.
    """
    check_map_function(fn)
    if not isinstance(shuffle, bool):
        raise TypeError(f"shuffle={shuffle!r}: give True or False")
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error={on_error!r}: choose "raise" or "skip"')
    checked = Options.of(options, "from_map", "shuffle", "on_error")
    seed = checked.drawn_seed()
    source = MapSource(fn, takes_rng(fn), on_error == "skip")
    plan = MapPlan(source, checked, Items(items, shuffle=shuffle), shuffle, seed)
    return Feed(plan, checked, seed)
