"""How long does a training loop wait for its batches? ``python -m benchmarks.wait_time``.

Method: for every workload and backend a fresh process runs a training loop whose step is a sleep, as idle for
the CPU as an accelerator at work. Each wait for a batch is kept; the first ten batches are warm-up, and slow
rows measure fewer batches than others. "Step" is what passed between two waits: more than was slept where the
loop had to get the GIL back from threads, or dropping a batch took long. CPU time is the training process's
own, with all its threads. Memory is the largest PSS of all processes together, looked at before and after the
measured batches. "Bare" is the source's loop with nothing around it, its C allocator as Python leaves it.

Left out: the copy to an accelerator, the CPU work of a real training step (it competes with threads for the
GIL), and the import of TensorFlow. It is one run of a few seconds a row: on a busy machine, repeat it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks._backends import BACKENDS, BARE, BARE_PARALLEL, PLAIN
from benchmarks._job import Job, Limits, Workload
from benchmarks._plot import plot
from benchmarks._progress import run_all
from benchmarks._rows import Row, Surroundings, medians, write
from benchmarks._source import Source, resolve, takes_shard
from benchmarks._table import show
from benchmarks._verdict import verdict
from benchmarks.workloads import WORKLOADS

_DEFAULT = ("article", "opencv")
_BUSY = 0.15
_WIDTH = 150  # of the table; a terminal that is narrower wraps it


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for; None leaves the workload's own."""

    workloads: tuple[str, ...]
    backends: tuple[str, ...]
    source: str | None
    batch_size: int | None
    workers: int | None
    batches: int | None
    step_s: float | None


def main(  # noqa: PLR0913, PLR0917 - the options of a command line
    workload: Annotated[list[str] | None, typer.Option(help=f"{', '.join(WORKLOADS)}; repeatable.")] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(BACKENDS)}; repeatable. tf.data's from_generator is always measured."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Workers of the parallel rows.")] = None,
    batches: Annotated[int | None, typer.Option(min=1, help="To measure, however long it takes.")] = None,
    step: Annotated[float | None, typer.Option(min=0.0, help="Seconds of a training step.")] = None,
    source: Annotated[
        str | None, typer.Option(help="Your own source, module:function; it takes a shard or nothing.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Where your source yields samples; else it yields batches.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write all rows with their raw waits.")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw the waits, as PNG.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Go over all rows so often; the table has medians.")] = 1,
    silence: Annotated[float, typer.Option(help="Seconds without a batch: a row has failed.")] = 120.0,
) -> None:
    """Measure how long a training loop waits for its batches with each backend, and say which to use here."""
    wanted = Wanted(tuple(workload or ()), tuple(backend or ()), source, batch_size, workers, batches, step)
    console = Console()
    if console.width < _WIDTH:
        console = Console(width=_WIDTH)
    begun = time.monotonic()
    jobs = _jobs(wanted, silence) * rounds
    rows = run_all(jobs, console)
    if json is not None:
        write(rows, json, benchmark="wait_time", verdicts=_verdicts(rows))
    if picture is not None:
        plot(medians(rows), picture)
    for name, sentence in _verdicts(rows).items():
        console.print()
        show([row for row in medians(rows) if row.workload == name], sentence, console)
    took_s = time.monotonic() - begun
    console.print(f"\n{Surroundings.now()}\n{len(rows)} rows in {took_s:.0f} s", highlight=False)
    busy = statistics.median([row.surroundings.busy for row in rows] or [0.0])
    if busy > _BUSY:
        said = f"Others used {busy:.0%} of the CPUs: repeat it on a quiet machine, or with --rounds 3."
        console.print(said, style="red", highlight=False)
    raise typer.Exit(130 if len(rows) < len(jobs) else any(row.fault for row in rows))


def _verdicts(rows: list[Row]) -> dict[str, str]:
    names = dict.fromkeys(row.workload for row in rows)
    return {name: verdict([row for row in medians(rows) if row.workload == name]) for name in names}


def _jobs(wanted: Wanted, silence_s: float) -> list[Job]:
    """All rows to measure; what cannot be measured is told before anything is."""
    limits = Limits(silence_s=silence_s)
    if wanted.batches is not None:
        limits = replace(limits, seconds=None)
    try:
        workloads = list(_workloads(wanted))
        return [Job(one, name, limits) for one in workloads for name in _backends(wanted, one)]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"{error}: pip install 'mpfeed[bench]'") from None


def _workloads(wanted: Wanted) -> Iterator[Workload]:
    names = wanted.workloads or (() if wanted.source else _DEFAULT)
    for name in dict.fromkeys(names):
        if name not in WORKLOADS:
            raise ValueError(f"there is no workload {name!r}: choose among {', '.join(WORKLOADS)}")
        yield _adapted(WORKLOADS[name](), wanted)
    if wanted.source:
        yield _adapted(_own(wanted.source, wanted), wanted)


def _adapted(workload: Workload, wanted: Wanted) -> Workload:
    given = {"workers": wanted.workers, "batches": wanted.batches, "step_s": wanted.step_s}
    return replace(workload, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _own(name: str, wanted: Wanted) -> Workload:
    """The user's source; one that takes no shard can have one worker only."""
    workers = Surroundings.now().cpus
    if not takes_shard(resolve(name)):
        if (wanted.workers or 1) > 1:
            raise ValueError(
                f"{name} takes nothing, so each of {wanted.workers} workers would give the same batches: "
                "let it take a shard, and give the part shard.of(samples)"
            )
        workers = 1
    return Workload(name, Source(name, batch_size=wanted.batch_size), workers, step_s=0.05, batches=60)


def _backends(wanted: Wanted, workload: Workload) -> Iterator[str]:
    """The rows asked for, and those that they are compared with; bare loops only where no step is."""
    for asked in wanted.backends:
        if not any(_matches(name, asked) for name in BACKENDS):
            raise ValueError(f"there is no backend {asked!r}: choose among {', '.join(BACKENDS)}")
    always = {PLAIN} if workload.step_s else {PLAIN, BARE, BARE_PARALLEL}
    twins = {BARE_PARALLEL, "threads"} if workload.workers == 1 else set()
    for name in BACKENDS:
        asked_for = any(_matches(name, asked) for asked in wanted.backends)
        by_default = not wanted.backends and name not in (BARE, BARE_PARALLEL)
        if (asked_for or by_default or name in always) and name not in twins:
            yield name


def _matches(name: str, asked: str) -> bool:
    return name == asked or name.startswith(f"{asked}/")


if __name__ == "__main__":
    typer.run(main)
