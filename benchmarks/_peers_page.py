"""The comparison as tables: one a workload, and one of all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks._backends import Backend
from benchmarks._peers_table import BACKENDS
from benchmarks._rows import DISTURBED, Figures, Row, medians
from benchmarks._table import Columns, markdown, short

_BEGIN = "<!-- peers: begin; written by `python -m benchmarks.peers --readme` -->"
_END = "<!-- peers: end -->"
_HELD = {
    "numpy.ndarray": "NumPy array",
    "grain.SharedMemoryArray": "NumPy array",
    "torch.Tensor": "torch tensor",
    "tensorflow.EagerTensor": "tf tensor",
}


def columns() -> Columns:
    """Of one workload's table."""
    return {
        "the loop\nholds": lambda row, f: held(row),
        "batches\n/s": lambda row, f: short(f.batches_per_s),
        "GB/s": lambda row, f: short(_nbytes(row) / 1e9 * f.batches_per_s),
        "wait ms\nmean": lambda row, f: short(f.wait_mean_ms),
        "\np50": lambda row, f: short(f.wait_p50_ms),
        "\np95": lambda row, f: short(f.wait_p95_ms),
        "training\nCPU ms": lambda row, f: short(f.cpu_ms),
        "workers\nCPU ms": lambda row, f: short(f.workers_cpu_ms),
        "copied in\nworkers": lambda row, f: _copies(row, 0),
        "in\ntraining": lambda row, f: _copies(row, 1),
        "first\ns": lambda row, f: short(row.outcome.first_batch_s if row.outcome else 0.0),
        "peak\nMB": lambda row, f: f"{row.peak_pss_bytes / 1e6:,.0f}",
        "others\nCPU": lambda row, f: f"{row.outcome.others if row.outcome else 0:.0%}",
        "\nn": lambda row, f: f"{len(row.outcome.waits_ms) if row.outcome else 0:,}",
    }


def title(rows: list[Row]) -> str:
    workload = rows[0].job.workload
    nbytes = sum(leaf.nbytes for leaf in workload.leaves)
    step = f"training step {workload.step_s:g} s" if workload.step_s else "no training step"
    return f"{workload.name}: {workload.workers} workers, {step}, batches of {nbytes / 1e6:.1f} MB"


def held(row: Row) -> str:
    """What the loop holds at the end."""
    return "-" if row.outcome is None else _HELD.get(row.outcome.holds, row.outcome.holds)


