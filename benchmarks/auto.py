"""Does ``workers="auto"`` find the number of workers by itself? ``python -m benchmarks.auto``.

Method: six sources of known cost, each read by a loop whose step is a sleep, in a fresh process: with fixed numbers
of workers, and with "auto". The fixed rows are warmed up and then timed for some seconds; the best of them is the
measure. The row of "auto" is read from its very first batch: its rate is taken over the batches 100 to 200, and once
more over as many after that, since it must not only arrive but stay. Rounds alternate between all rows; rates are
medians over the rounds, ratios are within a round.

Left out: TensorFlow, whose prefetch would hide part of the waits; other programs on the machine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import mpfeed
from benchmarks._rows import Surroundings
from benchmarks.workloads import spin, spin_iterations

_ARRIVED, _STAYED = 100, 200  # batches
_LONGEST_S = 40.0
_FIXED_S = 4.0
_WARM_UP_S = 1.5
_SMALL, _HUGE = 100_000, 48_000_000  # bytes of a batch


@dataclass(frozen=True, slots=True)
class Mix:
    """A source of known cost: milliseconds of Python and of waiting for each batch, and of the step between two.

    Attributes:
        jitter: the waiting varies from none to twice as much.
        slow_worker: the first worker takes so many times as long.
        fixed: numbers of workers to compare with.
    """

    cpu_ms: float
    io_ms: float
    step_ms: float
    nbytes: int = _SMALL
    jitter: bool = False
    slow_worker: float = 1.0
    fixed: tuple[int, ...] = (1, 2, 3, 4, 8, 16)


MIXES = {
    "I/O-bound": Mix(cpu_ms=1, io_ms=150, step_ms=20),
    "CPU-bound": Mix(cpu_ms=40, io_ms=0, step_ms=5),
    "one slow worker": Mix(cpu_ms=2, io_ms=60, step_ms=25, slow_worker=4),
    "jitter": Mix(cpu_ms=2, io_ms=80, step_ms=25, jitter=True),
    "huge batches": Mix(cpu_ms=5, io_ms=100, step_ms=60, nbytes=_HUGE),
    "slow consumer": Mix(cpu_ms=4, io_ms=10, step_ms=60),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What one row saw. ``rates``: batches/s; for "auto" after its first 100 batches, and after 200."""

    rates: tuple[float, ...]
    stamps_s: tuple[float, ...]
    resizings: tuple[dict[str, Any], ...] = ()


@dataclass(slots=True)
class Row:
    mix: str
    workers: int | str
    round: int
    seen: Seen


@dataclass(slots=True)
class Result:
    """One mix over all rounds: ratios of "auto" to the best fixed number of the same round."""

    best: list[int] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    stayed: list[float] = field(default_factory=list)


def batches(mix: Mix, iterations: int) -> Callable[..., Any]:
    """The function of ``from_map``."""

    def make(item: int, rng: np.random.Generator) -> Any:
        slower = mix.slow_worker if mpfeed.worker().index == 0 else 1.0
        time.sleep(mix.io_ms / 1e3 * slower * (rng.uniform(0, 2) if mix.jitter else 1.0))
        spin(round(iterations * slower))
        batch = mpfeed.empty((mix.nbytes,), np.uint8)
        batch[:] = item & 255
        return batch

    return make


def read(name: str, workers: int | str, iterations: int) -> Seen:
    """Read a mix in this process."""
    mix = MIXES[name]
    stamps: list[float] = []
    make = batches(mix, iterations)
    with mpfeed.from_map(make, range(100_000), workers=workers) as feed:  # type: ignore[arg-type]
        begun = time.perf_counter()
        for batch in feed:
            stamps.append(time.perf_counter() - begun)
            time.sleep(mix.step_ms / 1e3)
            del batch
            if _enough(stamps, workers):
                break
        changes = tuple(asdict(change) for change in feed.stats().resizings)
    return Seen(_rates(stamps, workers), tuple(stamps), changes)


def _enough(stamps: list[float], workers: int | str) -> bool:
    if workers == "auto":
        return len(stamps) > _STAYED + _ARRIVED or stamps[-1] > _LONGEST_S
    return stamps[-1] - stamps[0] > _WARM_UP_S + _FIXED_S


