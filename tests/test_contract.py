"""The contract, once per backend: the stream, its completeness, its elements, its bounds and its random numbers."""

from __future__ import annotations

import contextlib
import enum
import gc
import os
import random
import re
import threading
import weakref
from collections import deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from leaks import Holdings
from streams import Gate, Tally, copied, digest, drain, eventually, in_turn, leaves, numbers
from toy_backend import Turns, TurnsEngine

import mpfeed
from mpfeed import Shard
from mpfeed._collating import Chunk
from mpfeed._layout import row_of
from mpfeed._options import BackendName
from mpfeed.backends.base import Engine, Plan
from mpfeed.transport.arena import Heap

Keep = Callable[[mpfeed.Feed], mpfeed.Feed]


def on(backend: str, **options: Any) -> Any:
    """Keyword options for a backend."""
    return {"backend": backend, "workers": 2, **options}


def read(feed: mpfeed.Feed, epochs: int = 1) -> list[Any]:
    """All elements of so many epochs."""
    return [copied(element) for _ in range(epochs) for element in feed]


def counting(lengths: list[int]) -> Callable[[Shard], Iterator[np.int64]]:
    """Shard s yields s * 100, s * 100 + 1, ..., as many as ``lengths`` says."""

    def source(shard: Shard) -> Iterator[np.int64]:
        for i in range(lengths[shard.index]):
            yield np.int64(shard.index * 100 + i)

    return source


def numbered(lengths: list[int]) -> list[list[int]]:
    """What ``counting`` yields, shard by shard."""
    return [[s * 100 + i for i in range(length)] for s, length in enumerate(lengths)]


# ------------------------------------------------------------------------------ 1. interchangeable


def generated(**options: Any) -> mpfeed.Feed:
    """Shards of different lengths, random numbers of every kind, text and a number of Python's."""

    def source(shard: Shard) -> Iterator[Any]:
        for i in range(5 + shard.index):
            yield {
                "rng": shard.rng.normal(size=3),
                "legacy": np.array([random.random(), np.random.random()]),
                "place": (shard.index, np.int32(i), f"shard {shard.index}"),
            }

    return mpfeed.from_generator(source, shards=4, seed=5, **options)


