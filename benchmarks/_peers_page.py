"""The comparison as tables: one a workload, and one of all of them."""

from __future__ import annotations

from benchmarks._peers_table import BACKENDS
from benchmarks._rows import DISTURBED, Row, medians
from benchmarks._table import Columns, markdown, short

_HELD = {"numpy.ndarray": "NumPy array", "torch.Tensor": "torch tensor", "tensorflow.EagerTensor": "tf tensor"}


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
        label = BACKENDS[backend].label.replace(", {workers} threads", "")
        lines.append([label, held(some), *map(_rate, found)])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _rate(row: Row | None) -> str:
    if row is None:
        return "-"
    return "failed" if row.figures is None else short(row.figures.batches_per_s)


def _method(rows: list[Row]) -> str:
    first = rows[0].surroundings
    dates = sorted({row.surroundings.measured_at[:10] for row in rows})
    rounds = max(sum(1 for other in rows if _key(other) == key) for key in {_key(row) for row in rows})
    return (
        f"Measured on {' and '.join(dates)} with `python -m benchmarks.peers`: {first}. Up to {rounds} rounds over the "
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
