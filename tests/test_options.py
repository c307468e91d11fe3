"""Every bad argument is refused with its class and words, where it was given, before any worker exists."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from leaks import children

import mpfeed
from mpfeed import Shard


def source(shard: Shard) -> Iterator[np.int64]:
    yield np.int64(shard.index)


def plain() -> Iterator[np.int64]:
    yield np.int64(0)


def sample(i: int) -> np.int64:
    return np.int64(i)


def two(a: int, b: int) -> int:
    return a + b


def keyword_only(i: int, *, scale: float) -> float:
    return i * scale


def nothing() -> int:
    return 0


class Resource:
    """What cannot travel."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, i: int) -> int:
        with self.lock:
            return i


LOCK = threading.Lock()
OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"worker": 2}, TypeError, r"has no option 'worker'; it has .*(shards|on_error).*workers"),
    ({"workers": 0}, ValueError, r'workers=0: give at least 1 or "auto"'),
    ({"workers": -3}, ValueError, "workers=-3"),
    ({"workers": 2.0}, TypeError, r"workers=2\.0: give a whole number"),
    ({"workers": "all"}, TypeError, "workers='all'"),
    ({"workers": True}, TypeError, "workers=True"),
    ({"backend": "threads"}, ValueError, "choose one of 'inprocess', 'process', 'ray'"),
    ({"backend": mpfeed.Process}, TypeError, r"give a name or an instance, such as mpfeed\.Process\(\)"),
    ({"backend": 3}, TypeError, "backend=3"),
    ({"batch_size": 0}, ValueError, "batch_size=0: give at least 1 or None"),
    ({"batch_size": 2.5}, TypeError, r"batch_size=2\.5"),
    ({"drop_remainder": True}, ValueError, r"drop_remainder= needs batch_size="),
    ({"drop_remainder": 1, "batch_size": 2}, TypeError, "drop_remainder=1: give True or False"),
    ({"collate": list}, ValueError, r"collate= needs batch_size="),
    ({"collate": mpfeed.collate_padded, "batch_size": 2}, TypeError, r"call it, collate=mpfeed\.collate_padded\(\)"),
    ({"collate": "stack", "batch_size": 2}, TypeError, "collate='stack': give a function, or None"),
    ({"ordered": "yes"}, TypeError, "ordered='yes'"),
    ({"seed": -1}, ValueError, "seed=-1: give at least 0 or None"),
    ({"seed": 1.5}, TypeError, r"seed=1\.5"),
    ({"vary_epochs": None}, TypeError, "vary_epochs=None"),
    ({"epochs": 0}, ValueError, "epochs=0"),
    ({"buffer": 0}, ValueError, "buffer=0: give at least 1"),
    ({"timeout": 0}, ValueError, "timeout=0: give more than 0 seconds"),
    ({"timeout": float("nan")}, ValueError, "timeout=nan"),
    ({"timeout": "5s"}, TypeError, "timeout='5s': give seconds, or None"),
    ({"max_restarts": -1}, ValueError, "max_restarts=-1"),
    ({"worker_init": 3}, TypeError, "worker_init=3: give a function, or None"),
    ({"threads_per_worker": 0}, ValueError, "threads_per_worker=0"),
    ({"max_tasks_per_worker": 0}, ValueError, "max_tasks_per_worker=0"),
    ({"worker_init": LOCK.locked}, TypeError, r"the worker_init cannot be sent to a worker"),
    ({"collate": lambda samples: LOCK, "batch_size": 2}, TypeError, r"the collate cannot be sent .*'LOCK'"),
]


