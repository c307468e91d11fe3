"""``state_dict``: a stream goes on exactly where it was left, whatever runs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from streams import copied, digest, numbers

import mpfeed
from mpfeed import Shard
from mpfeed._options import BackendName

Keep = Callable[[mpfeed.Feed], mpfeed.Feed]
Build = Callable[..., mpfeed.Feed]
LENGTHS = [7, 2, 5]


def generated(**options: Any) -> mpfeed.Feed:
    def source(shard: Shard) -> Iterator[Any]:
        for i in range(LENGTHS[shard.index]):
            yield np.array([shard.index, i]), shard.rng.random()

    return mpfeed.from_generator(source, **{"shards": 3, "workers": 1, "backend": "inprocess", **options})


def mapped(**options: Any) -> mpfeed.Feed:
    def sample(i: int, rng: np.random.Generator) -> Any:
        return np.int64(i), rng.random()

    return mpfeed.from_map(sample, range(13), **{"shuffle": True, "workers": 1, "backend": "inprocess", **options})


def skipping(**options: Any) -> mpfeed.Feed:
    def picky(i: int) -> np.int64:
        if i in (0, 3, 4, 5, 9, 12):
            raise ValueError("bad")
        return np.int64(i)

    return mpfeed.from_map(picky, range(13), **{"on_error": "skip", "workers": 1, "backend": "inprocess", **options})


def endless_items(**options: Any) -> mpfeed.Feed:
    class Again:
        def __iter__(self) -> Iterator[int]:
            return iter(range(11))

    return mpfeed.from_map(np.int64, Again(), **{"workers": 1, "backend": "inprocess", **options})


def collated(samples: list[Any]) -> Any:
    return np.stack([np.asarray(sample) for sample in samples])


STREAMS: dict[str, tuple[Build, dict[str, Any]]] = {
    "generator": (generated, {}),
    "generator, batches": (generated, {"batch_size": 2}),
    "generator, remainders": (generated, {"batch_size": 3}),
    "map": (mapped, {}),
    "map, batches": (mapped, {"batch_size": 4}),
    "skip": (skipping, {}),
    "skip, batches": (skipping, {"batch_size": 3}),
    "skip, collate": (skipping, {"batch_size": 2, "collate": collated}),
    "no length": (endless_items, {"batch_size": 2}),
}


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_goes_on_at_every_position(name: str, keep: Keep) -> None:
    build, options = STREAMS[name]
    whole = [[copied(element) for element in epoch] for epoch in [keep(build(**options))] * 2]
    feed = keep(build(**options))
    for number, epoch in enumerate(whole):
        iterator = iter(feed)
        for position in range(len(epoch) + 1):
            later = keep(build(**options))
            later.load_state_dict(through_json(feed.state_dict()))
            rest = [copied(element) for element in later]
            if position == len(epoch):  # the epoch may be over, or about to be
                assert digest(rest) in (digest([]), digest(whole[number + 1]) if number == 0 else digest(rest))
            else:
                assert digest(rest) == digest(epoch[position:]), (number, position)
                if number == 0:
                    assert digest(later) == digest(whole[1]), (number, position)
            if position < len(epoch):
                assert digest([next(iterator)]) == digest([epoch[position]])
        assert next(iterator, None) is None


@pytest.mark.parametrize("name", ["generator, remainders", "map, batches"])
def test_another_backend_with_other_workers_goes_on(remote: BackendName, name: str, keep: Keep) -> None:
    build, options = STREAMS[name]
    whole = [copied(element) for element in keep(build(**options))]
    first = keep(build(**options))
    iterator = iter(first)
    for _ in range(len(whole) - 2):
        next(iterator)
    later = keep(build(**options, backend=remote) if remote == "ray" else build(**options, backend=remote, workers=3))
    later.load_state_dict(first.state_dict())
    assert digest(later) == digest(whole[-2:])


def test_the_state_of_a_finished_epoch_is_the_beginning_of_the_next(keep: Keep) -> None:
    feed = keep(mapped())
    assert feed.state_dict()["taken"] == 0
    first = [copied(element) for element in feed]
    second_begin = feed.state_dict()
    second = [copied(element) for element in feed]
    later = keep(mapped())
    later.load_state_dict(second_begin)
    assert digest(later) == digest(second) != digest(first)


def test_a_loaded_state_that_nothing_was_taken_from_yet_is_the_state(keep: Keep) -> None:
    feed = keep(mapped(batch_size=2))
    iterator = iter(feed)
    for _ in range(3):
        next(iterator)
    state = feed.state_dict()
    later = keep(mapped(batch_size=2))
    later.load_state_dict(state)
    assert later.state_dict() == state


def test_a_state_may_be_loaded_into_the_same_feed_to_go_back(keep: Keep) -> None:
    feed = keep(mapped(batch_size=2, backend="process"))
    iterator = iter(feed)
    next(iterator)
    state = feed.state_dict()
    rest = digest(iterator)
    feed.load_state_dict(state)
    assert digest(feed) == rest


def test_elements_before_the_position_are_made_again_and_thrown_away(keep: Keep) -> None:
    whole = [copied(element) for element in keep(generated())]
    state = {**keep(generated()).state_dict(), "taken": 5, "discard": 5}
    later = keep(generated())
    later.load_state_dict(through_json(state))
    iterator = iter(later)
    assert digest([next(iterator)]) == digest(whole[5:6])
    assert later.state_dict()["taken"] == 6
    assert digest(iterator) == digest(whole[6:])
    later.load_state_dict({**state, "taken": 20, "discard": 20})
    with pytest.raises(mpfeed.MpfeedError, match="epoch 0 ended 6 elements before the place that the state is of"):
        next(iter(later))


def test_a_drawn_seed_is_recorded_and_taken_over(keep: Keep) -> None:
    feed = keep(mapped(seed=None))
    iterator = iter(feed)
    next(iterator)
    later = keep(mapped(seed=None))
    later.load_state_dict(through_json(feed.state_dict()))
    assert digest(later) == digest(iterator)


def test_shards_that_followed_the_workers_are_recorded_and_taken_over(keep: Keep) -> None:
    def source(shard: Shard) -> Iterator[np.int64]:
        return (np.int64(i) for i in shard.of(range(10)))

    feed = keep(mpfeed.from_generator(source, workers=3, backend="inprocess"))
    iterator = iter(feed)
    assert [int(next(iterator)) for _ in range(4)] == [0, 1, 2, 3]
    later = keep(mpfeed.from_generator(source, workers=1, backend="inprocess"))
    later.load_state_dict(feed.state_dict())
    assert numbers(later) == [4, 5, 6, 7, 8, 9]


def test_a_map_that_goes_on_makes_none_of_what_was_consumed(keep: Keep) -> None:
    made: list[int] = []

    def sample(i: int) -> np.int64:
        made.append(i)
        return np.int64(i)

    feed = keep(mpfeed.from_map(sample, range(20), backend="inprocess", batch_size=4))
    iterator = iter(feed)
    for _ in range(3):
        next(iterator)
    later = keep(mpfeed.from_map(sample, range(20), backend="inprocess", batch_size=4))
    later.load_state_dict(feed.state_dict())
    made.clear()
    assert numbers(later) == list(range(12, 20))
    assert min(made[:8]) == 12


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: mapped(seed=1), "seed was 0 and is 1"),
        (lambda: mapped(batch_size=2), "batch_size was None and is 2"),
        (lambda: mapped(shuffle=False), "shuffle was True and is False"),
        (lambda: mapped(vary_epochs=False), "vary_epochs"),
        (generated, "kind was 'from_map' and is 'from_generator'"),
        (skipping, "on_error was 'raise' and is 'skip'"),
    ],
)
def test_the_state_of_another_stream_is_refused_and_named(
    other: Callable[[], mpfeed.Feed], words: str, keep: Keep
) -> None:
    state = keep(mapped()).state_dict()
    with pytest.raises(ValueError, match=words):
        keep(other()).load_state_dict(state)


@pytest.mark.parametrize("state", [None, {}, [1], "state", {"version": 1}])
def test_what_is_no_state_is_refused(state: Any, keep: Keep) -> None:
    with pytest.raises(ValueError, match="not a state of a feed"):
        keep(mapped()).load_state_dict(state)


def test_a_state_of_another_version_is_refused(keep: Keep) -> None:
    feed = keep(mapped())
    with pytest.raises(ValueError, match="version 99"):
        feed.load_state_dict({**feed.state_dict(), "version": 99})


def test_without_order_there_is_no_position(keep: Keep) -> None:
    feed = keep(mapped(ordered=False))
    for call in (feed.state_dict, lambda: feed.load_state_dict({}), lambda: feed.split(2)):
        with pytest.raises(mpfeed.MpfeedError, match="ordered=True"):
            call()


DAMAGED: dict[str, dict[str, Any]] = {
    "fingerprint": {"fingerprint": "x"}, "epoch": {"epoch": "0"}, "epoch of bool": {"epoch": True},
    "taken": {"taken": -1}, "discard": {"discard": None}, "at": {"at": "x"}, "at missing": {"at": None},
    "positions": {"at": {"positions": [1], "exhausted": [], "turn": 0, "tail": 0}},
    "tail": {"at": {"positions": [1, 1, 1], "exhausted": [], "turn": 0, "tail": [1]}},
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_state_is_refused_before_anything_is_changed(name: str, keep: Keep) -> None:
    feed = keep(generated(backend="inprocess"))
    iterator = iter(feed)
    for _ in range(3):
        next(iterator)
    before = feed.state_dict()
    with pytest.raises(ValueError, match="changed or cut short"):
        feed.load_state_dict({**before, **DAMAGED[name]})
    assert feed.state_dict() == before


@pytest.mark.parametrize("items", [-1, 10**6, "x", None])
def test_a_position_that_no_item_has_is_refused(items: Any, keep: Keep) -> None:
    feed = keep(mapped(backend="inprocess"))
    iterator = iter(feed)
    next(iterator)
    with pytest.raises(ValueError, match="changed or cut short"):
        feed.load_state_dict({**feed.state_dict(), "at": {"items": items}})


def test_a_refused_state_leaves_open_what_was_open(keep: Keep) -> None:
    other = keep(mpfeed.from_generator(lambda shard: iter(()), shards=5, seed=99, backend="inprocess")).state_dict()
    feed = keep(generated(backend="inprocess", shards=None, workers=2, seed=None))
    before = feed.state_dict()
    with pytest.raises(ValueError, match="source was"):
        feed.load_state_dict(other)
    assert feed.state_dict() == before


def test_an_older_iterator_that_is_read_on_does_not_take_the_loaded_position_along(keep: Keep) -> None:
    feed = keep(mapped(backend="inprocess"))
    older = iter(feed)
    next(older)
    feed.load_state_dict({**feed.state_dict(), "epoch": 1})
    later = len(list(older))  # whose end lets workers begin another epoch
    assert len(list(feed)) == later


def test_the_spec_is_known_also_where_only_the_end_of_an_epoch_is_left(keep: Keep) -> None:
    feed = keep(mpfeed.from_generator(lambda shard: shard.of(np.arange(6)), shards=2, backend="inprocess"))
    iterator = iter(feed)
    for _ in range(6):
        next(iterator)
    resumed = keep(mpfeed.from_generator(lambda shard: shard.of(np.arange(6)), shards=2, backend="inprocess"))
    resumed.load_state_dict(feed.state_dict())
    assert resumed.element_spec.dtype == np.int64
    assert [int(element) for element in resumed] == []
    assert sorted(int(element) for element in resumed) == list(range(6))


@pytest.mark.parametrize("build", [generated, mapped])
def test_options_may_be_integers_of_numpy(build: Build, keep: Keep) -> None:
    options = {"batch_size": np.int64(4), "seed": np.uint8(3), "buffer": np.int32(2)}
    one, other = keep(build(**options)), keep(build(**options))
    iterator = iter(one)
    next(iterator)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert digest(copied(element) for element in other) == digest(copied(element) for element in iterator)
