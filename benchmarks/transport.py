"""What does it cost to carry a batch from a worker to the training loop? ``python -m benchmarks.transport``.

Method: the sources make nothing: each yields one array again and again, or arrays of ``mpfeed.empty`` as they
are. A fresh process a row takes batches as fast as they come, drops each before it takes the next, and keeps each
wait. The limits are rows of the same table: a ``numpy.copyto`` of the same bytes, ``from_generator`` over one
array that is there already, a bare ``ray.put`` and ``ray.get``. CPU time is that of the training process with all
its threads, and that of all processes below it (Ray's daemons included), over the measured batches. Copies are
counted by addresses: a batch begins with the place where its source had it, and the loop compares that with where
it finds the batch; each figure means at least so many. Memory is the largest PSS of all processes together.

Left out: making the batches and reading them. The array that is copied again and again stays in the cache where
that is large enough, so that a batch that was just made may take longer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import _transport
from benchmarks._bars import bars
from benchmarks._job import Job, Limits, Workload
from benchmarks._progress import run_all
from benchmarks._rows import Row, Surroundings, medians, write
from benchmarks._table import Columns, draw, markdown, short
from benchmarks._transport import BACKENDS

_SIZES: dict[str, tuple[tuple[int, ...], str, int | None]] = {
    "64B": ((64,), "uint8", None),
    "4.8MB": ((32, 224, 224, 3), "uint8", None),
    "18.4MiB": ((32, 224, 224, 3), "float32", None),
    "48MB": ((4, 1_000_000, 3), "float32", None),
    "samples-64B": ((16,), "float32", 32),
    "samples-150kB": ((224, 224, 3), "uint8", 32),
}
_DEFAULT_SIZES = ("64B", "4.8MB", "48MB", "samples-64B")
_LIMITS = ("loop", "copyto", "prebuilt", "prebuilt_samples", "prebuilt_chunks")
_DEFAULT_BACKENDS = ("shared_memory", "empty")
_SMALL_BYTES = 256 << 10  # below it `mpfeed.empty` does not spare the copy
_WIDTH = 160


def main(  # noqa: PLR0913, PLR0917 - the options of a command line
    size: Annotated[list[str] | None, typer.Option(help=f"all, or {', '.join(_SIZES)}; repeatable.")] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(help=f"all, or {', '.join(BACKENDS)}, or the part before the slash; repeatable."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Workers of the parallel rows.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.1, help="To measure a row.")] = 1.5,
    rounds: Annotated[int, typer.Option(min=1, help="Go over all rows so often; the table has medians.")] = 1,
    json: Annotated[Path | None, typer.Option(help="Write all rows with their raw waits.")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw the time a batch takes, as PNG.")] = None,
    page: Annotated[Path | None, typer.Option("--markdown", help="Write the tables as Markdown.")] = None,
) -> None:
    """Measure what carries batches from workers to a training loop, and the limits it can be held against.

    By default the process backend's shared memory and the limits, for four sizes, in about two minutes.
    """
    console = Console()
    if console.width < _WIDTH:
        console = Console(width=_WIDTH)
    begun = time.monotonic()
    jobs = _jobs(tuple(size or _DEFAULT_SIZES), tuple(backend or _DEFAULT_BACKENDS), workers, seconds) * rounds
    jobs_began = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    rows = run_all(jobs, console)
    if json is not None:
        write(rows, json, benchmark="transport")
    middle = medians(rows)
    if picture is not None:
        bars(middle, picture, "time a batch takes, ms", lambda row, figures: 1e3 / figures.batches_per_s)
    pages = []
    for name in dict.fromkeys(row.workload for row in middle):
        of_size = [row for row in middle if row.workload == name]
        console.print()
        draw(_title(of_size), of_size, _columns(of_size), console)
        pages.append(f"{_title(of_size)}\n\n{markdown(of_size, _columns(of_size))}")
    if page is not None:
        page.write_text("\n".join([f"Measured from {jobs_began} on. {Surroundings.now()}\n", *pages]))
    console.print(f"\n{Surroundings.now()}\n{len(rows)} rows in {time.monotonic() - begun:.0f} s", highlight=False)
    raise typer.Exit(130 if len(rows) < len(jobs) else any(row.fault for row in rows))


def _jobs(sizes: tuple[str, ...], backends: tuple[str, ...], workers: int, seconds: float) -> list[Job]:
    for name in sizes:
        if name not in _SIZES and name != "all":
            raise typer.BadParameter(f"there is no size {name!r}: choose among {', '.join(_SIZES)}")
    for name in backends:
        if name != "all" and not any(_matches(one, name) for one in BACKENDS):
            raise typer.BadParameter(f"there is no backend {name!r}: choose among {', '.join(BACKENDS)}")
    chosen = [name for name in _SIZES if name in sizes or "all" in sizes]
    return [job for name in chosen for job in _of_size(name, backends, workers, seconds)]


def _of_size(name: str, backends: tuple[str, ...], workers: int, seconds: float) -> Iterator[Job]:
    workload = _transport.workload(name, *_SIZES[name], workers)
    # Slots are touched for the first time, and chunks of small elements grow, before the measured batches.
    limits = Limits(warm_up=20 if _nbytes(workload) > _SMALL_BYTES else 2000, seconds=seconds)
    for one in BACKENDS:
        asked = "all" in backends or any(_matches(one, backend) for backend in backends)
        if (asked or one in _LIMITS) and _fits(one, workload):
            yield Job(workload, one, limits, _transport.__name__)


def _fits(backend: str, workload: Workload) -> bool:
    """Samples are batched by tf.data or by mpfeed; whole batches are neither, and may be made in place."""
    samples = workload.source.batch_size is not None
    if backend in ("prebuilt_samples", "prebuilt_chunks") or backend.endswith("/rebatch"):
        return samples
    if backend.startswith("empty/"):
        return not samples and _nbytes(workload) > _SMALL_BYTES
    return not samples or backend != "prebuilt"


def _matches(name: str, asked: str) -> bool:
    return name == asked or name.startswith(f"{asked}/")


def _nbytes(workload: Workload) -> int:
    return workload.leaves[0].nbytes


def _title(rows: list[Row]) -> str:
    workload = rows[0].job.workload
    batch = f"batches of {_nbytes(workload):,} bytes, {workload.leaves[0].shape} {workload.leaves[0].dtype}"
    made = f" of {workload.source.batch_size} samples" if workload.source.batch_size else ""
    return f"{workload.name}: {workload.workers} workers, {batch}{made}"


def _columns(rows: list[Row]) -> Columns:
    copied = next((row.figures for row in rows if row.backend == "copyto"), None)
    columns: Columns = {
        "batches\n/s": lambda row, f: f"{f.batches_per_s:,.0f}",
        "GB/s": lambda row, f: short(_gigabytes(row) * f.batches_per_s),
        "ms a\nbatch": lambda row, f: short(1e3 / f.batches_per_s),
    }
    if copied is not None:
        rate = copied.batches_per_s
        columns["×\ncopyto"] = lambda row, f: short(rate / f.batches_per_s)
    return columns | {
        "training\nCPU ms": lambda row, f: short(f.cpu_ms),
        "CPU\ns/GB": lambda row, f: short(f.cpu_ms / 1e3 / _gigabytes(row)),
        "workers\nCPU ms": lambda row, f: short(f.workers_cpu_ms),
        "their\ns/GB": lambda row, f: short(f.workers_cpu_ms / 1e3 / _gigabytes(row)),
        "copied in\nworkers": lambda row, f: _copies(row, 0),
        "in\ntraining": lambda row, f: _copies(row, 1),
        "wait\np95 ms": lambda row, f: short(f.wait_p95_ms),
        "peak\nMB": lambda row, f: f"{row.peak_pss_bytes / 1e6:,.0f}",
        "others\nCPU": lambda row, f: f"{row.outcome.others if row.outcome else 0:.0%}",
        "\nn": lambda row, f: f"{len(row.outcome.waits_ms) if row.outcome else 0:,}",
    }


def _gigabytes(row: Row) -> float:
    return _nbytes(row.job.workload) / 1e9


def _copies(row: Row, where: int) -> str:
    return "-" if row.outcome is None or row.outcome.copies is None else str(row.outcome.copies[where])


if __name__ == "__main__":
    typer.run(main)
