"""The mixes of known cost: what they must make a training wait follows from their costs, and is what is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import verdicts
from benchmarks._mixes import MIXES, Mix, simulated

ENDLESS = replace(MIXES["I/O-bound"], steps=2000)


def _share(mix: Mix, step_s: float) -> float:
    return simulated(mix, step_s, credit=3, ahead=2)


@pytest.mark.parametrize(("step_s", "share"), [(0.05, 0.5), (0.09, 0.1), (0.01, 0.9), (0.1, 0.0), (0.3, 0.0)])
def test_even_costs_make_a_step_wait_for_what_a_batch_takes_longer(step_s: float, share: float) -> None:
    assert _share(ENDLESS, step_s) == pytest.approx(share, abs=0.01)


def test_the_slowest_worker_of_those_in_turn_sets_the_pace() -> None:
    mix = replace(MIXES["one slow worker"], steps=2000)
    assert _share(mix, 0.05) == pytest.approx(1 - 2 * 0.05 / 0.25, abs=0.01)


def test_credit_bridges_jitter_but_not_all_of_it() -> None:
    mix = MIXES["jitter"]
    shares = [simulated(mix, 0.05, credit=credit, ahead=2) for credit in (1, 3, 8, 64)]
    assert shares == sorted(shares, reverse=True)
    assert shares[1] > 0.1
    assert shares[3] < 0.05


def test_a_consumer_that_is_slower_never_waits() -> None:
    assert _share(MIXES["slow consumer"], 0.1) == 0


@pytest.mark.long
@pytest.mark.parametrize("mix", MIXES)
def test_the_reported_share_is_within_three_points_and_the_cause_is_named(mix: str) -> None:
    row = verdicts.run(mix)
    assert verdicts.off(row) <= verdicts.POINTS, row
    assert row["kind"] == row["expected"], row
