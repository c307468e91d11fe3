"""What does each step of a tf.data pipeline gain, and what does Python in it cost? ``python -m benchmarks.pipeline``.

Method: 2,000 JPEGs of 500×375 (views of 256 photographs, again and again) are decoded and resized to 224×224, then
flipped, turned and recoloured at random, and batched by 32. The functions are TensorFlow's own, or Python with
OpenCV through ``tf.py_function``, ``tf.numpy_function`` and ``mpfeed.numpy_function``; the three Python ones run the
same code. A fresh process a row takes batches as fast as they come and keeps each wait; rows with a cache are
measured from the second epoch on. The rows ``30 ms step`` train for 30 ms (a sleep) after each batch: their share of
the time spent waiting is what an accelerator would idle.

The rows ``calls`` map one function over an image of 150 kB that is there already: one that does nothing (what a call
costs), one that holds the GIL, and one of large OpenCV operations. Beside them, the same work in a bare loop, and as
many of those at once as there are workers: what this machine allows at most.

To give up the iterator of an epoch takes TensorFlow up to a second now and then, whatever the functions are. A row that
met this has it in the time a batch takes, which is a mean, and not in the median of its waits.

Left out: reading from a slow disk (the files are in the page cache after the first epoch), and the accelerator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks._bars import bars
from benchmarks._job import Job, Limits, Workload
from benchmarks._pipeline import BATCH, KINDS, STEPS
from benchmarks._progress import run_all
from benchmarks._rows import Figures, Row, Surroundings, medians, read, write
from benchmarks._source import Source
from benchmarks._table import Columns, draw, markdown, short

_STEP_S = 0.030
_TRAINED = ("serial", "parallel", "whole")
_CALLS = {"nothing": "unchanged", "holds the GIL": "holds_the_gil", "frees the GIL": "frees_the_gil"}
_TABLE = "benchmarks._pipeline"
_WIDTH = 150


def main(  # noqa: PLR0913, PLR0917 - the options of a command line
    kind: Annotated[list[str] | None, typer.Option(help=f"all, or {', '.join(KINDS)}; repeatable.")] = None,
    part: Annotated[list[str] | None, typer.Option(help="steps, calls; repeatable. By default both.")] = None,
    images: Annotated[int, typer.Option(min=BATCH, help="Images in an epoch.")] = 2000,
    workers: Annotated[int, typer.Option(min=1, help="Workers of mpfeed.numpy_function.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.1, help="To measure a row.")] = 3.0,
    rounds: Annotated[int, typer.Option(min=1, help="Go over all rows so often; the table has medians.")] = 1,
    json: Annotated[Path | None, typer.Option(help="Write all rows with their raw waits.")] = None,
    add: Annotated[list[Path] | None, typer.Option(help="Take the rows of an earlier --json into the tables.")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw the milliseconds a batch takes, as PNG.")] = None,
    page: Annotated[Path | None, typer.Option("--markdown", help="Write the tables as Markdown.")] = None,
) -> None:
    """Measure the steps of a tf.data pipeline, and what a Python function in it costs.

    All rows take about ten minutes; ``--kind mpfeed --part calls`` takes half a minute.
    """
    console = Console()
    if console.width < _WIDTH:
        console = Console(width=_WIDTH)
    begun = time.monotonic()
    chosen = [name for name in KINDS if not kind or name in kind or "all" in kind]
    if unknown := sorted({*(kind or ())} - {*KINDS, "all"}):
        raise typer.BadParameter(f"there is no kind {unknown[0]!r}: choose among {', '.join(KINDS)}")
    jobs = list(_jobs(chosen, part or ["steps", "calls"], images, workers, seconds)) * rounds
    measured = run_all(jobs, console)
    rows = [row for path in add or () for row in read(path)] + measured
    if json is not None:
        write(rows, json, benchmark="pipeline")
    middle = medians(rows)
    if picture is not None:
        bars(middle, picture, "time an element takes, ms", lambda row, figures: 1e3 / figures.batches_per_s)
    pages = []
    for name in dict.fromkeys(row.workload for row in middle):
        of_one = [row for row in middle if row.workload == name]
        console.print()
        draw(_title(of_one), of_one, _columns(of_one), console)
        pages.append(f"{_title(of_one)}\n\n{markdown(of_one, _columns(of_one))}")
    if page is not None:
        page.write_text("\n".join(pages))
    console.print(f"\n{Surroundings.now()}\n{len(measured)} rows in {time.monotonic() - begun:.0f} s", highlight=False)
    raise typer.Exit(130 if len(measured) < len(jobs) else any(row.fault for row in measured))


def _jobs(kinds: list[str], parts: list[str], images: int, workers: int, seconds: float) -> Iterator[Job]:
    epoch = images // BATCH
    for part in parts:
        if part not in ("steps", "calls"):
            raise typer.BadParameter(f"there is no part {part!r}: choose steps or calls")
    if "steps" in parts:
        for step_s, steps in ((0.0, STEPS), (_STEP_S, _TRAINED)):
            name = f"{step_s * 1e3:.0f} ms step" if step_s else "as fast as it goes"
            source = Source("benchmarks._augment:bare", {"images": images})
            workload = Workload(name, source, workers, step_s, 100_000)
            for kind in kinds:
                for step in steps:
                    yield _job(workload, f"{kind}/{step}", epoch + 2 if _caches(step) else 5, seconds)
    if "calls" in parts:
        for name, work in _CALLS.items():
            workload = Workload(
                f"calls: {name}", Source("benchmarks._augment:bare", {"work": work}), workers, 0.0, 1_000_000
            )
            callers = [f"{kind}/calls" for kind in kinds if kind != "tf"]
            for backend in (*callers, *(("bare", "bare_parallel") if work != "unchanged" else ())):
                yield _job(workload, backend, 100, seconds)


def _job(workload: Workload, backend: str, warm_up: int, seconds: float) -> Job:
    # The whole first epoch fills the cache, however slow it is.
    return Job(workload, backend, Limits(warm_up=warm_up, slow_s=1e9, seconds=seconds, after_s=0.0), _TABLE)


def _caches(step: str) -> bool:
    return step in ("cache_memory", "cache_file", "whole")


def _title(rows: list[Row]) -> str:
    workload = rows[0].job.workload
    if workload.name.startswith("calls"):
        return f"{workload.name} · {workload.workers} workers, one image of 150 kB a call"
    return f"{workload.name} · {workload.workers} workers, batches of {BATCH} images"


def _columns(rows: list[Row]) -> Columns:
    calls = rows[0].workload.startswith("calls")
    columns: Columns = {
        f"ms a\n{'call' if calls else 'batch'}": lambda row, f: short(1e3 / f.batches_per_s),
        "wait\np50 ms": lambda row, f: short(f.wait_p50_ms),
        "p95\nms": lambda row, f: short(f.wait_p95_ms),
    }
    if not calls:
        columns["× its\nserial"] = _against(rows, lambda row: f"{row.backend.split('/')[0]}/serial")
    if rows[0].job.workload.step_s:
        columns["of the time\nwaiting"] = lambda row, f: f"{f.waiting:.1%}"
    columns["× numpy_\nfunction"] = _against(rows, lambda row: f"numpy_function/{row.backend.split('/')[-1]}")
    if calls:
        columns["× bare\nloops"] = _against(rows, lambda row: "bare_parallel")
        columns["ms above\nnumpy_f."] = _above(rows)
    columns |= {
        "training\nCPU ms": lambda row, f: short(f.cpu_ms),
        "workers\nCPU ms": lambda row, f: short(f.workers_cpu_ms),
        "first\ns": lambda row, f: f"{row.outcome.first_batch_s:.2f}" if row.outcome else "-",
        "peak\nMB": lambda row, f: f"{row.peak_pss_bytes / 1e6:,.0f}",
        "\nn": lambda row, f: f"{len(row.outcome.waits_ms) if row.outcome else 0:,}",
    }
    return columns


def _against(rows: list[Row], other: Callable[[Row], str]) -> Callable[[Row, Figures], str]:
    """How many times as fast as another row of the same run."""
    rates = {row.backend: row.figures.batches_per_s for row in rows if row.figures is not None}

    def ratio(row: Row, f: Figures) -> str:
        name = "numpy_function/calls" if "bare" in row.backend and "numpy" in other(row) else other(row)
        return f"{f.batches_per_s / rates[name]:.2f}" if name in rates else "-"

    return ratio


def _above(rows: list[Row]) -> Callable[[Row, Figures], str]:
    times_ms = {row.backend: 1e3 / row.figures.batches_per_s for row in rows if row.figures is not None}
    return lambda row, f: (
        f"{1e3 / f.batches_per_s - times_ms['numpy_function/calls']:.3f}" if "numpy_function/calls" in times_ms else "-"
    )


if __name__ == "__main__":
    typer.run(main)
