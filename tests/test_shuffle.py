"""The order of an epoch: a permutation that is never stored."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfeed._shuffle import Permutation


def order(n: int, seed: int = 0, epoch: int = 0) -> list[int]:
    permutation = Permutation(n, seed, epoch)
    return [permutation[i] for i in range(n)]


@pytest.mark.parametrize("n", [*range(70), 127, 128, 129, 255, 256, 257, 1000, 4095, 4096, 4097, 10_000, 65_537])
def test_every_position_goes_to_another_place(n: int) -> None:
    assert sorted(order(n)) == list(range(n))


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 3000), seed=st.integers(0, 1 << 64), epoch=st.integers(0, 1 << 32))
def test_it_is_a_permutation_whatever_seed_and_epoch(n: int, seed: int, epoch: int) -> None:
    assert sorted(order(n, seed, epoch)) == list(range(n))


def test_it_depends_on_seed_and_epoch_alone() -> None:
    assert order(500, 3, 4) == order(500, 3, 4)
    orders = [tuple(order(500, seed, epoch)) for seed in range(5) for epoch in range(5)]
    assert len(set(orders)) == 25


def test_positions_can_be_read_in_any_order() -> None:
    permutation = Permutation(20_000, 1, 2)
    places = [19_999, 0, 4096, 4095, 12_345, 0]
    forward = order(20_000, 1, 2)
    assert [permutation[i] for i in places] == [forward[i] for i in places]


def test_a_thousand_million_items_cost_nothing() -> None:
    permutation = Permutation(10**9, 0, 0)
    sample = [permutation[i] for i in range(0, 10**9, 10**8)]
    assert len(set(sample)) == 10
    assert all(0 <= place < 10**9 for place in sample)


def test_neighbours_are_spread_over_the_whole_range() -> None:
    places = order(10_000)
    near = sum(abs(a - b) < 100 for a, b in pairwise(places))
    assert near < 400, "of 10,000 neighbours about 200 stay within 100 of each other by chance"
    eighths = [sum(i * 1250 <= place < (i + 1) * 1250 for place in places[:1250]) for i in range(8)]
    assert all(100 < count < 220 for count in eighths)
