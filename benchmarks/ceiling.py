"""Do N workers make N times what one bare loop makes? ``python -m benchmarks.ceiling``.

Method: a machine that others share changes its speed by more than the answer from one minute to the next. So all
contestants are there at once and take turns of a few seconds, the others stopped (SIGSTOP): one bare loop, N bare
loops, and a training loop without a step that N workers of the process backend feed into ``tf.Tensor``. Each turn
begins with an unmeasured part, in which caches and buffers become the contestant's own. The ratios are those of
turns next to each other, and the figures their medians.

N bare loops are the ceiling: they share memory, caches and cores, and hand nothing over.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console

from benchmarks._backends import BACKENDS, ONE_THREAD
from benchmarks._job import Workload
from benchmarks._rows import Surroundings
from benchmarks._source import Shard
from benchmarks.workloads import WORKLOADS

FEED = "process/shared_memory"
_SPAWN = multiprocessing.get_context("spawn")
_WARM_UP_S = 0.5


@dataclass(slots=True)
class Contestant:
    """Processes that count their batches, stopped unless it is their turn."""

    processes: list[Any]
    counts: list[Any]
    rates: list[float] = field(default_factory=list)

    def turn(self, seconds: float) -> None:
        """Run for so long and note the batches a second."""
        self._signal(signal.SIGCONT)
        time.sleep(_WARM_UP_S)
        begun, before = time.perf_counter(), self._total()
        time.sleep(seconds)
        self.rates.append((self._total() - before) / (time.perf_counter() - begun))
        self._signal(signal.SIGSTOP)

    def begin(self) -> None:
        """Wait for the first batch of each process, then stop."""
        while not all(count.value for count in self.counts):
            if dead := [p.exitcode for p in self.processes if p.exitcode is not None]:
                raise RuntimeError(f"a process of the benchmark ended with exit code {dead[0]}")
            time.sleep(0.05)
        self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """End all its processes."""
        for process in self._tree():
            process.kill()

    def _total(self) -> int:
        return sum(count.value for count in self.counts)

    def _signal(self, number: int) -> None:
        for process in self._tree():
            os.kill(process.pid, number)

    def _tree(self) -> list[psutil.Process]:
        roots = [psutil.Process(p.pid) for p in self.processes if p.is_alive()]
        return [process for root in roots for process in [*root.children(recursive=True), root]]


def main(
    workload: Annotated[list[str] | None, typer.Option(help=f"{', '.join(WORKLOADS)}; repeatable.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Loops at once, and workers of the feed.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.1, help="A turn, measured.")] = 4.0,
    output: Annotated[Path | None, typer.Option("--json", help="Write all rates.")] = None,
) -> None:
    """Measure what the workers of a feed make beside what as many bare loops make, in turns."""
    console = Console()
    seen = {}
    for name in workload or ["gil", "opencv"]:
        rates = measured(WORKLOADS[name](), workers, rounds, seconds)
        seen[name] = {"batches_per_second": rates, **ratios(rates, workers)}
        console.print(f"{name}, {workers} workers: {in_words(rates, workers)}", highlight=False)
    if output is not None:
        data = {"benchmark": "ceiling", "surroundings": asdict(Surroundings.now()), "workers": workers, **seen}
        output.write_text(json.dumps(data, indent=1) + "\n")


def measured(workload: Workload, workers: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Batches a second in each turn of each contestant."""
    with contest(workload, workers) as contestants:
        for contestant in contestants.values():
            contestant.begin()
        for _ in range(rounds):
            for contestant in contestants.values():
                contestant.turn(seconds)
        return {name: contestant.rates for name, contestant in contestants.items()}


def ratios(rates: dict[str, list[float]], workers: int) -> dict[str, float]:
    """Medians over the rounds of what stands in one round."""
    one, many, feed = rates["one"], rates["many"], rates["feed"]
    return {
        "feed_over_many": statistics.median(a / b for a, b in zip(feed, many, strict=True)),
        "feed_over_multiple_of_one": statistics.median(a / (workers * b) for a, b in zip(feed, one, strict=True)),
        "many_over_multiple_of_one": statistics.median(a / (workers * b) for a, b in zip(many, one, strict=True)),
    }


def in_words(rates: dict[str, list[float]], workers: int) -> str:
    """The answer."""
    r = ratios(rates, workers)
    one, many, feed = (statistics.median(rates[name]) for name in ("one", "many", "feed"))
    return (
        f"one bare loop {one:.1f} batches/s, {workers} at once {many:.1f} ({r['many_over_multiple_of_one']:.2f} of "
        f"{workers} times one); mpfeed into tensors {feed:.1f}: {r['feed_over_many']:.2f} of {workers} bare loops, "
        f"{r['feed_over_multiple_of_one']:.2f} of {workers} times one"
    )


@contextmanager
def contest(workload: Workload, workers: int) -> Iterator[dict[str, Contestant]]:
    """The contestants, started and running; ended at the end."""
    contestants: dict[str, Contestant] = {}
    environment = dict(os.environ)
    try:
        os.environ.update(ONE_THREAD)
        contestants["one"] = _started(_loop, [(workload, Shard())])
        contestants["many"] = _started(_loop, [(workload, Shard(i, workers)) for i in range(workers)])
        os.environ.clear()
        os.environ.update(environment)
        contestants["feed"] = _started(_train, [(workload, workers)])
        yield contestants
    finally:
        os.environ.update(environment)
        for contestant in contestants.values():
            contestant.end()


def _started(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> Contestant:
    counts = [_SPAWN.RawValue("q", 0) for _ in arguments]
    processes = [_SPAWN.Process(target=target, args=(*a, c)) for a, c in zip(arguments, counts, strict=True)]
    for process in processes:
        process.start()
    return Contestant(processes, counts)


def _loop(workload: Workload, shard: Shard, count: Any) -> None:
    for _ in workload.source.batches(shard):
        count.value += 1


def _train(workload: Workload, workers: int, count: Any) -> None:
    with BACKENDS[FEED].open(workload, workers) as batches:
        for _ in batches:
            count.value += 1


if __name__ == "__main__":
    typer.run(main)