def _rates(stamps: list[float], workers: int | str) -> tuple[float, ...]:
    if workers == "auto":
        cuts = [_ARRIVED, min(_STAYED, len(stamps) - 2), len(stamps) - 1]
        return tuple((b - a) / (stamps[b] - stamps[a]) for a, b in pairwise(cuts) if b > a)
    first = next(i for i, stamp in enumerate(stamps) if stamp - stamps[0] >= _WARM_UP_S)
    last = len(stamps) - 1
    return ((last - first) / (stamps[last] - stamps[first]),)


def _in_a_process(name: str, workers: int | str, iterations: int) -> Seen:
    arguments = json.dumps([name, workers, iterations])
    command = [sys.executable, "-m", "benchmarks.auto", "--row", arguments]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    data = json.loads(said.splitlines()[-1])
    return Seen(tuple(data["rates"]), tuple(data["stamps_s"]), tuple(data["resizings"]))


def results(rows: list[Row]) -> dict[str, Result]:
    """The ratios of each mix."""
    found: dict[str, Result] = {}
    for name, number in dict.fromkeys((row.mix, row.round) for row in rows):
        of_round = [row for row in rows if (row.mix, row.round) == (name, number)]
        fixed = [row for row in of_round if row.workers != "auto"]
        auto = next((row for row in of_round if row.workers == "auto"), None)
        if auto is None or not fixed:
            continue
        best = max(fixed, key=lambda row: row.seen.rates[0])
        result = found.setdefault(name, Result())
        result.best.append(int(best.workers))
        result.arrived.append(auto.seen.rates[0] / best.seen.rates[0])
        result.stayed.append(auto.seen.rates[-1] / best.seen.rates[0])
    return found


def main(
    mix: Annotated[list[str] | None, typer.Option(help=f"{', '.join(MIXES)}; repeatable.")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 1,
    output: Annotated[Path | None, typer.Option("--json", help="Add the rows to this file.")] = None,
    row: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Compare workers="auto" with fixed numbers of workers on six sources of known cost."""
    if row is not None:
        print(json.dumps(asdict(read(*json.loads(row)))))
        return
    console = Console()
    rows: list[Row] = []
    for number in range(rounds):
        for name in mix or MIXES:
            iterations = spin_iterations(MIXES[name].cpu_ms)
            for workers in (*MIXES[name].fixed, "auto"):
                rows.append(Row(name, workers, number, _in_a_process(name, workers, iterations)))
                rates = ", ".join(f"{rate:.1f}" for rate in rows[-1].seen.rates)
                console.print(f"{name}: {workers} workers: {rates} batches/s", highlight=False)
    _show(rows, console)
    if output is not None:
        _write(rows, output)


def _show(rows: list[Row], console: Console) -> None:
    table = Table("mix", "best fixed", "auto ÷ best, batches 100-200", "after 200", "workers", box=SIMPLE_HEAD)
    for name, result in results(rows).items():
        course = [row.seen.resizings for row in rows if row.mix == name and row.workers == "auto"][-1]
        went = " → ".join([str(course[0]["before"]), *(str(change["workers"]) for change in course)]) if course else "-"
        arrived, stayed = statistics.median(result.arrived), statistics.median(result.stayed)
        best = ", ".join(map(str, result.best))
        table.add_row(name, best, f"{arrived:.2f}", f"{stayed:.2f}", went)
    console.print(table)


def _write(rows: list[Row], path: Path) -> None:
    """Rows of earlier runs of other mixes stay."""
    data = json.loads(path.read_text()) if path.exists() else {"benchmark": "auto", "rows": []}
    names = {row.mix for row in rows}
    kept = [row for row in data["rows"] if row["mix"] not in names]
    around = asdict(Surroundings.now())
    data["rows"] = kept + [{**asdict(row), "surroundings": around} for row in rows]
    data["ratios"] = {**data.get("ratios", {}), **{name: asdict(result) for name, result in results(rows).items()}}
    path.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
