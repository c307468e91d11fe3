"""What is going on, while it goes on."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import _measure, _run
from benchmarks._backends import backend_of
from benchmarks._job import Job
from benchmarks._rows import Row
from benchmarks._table import line


def run_all(jobs: Iterable[Job], console: Console) -> list[Row]:
    """Measure all jobs, one after the other, with a live display and a line for each that is done.

    Ctrl-C ends it; the rows until then are returned.
    """
    jobs = list(jobs)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows = []
    # Drawing takes CPU from the very cores that are measured: twice a second is enough.
    with Progress(*columns, console=console, refresh_per_second=2, transient=True) as display:
        whole = display.add_task("rows", total=len(jobs))
        for job in jobs:
            try:
                row = _one(job, display)
            except KeyboardInterrupt:
                console.print("interrupted: this is what was measured until then", style="red")
                break
            rows.append(row)
            display.advance(whole)
            console.print(line(row), style="red" if row.fault else "", markup=False, highlight=False)
    return rows


def _one(job: Job, display: Progress) -> Row:
    label = backend_of(job).label.format(workers=job.workload.workers)
    name = f"{job.workload.name} · {label}"
    task = display.add_task(f"{name}: start", total=job.workload.batches)

    def follow(progress: _measure.Progress) -> None:
        wait = f", waited {progress.wait_ms:.1f} ms" if progress.wait_ms else ""
        done = progress.done if progress.phase == "measured" else None
        display.update(task, description=f"{name}: {progress.phase}{wait}", completed=done)

    try:
        return _run.run(job, follow)
    finally:
        display.remove_task(task)