def page(rows: list[Row]) -> str:
    """All tables, and how each way was used."""
    middle = medians(rows)
    names = list(dict.fromkeys(row.workload for row in middle))
    parts = ["# mpfeed beside others", _method(rows), "## Batches a second", overview(middle)]
    for name in names:
        of_workload = [row for row in middle if row.workload == name]
        parts += [f"## {title(of_workload)}", markdown(of_workload, columns()), *_faults(of_workload)]
    parts += ["## How each was used", _uses(middle)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def into_readme(rows: list[Row], path: Path) -> None:
    """Write the short table between the two marks of a page.

    Raises:
        ValueError: the page has no such marks.
    """
    text = path.read_text()
    if _BEGIN not in text or _END not in text:
        raise ValueError(f"{path} has no place for the table: {_BEGIN} and {_END}, each on a line")
    before, after = text.partition(_BEGIN)[0], text.partition(_END)[2]
    path.write_text(f"{before}{_BEGIN}\n\n{summary(rows)}\n{_END}{after}")


def summary(rows: list[Row]) -> str:
    """The date, and of each way a few figures that say most."""
    middle = medians(rows)
    by_place = {(row.backend, row.workload): row for row in middle}
    heads = [head for head, workload, _ in _SUMMARY if any(row.workload == workload for row in middle)]
    shown = [(workload, figure) for head, workload, figure in _SUMMARY if head in heads]
    lines = [["row", "the loop holds", *heads], ["---"] * (len(heads) + 2)]
    for name, backend in BACKENDS.items():
        some = next((row for row in middle if row.backend == name and row.outcome is not None), None)
        if some is not None:
            cells = [_cell(by_place.get((name, workload)), figure) for workload, figure in shown]
            lines.append([_label(backend), held(some), *cells])
    others = max(row.outcome.others for row in middle if row.outcome is not None)
    said = f"Measured on {_dates(rows)}; other programs used up to {others:.0%} of the CPUs during a row. All rows, "
    said += "and how each was used: [benchmarks/results/peers.md](benchmarks/results/peers.md)."
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return f"{said}\n\n{table}\n![batches a second](benchmarks/results/peers.png)\n"


def _cell(row: Row | None, figure: Callable[[Figures], str]) -> str:
    if row is None:
        return "-"
    return "failed" if row.figures is None else figure(row.figures)


def _label(backend: Backend) -> str:
    return backend.label.replace(", {workers} threads", "")


def _dates(rows: list[Row]) -> str:
    return " and ".join(sorted({row.surroundings.measured_at[:10] for row in rows}))


def overview(middle: list[Row]) -> str:
    """A row a way, a column a workload: batches a second."""
    names = list(dict.fromkeys(row.workload for row in middle))
    by_place = {(row.backend, row.workload): row for row in middle}
    lines = [["row", "the loop holds", *names], ["---"] * (len(names) + 2)]
    for backend in BACKENDS:
        found = [by_place.get((backend, name)) for name in names]
        some = next((row for row in found if row is not None and row.outcome is not None), None)
        if some is None:
            continue
        lines.append([_label(BACKENDS[backend]), held(some), *(_cell(row, _rate) for row in found)])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _rate(figures: Figures) -> str:
    return short(figures.batches_per_s)


def _waits(figures: Figures) -> str:
    return f"{short(figures.wait_p50_ms)} / {short(figures.wait_p95_ms)}"


_SUMMARY: tuple[tuple[str, str, Callable[[Figures], str]], ...] = (
    ("4.8 MB: batches/s", "4.8MB", _rate),
    ("48 MB: batches/s", "48MB", _rate),
    ("48 MB: training CPU ms", "48MB", lambda figures: short(figures.cpu_ms)),
    ("`article`: wait ms p50 / p95", "article", _waits),
    ("`opencv`: wait ms p50 / p95", "opencv", _waits),
)


def _method(rows: list[Row]) -> str:
    first = rows[0].surroundings
    rounds = max(sum(1 for other in rows if _key(other) == key) for key in {_key(row) for row in rows})
    return (
        f"Measured on {_dates(rows)} with `python -m benchmarks.peers`: {first}. Up to {rounds} rounds over the "
        "rows, a fresh process a row; of each row the round with the median time lost. What is measured and what is "
        "left out is said in `benchmarks/peers.py`. Copies are counted by addresses, and each figure means at least so "
        'many. "Others CPU" is the share of the CPUs that other programs used during a row; rounds with more than '
        f"{DISTURBED:.0%} count where there is no calmer one."
    )


def _key(row: Row) -> tuple[str, str]:
    return row.workload, row.backend


def _faults(rows: list[Row]) -> list[str]:
    return [f"{row.label}: {row.fault}" for row in rows if row.fault]


def _uses(rows: list[Row]) -> str:
    used = [name for name in BACKENDS if any(row.backend == name for row in rows)]
    lines = [f"- {BACKENDS[name].label.format(workers='several')}: {_said(name)}" for name in used]
    return "\n".join(lines)


def _said(name: str) -> str:
    return (BACKENDS[name].open.__doc__ or "").strip().splitlines()[0]


def _nbytes(row: Row) -> int:
    return row.outcome.batch_bytes if row.outcome is not None else 0


def _copies(row: Row, where: int) -> str:
    return "-" if row.outcome is None or row.outcome.copies is None else str(row.outcome.copies[where])
