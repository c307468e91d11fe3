"""How does mpfeed compare with the other ways to feed a training loop? ``python -m benchmarks.peers``.

Method: every row gives the same batches to the same loop, in a fresh process. `4.8MB`, `18.4MiB` and `48MB` carry
one array again and again, as fast as the loop takes it; `article`, `gil` and `opencv` are the sources of
``benchmarks.wait_time`` with their training step, a sleep. Each way is used as its own documentation recommends
(``benchmarks/_peers_tensors.py`` and ``_peers_arrays.py`` say how), with as many workers, with queues as it has
them by default or two batches a worker, and with OpenCV and BLAS limited to one thread a worker. Rounds go over all
rows, and the tables have of each row the round with the median time lost. What the loop holds at the end is what is
to be compared: tensors with tensors, arrays with arrays. CPU time, copies and memory are measured as in
``benchmarks.transport``.

Left out: shuffling, reading files, and what a peer does that mpfeed does not. Rows that end in a function of the
batch's number make the same kind of batches, not the same ones.

It needs the peers, which ``make peers`` installs into an environment of their own. The published figures are written
by ``make peers ARGS='--rounds 3 --json benchmarks/results/peers.json --plot benchmarks/results/peers.png --markdown
benchmarks/results/peers.md --readme README.md'``; a run of one workload is added to them with ``--add``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import _peers_table, _ready_made
from benchmarks._bars import bars
from benchmarks._job import Job, Leaf, Limits, Workload
from benchmarks._peers_page import columns, into_readme, page, title
from benchmarks._peers_table import BACKENDS, IN_PLACE
from benchmarks._progress import run_all
from benchmarks._rows import Row, Surroundings, medians, read, write
from benchmarks._source import Source
from benchmarks._table import draw
from benchmarks.workloads import WORKLOADS

_TRANSPORTS: dict[str, Leaf] = {
    "4.8MB": Leaf((32, 224, 224, 3), "uint8"),
    "18.4MiB": Leaf((32, 224, 224, 3), "float32"),
    "48MB": Leaf((4, 1_000_000, 3), "float32"),
}
_NAMES = (*_TRANSPORTS, *WORKLOADS)
_WIDTH = 180


def main(  # noqa: PLR0913, PLR0917 - the options of a command line
    workload: Annotated[list[str] | None, typer.Option(help=f"{', '.join(_NAMES)}; repeatable.")] = None,
    backend: Annotated[list[str] | None, typer.Option(help=f"{', '.join(BACKENDS)}; repeatable.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Instead of the workload's own number.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="To measure a row.")] = 1.5,
    rounds: Annotated[int, typer.Option(min=0, help="Go over all rows so often; 0 shows what --add has.")] = 1,
    json: Annotated[Path | None, typer.Option(help="Write all rows with their raw waits.")] = None,
    add: Annotated[bool, typer.Option("--add", help="To the rows that are in that file.")] = False,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw batches a second, as PNG.")] = None,
    text: Annotated[Path | None, typer.Option("--markdown", help="Write the tables as a page.")] = None,
    readme: Annotated[
        Path | None, typer.Option(help="Write the short table into this page, between its marks.")
    ] = None,
) -> None:
    """Measure mpfeed beside PyTorch, Grain, SPDL, Keras, Ray Data and others, with the same batches and loop."""
    console = Console()
    if console.width < _WIDTH:
        console = Console(width=_WIDTH)
    begun = time.monotonic()
    try:
        jobs = list(_jobs(workload or list(_NAMES), backend or list(BACKENDS), workers, seconds)) * rounds
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    new = run_all(jobs, console)
    rows = [*(read(json) if add and json is not None and json.exists() else ()), *new]
    if json is not None:
        write(rows, json, benchmark="peers")
    _show(rows, picture, text, console)
    if readme is not None:
        into_readme(rows, readme)
    console.print(f"\n{Surroundings.now()}\n{len(new)} rows in {time.monotonic() - begun:.0f} s", highlight=False)
    raise typer.Exit(130 if len(new) < len(jobs) else any(row.fault for row in new))


def _show(rows: list[Row], picture: Path | None, text: Path | None, console: Console) -> None:
    middle = medians(rows)
    for name in dict.fromkeys(row.workload for row in middle):
        of_workload = [row for row in middle if row.workload == name]
        console.print()
        draw(title(of_workload), of_workload, columns(), console)
    if picture is not None:
        bars(middle, picture, "batches a second", lambda row, figures: figures.batches_per_s)
    if text is not None:
        text.write_text(page(rows))


def _jobs(workloads: list[str], backends: list[str], workers: int | None, seconds: float) -> Iterator[Job]:
    for names, known in ((workloads, _NAMES), (backends, tuple(BACKENDS))):
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"there is no {unknown[0]!r}: choose among {', '.join(known)}")
    for name in dict.fromkeys(workloads):
        workload = _workload(name, workers)
        limits = Limits(warm_up=15 if workload.marked else 10, seconds=seconds, after_s=0.4)
        for backend in BACKENDS:
            if backend in backends and (workload.marked or backend != IN_PLACE):
                yield Job(workload, backend, limits, _peers_table.__name__)


def _workload(name: str, workers: int | None) -> Workload:
    if name in WORKLOADS:
        made = WORKLOADS[name]()
        return made if workers is None else replace(made, workers=workers)
    leaf = _TRANSPORTS[name]
    source = Source(f"{_ready_made.__name__}:tuples", {"shape": list(leaf.shape), "dtype": leaf.dtype})
    return Workload(name, source, workers or 2, 0.0, 20_000, (leaf,), marked=True)


if __name__ == "__main__":
    typer.run(main)