def mapped(**options: Any) -> mpfeed.Feed:
    """Shuffled items with random numbers of every kind."""

    def sample(item: int, rng: np.random.Generator) -> Any:
        return {"rng": rng.random(2), "legacy": np.array([random.random(), np.random.random()]), "item": item}

    return mpfeed.from_map(sample, range(23), shuffle=True, seed=6, **options)


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("make", [generated, mapped], ids=["generator", "map"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_two_epochs_are_the_same_bit_for_bit_on_every_backend_with_any_number_of_workers(
    backend: str, workers: int, make: Callable[..., mpfeed.Feed], batch_size: int | None, keep: Keep
) -> None:
    if backend == "ray" and (workers != 2 or (batch_size is None) == (make is mapped)):
        pytest.skip("two of twelve on Ray, each start of which takes seconds")
    if backend == "inprocess" and workers > 1:
        pytest.skip("in threads only `rng` is promised")
    here = read(keep(make(backend="inprocess", workers=1, batch_size=batch_size)), epochs=2)
    there = read(keep(make(backend=backend, workers=workers, batch_size=batch_size)), epochs=2)
    assert digest(there) == digest(here)
    assert digest(here[: len(here) // 2]) != digest(here[len(here) // 2 :])


@pytest.mark.parametrize("workers", [2, 3])
def test_in_threads_the_stream_of_rng_is_the_same(workers: int, keep: Keep) -> None:
    def source(shard: Shard) -> Iterator[Any]:
        for _ in range(4):
            yield shard.rng.random(2)

    def build(workers: int) -> mpfeed.Feed:
        return keep(mpfeed.from_generator(source, shards=3, backend="inprocess", workers=workers, batch_size=3))

    assert digest(read(build(workers), 2)) == digest(read(build(1), 2))


def test_the_queue_transport_delivers_the_same_stream(keep: Keep) -> None:
    queue = mpfeed.Process(transport="queue")
    for make in (generated, mapped):
        here = keep(make(backend="inprocess", workers=1, batch_size=3))
        assert digest(read(keep(make(backend=queue, workers=2, batch_size=3)), 2)) == digest(read(here, 2))


def test_shards_are_taken_in_turn_exhausted_ones_skipped_and_remainders_merged(backend: str, keep: Keep) -> None:
    lengths = [5, 0, 2, 4]
    feed = keep(mpfeed.from_generator(counting(lengths), shards=4, batch_size=2, **on(backend)))
    whole = [s[: len(s) // 2 * 2] for s in numbered(lengths)]
    full = in_turn([[s[i : i + 2] for i in range(0, len(s), 2)] for s in whole])
    assert [numbers([batch]) for batch in feed] == [*full, [4]]


def test_without_batches_shards_are_taken_element_by_element(keep: Keep) -> None:
    lengths = [5, 0, 2, 4]
    for backend, workers in (("inprocess", 1), ("inprocess", 3), ("process", 1), ("process", 3)):
        feed = keep(mpfeed.from_generator(counting(lengths), shards=4, **on(backend, workers=workers)))
        assert numbers(feed) == in_turn(numbered(lengths))


def test_without_order_what_is_ready_comes_first(backend: str, gate: Gate, keep: Keep) -> None:
    wait = Gate(gate.path)

    def source(shard: Shard) -> Iterator[np.int64]:
        for i in range(3):
            if shard.index == 0:
                wait.wait()
            yield np.int64(shard.index * 100 + i)

    feed = keep(mpfeed.from_generator(source, shards=2, ordered=False, batch_size=1, **on(backend)))
    iterator = iter(feed)
    assert numbers([next(iterator) for _ in range(3)]) == [100, 101, 102]
    gate.open()
    assert numbers(iterator) == [0, 1, 2]


def test_without_order_a_map_delivers_every_item_once(backend: str, keep: Keep) -> None:
    feed = keep(mpfeed.from_map(np.int64, range(31), ordered=False, batch_size=4, **on(backend)))
    assert [sorted(numbers(feed)) for _ in range(2)] == [list(range(31))] * 2


# ---------------------------------------------------------------------------------- 2. complete


def test_remainders_are_collated_on_a_worker_in_shard_order(backend: str, keep: Keep) -> None:
    def summed(samples: list[Any]) -> Any:
        return {"count": len(samples), "first": samples[0], "worker": mpfeed.worker().index}

    lengths = [5, 1, 6, 3]
    feed = keep(mpfeed.from_generator(counting(lengths), shards=4, batch_size=4, collate=summed, **on(backend)))
    for _ in range(2):
        got = read(feed)
        assert numbers(got, "count") == [4, 4, 4, 3]
        assert numbers(got, "first") == [0, 200, 4, 300]
        assert set(numbers(got, "worker")) <= {0, 1}


@pytest.mark.parametrize("drop", [False, True])
def test_at_most_the_last_batch_is_short(drop: bool, keep: Keep) -> None:
    for backend in ("inprocess", "process"):
        for lengths, batch_size in (([7, 3, 5], 4), ([1] * 5, 3), ([4, 4], 4), ([0, 0], 2)):
            total = sum(lengths)
            options = on(backend, batch_size=batch_size, drop_remainder=drop)
            feed = keep(mpfeed.from_generator(counting(lengths), shards=len(lengths), **options))
            got = read(feed)
            rest = total % batch_size * (not drop)
            assert [len(batch) for batch in got] == [batch_size] * (total // batch_size) + [rest] * (rest > 0)
            assert len(set(numbers(got))) == total - total % batch_size * drop
            feed.close()


def test_items_without_a_length_are_all_delivered(keep: Keep) -> None:
    class Again:
        def __iter__(self) -> Iterator[int]:
            return iter(range(11))

    for backend in ("inprocess", "process"):
        feed = keep(mpfeed.from_map(np.int64, Again(), batch_size=4, **on(backend)))
        for _ in range(2):
            assert [numbers([batch]) for batch in feed] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
        with pytest.raises(TypeError, match="length"):
            len(feed)


@pytest.mark.parametrize("custom", [False, True], ids=["stacked", "collate"])
def test_skipping_is_as_if_the_bad_items_had_never_been_there(backend: str, custom: bool, keep: Keep) -> None:
    if backend == "ray" and custom:
        pytest.skip("one of two on Ray")
    bad = {0, 4, 5, 6, 7, 8, 13, 20}

    def picky(i: int) -> np.int64:
        if i in bad:
            raise ValueError(f"bad item {i}")
        return np.int64(i)

    def stacked(samples: list[Any]) -> Any:
        return np.stack(samples)

    collate = stacked if custom else None
    options = on(backend, batch_size=4, collate=collate)
    feed = keep(mpfeed.from_map(picky, range(21), on_error="skip", **options))
    good = [i for i in range(21) if i not in bad]
    for _ in range(2):
        assert [numbers([b]) for b in feed] == [good[i : i + 4] for i in range(0, len(good), 4)]
    assert feed.stats().skipped == 2 * len(bad)
    assert feed.stats().elements == 2 * 4


# ---------------------------------------------------------------------------------- 3. elements

Box = namedtuple("Box", "low high")


def test_batches_cut_anew_hold_text_and_numbers_as_a_worker_would_have_stacked_them(backend: str, keep: Keep) -> None:
    def sample(i: int) -> Any:
        if i == 3:
            raise ValueError(i)
        number = np.int32(i) if i < 2 else i  # of the first's dtype, where it fits
        return {"text": "é" * i, "bytes": b"ab\0" * (i % 3), "number": number, "words": np.array([f"{i}", "x"])}

    def stream(items: Any, **options: Any) -> list[Any]:
        return read(keep(mpfeed.from_map(sample, items, batch_size=4, **on(backend, **options))))

    skipped = stream(range(10), on_error="skip")
    assert digest(skipped) == digest(stream([i for i in range(10) if i != 3]))
    assert skipped[0]["text"].dtype == object
    assert skipped[0]["bytes"].tolist() == [b"", b"ab\0", b"ab\0ab\0", b"ab\0"]
    assert skipped[0]["number"].dtype == np.int32


def test_samples_that_cannot_be_cut_into_one_batch_are_refused_as_a_worker_refuses_them(keep: Keep) -> None:
    def sample(i: int) -> Any:
        if i == 1:
            raise ValueError(i)
        return np.zeros(3 + i // 2)

    feed = keep(mpfeed.from_map(sample, range(4), batch_size=2, on_error="skip", **on("process")))
    with pytest.raises(mpfeed.SignatureError, match=r"sample 1 of a batch cannot be stacked: leaf .* has shape \(4,\)"):
        read(feed)


def kitchen_sink(i: int) -> Any:
    """One leaf of each kind that an element may hold."""
    grid = np.arange(24, dtype=np.float32).reshape(4, 6) + i
    return {
        "bf16": grid.astype(ml_dtypes.bfloat16),
        "f8": grid.astype(ml_dtypes.float8_e4m3fn),
        "big": grid.astype(">f8"),
        "reversed": grid[::-1, ::2],
        "fortran": np.asfortranarray(grid),
        "empty": np.empty((0, 3), np.int16),
        "bool": grid > 9,
        "complex": grid.astype(np.complex64),
        "nested": (np.int8(i), [np.uint16(i), {"x": np.array(i, np.float16)}]),
        "words": np.array([["a", "grün\0"], ["", "b" * i]], object),
        "bytes": b"\x00\xff" * (i + 1) + b"\x00",
        "str": f"item {i}",
        "python": (i, i / 4, bool(i % 2)),
    }


def test_any_element_arrives_bit_for_bit_and_read_only(backend: str, keep: Keep) -> None:
    make = kitchen_sink

    def sample(i: int) -> Any:
        return make(i)

    feed = keep(mpfeed.from_map(sample, range(4), **on(backend)))
    got = list(feed)
    assert [path for e in got for path, leaf in leaves(e) if leaf.flags.writeable] == []
    for i, element in enumerate(got):
        want = kitchen_sink(i)
        assert element["big"].dtype == np.float64
        assert element["big"].tobytes() == want["big"].astype(np.float64).tobytes()
        for name in ("bf16", "f8", "reversed", "fortran", "empty", "bool", "complex"):
            assert (element[name].dtype, element[name].shape) == (want[name].dtype, want[name].shape)
            assert element[name].tobytes() == want[name].tobytes(), name
        assert element["words"].tolist() == want["words"].tolist()
        assert (element["bytes"].item(), element["str"].item()) == (want["bytes"], want["str"])
        assert [leaf.item() for leaf in element["python"]] == list(want["python"])
        assert type(element["nested"][1]) is list
        assert element["nested"][1][1]["x"].dtype == np.float16


def test_keys_of_a_dict_come_in_the_order_of_the_first_element(backend: str, keep: Keep) -> None:
    def sample(i: int) -> Any:
        return {"y": i, "x": -i} if i % 2 == 0 else {"x": -i, "y": i}

    for make in (mpfeed.from_map(sample, range(20), **on(backend)), mpfeed.from_generator(
        lambda shard: map(sample, shard.of(range(20))), shards=2, **on(backend)
    )):  # fmt: skip
        assert [list(element.items()) for element in keep(make)] == [[("y", i), ("x", -i)] for i in range(20)]


def test_a_namedtuple_of_the_callers_own_keeps_its_fields(backend: str, keep: Keep) -> None:
    box = namedtuple("box", "low high")

    def sample(i: int) -> Any:
        return box(np.int64(i), np.zeros(2))

    for element in keep(mpfeed.from_map(sample, range(2), batch_size=2, **on(backend))):
        assert element._fields == ("low", "high")
        assert element.low.tolist() == [0, 1]


@pytest.mark.parametrize("nbytes", [800_000, 4_000_000])
def test_a_source_may_refill_one_array_again_and_again(backend: str, nbytes: int, keep: Keep) -> None:
    small, large = np.zeros(3, np.int32), np.zeros(nbytes // 4, np.int32)

    def refilled(i: int) -> Any:
        small[:], large[:] = i, i
        return small, large

    def generator(shard: Shard) -> Iterator[Any]:
        return map(refilled, range(12))

    forms = [
        mpfeed.from_generator(generator, shards=1, **on(backend, workers=1)),
        mpfeed.from_map(refilled, range(12), **on(backend, workers=1)),
        mpfeed.from_map(int, range(12), batch_size=1, collate=lambda one: refilled(*one), **on(backend, workers=1)),
    ]
    for feed in map(keep, forms):
        held = list(feed)
        extremes = [(int(s.min()), int(s.max()), int(x.min()), int(x.max())) for s, x in held]
        assert extremes == [(i,) * 4 for i in range(12)]


@pytest.mark.parametrize("transport", ["shared_memory", "queue"])
def test_over_either_transport_a_source_may_refill_its_array(transport: Any, keep: Keep) -> None:
    large = np.zeros(500_000, np.int32)

    def refilled(i: int) -> Any:
        large[:] = i
        return large

    feed = keep(mpfeed.from_map(refilled, range(12), workers=1, backend=mpfeed.Process(transport=transport)))
    assert [(int(x.min()), int(x.max())) for x in list(feed)] == [(i, i) for i in range(12)]


def test_python_numbers_take_the_dtype_of_the_first_element_where_they_fit(backend: str, keep: Keep) -> None:
    def sample(i: int) -> Any:
        return {"x": np.float32(0.5) if i == 0 else [2.5, 3, True][i - 1], "n": np.uint8(7) if i == 0 else 255}

    got = read(keep(mpfeed.from_map(sample, range(4), **on(backend))))
    assert [element["x"].dtype for element in got] == [np.float32] * 4
    assert [element["n"].dtype for element in got] == [np.uint8] * 4
    assert [element["x"].item() for element in got] == [0.5, 2.5, 3.0, 1.0]
    assert numbers(got, "n") == [7, 255, 255, 255]


BAD_ELEMENTS: dict[str, tuple[Callable[[], Any], str]] = {
    "none": (lambda: {"a": np.uint8(1), "b": None}, r"leaf \['b'\] is None"),
    "ragged": (lambda: {"a": np.uint8(1), "b": np.array([np.zeros(2), np.zeros(3)], object)}, "objects of ndarray"),
    "masked": (lambda: {"a": np.uint8(1), "b": np.ma.masked_array([1.0], [True])}, "masked array"),
    "structured": (lambda: {"a": np.uint8(1), "b": np.zeros(1, "i4,f4")}, "structured array"),
    "mixed text": (lambda: {"a": np.uint8(1), "b": np.array(["x", b"y"], object)}, "mixes str and bytes"),
    "wide": (lambda: {"a": 1 << 70, "b": np.zeros(1)}, "more than 64 bits"),
    "too large": (lambda: {"a": 300, "b": np.zeros(1)}, "the Python number 300"),
    "negative": (lambda: {"a": -1, "b": np.zeros(1)}, "the Python number -1"),
    "fraction": (lambda: {"a": 0.5, "b": np.zeros(1)}, "the Python number 0.5"),
    "wider dtype": (lambda: {"a": np.int16(1), "b": np.zeros(1)}, r"int16 .* uint8"),
    "text": (lambda: {"a": "one", "b": np.zeros(1)}, "text"),
    "missing leaf": (lambda: {"a": np.uint8(1)}, r"missing \['b'\]"),
    "one leaf more": (lambda: {"a": np.uint8(1), "b": np.zeros(1), "c": 1}, r"not expected \['c'\]"),
}


def refusals(backend: str, keep: Keep) -> list[str]:
    """The words about each bad element: one an epoch, after a good one."""
    bad = [make for make, _ in BAD_ELEMENTS.values()]

    def source(shard: Shard) -> Iterator[Any]:
        yield {"a": np.uint8(1), "b": np.zeros(1)}
        yield bad[shard.epoch]()

    feed = keep(mpfeed.from_generator(source, shards=1, **on(backend, workers=1)))
    words = []
    for _ in bad:
        got, error = drain(feed)
        assert len(got) == 1
        assert type(error) is mpfeed.SignatureError, error
        words.append(str(error))
    return words


def test_what_is_refused_is_named_in_the_same_words_on_every_backend(backend: str, keep: Keep) -> None:
    words = refusals(backend, keep)
    assert words == refusals("inprocess", keep)
    for text, (name, (_, pattern)) in zip(words, BAD_ELEMENTS.items(), strict=True):
        assert re.search(pattern, text), f"{name}: {text}"
        assert "element 1" in text, text


def test_the_first_element_is_refused_too_and_named(backend: str, keep: Keep) -> None:
    with pytest.raises(mpfeed.SignatureError, match=r"item 0 in worker 0: leaf \['x'\] is None"):
        next(iter(keep(mpfeed.from_map(lambda i: {"x": None}, range(2), **on(backend)))))


# ------------------------------------------------------------------------- 4 and 5. bounded, ahead


@pytest.mark.parametrize("recut", [False, True], ids=["as asked", "skip and collate"])
def test_production_stays_within_credit_of_the_consumer(
    backend: str, recut: bool, tmp_path: Any, tally: Tally, keep: Keep
) -> None:
    if backend == "ray" and recut:
        pytest.skip("one of two on Ray")
    workers, buffer, size, items = 2, 2, 3, 60
    consumed, notes = Tally(tmp_path / "consumed"), Tally(tally.path)
    window = workers * (buffer + 1) * size

    def sample(i: int) -> np.int64:
        taken = len(consumed.lines()) * size
        notes.note(f"ahead {i - taken}")
        return np.int64(i)

    options = on(backend, batch_size=size, buffer=buffer, epochs=1)
    if recut:  # samples come back one by one, and go out again to be collated
        options |= {"on_error": "skip", "collate": np.stack}
    feed = keep(mpfeed.from_map(sample, range(items), **options))
    iterator = iter(feed)
    for number in range(items // size):
        consumed.note(number)  # before it is taken, which makes room for another
        next(iterator)
        if backend != "inprocess":  # there the consumer's own thread produces
            due = min(items, (number + 1 + workers * buffer) * size)  # so much lies ready, or is being made
            assert eventually(partial(tally.reached, due)), "workers idle although there is room"
    assert next(iterator, None) is None
    ahead = [int(line.split()[1]) for line in tally.lines()]
    assert len(ahead) == items
    assert max(ahead) < window


@dataclass(frozen=True)
class OneSlow(Turns):
    """Worker 0 answers only when the others have nothing left to do."""

    def open(self, plan: Plan) -> Engine:
        return _OneSlow(plan)


class _OneSlow(TurnsEngine):
    def wait(self, timeout_s: float | None) -> None:
        self._messages = deque(sorted(self._messages, key=lambda message: message[0] == 0))
        super().wait(timeout_s)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("custom", [False, True], ids=["stacked", "collate"])
@pytest.mark.parametrize("every", [0, 4])
def test_production_stays_within_credit_where_batches_are_cut_anew_and_one_worker_is_slow(
    every: int, custom: bool, ordered: bool, keep: Keep
) -> None:
    workers, buffer, size, made = 2, 1, 3, list[int]()

    def sample(i: int) -> np.int64:
        if every and i % every == 0:
            raise ValueError("left out")
        made.append(i)
        return np.int64(i)

    options: Any = {"batch_size": size, "buffer": buffer, "ordered": ordered, "collate": np.stack if custom else None}
    options |= {"on_error": "skip", "epochs": 1, "workers": workers, "backend": OneSlow()}
    got, ahead = [], []
    for batch in keep(mpfeed.from_map(sample, range(300), **options)):
        got += numbers([batch])
        ahead.append(len(made) - len(got))
    assert sorted(got) == sorted(made) == [i for i in range(300) if not every or i % every]
    # A window of batches, and what is left over where one was cut.
    assert max(ahead) <= (workers * (buffer + 1) + 1) * size


def test_at_most_buffer_messages_of_the_next_epoch_are_made_and_none_beyond_the_last(
    remote: str, tally: Tally, keep: Keep
) -> None:
    notes = Tally(tally.path)

    def source(shard: Shard) -> Iterator[np.int64]:
        for i in range(8):
            notes.note(f"{shard.epoch}")
            yield np.int64(i)

    buffer, size = 2, 2
    options = on(remote, batch_size=size, buffer=buffer, epochs=2, shards=2)
    feed = keep(mpfeed.from_generator(source, **options))
    assert len(read(feed)) == 8
    assert eventually(lambda: tally.lines().count("1") == 2 * buffer * size)
    assert len(read(feed)) == 8
    with pytest.raises(mpfeed.FeedClosed, match="epochs=2"):
        iter(feed)
    feed.close()
    assert sorted(set(tally.lines())) == ["0", "1"]
    assert [tally.lines().count(epoch) for epoch in "01"] == [16, 16]


class Curriculum:
    """Items that their user changes for each epoch; reading them leaves a mark of its own."""

    def __init__(self) -> None:
        self.epoch = 0
        self.read = 0

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return self.epoch


def test_items_that_change_between_epochs_are_those_of_their_epoch(backend: BackendName, keep: Keep) -> None:
    items = Curriculum()
    feed = keep(mpfeed.from_map(abs, items, workers=2, batch_size=4, backend=backend))
    for items.epoch in range(3):
        assert {int(value) for batch in feed for value in batch} == {items.epoch}
    read, epochs = items.read, 8
    for _ in range(epochs):
        assert len(list(feed)) == 6
    # What was read ahead of an epoch whose items stayed is not read again, but for that of the epoch to come.
    assert items.read <= read + epochs * 24 + 2 * 3 * 4


def test_what_was_read_ahead_is_not_more_than_buffer_messages(tally: Tally, keep: Keep) -> None:
    notes = Tally(tally.path)

    def source(shard: Shard) -> Iterator[np.int64]:
        for i in range(20):
            notes.note(shard.epoch)
            yield np.int64(i)

    feed = keep(mpfeed.from_generator(source, shards=2, batch_size=2, buffer=1, **on("process")))
    assert len(read(feed)) == 20
    assert eventually(lambda: tally.lines().count("1") == 2 * 1 * 2)
    feed.close()  # workers answer what they were asked before they end
    assert tally.lines().count("1") == 2 * 1 * 2


def test_an_error_of_the_next_epoch_surfaces_only_there(backend: str, tally: Tally, keep: Keep) -> None:
    notes = Tally(tally.path)

    def source(shard: Shard) -> Iterator[np.int64]:
        if shard.epoch == 1:
            notes.note("raised")
            raise ValueError("in the second epoch")
        yield from map(np.int64, range(3))

    feed = keep(mpfeed.from_generator(source, shards=1, **on(backend, workers=1)))
    assert numbers(feed) == [0, 1, 2]
    if backend != "inprocess":
        assert eventually(tally.lines)
    with pytest.raises(mpfeed.WorkerError, match="in the second epoch"):
        next(iter(feed))
    assert numbers(feed) == [0, 1, 2]


def test_a_break_closes_the_generators_in_the_workers_and_keeps_the_position(
    backend: BackendName, keep: Keep, tally: Tally
) -> None:
    notes = Tally(tally.path)

    def endless(shard: Shard) -> Iterator[int]:
        try:
            yield from __import__("itertools").count()
        finally:
            notes.note("closed")

    feed = keep(mpfeed.from_generator(endless, shards=1, workers=1, batch_size=2, backend=backend))
    for batch in feed:
        assert batch.tolist() == [0, 1]
        break
    assert eventually(tally.lines)
    assert feed.state_dict()["taken"] == 1
    iterator = iter(feed)
    next(iterator)
    iterator.close()
    assert eventually(lambda: len(tally.lines()) == 2)


@pytest.mark.parametrize("how", ["read", "left", "failed"])
def test_a_feed_that_nobody_holds_ends_at_once_without_the_garbage_collector(backend: str, how: str) -> None:
    def sample(i: int) -> int:
        if i == 5 and how == "failed":
            raise ValueError(i)
        return i

    feed = mpfeed.from_map(sample, range(8), **on(backend))
    held = weakref.ref(feed)
    gc.disable()
    try:
        with contextlib.suppress(mpfeed.WorkerError):
            for element in feed:
                if element == 3 and how == "left":
                    break
        with pytest.warns(ResourceWarning, match="was forgotten"):
            del feed
        assert held() is None
    finally:
        gc.enable()


def test_workers_outlive_an_epoch_and_a_break(remote: str, keep: Keep) -> None:
    def pid(i: int) -> int:
        return __import__("os").getpid()  # type: ignore[no-any-return]

    feed = keep(mpfeed.from_map(pid, range(12), **on(remote)))
    seen = set(numbers(feed))
    for element in feed:
        seen.add(int(element))
        break
    seen |= set(numbers(feed))
    assert len(seen) == 2


def test_a_closed_feed_that_is_held_keeps_nothing_of_its_workers(keep: Keep) -> None:
    feed = keep(mpfeed.from_map(lambda i: np.zeros(5000), range(10), **on("process")))
    before = Holdings.now()
    for element in feed:
        del element
    assert feed.element_spec.shape == (5000,)  # of the next epoch, which nobody iterates
    feed.close()
    assert before.left_behind() == {}


def test_a_feed_closed_while_it_makes_room_for_its_workers_has_none(
    keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = keep(mapped(**on("process")))

    def fit(backend: mpfeed.Process, workers: int, opening: Any) -> int:
        feed.close()  # as by another thread, which finds no workers to stop
        return workers

    monkeypatch.setattr(mpfeed.Process, "fit", fit)
    before = Holdings.now()
    with pytest.raises(mpfeed.FeedClosed):
        iter(feed)
    assert before.left_behind() == {}


def test_threads_that_share_an_iterator_get_each_element_once(
    backend: str, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def yielding(array: Any, row: int) -> Any:
        os.sched_yield()
        return row_of(array, row)

    monkeypatch.setattr("mpfeed._iterator.row_of", yielding)
    feed = keep(mpfeed.from_map(np.int64, range(400), **on(backend)))
    shared, got, start = iter(feed), list[list[int]](), threading.Barrier(4)

    def read_on() -> None:
        start.wait()
        got.append(numbers(shared))

    threads = [threading.Thread(target=read_on) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for part in got for number in part) == list(range(400))
    assert all(part == sorted(part) for part in got)


def test_with_vary_epochs_false_every_iteration_is_epoch_0(backend: str, keep: Keep) -> None:
    feed = keep(mapped(vary_epochs=False, batch_size=4, **on(backend, workers=1)))
    first = digest(read(feed))
    assert digest(read(feed)) == first
    varied = keep(mapped(batch_size=4, **on("inprocess", workers=1)))
    assert digest(read(varied)) == first
    assert digest(read(varied)) != first


def test_two_iterators_of_one_feed_are_two_epochs_that_do_not_disturb_each_other(backend: str, keep: Keep) -> None:
    feed = keep(mapped(**on(backend, workers=1)))
    alone = keep(mapped(**on("inprocess", workers=1)))
    want = [read(alone), read(alone)]
    one, two = iter(feed), iter(feed)
    got = [(copied(next(one)), copied(next(two))) for _ in range(23)]
    assert [digest(stream) for stream in zip(*got, strict=True)] == [digest(stream) for stream in want]


def test_asking_for_the_spec_makes_element_0_only_and_the_first_iterator_gets_it(
    backend: str, tally: Tally, keep: Keep
) -> None:
    notes = Tally(tally.path)

    def sample(i: int) -> Any:
        notes.note(i)
        return {"x": np.zeros((2, 3), np.float32), "i": np.int64(i)}

    feed = keep(mpfeed.from_map(sample, range(5), batch_size=1, epochs=1, **on(backend)))
    assert tally.lines() == []
    spec = feed.element_spec
    assert (spec["x"].shape, spec["x"].dtype, spec["i"].shape) == ((None, 2, 3), np.float32, (None,))
    assert tally.lines() == ["0"]
    assert numbers(feed, "i") == list(range(5))
    assert sorted(tally.lines()) == list("01234")


# --------------------------------------------------------------------------------- 8. random numbers


def draws_of_items(backend: str, workers: int, keep: Keep) -> list[list[tuple[float, ...]]]:
    """What each item drew, an epoch a list: rng, random, np.random and OpenCV's."""

    def draw(i: int, rng: np.random.Generator) -> Any:
        import cv2

        noise = np.zeros((1, 1), np.float64)
        cv2.randu(noise, 0.0, 1.0)
        return np.array([rng.random(), random.random(), np.random.random(), noise[0, 0]])

    feed = keep(mpfeed.from_map(draw, range(7), seed=3, backend=backend, workers=workers))  # type: ignore[arg-type]
    return [[tuple(element.tolist()) for element in feed] for _ in range(2)]


def test_every_generator_is_seeded_by_epoch_and_item_alone(backend: str, keep: Keep) -> None:
    pytest.importorskip("cv2")  # in-process it is seeded from the first item on only where it is imported already
    epochs = draws_of_items(backend, 1 if backend == "inprocess" else 2, keep)
    assert epochs == draws_of_items("inprocess", 1, keep)
    for kind in zip(*(draw for epoch in epochs for draw in epoch), strict=True):
        assert len(set(kind)) == 14  # no two items or epochs alike


def draws_of_shards(backend: str, workers: int, keep: Keep) -> list[Any]:
    def draw(shard: Shard) -> Iterator[Any]:
        import cv2

        noise = np.zeros((1, 1), np.float64)
        cv2.randu(noise, 0.0, 1.0)  # per thread and not to be read back: promised where a shard starts
        for _ in range(3):
            yield np.array([shard.rng.random(), random.random(), np.random.random(), noise[0, 0]])

    feed = keep(mpfeed.from_generator(draw, shards=3, seed=3, backend=backend, workers=workers))  # type: ignore[arg-type]
    return read(feed, epochs=2)


def test_every_generator_is_seeded_by_epoch_and_shard_alone(backend: str, keep: Keep) -> None:
    pytest.importorskip("cv2")
    got = draws_of_shards(backend, 1 if backend == "inprocess" else 2, keep)
    assert digest(got) == digest(draws_of_shards("inprocess", 1, keep))
    rows = np.stack(got)
    for kind in range(3):
        assert len(set(rows[:, kind].tolist())) == 18
    assert len(set(rows[:, 3].tolist())) == 6


def test_in_process_the_callers_own_random_state_is_restored(keep: Keep) -> None:
    random.seed(12)
    np.random.seed(12)
    before = random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index]
    with mapped(backend="inprocess", workers=1) as feed:
        for _ in feed:
            assert random.getstate() == before[0]
    with generated(backend="inprocess", workers=1) as feed:
        for _ in feed:
            assert random.getstate() == before[0]
    assert np.random.get_state()[1].tobytes() == before[1]  # type: ignore[index]


def test_another_seed_gives_another_stream_and_none_draws_one(keep: Keep) -> None:
    def build(seed: int | None) -> str:
        def draw(i: int, rng: np.random.Generator) -> Any:
            return rng.random(2)

        return digest(read(keep(mpfeed.from_map(draw, range(3), seed=seed, backend="inprocess"))))

    assert build(0) == build(0)
    assert len({build(0), build(1), build(None), build(None)}) == 4


class Counter:
    """An iterator whose class makes it."""

    def __init__(self, shard: Shard) -> None:
        self._numbers = iter(shard.of(range(6)))

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self._numbers)


def test_a_class_of_iterators_is_a_source(backend: BackendName, keep: Keep) -> None:
    feed = keep(mpfeed.from_generator(Counter, shards=2, **on(backend)))
    assert [numbers(feed), numbers(feed)] == [list(range(6))] * 2


def test_a_feed_is_true_whatever_its_length(keep: Keep) -> None:
    assert keep(mpfeed.from_generator(Counter, workers=1))
    assert keep(mpfeed.from_map(abs, [], workers=1))


class Split(str, enum.Enum):  # noqa: UP042 - whose str() is its name
    TRAIN = "train"


def test_text_of_a_subclass_is_itself(backend: BackendName, keep: Keep) -> None:
    def words(i: int) -> Any:
        return Split.TRAIN, np.array([Split.TRAIN, "x"], object)

    (one, two), *_ = read(keep(mpfeed.from_map(words, range(2), **on(backend))))
    assert (one.tolist(), two.tolist()) == ("train", ["train", "x"])


@pytest.mark.parametrize(("size", "rows"), [(1 << 20, 1), (200_000, 6)])
def test_long_text_fills_a_message_too(size: int, rows: int) -> None:
    chunk = Chunk(Heap(adopts=False), 4096, None, 0)
    while not chunk.full:
        chunk.add(bytes(size))
    assert chunk.count == rows


@pytest.mark.parametrize(
    ("dtype", "value", "want"),
    [("f4", 1 << 70, 2.0**70), ("f4", None, np.nan), ("f8", np.float32(0.5), 0.5), ("c8", 1j, 1j),
     ("M8[s]", np.nan, np.datetime64("NaT")), ("bfloat16", -1, -1)],
)  # fmt: skip
def test_padding_is_the_value_in_the_dtype_of_the_leaf(dtype: str, value: Any, want: Any) -> None:
    samples = [np.ones(1).astype(dtype), np.ones(2).astype(dtype)]
    padded = mpfeed.collate_padded(value)(samples)
    assert padded.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(padded[0, 1], np.asarray(want, padded.dtype))


def test_padding_fits_what_it_pads(keep: Keep) -> None:
    def sample(i: int) -> Any:
        return {"ids": np.ones(i + 1, np.int32), "mask": np.ones(i + 1, bool), "level": np.full(2, 7, np.uint8)}

    def first(value: Any) -> Any:
        feed = keep(mpfeed.from_map(sample, range(2), batch_size=2, collate=mpfeed.collate_padded(value), workers=1))
        return next(iter(feed))

    batch = first(-1)
    assert batch["ids"].tolist() == [[1, -1], [1, 1]]
    assert batch["mask"].tolist() == [[True, False], [True, True]]
    assert batch["level"].tolist() == [[7, 7], [7, 7]]
    for value in (0.5, 1 << 40, 1 << 70, 1j, "x", None):
        with pytest.raises(mpfeed.MpfeedError, match=r"ids.* is int32, which cannot hold the padding value"):
            first(value)


@pytest.mark.parametrize("limit", [float("inf"), 1e9])
def test_a_timeout_may_be_endless(limit: float, backend: BackendName, keep: Keep) -> None:
    assert numbers(keep(mpfeed.from_map(abs, range(4), **on(backend, timeout=limit)))) == [0, 1, 2, 3]


def test_threads_that_are_busy_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, limits = threading.Event(), []
    join = threading.Thread.join

    def joined(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name.startswith("mpfeed-worker"):
            assert timeout is not None
            limits.append(timeout)
        join(thread, timeout)

    monkeypatch.setattr("mpfeed.backends.in_process.GRACE_S", 0.1)
    monkeypatch.setattr(threading.Thread, "join", joined)
    feed = mpfeed.from_map(lambda i: i and blocked.wait(), range(100), workers=8, backend="inprocess")
    next(iter(feed))
    feed.close()
    assert len(limits) == 8
    assert sum(limits) < 0.2
    blocked.set()


def test_few_batches_of_workers_of_the_past_are_held_in_place(monkeypatch: pytest.MonkeyPatch, keep: Keep) -> None:
    monkeypatch.setattr("mpfeed.backends.worker_memory._MOST_LEFT", 2)
    before = len(os.listdir("/proc/self/fd"))
    feed = keep(mpfeed.from_map(lambda i: np.full(9, i), range(8), **on("process", workers=1, max_tasks_per_worker=1)))
    held = []
    for element in feed:
        held.append(element)
        gc.collect()
    assert [element[0] for element in held] == list(range(8))
    assert feed.stats().copied_held >= 4
    assert len(os.listdir("/proc/self/fd")) - before <= 2 + 3 + 2  # what they hold, the feed's worker, the feed's own


def test_batches_that_are_cast_in_part_are_copied_when_many_are_held(keep: Keep) -> None:
    tf = pytest.importorskip("tensorflow")

    def sample(i: int) -> Any:
        return np.full(1 << 19, i, np.uint8), i

    signature = tf.TensorSpec((1 << 19,), tf.uint8), tf.TensorSpec((), tf.int32)
    feed = keep(mpfeed.from_map(sample, range(200), **on("process", workers=1)))
    held = list(feed.dataset(output_signature=signature, chunk=1))
    assert [int(label) for _, label in held] == list(range(200))
    engine = feed._crew._engine  # type: ignore[union-attr]
    assert engine._members[0].memory.reader.lent <= 70  # type: ignore[union-attr]
