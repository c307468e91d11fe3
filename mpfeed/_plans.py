"""The two kinds of feeds: what differs between ``from_generator`` and ``from_map``, for a feed to build on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from mpfeed._crew import Crew
from mpfeed._generator_run import GeneratorRun
from mpfeed._items import Items
from mpfeed._map_run import Course, MapRun
from mpfeed._options import Options
from mpfeed._position import changed, is_count
from mpfeed._source import GeneratorSource, MapSource, name_of
from mpfeed._split import WHOLE, Part


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class FeedPlan(Protocol):
    """What a feed must know of its kind."""

    @property
    def source(self) -> GeneratorSource | MapSource:
        """What workers run."""

    def limit_workers(self, workers: int) -> int:
        """How many of the workers there is work for."""

    def settle(self, workers: int) -> None:
        """The first start: fix what depends on the number of workers."""

    def fingerprint(self) -> dict[str, Any]:
        """What of it defines the stream."""

    def adopt(self, fingerprint: dict[str, Any]) -> None:
        """Take over from a state what is not fixed yet."""

    def check(self, at: dict[str, Any] | None, fingerprint: dict[str, Any]) -> None:
        """ValueError where a run could not begin there; ``fingerprint`` is the state's."""

    def run(self, crew: Crew, epoch: int, order_epoch: int, state: dict[str, Any] | None) -> GeneratorRun | MapRun:
        """A new run."""

    def attributes(self) -> dict[str, Any]:
        """What a run reads in this process, and its user may change between epochs."""

    def length(self) -> int | None:
        """Elements an epoch, where certain."""

    def at(self, taken: int) -> dict[str, Any] | None:
        """A run's own words for the place after so many elements; None where they do not follow from the number."""

    def split(self, part: Part) -> FeedPlan | None:
        """The plan of a part that makes only its own elements; None where a part has to run everything."""


@dataclass(slots=True)
class GeneratorPlan:
    """A ``from_generator`` feed."""

    source: GeneratorSource
    options: Options
    shards: int | None

    def limit_workers(self, workers: int) -> int:
        return workers if self.shards is None else min(workers, self.shards)

    def settle(self, workers: int) -> None:
        if self.shards is None:
            self.shards = workers

    def fingerprint(self) -> dict[str, Any]:
        names = [name_of(function) for function in self.source.functions]
        return {"kind": "from_generator", "source": names, "shards": self.shards}

    def adopt(self, fingerprint: dict[str, Any]) -> None:
        if self.shards is None:
            self.shards = fingerprint.get("shards")

    def check(self, at: dict[str, Any] | None, fingerprint: dict[str, Any]) -> None:
        shards = fingerprint.get("shards")
        if not is_count(shards) or not shards or not _is_seed(fingerprint.get("seed")):
            raise changed()
        if at is None:
            return
        positions, exhausted = at.get("positions"), at.get("exhausted")
        lists = isinstance(positions, list) and isinstance(exhausted, list) and len(positions) == shards
        if not lists or not all(map(is_count, [*positions, *exhausted, at.get("turn"), at.get("tail")])):  # type: ignore[misc]
            raise changed()

    def run(self, crew: Crew, epoch: int, order_epoch: int, state: dict[str, Any] | None) -> GeneratorRun:
        assert self.shards is not None
        return GeneratorRun(crew, epoch, self.options, self.shards, state)

    def attributes(self) -> dict[str, Any]:
        return {}

    def length(self) -> int | None:
        return None

    def at(self, taken: int) -> None:
        return None

    def split(self, part: Part) -> None:
        return None


@dataclass(slots=True)
class MapPlan:
    """A ``from_map`` feed."""

    source: MapSource
    options: Options
    items: Items
    shuffle: bool
    seed: int
    part: Part = WHOLE

    def limit_workers(self, workers: int) -> int:
        units = self.length()
        if units is None and self.items.length is not None:
            units = self.items.length
        return workers if units is None else max(1, min(workers, units))

    def settle(self, workers: int) -> None:
        pass

    def fingerprint(self) -> dict[str, Any]:
        return {
            "kind": "from_map", "source": [name_of(self.source.function)], "items": self.items.length,
            "shuffle": self.shuffle, "on_error": "skip" if self.source.skip_errors else "raise",
        }  # fmt: skip

    def adopt(self, fingerprint: dict[str, Any]) -> None:
        pass

    def check(self, at: dict[str, Any] | None, fingerprint: dict[str, Any]) -> None:
        items = 0 if at is None else at.get("items")
        if not is_count(items) or not _is_seed(fingerprint.get("seed")):
            raise changed()
        if self.items.length is not None and items > self.items.length:  # type: ignore[operator]
            raise changed()

    def run(self, crew: Crew, epoch: int, order_epoch: int, state: dict[str, Any] | None) -> MapRun:
        start = 0 if state is None else state["items"]
        course = Course(self.items.epoch(self.seed, order_epoch), self.part, self.source.skip_errors, start)
        return MapRun(crew, epoch, self.options, course)

    def attributes(self) -> dict[str, Any]:
        return self.items.attributes()

    def length(self) -> int | None:
        if self.items.length is None or self.source.skip_errors:
            return None
        full, rest = divmod(self.items.length, self.options.batch_size or 1)
        return self.part.length(full + (rest > 0 and not self.options.drop_remainder))

    def at(self, taken: int) -> dict[str, Any] | None:
        if self.source.skip_errors:
            return None
        items = taken * (self.options.batch_size or 1) * self.part.count
        return {"items": items}

    def split(self, part: Part) -> MapPlan | None:
        if self.source.skip_errors or self.items.length is None:
            return None
        return MapPlan(self.source, self.options, self.items, self.shuffle, self.seed, part)
