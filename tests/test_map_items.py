"""What ``from_map`` takes as items and as a function, and what it says to anything else."""

from __future__ import annotations

import array
import collections
import functools
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mpfeed
from mpfeed._options import BackendName

Keep = Callable[[mpfeed.Feed], mpfeed.Feed]


class Squares:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> int:
        return i * i


Point = collections.namedtuple("Point", "x")


class Torn(Squares):
    def __getitem__(self, i: int) -> int:
        if i == 2:
            raise StopIteration("torn")
        return i * i


class Locked:
    def __reduce__(self) -> Any:
        raise ValueError("stays here")


class Loader:
    def __call__(self, item: int, *, rng: np.random.Generator) -> int:
        return item + int(rng.integers(1))

    def method(self, item: int) -> int:
        return item


def values(feed: mpfeed.Feed) -> list[Any]:
    return [np.asarray(element).tolist() for element in feed]


ITEMS: dict[str, tuple[Any, list[Any]]] = {
    "range": (range(3, 9, 2), [3, 5, 7]),
    "array": (np.arange(6).reshape(3, 2), [[0, 1], [2, 3], [4, 5]]),
    "array of objects": (np.array(["ab", "c"], object), ["ab", "c"]),
    "array of text": (np.array(["a", "bc"]), ["a", "bc"]),
    "array.array": (array.array("i", [1, 2]), [1, 2]),
    "deque": (collections.deque([1, 2]), [1, 2]),
    "of a dataset's kind": (Squares(), [0, 1, 4, 9]),
    "values of a dict": ({"a": 1, "b": 2}.values(), [1, 2]),
    "nothing": ([], []),
}


