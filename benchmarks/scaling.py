"""How far does one consumer reach, with how many workers and nodes? ``python -m benchmarks.scaling``.

Method: a fresh process a row takes batches as fast as they come and keeps each wait. "sleep" workers wait 0.5 s for a
batch of 64 kB, as for a disk or a network, so that any number of them fits on this machine; their ideal is workers /
0.5 s. "cpu" workers run 40, 80 or 160 ms of Python a batch of 32 samples and 4.8 MB, on Ray and in worker processes;
their ideal is the same number of the latter. Ray's own work on a batch, the driver's and its daemons', runs on the same
cores here, and weighs the less the more a batch takes; "bare ray" is a loop over hand-written actors, which pays that
too. "ceiling" workers make nothing, on the consumer's own node, with which they share memory: what then limits is the
consumer, so that its CPU time a batch tells how many batches a second it can take. "nodes" spreads such workers over so
many nodes (`ray.cluster_utils.Cluster`), the consumer alone on the head: its CPU time for batches of other nodes.
"link" puts one node and the consumer into network namespaces, with a delay each way and a rate; its ideal is the rate.

Left out: TensorFlow, which adds 0.1 to 0.7 ms an element; machines that share no cores. All nodes here share this
machine's, so that "nodes" and "link" show what the network costs and not what more cores bring.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks._nodes import UNGUARDED, Link, linked_cluster
from benchmarks._rows import Surroundings
from benchmarks.workloads import spin_iterations

_SLEEP_S = 0.5
_SPIN_MS = (40.0, 80.0, 160.0)
_CHECKOUT = Path(__file__).resolve().parents[1]
_KINDS = ("sleep", "cpu", "ceiling", "nodes", "link")


@dataclass(frozen=True, slots=True)
class Row:
    """What one row measures; ``ideal`` is in batches a second, 0 where there is none."""

    kind: str
    backend: str
    workers: int
    nbytes: int = 64_000
    sleep_s: float = 0.0
    spin_ms: float = 0.0
    spin_steps: int = 0
    samples: int | None = None
    nodes: int = 0
    address: str | None = None
    ideal: float = 0.0
    warm_up: int = 10
    seconds: float = 4.0


def main(  # noqa: PLR0913, PLR0917 - the options of a command line
    kind: Annotated[list[str] | None, typer.Option(help=f"{', '.join(_KINDS)}; repeatable.")] = None,
    workers: Annotated[list[int] | None, typer.Option(help="Of the sleep rows; repeatable.")] = None,
    nodes: Annotated[list[int] | None, typer.Option(help="Of the nodes rows; repeatable.")] = None,
    delay: Annotated[float, typer.Option(help="Of the link, each way, in ms.")] = 20.0,
    mbit: Annotated[float, typer.Option(help="Of the link, Mbit/s.")] = 1000.0,
    rounds: Annotated[int, typer.Option(min=1, help="Go over all rows so often; the table has medians.")] = 1,
    path: Annotated[Path | None, typer.Option("--json", help="Write all rows with their raw waits.")] = None,
) -> None:
    """Measure how batches/s grow with workers and nodes, and what a batch costs the one who takes it."""
    console = Console(width=130)
    link = Link(delay, mbit)
    rows = list(_rows(tuple(kind or _KINDS), workers or [1, 4, 16, 64], nodes or [1, 2, 4]))
    seen = []
    for _ in range(rounds):
        for row in rows:
            outcome = _measure(row, link)
            seen.append((row, outcome))
            console.print(f"{row.kind} {row.backend} {row.workers}{_work(row)}: {_brief(outcome)}", highlight=False)
    if path is not None:
        _write(seen, link, path)
    console.print(_table(seen, link))
    raise typer.Exit(any("error" in outcome for _, outcome in seen))


def _rows(kinds: tuple[str, ...], workers: list[int], nodes: list[int]) -> Iterator[Row]:
    if "sleep" in kinds:
        for count in workers:
            yield Row("sleep", "ray", count, sleep_s=_SLEEP_S, ideal=count / _SLEEP_S, warm_up=4 * count, seconds=10.0)
    if "cpu" in kinds:
        steps = spin_iterations(10.0) / 10.0
        for spin_ms, count, backend in product(_SPIN_MS, (1, 2), ("process", "bare ray", "ray")):
            of_one = round(steps * spin_ms)
            yield Row("cpu", backend, count, 4_800_000, spin_ms=spin_ms, spin_steps=of_one, samples=32, seconds=6.0)
    if "ceiling" in kinds:
        for nbytes in (64_000, 4_800_000, 48_000_000):
            yield Row("ceiling", "ray", 2, nbytes)
    if "nodes" in kinds:
        for count in nodes:
            yield Row("nodes", "ray", 4, 4_800_000, nodes=count)
    if "link" in kinds:
        yield Row("link", "ray", 4, 4_800_000, warm_up=20, seconds=10.0)


def _measure(row: Row, link: Link) -> dict[str, Any]:
    if row.kind != "link":
        return _run(row, [])
    try:
        with linked_cluster(row.workers, link) as (address, prefix):
            return _run(replace(row, address=address), prefix)
    except (OSError, subprocess.SubprocessError) as error:
        return {"error": f"no link: {error} (it needs root, ip and TUN devices)"}


def _run(row: Row, prefix: list[str]) -> dict[str, Any]:
    words = [*prefix, sys.executable, "-m", "benchmarks._scaling_row", json.dumps(asdict(row))]
    environment = {**os.environ, **(UNGUARDED if prefix else {})}
    try:
        done = subprocess.run(
            words, cwd=_CHECKOUT, capture_output=True, text=True, check=False, timeout=150, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"error": "not done within 150 s"}
    if done.returncode:
        return {"error": (done.stderr.strip() or "failed").splitlines()[-1]}
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcome


def _work(row: Row) -> str:
    return f" {row.spin_ms:g} ms" if row.spin_ms else ""


def _rate(outcome: dict[str, Any]) -> float:
    return len(outcome["waits_ms"]) / outcome["wall_s"]


def _brief(outcome: dict[str, Any]) -> str:
    return outcome["error"] if "error" in outcome else f"{_rate(outcome):.1f} batches/s"


def _ideal(row: Row, seen: list[tuple[Row, dict[str, Any]]], link: Link) -> float:
    """Batches a second at best: by arithmetic, by the link, or as worker processes do in the same run."""
    if row.kind == "link":
        return link.mbit_per_s * 1e6 / 8 / row.nbytes
    if row.kind == "cpu":
        like = replace(row, backend="process")
        same = [_rate(outcome) for other, outcome in seen if other == like and "error" not in outcome]
        return statistics.median(same) if same else 0.0
    return row.ideal


def _table(seen: list[tuple[Row, dict[str, Any]]], link: Link) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for name in ("kind", "backend", "workers", "nodes", "work ms", "MB", "batches/s", "of ideal", "wait p50 ms",
                 "p95 ms", "driver CPU ms", "its ceiling/s", "MB/s"):  # fmt: skip
        table.add_column(name, justify="right")
    for row in dict.fromkeys(row for row, _ in seen):
        outcomes = [outcome for r, outcome in seen if r == row and "error" not in outcome]
        if not outcomes:
            table.add_row(row.kind, row.backend, str(row.workers), str(row.nodes), "", "", "failed")
            continue
        middle = sorted(outcomes, key=_rate)[(len(outcomes) - 1) // 2]
        rate, ideal = _rate(middle), _ideal(row, seen, link)
        p50, p95 = np.percentile(middle["waits_ms"], (50, 95))
        cpu_ms = middle["cpu_s"] / len(middle["waits_ms"]) * 1e3
        table.add_row(
            row.kind, row.backend, str(row.workers), str(row.nodes), f"{row.spin_ms:g}", f"{row.nbytes / 1e6:g}",
            f"{rate:.1f}", f"{rate / ideal:.2f}" if ideal else "", f"{p50:.2f}", f"{p95:.2f}", f"{cpu_ms:.2f}",
            f"{1e3 / cpu_ms:.0f}" if cpu_ms else "", f"{rate * row.nbytes / 1e6:.0f}",
        )  # fmt: skip
    return table


def _write(seen: list[tuple[Row, dict[str, Any]]], link: Link, path: Path) -> None:
    surroundings = asdict(Surroundings.now())
    data = {
        "benchmark": "scaling",
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "surroundings": surroundings,
        "link": asdict(link),
        "rows": [{**asdict(row), "ideal": _ideal(row, seen, link), "outcome": outcome} for row, outcome in seen],
    }
    path.write_text(json.dumps(data) + "\n")


if __name__ == "__main__":
    typer.run(main)
