"""A picture of the raw waits: batch after batch as colours, and as one strip of dots a backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._rows import Row

_SHORTEST_MS, _LONGEST_MS = 0.1, 1000.0  # ends of the scale of colours


def plot(rows: list[Row], path: Path) -> None:
    """Two panels a workload, with a logarithmic scale of waits."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    shown = [row for row in rows if row.outcome is not None]
    workloads = list(dict.fromkeys(row.workload for row in shown))
    if not workloads:
        return
    size = (14, 1 + 4 * len(workloads))
    figure, panels = pyplot.subplots(len(workloads), 2, figsize=size, squeeze=False, sharey="row", layout="constrained")
    for (over_time, strips), workload in zip(panels, workloads, strict=True):
        _draw([row for row in shown if row.workload == workload], over_time, strips)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _draw(rows: list[Row], over_time: Any, strips: Any) -> None:
    workload = rows[0].job.workload
    title = f"{workload.name}: {workload.workers} workers, training step {workload.step_s:g} s"
    over_time.set(title=title, xlabel="measured batch")
    over_time.set_yticks(range(len(rows)), [row.label for row in rows])
    strips.set(title="each batch a dot; — mean, - - p95", xscale="log", xlabel="wait, ms")
    strips.grid(axis="x", alpha=0.3)
    waits = [np.array(row.outcome.waits_ms) for row in rows if row.outcome is not None]
    _colours(over_time, waits)
    for place, of_row in enumerate(waits):
        _strip(strips, place, of_row)


def _colours(axes: Any, waits: list[Any]) -> None:
    """A lane a row, a cell a batch."""
    from matplotlib.colors import LogNorm

    lanes = np.full((len(waits), max(map(len, waits))), np.nan)
    for place, of_row in enumerate(waits):
        lanes[place, : len(of_row)] = of_row
    norm = LogNorm(_SHORTEST_MS, _LONGEST_MS, clip=True)
    image = axes.imshow(lanes, aspect="auto", interpolation="none", cmap="viridis", norm=norm)
    axes.hlines(np.arange(1, len(waits)) - 0.5, -0.5, lanes.shape[1] - 0.5, color="white", linewidth=3)
    axes.figure.colorbar(image, ax=axes, label="wait, ms", extend="both")


def _strip(axes: Any, place: int, waits: Any) -> None:
    spread = np.random.default_rng(0).uniform(-0.25, 0.25, len(waits))
    axes.scatter(waits, place + spread, s=8, color="tab:blue", alpha=0.5, linewidths=0)
    axes.vlines(waits.mean(), place - 0.4, place + 0.4, color="black", linewidth=2)
    axes.vlines(np.percentile(waits, 95), place - 0.4, place + 0.4, color="black", linewidth=2, linestyle=":")
