"""When does converting a data set once pay? ``python -m benchmarks.convert``.

Method: photographs as JPEG files are decoded and made smaller (light), and also filtered (heavy). For each, a fresh
process a row reads epochs of batches of 32 as fast as they come: live from worker processes; from files that
``mpfeed.tfrecord.write`` wrote; from files of ``Dataset.save``; from ``Dataset.cache`` in memory, whose first epoch is
the conversion. Of three epochs the median counts. Converting has paid after so many epochs: seconds of the conversion ÷
seconds that an epoch is shorter.

Left out: a training step, which hides as much of a live epoch as it lasts; reading from a cold or remote disk (the
files were just written, so the page cache has them); random augmentation, which a conversion would freeze.
"""

from __future__ import annotations

import json as json_
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks._convert import MODES
from benchmarks._rows import Surroundings
from benchmarks._section import into_page, table, where

_COMMAND = "python -m benchmarks.convert"


def main(
    samples: Annotated[int, typer.Option(min=32, help="Of an epoch.")] = 512,
    workers: Annotated[int, typer.Option(min=1, help="That make them.")] = 2,
    json: Annotated[Path | None, typer.Option(help="Write all rows.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write the table into this page: docs/convert.md.")] = None,
) -> None:
    """Measure what a conversion takes, and how much faster epochs are afterwards."""
    console, rows = Console(width=110), []
    for kind in ("light", "heavy"):
        for mode in MODES:
            rows.append({"source": kind, "mode": mode, **_row(mode, kind, workers, samples)})
            console.print(_line(rows[-1]), highlight=False)
    shown = Table(*_HEADS, box=None)
    for cells in _cells(rows, samples):
        shown.add_row(*cells)
    console.print(shown)
    if page is not None:
        of = f"{samples} samples an epoch, {workers} workers."
        into_page(page, "convert", f"{where(_COMMAND)} {of}\n\n{table(_HEADS, _cells(rows, samples))}")
    if json is not None:
        beside = {"surroundings": asdict(Surroundings.now()), "samples": samples, "workers": workers}
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(json_.dumps({**beside, "rows": rows}, indent=1) + "\n")


def _row(mode: str, kind: str, workers: int, samples: int) -> dict[str, Any]:
    """A row, measured by a fresh process; one that failed says why."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        command = [sys.executable, "-m", "benchmarks._convert", mode, kind, str(workers), str(samples), folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    row: dict[str, Any] = json_.loads(done.stdout)
    return row | {"epoch_s": statistics.median(row["epochs_s"])}


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['source']}, {row['mode']}: {row['error']}"
    return f"{row['source']}, {row['mode']}: {row['convert_s']:.2f} s once, {row['epoch_s']:.2f} s an epoch"


_HEADS = ["source", "read from", "convert s", "epoch s", "samples/s", "MB on disk", "pays after epochs"]


def _cells(rows: list[dict[str, Any]], samples: int) -> list[list[str]]:
    cells = []
    live = {row["source"]: row["epoch_s"] for row in rows if row["mode"] == "live" and "error" not in row}
    for row in rows:
        if "error" in row or row["source"] not in live:
            continue
        spared = live[row["source"]] - row["epoch_s"]
        # Filling the cache is an epoch itself, which would have been made anyway.
        once = row["convert_s"] - (live[row["source"]] if row["mode"] == "cache" else 0.0)
        pays = "–" if row["mode"] == "live" else "never" if spared <= 0 else f"{max(once, 0.0) / spared:.1f}"
        seconds = [f"{row['convert_s']:.2f}", f"{row['epoch_s']:.2f}"]
        size = f"{row['nbytes'] / 1e6:.0f}"
        cells.append([row["source"], row["mode"], *seconds, f"{samples / row['epoch_s']:,.0f}", size, pays])
    return cells


if __name__ == "__main__":
    typer.run(main)
