"""Does the reported share of waiting hold, and does the verdict name the cause?

Six sources of known cost are trained on with ``model.fit``, each in a fresh process. Beside the share that
``mpfeed.keras.InputMonitor`` reports stand the true ones: what follows from the costs, where they are known (where the
transport is what costs they are not), and what is timed by hand in the same training, from the beginning of each step
to the moment when its input has come, less what that takes without any wait. By the clock: from the wall time of
``fit`` and what a step takes without any wait; here steps count too that are slowed down, by unpickling that holds the
GIL.
Left out: the first step, which starts all.

    python -m benchmarks.verdicts [--json FILE] [--mix NAME]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks._mixes import MIXES
from benchmarks._rows import Surroundings

POINTS = 3.0
_LIMIT_S = 120
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


def run(name: str) -> dict[str, Any]:
    """One mix, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks._mixed_training", name]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_LIMIT_S, env={**os.environ, **_QUIET}, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return {"mix": name, "expected": MIXES[name].kind, **json.loads(done.stdout.splitlines()[-1])}


def off(row: dict[str, Any]) -> float:
    """Points between what was reported and the farther of what was true."""
    true = [row[name] for name in ("by_construction", "by_hand") if row[name] is not None]
    return float(100 * max(abs(row["reported"] - share) for share in true))


def held(row: dict[str, Any]) -> bool:
    """Whether the share is right within the limit, and the cause."""
    return off(row) <= POINTS and row["kind"] == row["expected"]


def _table(rows: list[dict[str, Any]]) -> Table:
    shares = {
        "reported": "reported",
        "by_construction": "from costs",
        "by_hand": "by hand",
        "accounted": "by the clock",
    }
    table = Table("mix", *(f"{title} %" for title in shares.values()), "off", "verdict", "expected")
    for row in rows:
        figures = ["" if row[name] is None else f"{100 * row[name]:.1f}" for name in shares]
        table.add_row(
            row["mix"], *figures, f"{off(row):.1f}", row["kind"], row["expected"], style="" if held(row) else "red"
        )
    return table


def main(
    mix: Annotated[list[str] | None, typer.Option(help="only these")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write all rows there")] = None,
) -> None:
    """Measure the mixes; exit code 1 where a share or a verdict is wrong."""
    console = Console(width=120)
    surroundings = Surroundings.now()
    rows = []
    for name in mix or list(MIXES):
        with console.status(name):
            rows.append(run(name))
        console.print(f"{name}: {rows[-1]['verdict']}", markup=False, highlight=False)
    console.print(_table(rows))
    if json_file is not None:
        text = json.dumps({"limit_points": POINTS, "surroundings": asdict(surroundings), "rows": rows}, indent=1)
        json_file.write_text(text + "\n")
    raise typer.Exit(0 if all(map(held, rows)) else 1)


if __name__ == "__main__":
    typer.run(main)
