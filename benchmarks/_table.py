"""Rows as a table for people."""

from __future__ import annotations

from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks._backends import BARE, PLAIN
from benchmarks._rows import Figures, Row

_SAID = 12  # lines of a traceback
Columns = dict[str, Callable[[Row, Figures], str]]


def show(rows: list[Row], verdict: str, console: Console) -> None:
    """The table of one workload, what went wrong, and the sentence that says what to use."""
    draw(_title(rows), rows, _columns(rows), console)
    console.print(Text(verdict, style="bold green"))


def draw(title: str, rows: list[Row], columns: Columns, console: Console) -> None:
    """Rows with these columns beside their names, and what went wrong."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("backend", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        figures = row.figures
        cells = ["failed"] if figures is None else [cell(row, figures) for cell in columns.values()]
        table.add_row(row.label, *cells, style="red" if row.fault else "")
    console.print(table)
    for row in rows:
        for remark in _remarks(row):
            console.print(Text(f"{row.label}: {remark}", style="red"))


def markdown(rows: list[Row], columns: Columns) -> str:
    """The same table for a page."""
    heads = [" ".join(head.split()) for head in columns]
    lines = [["row", *heads], ["---"] * (len(heads) + 1)]
    for row in rows:
        figures = row.figures
        cells = ["failed"] if figures is None else [cell(row, figures) for cell in columns.values()]
        lines.append([row.label, *cells, *[""] * (len(heads) - len(cells))])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _remarks(row: Row) -> list[str]:
    """The end of what a row that failed said, and whatever else is to be known."""
    said = "\n".join((row.error or row.fault or "").splitlines()[-_SAID:])
    return [*([said] if said else []), *row.notes]


def line(row: Row) -> str:
    """One row in one line, for when it is done."""
    figures = row.figures
    if row.fault or figures is None:
        return f"{row.workload} · {row.label}: {row.fault}"
    return (
        f"{row.workload} · {row.label}: waits {_ms(figures.wait_mean_ms)} ms on average, "
        f"p95 {_ms(figures.wait_p95_ms)} ms, {figures.batches_per_s:.1f} batches/s"
    )


def _title(rows: list[Row]) -> str:
    workload = rows[0].job.workload
    sizes = {row.outcome.batch_bytes for row in rows if row.outcome is not None and row.outcome.batch_bytes > 1}
    size = f", batches of {max(sizes) / 1e6:.1f} MB" if sizes else ""
    return f"{workload.name}: {workload.workers} workers, training step {workload.step_s:g} s{size}"


def _columns(rows: list[Row]) -> Columns:
    by_backend = {row.backend: row.figures for row in rows}
    columns: Columns = {
        "wait ms\nmean": lambda row, f: _ms(f.wait_mean_ms),
        "\np50": lambda row, f: _ms(f.wait_p50_ms),
        "\np95": lambda row, f: _ms(f.wait_p95_ms),
        "\nmax": lambda row, f: _ms(f.wait_max_ms),
        "of the\ntime": lambda row, f: f"{f.waiting:.1%}",
    }
    if (plain := by_backend.get(PLAIN)) is not None:
        mean_ms = plain.wait_mean_ms
        columns["plain\n÷ this"] = lambda row, f: _times(mean_ms / f.wait_mean_ms, row)
    if rows[0].job.workload.step_s:
        columns["step\nms"] = lambda row, f: _ms(f.step_ms) if row.step_s else "-"
    columns["batches\n/s"] = lambda row, f: f"{f.batches_per_s:.1f}"
    if rows[0].job.workload.step_s == 0 and (bare := by_backend.get(BARE)) is not None:
        rate = bare.batches_per_s
        columns[f"÷ {rows[0].job.workload.workers}\n× bare"] = lambda row, f: (
            f"{f.batches_per_s / rate / row.job.workload.workers:.2f}"
        )
    columns |= {
        "first\ns": lambda row, f: _outcome(row, "first_batch_s", "{:.2f}"),
        "CPU ms\n/batch": lambda row, f: f"{f.cpu_ms:.1f}",
        "peak\nMB": lambda row, f: f"{row.peak_pss_bytes / 1e6:,.0f}",
        "came\ntwice": lambda row, f: _outcome(row, "repeated", "{}") if row.outcome and row.outcome.seen else "-",
        "\nn": lambda row, f: f"{len(row.outcome.waits_ms) if row.outcome else 0}",
    }
    return columns


def _outcome(row: Row, name: str, form: str) -> str:
    return form.format(getattr(row.outcome, name))


def _times(ratio: float, row: Row) -> str:
    """How many times less is waited; a bare loop has no training step beside it to compare."""
    if row.step_s != row.job.workload.step_s:
        return "-"
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.1f}×"


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def short(value: float) -> str:
    """Three digits that say something."""
    if 0 < value < 1e-4:
        return "<.0001"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
