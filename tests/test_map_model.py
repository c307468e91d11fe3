"""``from_map`` against a plain model: shuffle, skips, batches, remainders, parts and resuming, in any combination."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import mpfeed
from mpfeed._shuffle import Permutation

Remainder = Literal["drop", "pad", "keep"]


class Again:
    """Items without a length, that can be iterated again."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return iter(range(self.count))


class Torn:
    """Items of which some cannot be read."""

    def __init__(self, count: int, bad: frozenset[int]) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> int:
        if i in self.bad:
            raise KeyError(i)
        return i


def listed(samples: list[Any]) -> Any:
    return np.array([int(sample) for sample in samples])


@dataclass(frozen=True)
class Case:
    """A feed, and what it must deliver."""

    count: int
    bad: frozenset[int]
    skips: bool
    shuffle: bool
    sized: bool
    torn: bool
    batch_size: int | None
    drop_remainder: bool
    collates: bool
    vary_epochs: bool
    parts: int
    part: int
    remainder: Remainder

    def feed(self, keep: list[mpfeed.Feed]) -> mpfeed.Feed:
        bad, shuffles = self.bad, self.shuffle and self.sized

        def fn(i: int) -> np.int64:
            if i in bad:
                raise StopIteration
            return np.int64(i)

        batches: dict[str, Any] = {}
        if self.batch_size is not None:
            batches = {
                "batch_size": self.batch_size,
                "drop_remainder": self.drop_remainder,
                "collate": listed if self.collates else None,
            }
        whole = mpfeed.from_map(
            fn, self.items(), shuffle=shuffles, seed=3,
            on_error="skip" if self.skips else "raise", vary_epochs=self.vary_epochs, backend="inprocess", **batches,
        )  # fmt: skip
        keep.append(whole)
        if self.parts > 1:
            keep += whole.split(self.parts, remainder=self.remainder)
        return whole if self.parts == 1 else keep[self.part - self.parts]

    def items(self) -> Any:
        if not self.sized:
            return Again(self.count)
        return Torn(self.count, self.bad) if self.torn else range(self.count)

    def epoch(self, number: int) -> list[list[int]]:
        order = Permutation(self.count, 3, number if self.vary_epochs else 0)
        indices = [order[i] for i in range(self.count)] if self.shuffle and self.sized else list(range(self.count))
        samples = [i for i in indices if not (self.skips and i in self.bad)]
        size = self.batch_size or 1
        elements = [samples[i : i + size] for i in range(0, len(samples), size)]
        if elements and self.batch_size and self.drop_remainder and len(elements[-1]) < size:
            elements.pop()
        return self.of_part(elements)

    def of_part(self, elements: list[list[int]]) -> list[list[int]]:
        if self.parts == 1:
            return elements
        if self.remainder == "drop":
            elements = elements[: len(elements) // self.parts * self.parts]
        if self.remainder == "pad" and elements:
            missing = -len(elements) % self.parts
            elements = elements + [elements[i % len(elements)] for i in range(missing)]
        return elements[self.part :: self.parts]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(0, 13))
    skips = draw(st.booleans())
    bad = draw(st.frozensets(st.integers(0, 12), max_size=8)) if skips else frozenset()
    parts = draw(st.integers(1, 4))
    remainder: Remainder = draw(st.sampled_from(["drop", "pad", "keep"]))
    return Case(
        count, bad, skips, draw(st.booleans()), draw(st.booleans()), draw(st.booleans()),
        draw(st.one_of(st.none(), st.integers(1, 5))), draw(st.booleans()), draw(st.booleans()), draw(st.booleans()),
        parts, draw(st.integers(0, parts - 1)), remainder,
    )  # fmt: skip


def values(element: Any) -> list[int]:
    return [int(i) for i in np.ravel(element)]


@settings(max_examples=60, deadline=None)
@given(cases(), st.lists(st.integers(0, 5), max_size=6))
def test_a_stream_is_what_a_plain_model_says_also_after_being_resumed_again_and_again(
    case: Case, takes: list[int]
) -> None:
    kept: list[mpfeed.Feed] = []
    try:
        feed, epoch, taken = case.feed(kept), 0, 0
        iterator = iter(feed)
        for take in takes:
            expected = case.epoch(epoch)[taken : taken + take]
            assert [values(next(iterator)) for _ in expected] == expected
            taken += len(expected)
            if len(expected) < take:
                assert next(iterator, None) is None
                epoch, taken = epoch + 1, 0
            state = json.loads(json.dumps(feed.state_dict()))
            feed = case.feed(kept)
            feed.load_state_dict(state)
            assert feed.state_dict() == state
            if state["epoch"] > epoch:  # its last element was taken, and it is certain that it was
                assert taken == len(case.epoch(epoch))
                epoch, taken = state["epoch"], 0
            iterator = iter(feed)
        assert [values(element) for element in iterator] == case.epoch(epoch)[taken:]
        assert [values(element) for element in feed] == case.epoch(epoch + 1)
    finally:
        for feed in kept:
            feed.close()


@settings(max_examples=100, deadline=None)
@given(cases())
def test_a_length_that_is_told_is_true(case: Case) -> None:
    kept: list[mpfeed.Feed] = []
    try:
        feed = case.feed(kept)
        length = feed.certain_length()
        assert (length is None) == (case.skips or not case.sized)
        assert length in (None, len(case.epoch(0)))
        assert [len(feed)] * 2 == [len(list(feed)), len(list(feed))] if length is not None else True
    finally:
        for feed in kept:
            feed.close()
