"""Does a feed stay whole and lean for a long time, while its workers are killed and paused at random?

Two feeds with the same options are read side by side, epoch after epoch: one on the backend in question, whose workers
are harmed at random moments, one in-process. Each element is compared with its twin, bit for bit. The sources are slow
at times, change the size of their elements, and draw random numbers. Memory, descriptors, threads, processes and names
are looked at all the while.

Left out: TensorFlow, and what the harm costs in speed. The gauges' own look and the in-process twin use CPU and memory
of the same process.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import mpfeed
from benchmarks import _gauges
from benchmarks._disturb import Disturber
from benchmarks._gauges import Gauges
from benchmarks._ray import local_ray
from benchmarks._rows import Surroundings

_ITEMS = 150
_BATCH = 8
_RESTARTS = 1_000_000  # random kills may meet one place again and again
_SLOW_S = 0.1
_BREAK = 0.1  # share of the epochs that are left in the middle
_STUCK_S = 120.0


def sized(item: int, rng: np.random.Generator) -> dict[str, Any]:
    """An element whose size and time depend on its number: 8 bytes to 1.6 MB."""
    if item % 37 == 0:
        time.sleep(_SLOW_S)
    size = 200_000 if item % 29 == 0 else 1 + item * 37 % 2000
    return {"item": np.int64(item), "values": rng.random(size), "text": f"item {item}"}


def growing(shard: mpfeed.Shard) -> Iterator[dict[str, Any]]:
    """Samples whose size depends on the epoch, of a shard that is slow now and then."""
    side = 8 + shard.epoch % 5 * 16
    for i in shard.of(range(_ITEMS)):
        if i % 41 == 0:
            time.sleep(_SLOW_S)
        yield {"item": np.int64(i), "image": shard.rng.integers(0, 256, (side, side, 3), dtype=np.uint8)}


def feeds(backend: Any, workers: int) -> list[mpfeed.Feed]:
    """A feed of each kind."""
    options: dict[str, Any] = {"backend": backend, "workers": workers, "max_restarts": _RESTARTS, "seed": 11}
    if backend != "inprocess":
        options["timeout"] = _STUCK_S
    return [
        mpfeed.from_map(sized, range(_ITEMS), shuffle=True, **options),
        mpfeed.from_map(sized, range(_ITEMS), **options, batch_size=_BATCH, collate=mpfeed.collate_padded()),
        mpfeed.from_generator(growing, shards=3, **options, batch_size=_BATCH),
    ]


def same(got: Any, want: Any) -> bool:
    """Whether two elements are equal to the last bit."""
    if got.keys() != want.keys():
        return False
    return all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and (a.tolist() == b.tolist() if a.dtype == object else (a == b).all())
        for a, b in ((np.asarray(got[name]), np.asarray(want[name])) for name in got)
    )


class Soak:
    """Reads pairs of feeds against each other.

    Attributes:
        faults: what was seen that must not be.
        counts: epochs and elements compared.
    """

    def __init__(self, backend: Any, workers: int, step_s: float) -> None:
        self._step_s = step_s
        self._tested = feeds(backend, workers)
        self._twins = feeds("inprocess", 1)
        self._random = np.random.default_rng(5)
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()

    def epoch(self, name: int, done: Callable[[], bool]) -> None:
        """One epoch of one pair; some are left in the middle, and the one in which all is done."""
        last = int(self._random.integers(_ITEMS // _BATCH)) if self._random.random() < _BREAK else None
        tested, twin = iter(self._tested[name]), iter(self._twins[name])
        try:
            for number, (got, want) in enumerate(zip(tested, twin, strict=True)):
                self.counts["elements"] += 1
                if not same(got, want):
                    self.faults.append(f"feed {name}, epoch {tested.epoch}: element {number} differs")
                time.sleep(self._step_s)
                if number == last or done():
                    break
        except (mpfeed.MpfeedError, ValueError) as error:
            self.faults.append(f"feed {name}, epoch {tested.epoch}: {type(error).__name__}: {error}")
        finally:
            tested.close()
            twin.close()
        self.counts["epochs"] += 1

    def restarts(self) -> int:
        """Workers replaced."""
        return sum(worker.restarts for feed in self._tested for worker in feed.stats().workers)

    def close(self) -> None:
        for feed in [*self._tested, *self._twins]:
            feed.close()


def run(  # noqa: PLR0913 (the command's own options)
    backend: str,
    workers: int,
    *,
    minutes: float,
    kills: int | None,
    kill_every_s: float,
    seed: int = 0,
    look_every_s: float = 2.0,
    step_s: float = 0.0,
) -> dict[str, Any]:
    """Soak one backend; what was seen, with the raw samples."""
    transport = backend.partition("/")[2]
    chosen = mpfeed.Process(transport=transport) if transport else backend  # type: ignore[arg-type]
    with ExitStack() as stack:
        if backend == "ray":
            stack.enter_context(local_ray(workers * 3))
        soak = Soak(chosen, workers, step_s)
        stack.callback(soak.close)
        gauges = stack.enter_context(Gauges(look_every_s))
        disturber = stack.enter_context(Disturber(kill_every_s, seed, kills, lambda: soak.counts["elements"]))
        begun = time.monotonic()

        def done() -> bool:
            return time.monotonic() - begun >= 60 * minutes or disturber.done

        number = 0
        while not done() and not soak.faults:
            soak.epoch(number % 3, done)
            number += 1
        return {
            "backend": backend, "workers": workers, "seed": seed, "seconds": round(time.monotonic() - begun, 1),
            **soak.counts, "restarts": soak.restarts(), **disturber.counts, "faults": soak.faults,
            "growth": _gauges.growth(gauges.samples), "samples": _gauges.to_json(gauges.samples),
            "surroundings": asdict(Surroundings.now()),
        }  # fmt: skip


def main(  # noqa: PLR0913, PLR0917 (a command's options)
    backend: Annotated[str, typer.Option(help="process, process/queue or ray.")] = "process",
    workers: Annotated[int, typer.Option(min=1, help="Of each of the three feeds.")] = 2,
    minutes: Annotated[float, typer.Option(help="How long at most.")] = 5.0,
    kills: Annotated[int | None, typer.Option(help="End after so many.")] = None,
    kill_every: Annotated[float, typer.Option(help="Seconds between two acts of harm, on average.")] = 5.0,
    seed: Annotated[int, typer.Option(help="Of the harm.")] = 0,
    look_every: Annotated[float, typer.Option(help="Seconds between two looks at the gauges.")] = 2.0,
    step: Annotated[float, typer.Option(help="Seconds of a training step for each element.")] = 0.0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Append the run to this file.")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw the gauges, as PNG.")] = None,
) -> None:
    """Soak a backend under random kills and pauses; exit code 1 if anything was lost, repeated, changed or stuck."""
    seen = run(
        backend,
        workers,
        minutes=minutes,
        kills=kills,
        kill_every_s=kill_every,
        seed=seed,
        look_every_s=look_every,
        step_s=step,
    )
    if json_path is not None:
        runs = json.loads(json_path.read_text())["runs"] if json_path.exists() else []
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps({"benchmark": "soak", "runs": [*runs, seen]}, indent=1) + "\n")
    if picture is not None:
        samples = [_gauges.Sample(**sample) for sample in seen["samples"]]
        _gauges.plot(samples, f"{backend}, {workers} workers a feed, {seen.get('killed', 0)} kills", picture)
    print({name: value for name, value in seen.items() if name not in ("samples", "surroundings")})
    steep = _gauges.steep(seen["growth"]) if minutes >= 5 else []
    for fault in [*seen["faults"], *steep]:
        print(fault)
    raise typer.Exit(bool(seen["faults"]))


if __name__ == "__main__":
    typer.run(main)
