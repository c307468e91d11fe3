"""Does a stream stay exact while nodes of its cluster die, and how soon does it go on?

Method: four nodes of two CPUs (`ray.cluster_utils.Cluster`) and a head without any, where the consumer is. Eight
workers make batches of 0.2 MB of random numbers, and the consumer takes one every 10 ms. Every few seconds the oldest
node is killed with SIGKILL, with its two workers and all batches in its store, and another is added. What the consumer
got is hashed and compared with the same feed's in-process stream. A death's recovery is the longest wait of the
consumer from the kill until the next one: in order, the batches that were lost are what it waits for. The kill itself,
which waits for the node's processes to end, is not counted.

Left out: sources that take long to run again (from_generator makes a lost shard again from its beginning, so that its
own time comes on top); a machine that vanishes without its sockets being closed, which Ray notices after 15 s;
TensorFlow.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import mpfeed
from benchmarks._nodes import Nodes
from benchmarks._rows import Surroundings

_NODES, _CPUS = 4, 2
_STEP_S = 0.01
_BATCH_VALUES = 200_000
LIMIT_S = 5.0


def _batch(rng: np.random.Generator) -> Any:
    return rng.integers(0, 255, _BATCH_VALUES).astype(np.uint8)


def of_items(backend: Any, count: int, workers: int) -> mpfeed.Feed:
    """Batches that go to whoever is free."""

    def batch(_: int, rng: np.random.Generator) -> Any:
        return _batch(rng)

    return mpfeed.from_map(batch, range(count), shuffle=True, workers=workers, backend=backend, max_restarts=count)


def of_shards(backend: Any, count: int, workers: int) -> mpfeed.Feed:
    """Shards that are run again from their beginning."""

    def source(shard: mpfeed.Shard) -> Iterator[Any]:
        for _ in shard.of(range(count)):
            yield _batch(shard.rng)

    return mpfeed.from_generator(source, shards=8, workers=workers, backend=backend, max_restarts=count)


KINDS: dict[str, Callable[[Any, int, int], mpfeed.Feed]] = {"from_map": of_items, "from_generator": of_shards}


@dataclass(slots=True)
class Outcome:
    """What one stream over dying nodes showed.

    Attributes:
        same: whether the stream was that of the in-process feed.
        recoveries_s: longest wait after each death.
        median_wait_s: of all waits.
    """

    kind: str
    batches: int = 0
    same: bool = False
    recoveries_s: list[float] = field(default_factory=list)
    median_wait_s: float = 0.0
    wall_s: float = 0.0


def measure(kind: str, count: int, every_s: float) -> Outcome:
    """Read ``count`` batches while nodes die."""
    with KINDS[kind]("inprocess", count, 1) as feed:
        expected = _hashed(feed)
    outcome = Outcome(kind)
    with Nodes(_CPUS) as nodes:
        nodes.add(_NODES)
        nodes.ready()
        with KINDS[kind](mpfeed.Ray(address=nodes.address), count, _NODES * _CPUS) as feed:
            outcome.same = _hashed(_disturbed(iter(feed), nodes, every_s, outcome)) == expected
    return outcome


def _hashed(batches: Any) -> str:
    total = hashlib.sha256()
    for batch in batches:
        total.update(batch.tobytes())
    return total.hexdigest()


def _disturbed(batches: Iterator[Any], nodes: Nodes, every_s: float, outcome: Outcome) -> Iterator[Any]:
    waits_s: list[float] = []
    since_death: list[float] = []
    outcome.batches = 1
    yield next(batches)
    begun_s = killed_s = asked_s = time.perf_counter()
    for batch in batches:
        now_s = time.perf_counter()
        waits_s.append(now_s - asked_s)
        since_death.append(now_s - asked_s)
        outcome.batches += 1
        yield batch
        time.sleep(_STEP_S)
        if now_s - killed_s > every_s:
            if killed_s != begun_s:
                outcome.recoveries_s.append(max(since_death))
            since_death = []
            nodes.add()
            nodes.kill(nodes.living[0])
            killed_s = time.perf_counter()
        asked_s = time.perf_counter()
    if killed_s != begun_s and since_death:
        outcome.recoveries_s.append(max(since_death))
    outcome.median_wait_s = float(np.median(waits_s))
    outcome.wall_s = time.perf_counter() - begun_s


def main(
    kind: Annotated[list[str] | None, typer.Option(help=f"{' or '.join(KINDS)}; repeatable. Default: both.")] = None,
    batches: Annotated[int, typer.Option(min=2)] = 2000,
    every: Annotated[float, typer.Option(help="Seconds between two deaths.")] = 4.0,
    path: Annotated[Path | None, typer.Option("--json", help="Write what was seen.")] = None,
) -> None:
    """Kill a node every few seconds; exit code 1 where the stream is another or a recovery takes over 5 s."""
    outcomes = [measure(name, batches, every) for name in kind or KINDS]
    if path is not None:
        data = {"benchmark": "node_deaths", "every_s": every, "surroundings": asdict(Surroundings.now())}
        path.write_text(json.dumps({**data, "runs": [asdict(outcome) for outcome in outcomes]}) + "\n")
    Console(width=130).print(_table(outcomes))
    raise typer.Exit(any(not o.same or max(o.recoveries_s, default=0.0) > LIMIT_S for o in outcomes))


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for name in ("kind", "batches", "stream", "deaths", "recovery s, median", "longest", "wait ms, median", "seconds"):
        table.add_column(name, justify="right")
    for o in outcomes:
        seconds = o.recoveries_s or [float("nan")]
        table.add_row(
            o.kind, f"{o.batches:,}", "the same" if o.same else "ANOTHER", str(len(o.recoveries_s)),
            f"{np.median(seconds):.2f}", f"{max(seconds):.2f}", f"{o.median_wait_s * 1e3:.1f}", f"{o.wall_s:.0f}",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    typer.run(main)
