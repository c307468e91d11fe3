"""A picture of one figure: a panel a workload, a bar a row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks._rows import Figures, Row
from benchmarks._table import short

_OURS, _OTHERS = "tab:blue", "tab:gray"


def bars(rows: list[Row], path: Path, title: str, figure_of: Callable[[Row, Figures], float]) -> None:
    """Bars on a logarithmic scale, mpfeed's in a colour of their own."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    shown = [row for row in rows if row.figures is not None]
    workloads = list(dict.fromkeys(row.workload for row in shown))
    if not workloads:
        return
    groups = [[row for row in shown if row.workload == workload] for workload in workloads]
    size = (12, sum(1.2 + 0.28 * len(group) for group in groups))
    heights = [1 + len(group) for group in groups]
    figure, panels = pyplot.subplots(
        len(groups), 1, figsize=size, squeeze=False, height_ratios=heights, layout="constrained"
    )
    for axes, group in zip(panels[:, 0], groups, strict=True):
        values = [figure_of(row, row.figures) for row in group if row.figures is not None]
        colours = [_OURS if row.label.startswith("mpfeed") else _OTHERS for row in group]
        drawn = axes.barh(range(len(group)), values, color=colours)
        axes.bar_label(drawn, labels=[short(value) for value in values], padding=3)
        axes.set(title=f"{group[0].workload}: {title}", xscale="log")
        axes.set_yticks(range(len(group)), [row.label for row in group])
        axes.invert_yaxis()
        axes.margins(x=0.12, y=0.01)
        axes.grid(axis="x", alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
