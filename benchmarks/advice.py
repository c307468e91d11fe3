"""Is what ``mpfeed measure`` advises as good as anything? ``python -m benchmarks.advice``.

Method: ``measure`` searches as a user's would; then all settings of a grid, the advised one among them, are tried in
turn, each in a fresh process, for some rounds. The advised setting's median rate is compared with the best median of
the grid, which favours the grid: the best of many noisy medians is lucky.

Left out: Ray; an accelerator's own work, as the step is a sleep.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import workloads
from benchmarks._photographs import photographs
from benchmarks._rows import Surroundings
from mpfeed._measure import Row, Task, advised, attempt, reason, search
from mpfeed._trial import Setting, Source

GRIDS = {
    "opencv": [("inprocess", (1, 2, 4)), ("process", (1, 2, 3, 4, 8))],
    "article": [("inprocess", (1, 4, 8, 16)), ("process", (2, 4, 8, 16))],
}
_LOCAL = ("inprocess", "process")
TASKS = {
    "opencv": Task(Source("benchmarks.advice:opencv"), step_s=0.05, seconds=4.0, backends=_LOCAL),
    "article": Task(Source("benchmarks.workloads:article"), step_s=0.1, seconds=4.0, backends=_LOCAL),
}


def opencv(shard: Any) -> Any:
    """The workload of that name, with its photographs."""
    return workloads.opencv(shard, folder=str(photographs()))


def main(
    workload: Annotated[str, typer.Argument(help=", ".join(TASKS))],
    output: Annotated[Path, typer.Option("--json", help="The search, and the rounds so far; rounds are added.")],
    search_anew: Annotated[bool, typer.Option("--search", help="Search; else go over the grid once more.")] = False,
) -> None:
    """Search as `mpfeed measure` does, or go over the grid once; the file keeps both."""
    photographs()
    console, task = Console(width=120), TASKS[workload]
    data: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {"benchmark": "advice"}
    mine = data.setdefault(workload, {"rounds": []})

    def tried(setting: Setting) -> Row:
        row = attempt(task.trial(setting), lambda _: None)
        console.print(f"{workload} · {setting}: {row.rate:.2f} batches/s {row.error}", highlight=False)
        return row

    if search_anew:
        rows = search(task, tried)
        chosen = advised(rows)
        if chosen is None:
            raise typer.Exit(1)
        console.print(reason(rows, chosen, task.step_s))
        mine |= {"advised": asdict(chosen.setting), "search": [asdict(row) for row in rows]}
    else:
        mine["rounds"].append([asdict(tried(setting)) for setting in _grid(workload, mine["advised"])])
        _compare(mine, console)
    mine["surroundings"] = asdict(Surroundings.now())
    output.write_text(json.dumps(data, indent=1) + "\n")


def _grid(workload: str, chosen: dict[str, Any]) -> list[Setting]:
    grid = [Setting(backend, workers) for backend, counts in GRIDS[workload] for workers in counts]
    return list(dict.fromkeys([*grid, Setting(**chosen)]))


def _compare(mine: dict[str, Any], console: Console) -> None:
    rates: dict[Setting, list[float]] = {}
    for row in (row for one in mine["rounds"] for row in one):
        of_row = [len(outcome["waits_ms"]) / outcome["wall_s"] for outcome in row["outcomes"]]
        rates.setdefault(Setting(**row["setting"]), []).extend(of_row or [0.0])
    medians = {setting: statistics.median(values) for setting, values in rates.items()}
    best = max(medians, key=lambda setting: medians[setting])
    chosen = Setting(**mine["advised"])
    mine |= {"best": asdict(best), "ratio": medians[chosen] / medians[best]}
    console.print(
        f"advised {chosen}: {medians[chosen]:.2f} batches/s, {mine['ratio']:.3f} of the best, {best}: "
        f"{medians[best]:.2f}; medians of {len(mine['rounds'])} rounds"
    )


if __name__ == "__main__":
    typer.run(main)