@pytest.mark.parametrize(("options", "error", "words"), OPTIONS, ids=[" ".join(o) for o, *_ in OPTIONS])
def test_a_bad_option_is_refused_by_both_kinds_of_feeds(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    before = children()
    with pytest.raises(error, match=words):
        mpfeed.from_map(sample, range(3), **options)
    with pytest.raises(error, match=words):
        mpfeed.from_generator(source, **options)
    assert children() == before


SOURCES: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (plain(), {}, TypeError, r"a live generator \(plain\).*Pass the function that makes it"),
    (iter([1, 2]), {}, TypeError, "a live list_iterator"),
    ([], {}, TypeError, "non-empty sequence"),
    (["a"], {}, TypeError, "function 0 of the sequence is str"),
    ("plain", {}, TypeError, "not str"),
    ([plain, source], {}, TypeError, "function 1 of the sequence .* takes a shard"),
    ([plain, plain()], {}, TypeError, r"function 1\) was given a live generator"),
    (two, {}, TypeError, r"requires \(a, b\).*functools\.partial"),
    (plain, {"workers": 2}, ValueError, "workers=2, but .*plain takes no shard.*workers=1"),
    (plain, {"shards": 3}, ValueError, "shards=3, but .*plain takes no shard"),
    ([plain, plain], {"shards": 3}, ValueError, "shards=3"),
    (source, {"shards": 0}, ValueError, "shards=0: give at least 1"),
    (source, {"shards": 1.5}, TypeError, r"shards=1\.5"),
    (source, {"shards": True}, TypeError, "shards=True"),
]


@pytest.mark.parametrize(("fn", "options", "error", "words"), SOURCES)
@pytest.mark.parametrize("name", ["inprocess", "process"])
def test_a_bad_source_of_a_generator_feed_is_refused_on_every_backend_alike(
    name: Any, fn: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        mpfeed.from_generator(fn, backend=name, **options)


MAPS: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
    (3, [1], {}, TypeError, "needs a function of one item, not int"),
    (two, [1], {}, TypeError, r"\(a: 'int', b: 'int'\).* cannot be called with one item"),
    (nothing, [1], {}, TypeError, "cannot be called with one item"),
    (keyword_only, [1], {}, TypeError, r"functools\.partial"),
    (source, [1], {}, TypeError, "source yields, .* or use from_generator"),
    (sample, iter([1, 2]), {}, TypeError, "a live list_iterator"),
    (sample, plain(), {}, TypeError, "a live generator"),
    (sample, {"a": 1}, {}, TypeError, "items is a mapping"),
    (sample, 7, {}, TypeError, "items must be a sequence or an iterable, not int"),
    (sample, np.array(3), {}, TypeError, "0-d array"),
    (sample, {1: 2}.values(), {"shuffle": True}, TypeError, r"shuffle=True needs items with a length .*list\(items\)"),
    (sample, [1], {"shuffle": 1}, TypeError, "shuffle=1: give True or False"),
    (sample, [1], {"on_error": "ignore"}, ValueError, 'choose "raise" or "skip"'),
    (sample, [1], {"shards": 2}, TypeError, "no option 'shards'"),
]


