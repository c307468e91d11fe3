"""The command line: ``mpfeed doctor``, ``mpfeed measure module:source`` (also ``python -m mpfeed …``)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from mpfeed import _doctor, _measure
from mpfeed._cpus import most_local_workers
from mpfeed._loop import named
from mpfeed._report import HEADINGS, Report, columns, page, picture
from mpfeed._source import generator_source
from mpfeed._trial import Setting, Source

app = typer.Typer(help="Feed TensorFlow from Python preprocessing.", no_args_is_help=True, add_completion=False)
_WIDTH = 110  # of the table; a terminal that is narrower wraps it
_STYLES = {"ok": "green", "advice": "yellow", "fault": "bold red"}


@app.callback()
def _commands() -> None:
    """Feed TensorFlow from Python preprocessing: look at the machine, measure your own source."""


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at this machine: cores, memory, limits, libraries, Ray; each ok, or what to do.

    Ends with 1 where something will make feeds fail, else with 0.
    """
    console = Console()
    if as_json:
        findings = list(_doctor.examine())
        console.print_json(json.dumps([asdict(finding) for finding in findings]))
    else:
        with console.status("looking at the machine"):
            findings = list(_doctor.examine())
        console.print(_table(findings))
    raise typer.Exit(any(finding.level == "fault" for finding in findings))


def _table(findings: list[_doctor.Finding]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for finding in findings:
        said = "ok" if finding.level == "ok" else finding.remedy
        table.add_row(finding.name, Text(finding.found), Text(said, style=_STYLES[finding.level]))
    return table


@app.command()
def measure(  # noqa: PLR0913, PLR0917 - the options of a command line
    source: Annotated[str, typer.Argument(help="module:function, as from_generator takes it; or of one item.")],
    items: Annotated[str | None, typer.Option(help="module:name of the items of from_map.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Where the source yields samples.")] = None,
    step: Annotated[float, typer.Option(min=0.0, help="Seconds of a training step.")] = 0.05,
    seconds: Annotated[float, typer.Option(min=0.1, help="To measure each setting.")] = 3.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often those near the best are measured.")] = 2,
    backend: Annotated[list[str] | None, typer.Option(help="To try: inprocess, process, ray; repeatable.")] = None,
    max_workers: Annotated[int | None, typer.Option(min=1, help="To try at most.")] = None,
    numpy: Annotated[bool, typer.Option("--numpy", help="Read NumPy arrays rather than a tf.data.Dataset.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the report as one HTML page.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the waits, as SVG.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write all rows with their raw waits.")] = None,
) -> None:
    """Run your own source under each backend and several numbers of workers, and say which to use.

    The step is a sleep, as idle for the CPU as an accelerator at work. Every setting runs in a fresh process.
    """
    console = _console()
    task = _task(_measure.Task(
        Source(source, items, batch_size), step, seconds=seconds, rounds=rounds, tensors=not numpy,
        backends=tuple(backend or _measure.BACKENDS), most=max_workers or most_local_workers(),
    ))  # fmt: skip
    _writable((html, plot, as_json))
    rows = _tried(task, console)
    report = Report(task, rows, _measure.advised(rows))
    for path, text in ((html, page), (plot, picture), (as_json, _as_json)):
        if path is not None:
            path.write_text(text(report), encoding="utf-8")
    _show(report, console)
    raise typer.Exit(report.chosen is None)


def _console() -> Console:
    console = Console()
    return console if console.width >= _WIDTH else Console(width=_WIDTH)


def _task(task: _measure.Task) -> _measure.Task:
    """The task, checked and fitted to what is installed here."""
    for name in task.backends:
        if name not in _measure.BACKENDS:
            raise typer.BadParameter(f"there is no backend {name!r}: choose among {', '.join(_measure.BACKENDS)}")
    sys.path.insert(0, os.getcwd())  # as `python -m` does; the console script does not
    try:
        with task.source.feed("inprocess", 1):
            pass
        single = task.source.items is None and _takes_no_shard(named(task.source.name))
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from None
    there = tuple(name for name in task.backends if name != "ray" or find_spec("ray") is not None)
    tensors = task.tensors and find_spec("tensorflow") is not None
    return replace(task, single=single, backends=there, tensors=tensors)


def _takes_no_shard(function: Any) -> bool:
    source = generator_source(function)
    return not source.takes_shard and len(source.functions) == 1


def _writable(paths: Iterable[Path | None]) -> None:
    """A report that cannot be written is told before anything is measured for it."""
    for path in paths:
        if path is not None:
            there = path.exists()
            try:
                with path.open("a"):
                    pass
                if not there:
                    path.unlink()
            except OSError as error:
                raise typer.BadParameter(f"{path} cannot be written: {error.strerror}") from None


def _tried(task: _measure.Task, console: Console) -> list[_measure.Row]:
    """All rows, with a live display and a line for each that is done."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    # Drawing takes CPU from the very cores that are measured: twice a second is enough.
    with Progress(*columns, console=console, refresh_per_second=2, transient=True) as display:

        def attempt(setting: Setting) -> _measure.Row:
            line = display.add_task(f"{setting}: starting")
            try:
                row = _measure.attempt(
                    task.trial(setting),
                    lambda done: display.update(line, description=f"{setting}: {done} batches measured"),
                )
            finally:
                display.remove_task(line)
            said = f"{row.rate:.1f} batches/s" if row.outcomes else f"failed: {row.error.splitlines()[-1]}"
            console.print(f"{setting}: {said}", style="" if row.outcomes else "red", markup=False, highlight=False)
            return row

        return _measure.search(task, attempt)


def _show(report: Report, console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if place else "left", no_wrap=not place)
    for row in report.rows:
        if row.outcomes:
            table.add_row(*columns(row), style="bold green" if row is report.chosen else "")
        else:
            table.add_row(str(row.setting), "failed", style="red")
    console.print(table)
    if report.chosen is not None and report.chosen.typical.verdict:
        console.print(Text(report.chosen.typical.verdict))
    console.print(Text(f"Use {report.advice}" if report.code else report.advice, style="bold"))
    console.print(Text(report.code, style="green"))


def _as_json(report: Report) -> str:
    chosen = None if report.chosen is None else asdict(report.chosen.setting)
    rows = [asdict(row) for row in report.rows]
    return (
        json.dumps({"task": asdict(report.task), "advised": chosen, "code": report.code, "rows": rows}, indent=1) + "\n"
    )
