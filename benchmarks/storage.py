"""How fast are small objects read from storage that is 50 ms away? ``python -m benchmarks.storage``.

Method: a server that speaks S3 (moto's) on this machine behind a proxy that holds every request back for 50 ms. JPEGs
of 96×96, one object each, are read and decoded through fsspec as fast as they come, by a fresh process a row, for four
seconds after a warm-up. The ideal is workers × reads in flight ÷ latency, with the latency of single reads measured in
the same row. CPU is the share of all CPUs that everything together used: server, proxy and client share them, and a row
that fills them cannot reach its ideal. The last row reads two epochs through fsspec's cache on disk, and counts what
the server was asked for in each.

Left out: connections that are slow to set up, a network that is full, large objects.
"""

from __future__ import annotations

import json as json_
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks._rows import Surroundings
from benchmarks._section import into_page, table, where
from benchmarks._storage import BUCKET, KEYS, Reading, paths

_ROWS = [
    ("mpfeed", 1, 1), ("mpfeed", 2, 1), ("mpfeed", 4, 1), ("mpfeed", 1, 4), ("mpfeed", 2, 2), ("mpfeed", 2, 4),
    ("mpfeed", 4, 4), ("threads", 4, 1), ("tf.data", 4, 1), ("threads", 8, 1), ("tf.data", 8, 1),
]  # fmt: skip
_SIDE = 96
_COMMAND = "python -m benchmarks.storage"


def main(  # noqa: PLR0913, PLR0917 - the options of a command line
    objects: Annotated[int, typer.Option(min=50, help="In the bucket.")] = 600,
    delay_ms: Annotated[float, typer.Option(min=0, help="Added to every request.")] = 50.0,
    seconds: Annotated[float, typer.Option(min=0.1, help="To measure a row.")] = 4.0,
    rounds: Annotated[int, typer.Option(min=1, help="Go over all rows so often; the table has medians.")] = 1,
    json: Annotated[Path | None, typer.Option(help="Write all rows.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write the table into this page: docs/storage.md.")] = None,
) -> None:
    """Measure how fast workers read small objects over a slow connection, against what the latency allows."""
    console, rows = Console(width=110), []
    with _server(delay_ms) as (urls, count):
        _fill(urls["fast"], objects)
        for form, workers, in_flight in _ROWS * rounds:
            rows.append(_row(Reading(form, workers, in_flight, urls["slow"], objects, seconds)))
            console.print(_line(rows[-1]), highlight=False)
        with tempfile.TemporaryDirectory() as cache:
            before = count()
            row = _row(Reading("mpfeed", 2, 4, urls["slow"], objects, None, cache))
            row |= {"requests": count() - before}
            console.print(_line(row), highlight=False)
    shown = Table(*_HEADS, box=None)
    for cells in _cells(rows):
        shown.add_row(*cells)
    console.print(shown)
    if page is not None:
        text = f"{where(_COMMAND)}\n\n{table(_HEADS, _cells(rows))}\n{_line(row)}."
        into_page(page, "storage", text)
    if json is not None:
        surroundings = asdict(Surroundings.now())
        text = json_.dumps({"surroundings": surroundings, "delay_ms": delay_ms, "rows": [*rows, row]}, indent=1)
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(text + "\n")


@contextmanager
def _server(delay_ms: float) -> Iterator[tuple[dict[str, str], Any]]:
    """(its URLs, a function that tells how many GETs came through the slow one)."""
    command = [sys.executable, "-m", "benchmarks._object_store", "--delay-ms", str(delay_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        requests, replies = process.stdin, process.stdout
        assert requests is not None
        assert replies is not None
        yield json_.loads(replies.readline()), lambda: _asked(requests, replies)
        requests.close()


def _asked(requests: IO[str], replies: IO[str]) -> int:
    requests.write("\n")
    requests.flush()
    return int(replies.readline())


def _fill(url: str, objects: int) -> None:
    """The objects, put there without the delay."""
    import cv2
    import fsspec
    import numpy as np

    os.environ |= KEYS
    files = fsspec.filesystem("s3", endpoint_url=url)
    files.mkdir(BUCKET)
    rng = np.random.default_rng(0)
    image = cv2.GaussianBlur(rng.integers(0, 256, (_SIDE, _SIDE, 3), dtype=np.uint8), (0, 0), 3.0)
    jpeg = cv2.imencode(".jpg", image)[1].tobytes()
    files.pipe(dict.fromkeys(paths(objects), jpeg))


def _row(reading: Reading) -> dict[str, Any]:
    """A row, measured by a fresh process; one that failed says why."""
    environment = os.environ | KEYS | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-m", "benchmarks._storage", json_.dumps(asdict(reading))]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return {"label": reading.label, "error": "not done after 120 s"}
    if done.returncode:
        return {"label": reading.label, "error": done.stderr.strip().splitlines()[-1]}
    row: dict[str, Any] = json_.loads(done.stdout)
    row["reading"] |= {"url": "", "cache": bool(reading.cache)}
    return row


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['label']}: {row['error']}"
    if "requests" in row:
        return (
            f"{row['label']}, cached: {row['first_epoch_per_s']:.0f} reads/s in the first epoch, "
            f"{row['second_epoch_per_s']:.0f} in the second; the server saw {row['requests']} requests"
        )
    return f"{row['label']}: {row['reads_per_s']:.0f} reads/s, {row['of_ideal']:.2f} of ideal, CPU {row['cpu']:.0%}"


_HEADS = ["row", "latency ms", "reads/s", "ideal", "of ideal", "CPU"]


def _cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The table: of each row the median of its rounds."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if "error" not in row:
            groups.setdefault(row["label"], []).append(row)
    cells = []
    for label, alike in groups.items():
        middle = sorted(alike, key=lambda row: float(row["of_ideal"]))[(len(alike) - 1) // 2]
        figures = f"{middle['latency_ms']:.1f} {middle['reads_per_s']:.0f} {middle['ideal_per_s']:.0f}".split()
        cells.append([label, *figures, f"{middle['of_ideal']:.2f}", f"{middle['cpu']:.0%}"])
    return cells


if __name__ == "__main__":
    typer.run(main)
