"""A training killed with SIGKILL at random moments, again and again."""

from __future__ import annotations

import pytest

from benchmarks._training import EPOCHS, killed


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_training_killed_ten_times_ends_with_the_weights_of_one_that_never_was() -> None:
    whole, steps = killed(0, seed=0)
    weights, lives = killed(10, seed=0)
    assert steps == [EPOCHS * 40]
    assert len(lives) == 11
    assert weights == whole
