"""How long does a feed take to start? ``python -m benchmarks.startup``.

Method: each figure is the wall time of a fresh process, or a stretch of it, and the median of several. "import" rows
are a whole interpreter that imports and ends, so that the bare interpreter and NumPy are rows beside them. The first
batch is asked of a feed with two workers in a process that has TensorFlow at work already; so is the fourth, since
a feed that starts its workers one after the other shows only there.

Left out: the import of TensorFlow, and what the source itself imports (here: NumPy alone).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks._rows import Surroundings

IMPORTS = {
    "bare interpreter": "pass",
    "import numpy": "import numpy",
    "import mpfeed": "import mpfeed",
    "mpfeed.from_generator": "from mpfeed import from_generator",
    "imports of a worker": "import mpfeed.backends.worker",
}
_FIRST = """
import json, time
import numpy as np
import tensorflow as tf
next(iter(tf.data.Dataset.range(1)))
begun = time.perf_counter()
import mpfeed

def source(shard):
    for number in shard.of(range(64)):
        yield np.full((32, 32, 3), number, np.float32), np.int64(number)

with mpfeed.from_generator(source, workers=2, batch_size=8) as feed:
    imported = time.perf_counter()
    batches = iter(feed.dataset())
    next(batches)
    first = time.perf_counter()
    for _ in range(3):
        next(batches)
    fourth = time.perf_counter()
print(json.dumps({"import, TensorFlow there": imported - begun, "first batch": first - imported,
                  "fourth batch": fourth - imported}))
"""
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


def main(
    times: Annotated[int, typer.Option(min=1, help="Fresh processes for each figure.")] = 9,
    output: Annotated[Path | None, typer.Option("--json", help="Write all figures.")] = None,
) -> None:
    """Measure imports and the first batch, in fresh processes."""
    console = Console()
    seen: dict[str, list[float]] = {}
    for _ in range(times):  # in turn, so that a busy moment meets all of them
        for name, program in IMPORTS.items():
            begun = time.perf_counter()
            _run(program)
            seen.setdefault(name, []).append(time.perf_counter() - begun)
        for name, took_s in json.loads(_run(_FIRST).splitlines()[-1]).items():
            seen.setdefault(name, []).append(took_s)
    for name, values in seen.items():
        said = f"median {statistics.median(values):.3f} s, {min(values):.3f} to {max(values):.3f}"
        console.print(f"{name}: {said}", highlight=False)
    if output is not None:
        medians = {name: statistics.median(values) for name, values in seen.items()}
        data = {
            "benchmark": "startup",
            "surroundings": asdict(Surroundings.now()),
            "median_s": medians,
            "seconds": seen,
        }
        output.write_text(json.dumps(data, indent=1) + "\n")


def _run(program: str) -> str:
    command = [sys.executable, "-c", program]
    environment = {**os.environ, **_QUIET}
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout


if __name__ == "__main__":
    typer.run(main)
