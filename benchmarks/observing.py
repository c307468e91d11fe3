"""What does looking cost? All that a batch passes through with nothing looking on, and with everything.

A batch's way through the statistics, on the worker's side and on the consumer's, is gone over and over in one process:
``off`` with the counting that is always on, ``on`` with a trace, a span that the source names, and ``mpfeed.monitor``.
Off and on take turns, and the cost is the median difference of the pairs in CPU microseconds a batch; as a share it is
held against what a batch has where 1,000 of them a second keep all CPUs busy. A real feed says the same less well: what
its threads and processes spend on waking each other varies by ten times as much. Beside it: what ``InputMonitor`` adds
to a step of ``model.fit``.

Left out: writing the file of the trace, which happens after the training.

    python -m benchmarks.observing [--rounds 60] [--json FILE]
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

import mpfeed
from benchmarks._rows import Surroundings
from mpfeed._counters import Counters, WorkerCount
from mpfeed._cpus import usable_cpus
from mpfeed._effort import Meter
from mpfeed._messages import Reply
from mpfeed._trace import Trace

_TURN = 5_000
_WARM_UP = 200
_BATCHES_PER_S = 1_000
_STEPS = 1_500
_LIMIT_S = 100


def in_turns(rounds: int) -> dict[str, list[float]]:
    """CPU microseconds a batch, turn by turn, off and on."""
    spent_us: dict[str, list[float]] = {"off": [], "on": []}
    for turn in range(2 * rounds):
        mode = ("off", "on", "on", "off")[turn % 4]
        spent_us[mode].append(_turn(looking=mode == "on"))
    return spent_us


def _turn(*, looking: bool) -> float:
    counters, count, meter = Counters("process", 2), WorkerCount(), Meter(owns_process=True)
    trace = Trace(os.devnull, lambda _: None) if looking else None
    batches = iter(mpfeed.monitor(itertools.repeat(None))) if looking else itertools.repeat(None)
    begun_s = time.process_time()
    for _ in range(_TURN):
        asked_s = time.perf_counter()
        meter.begin(0.0, traced=looking)
        if looking:
            with mpfeed.span("compute a batch"):
                pass
        meter.made(0)
        meter.mark()
        meter.added()
        sent = pickle.dumps(Reply(1, (), effort=meter.end(1, 0.0)), pickle.HIGHEST_PROTOCOL)
        effort = pickle.loads(sent).effort
        now_s = time.perf_counter()
        made_s = count.replied(effort, 1, now_s, starved=False)
        if trace is not None:
            trace.replied(0, 1, effort.spans, made_s - effort.done_s, starved=False)
            trace.waited(asked_s, now_s, asked_s)
        counters.took(asked_s, made_s, now_s)
        counters.waited(asked_s, now_s, asked_s)
        next(batches)
    return (time.process_time() - begun_s) / _TURN * 1e6


def step_us(looking: bool) -> float:
    """Microseconds of a step of ``model.fit`` that hardly computes."""
    import keras
    import tensorflow as tf

    from mpfeed.keras import InputMonitor

    class Ends(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.at_s: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.at_s.append(time.perf_counter())

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    data = tf.data.Dataset.from_tensors((np.zeros((8, 4), np.float32), np.zeros(8, np.int32))).repeat()
    ends = Ends()
    callbacks = [InputMonitor(), ends] if looking else [ends]
    model.fit(data, steps_per_epoch=_STEPS, callbacks=callbacks, verbose=0)
    return float(np.median(np.diff(ends.at_s[_WARM_UP:]))) * 1e6


def _fresh(*words: str) -> Any:
    command = [sys.executable, "-m", "benchmarks.observing", "--row", " ".join(words)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LIMIT_S, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def _row(words: str) -> Any:
    match words.split():
        case ["feed", rounds]:
            return in_turns(int(rounds))
        case ["fit", looking]:
            return step_us(looking == "on")
        case _:
            raise ValueError(words)


def _measured(rounds: int) -> dict[str, Any]:
    feeds = _fresh("feed", str(rounds))
    fits: dict[str, list[float]] = {"off": [], "on": []}
    for mode in ("off", "on", "on", "off"):
        fits[mode].append(_fresh("fit", mode))
    costs_us = [on - off for on, off in zip(feeds["on"], feeds["off"], strict=True)]
    cost_us = statistics.median(costs_us)
    return {
        "cpu_us": feeds, "off_us": statistics.median(feeds["off"]), "cost_us": cost_us,
        "spread_us": np.percentile(costs_us, [25, 75]).tolist(), "cpus": usable_cpus(),
        "share": cost_us / (usable_cpus() * 1e6 / _BATCHES_PER_S),
        "step_us": fits,
        "input_monitor_us": statistics.median(fits["on"]) - statistics.median(fits["off"]),
    }  # fmt: skip


def main(
    rounds: Annotated[int, typer.Option(help="of off and on", min=2)] = 60,
    json_file: Annotated[Path | None, typer.Option("--json", help="write all figures there")] = None,
    row: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure what looking costs."""
    if row is not None:
        print(json.dumps(_row(row)))
        return
    console = Console()
    surroundings = Surroundings.now()
    found = _measured(rounds)
    low, high = found["spread_us"]
    console.print(
        f"looking: {found['cost_us']:.1f} µs of CPU a batch (half of {rounds} pairs of turns within {low:.1f} to "
        f"{high:.1f}), {found['share']:.2%} of what {_BATCHES_PER_S:,} batches/s have on {found['cpus']} CPUs; "
        f"always on: {found['off_us']:.1f} µs; InputMonitor: {found['input_monitor_us']:.0f} µs a step",
        highlight=False,
    )
    if json_file is not None:
        json_file.write_text(json.dumps({"surroundings": asdict(surroundings), **found}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
