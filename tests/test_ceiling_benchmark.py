"""The benchmark of turns: its ratios are those of turns next to each other, and everyone makes batches in its turn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import ceiling

ROOT = Path(__file__).resolve().parents[1]


def test_ratios_are_medians_of_turns_next_to_each_other() -> None:
    rates = {"one": [1.0, 10.0, 2.0], "many": [2.0, 18.0, 4.0], "feed": [1.8, 18.0, 3.2]}
    assert ceiling.ratios(rates, workers=2) == pytest.approx(
        {"feed_over_many": 0.9, "feed_over_multiple_of_one": 0.9, "many_over_multiple_of_one": 1.0}
    )


def test_everyone_makes_batches_in_its_turn(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    command = [sys.executable, "-m", "benchmarks.ceiling", "--workload", "gil", "--rounds", "2", "--seconds", "0.5"]
    subprocess.run([*command, "--json", tmp_path / "seen"], cwd=ROOT, check=True, capture_output=True, timeout=100)
    rates = json.loads((tmp_path / "seen").read_text())["gil"]["batches_per_second"]
    assert set(rates) == {"one", "many", "feed"}
    assert all(len(of_one) == 2 and min(of_one) > 0 for of_one in rates.values())
