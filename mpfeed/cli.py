"""The command line: ``mpfeed doctor``, ``mpfeed measure module:source`` (also ``python -m mpfeed …``)."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpfeed import _doctor

app = typer.Typer(help="Feed TensorFlow from Python preprocessing.", no_args_is_help=True, add_completion=False)
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
