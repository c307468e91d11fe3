"""Many random deaths, of workers and of whole programs: nothing is lost, repeated, changed or left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
KILLS = {"process": 600, "process/queue": 250, "ray": 150}
DEATHS = {"process": 100, "ray": 15}


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=CHECKOUT, capture_output=True, text=True, timeout=3600, check=False
    )


@pytest.mark.long
@pytest.mark.timeout(3700)
@pytest.mark.parametrize("backend", KILLS)
def test_random_kills_of_workers_lose_repeat_and_change_nothing(backend: str) -> None:
    kills = KILLS[backend]
    done = ran("benchmarks.soak", "--backend", backend, "--kills", str(kills), "--minutes", "55", "--kill-every", "0.3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"'killed': {kills}" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(3700)
@pytest.mark.parametrize("backend", DEATHS)
def test_killed_programs_leave_nothing(backend: str) -> None:
    done = ran("benchmarks.parent_death", "--backend", backend, "--times", str(DEATHS[backend]))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_short_soak_finds_nothing_wrong() -> None:
    done = ran("benchmarks.soak", "--kills", "3", "--minutes", "1", "--kill-every", "0.2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'faults': []" in done.stdout
