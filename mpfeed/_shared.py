"""Parts of a split that share one set of producers: ``Feed.split(n, shared=True)``."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from mpfeed._errors import MpfeedError
from mpfeed._feed import Feed
from mpfeed._options import Options
from mpfeed._plans import GeneratorPlan
from mpfeed._serialize import dumps
from mpfeed._source import generator_source
from mpfeed.backends.ray_actors import Ray
from mpfeed.backends.ray_hub import TELL_S, Draw, SharedProducers, Sharing


class SharedPart(Feed):
    """One consumer's part of a feed whose producers all parts share. Each iteration is the part's next epoch."""

    def __init__(self, draw: Draw, whole: Options) -> None:
        source = generator_source(draw.elements)
        own = Options(workers=1, backend="inprocess", epochs=whole.epochs, buffer=1)
        super().__init__(GeneratorPlan(source, own, 1), own, 0)
        self._draw = draw
        self._whole = whole

    @property
    def _batching(self) -> Options:
        return self._whole

    def __reduce__(self) -> tuple[Any, ...]:
        """A part travels as its way to the hub, unread."""
        return SharedPart, (self._draw, replace(self._whole, collate=None, worker_init=None))

    def state_dict(self) -> dict[str, Any]:
        """Refused: where a part is depends on the others.

        Raises:
            MpfeedError: always.
        """
        raise MpfeedError("a part of a shared split has no state of its own: use split(n) where it must be resumed")

    def load_state_dict(self, state: Any) -> None:
        """Refused, as ``state_dict``.

        Raises:
            MpfeedError: always.
        """
        self.state_dict()

    def split(self, n: int, **options: Any) -> list[Feed]:
        """Refused.

        Raises:
            MpfeedError: always.
        """
        raise MpfeedError("this feed is a part of a split already: split the whole one")

    def close(self) -> None:
        """Leave: what would be this part's own is passed over, and the others go on."""
        self._draw.close()
        super().close()

    def __repr__(self) -> str:
        return f"<mpfeed.Feed: part {self._draw.index} of a shared split>"


def sharing(n: int, remainder: str, window: Any, on_lost: Any, timeout_s: float | None) -> Sharing:
    """How ``n`` parts share their producers.

    Raises:
        TypeError: ``window`` is no number.
        ValueError: ``window`` is no whole number of at least 1, or there is no such ``on_lost``.
    """
    if isinstance(window, bool) or int(window) != window or window < 1:
        raise ValueError(f"window={window!r}: give a whole number of at least 1")
    if on_lost not in ("raise", "continue"):
        raise ValueError(f'on_lost={on_lost!r}: choose "raise" or "continue"')
    return Sharing(n, remainder, int(window), on_lost, min(TELL_S, timeout_s or TELL_S))


def share(feed: Feed, options: Options, sharing: Sharing) -> tuple[SharedProducers, list[Feed]]:
    """The producers of a shared split, and its parts.

    Raises:
        ValueError: the feed does not run on Ray.
        MpfeedError: Ray is missing.
    """
    backend = options.backend if isinstance(options.backend, Ray) else None
    if options.backend == "ray":
        backend = Ray()
    if backend is None:
        raise ValueError(
            f"split(shared=True) needs a feed on Ray, whose workers other processes can reach; this one is on "
            f"{options.backend!r}: use backend=mpfeed.Ray(), or split(n), whose parts have workers of their own"
        )
    name = f"mpfeed-hub-{uuid.uuid4().hex[:12]}"
    producers = SharedProducers(backend, dumps(feed), sharing, name)
    there = replace(backend, address=producers.address)
    draws = [Draw(there, name, index, sharing, options.timeout) for index in range(sharing.count)]
    return producers, [SharedPart(draw, options) for draw in draws]