@pytest.mark.parametrize("name", ITEMS)
def test_items_may_be(name: str, keep: Keep) -> None:
    items, expected = ITEMS[name]
    assert values(keep(mpfeed.from_map(lambda item: item, items, backend="inprocess"))) == expected


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ({1, 2}, r"a set, whose order changes from run to run: pass sorted\(items\)"),
        ({"a": 1}, "a mapping: pass list"),
        (np.array(3), "a 0-d array"),
        ((i for i in range(3)), "a live generator"),
        (map(int, "12"), "a live map"),
        (iter([1]), "a live list_iterator"),
        (lambda: [1], "a sequence or an iterable, not function"),
        (5, "a sequence or an iterable, not int"),
        (None, "a sequence or an iterable, not NoneType"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_items_that_have_no_order_or_can_be_read_once_only_are_refused(items: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        mpfeed.from_map(lambda item: item, items, backend="inprocess")


@pytest.mark.parametrize(
    "function",
    [
        functools.partial(lambda one, item: item, 1),
        functools.partial(lambda item, k: item, k=1),
        Loader(),
        Loader().method,
        lambda item, **more: item,
        lambda *items: items[0],
        lambda item, rng=None: item if rng is not None else -1,
        int,
        np.int64,
    ],
)
def test_a_function_may_be_anything_that_is_called_with_an_item(function: Any, keep: Keep) -> None:
    assert values(keep(mpfeed.from_map(function, [3, 5], backend="inprocess"))) == [3, 5]


def rng_first(rng: Any, item: Any) -> Any:
    return item


def rng_by_place(item: Any, rng: Any, /) -> Any:
    return item


@pytest.mark.parametrize("function", [rng_first, rng_by_place])
def test_a_function_that_cannot_take_rng_by_name_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match=r"write it as fn\(item, rng\)"):
        mpfeed.from_map(function, [1], backend="inprocess")


@pytest.mark.parametrize("batch_size", [None, 2])
def test_an_item_that_cannot_be_read_is_named_after_those_before_it(
    remote: BackendName, batch_size: int | None, keep: Keep
) -> None:
    feed = keep(mpfeed.from_map(np.int64, Torn(), backend=remote, workers=1, batch_size=batch_size))
    got = []
    with pytest.raises(mpfeed.WorkerError, match=r"torn\n  while making item 2 \(reading items\)") as caught:
        got += [element.tolist() for element in feed]
    assert caught.value.index == 2
    assert isinstance(caught.value.__cause__, StopIteration)


def test_an_item_that_cannot_travel_is_named(keep: Keep) -> None:
    feed = keep(mpfeed.from_map(lambda item: 1, [0, 1, Locked(), 3], backend="process", workers=1))
    with pytest.raises(mpfeed.WorkerError, match=r"stays here\. Give items that travel.*\n  while making item 2"):
        list(feed)


def test_an_item_that_cannot_be_read_is_left_out_where_errors_are_skipped(keep: Keep) -> None:
    feed = keep(mpfeed.from_map(np.int64, Torn(), backend="process", workers=1, batch_size=2, on_error="skip"))
    assert values(feed) == [[0, 1], [9]]
    assert feed.stats().skipped == 1


def test_items_of_a_hundred_megabytes_travel(keep: Keep) -> None:
    items = [np.full(100 << 20, i, np.uint8) for i in range(2)]
    feed = keep(mpfeed.from_map(lambda item: item[:: 1 << 20], items, backend="process", workers=1))
    assert [(element.shape, int(element.max())) for element in feed] == [((100,), 0), ((100,), 1)]


def test_a_function_may_change_the_items_it_is_given(backend: BackendName) -> None:
    def raised(item: Any) -> Any:
        row, (pair, named), more = item["row"], item["parts"], item["more"]
        row += 1
        pair[0] += 1
        named.x[:] += 1
        more.append(1)
        return row[0], pair[0], named.x[0], len(more)

    def item() -> Any:
        return collections.OrderedDict(row=np.zeros(2), parts=([0], Point(np.zeros(1))), more=collections.deque())

    items = [item(), item()]
    with mpfeed.from_map(raised, items, workers=1, backend=backend) as feed:
        got = [[np.asarray(part).tolist() for part in element] for _ in range(2) for element in feed]
        assert got == [[1, 1, 1, 1]] * 4
    assert repr(items) == repr([item(), item()])
    locked = np.zeros((2, 2))
    locked.flags.writeable = False
    with (
        mpfeed.from_map(lambda row: row.__iadd__(1), locked, workers=1, backend=backend) as feed,
        pytest.raises(mpfeed.WorkerError, match="read-only"),
    ):
        list(feed)


def test_an_item_may_hold_one_thing_twice_and_itself(backend: BackendName) -> None:
    def linked(item: Any) -> bool:
        first, second, whole = item
        first += 1
        return bool(second[0] == 1 and whole is item)

    row = np.zeros(1)
    item = [row, row]
    item.append(item)  # type: ignore[arg-type]
    with mpfeed.from_map(linked, [item], workers=1, backend=backend) as feed:
        assert values(feed) == [True]


class Once:
    """An iterable that can be read once, and tells when its reading was given up."""

    def __init__(self) -> None:
        self.read = self.closed = False

    def __iter__(self) -> Iterator[int]:
        if self.read:
            raise LookupError("read before")
        self.read = True
        return self._numbers()

    def _numbers(self) -> Iterator[int]:
        try:
            yield from range(20)
        finally:
            self.closed = True


def test_items_that_can_be_read_once_give_one_whole_epoch_and_raise_in_the_next(backend: BackendName) -> None:
    with mpfeed.from_map(abs, Once(), workers=1, backend=backend) as feed:
        assert values(feed) == list(range(20))
        with pytest.raises(LookupError, match="read before"):
            list(feed)


def test_items_are_closed_with_the_iteration_that_reads_them(backend: BackendName) -> None:
    items = Once()
    with mpfeed.from_map(abs, items, workers=1, backend=backend) as feed:
        for _ in feed:
            break
        assert items.closed


class Rewound:
    """Items read from one object of the user's, which is rewound for each pass."""

    def __init__(self) -> None:
        self.file = io.StringIO("1\n2\n3\n")

    def __iter__(self) -> Iterator[str]:
        self.file.seek(0)
        return iter(self.file)


def test_what_the_user_reads_items_from_stays_open() -> None:
    with mpfeed.from_map(int, Rewound(), workers=1, backend="inprocess") as feed:
        for _ in feed:
            break
        assert [values(feed), values(feed)] == [[1, 2, 3]] * 2