@pytest.mark.parametrize(("fn", "items", "options", "error", "words"), MAPS)
def test_a_bad_function_or_bad_items_are_refused(
    fn: Any, items: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        mpfeed.from_map(fn, items, **options)


def test_a_source_that_cannot_travel_is_refused_with_the_name_of_the_variable() -> None:
    held = threading.Lock()
    with pytest.raises(
        TypeError, match=r"the source cannot be sent to a worker because of variable 'held'.*worker_init"
    ):
        mpfeed.from_map(lambda i: held.locked(), range(2), backend="process")
    with pytest.raises(TypeError, match="the source cannot be sent to a worker"):
        mpfeed.from_map(Resource(), range(2), backend="process")
    with mpfeed.from_map(Resource(), range(2), backend="inprocess") as feed:
        assert [int(element) for element in feed] == [0, 1]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: mpfeed.Process(transport="pipe"), ValueError, 'choose "shared_memory" or "queue"'),  # type: ignore[arg-type]
        (lambda: mpfeed.Process(memory_limit=0), ValueError, "memory_limit=0"),
        (lambda: mpfeed.Process(memory_limit="1G"), TypeError, "memory_limit='1G'"),  # type: ignore[arg-type]
        (lambda: mpfeed.Ray(num_cpus=-1), ValueError, "num_cpus=-1"),
        (lambda: mpfeed.Ray(num_cpus="two"), TypeError, "num_cpus='two'"),  # type: ignore[arg-type]
        (lambda: mpfeed.Ray(address="ray://head:10001"), ValueError, "run the training on a node of the cluster"),
        (lambda: mpfeed.Ray(address=5), TypeError, "address=5"),  # type: ignore[arg-type]
        (lambda: mpfeed.Ray(resources=[1]), TypeError, r"resources=\[1\]"),  # type: ignore[arg-type]
        (lambda: mpfeed.Ray(runtime_env="x"), TypeError, "runtime_env='x'"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_setting_of_a_backend_is_refused(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_settings_of_a_backend_are_values() -> None:
    assert mpfeed.Process() == mpfeed.Process(transport="shared_memory", memory_limit=None)
    assert mpfeed.Ray(num_cpus=2) != mpfeed.Ray()
    with pytest.raises(AttributeError):
        mpfeed.Process().memory_limit = 5  # type: ignore[misc]


def test_numpy_integers_are_whole_numbers_too() -> None:
    with mpfeed.from_map(sample, range(5), batch_size=np.int32(2), workers=np.int64(1), backend="inprocess") as feed:  # type: ignore[arg-type]
        assert [batch.tolist() for batch in feed] == [[0, 1], [2, 3], [4]]


def test_no_worker_starts_before_the_first_iteration() -> None:
    before = children()
    with mpfeed.from_map(sample, range(5), workers=2, backend="process") as feed:
        assert len(feed) == 5
        iterator = iter(feed)
        assert children() == before
        next(iterator)
        assert len(children()) == len(before) + 2


def test_a_memory_limit_that_holds_no_message_is_an_error_with_the_numbers() -> None:
    limit = mpfeed.Process(memory_limit=1 << 20)
    with (
        mpfeed.from_map(lambda i: np.zeros(1 << 20), range(2), workers=1, backend=limit) as feed,
        pytest.raises(mpfeed.MpfeedError, match=r"memory_limit is 1,048,576 bytes") as caught,
    ):
        next(iter(feed))
    assert not isinstance(caught.value, mpfeed.WorkerError)  # it is not the user's code that raised


@pytest.mark.parametrize("held", [False, True])
def test_a_memory_limit_bounds_the_workers_and_never_stops_the_stream(held: bool) -> None:
    limit = mpfeed.Process(memory_limit=8 << 20)
    with mpfeed.from_map(lambda i: np.full(1 << 18, i), range(20), workers=2, backend=limit) as feed:
        kept = []
        for i, element in enumerate(feed):
            assert (int(element[0]), int(element[-1])) == (i, i)
            if held:
                kept.append(element)
        assert [int(element[0]) for element in kept] == list(range(20)) * held
        assert not held or feed.stats().copies > 0
        del element
        kept.clear()


class _Reader:
    def __init__(self) -> None:
        self.inner = {"lock": [threading.Lock()]}

    def __call__(self, item: int) -> int:
        return item


@pytest.mark.parametrize("bound", [False, True])
def test_what_cannot_travel_is_named_down_to_where_it_lies(bound: bool) -> None:
    source = _Reader().__call__ if bound else _Reader()
    found = re.escape("attribute 'inner' of its _Reader (there: ['lock'][0])")
    with pytest.raises(TypeError, match=found):
        mpfeed.from_map(source, range(3), backend="process")


def test_process_is_refused_where_it_is_asked_for_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(mpfeed.MpfeedError, match='not supported on Windows: use backend="inprocess"'):
        mpfeed.from_map(abs, range(3), backend="process")
    with mpfeed.from_map(abs, range(3), backend="inprocess") as feed:
        assert [int(number) for number in feed] == [0, 1, 2]


def test_without_memfd_batches_travel_in_a_file_and_a_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    feed = mpfeed.from_map(np.arange, range(1, 4), workers=1, backend="process")
    with feed, pytest.warns(RuntimeWarning, match="unlinked temporary file"):
        assert [array.tolist() for array in feed] == [[0], [0, 1], [0, 1, 2]]
