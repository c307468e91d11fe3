"""Which backend and how many workers for a source: settings are tried in fresh processes, the best one is advised.

Each backend begins with as many workers as there are cores. While the loop waits and more workers help, their number
doubles; where it does not wait, it halves. The settings that came near the best are tried once more. Of those that
then do as well as the best, the one that takes least is advised: no worker, few workers, processes before threads
(which take the training's GIL), those before Ray.

Left out: what a real step does with the CPU, and the copy to an accelerator.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from mpfeed._cpus import most_local_workers, usable_cpus
from mpfeed._trial import Outcome, Setting, Source, Trial

BACKENDS = ("inprocess", "process", "ray")
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "RAY_USAGE_STATS_ENABLED": "0"}
_WAITS = 0.03  # share of the time below which a setting keeps up
_HELPED = 1.05
_NEAR = 0.9  # of the best rate: tried again
_AS_WELL = 0.98
_AGAIN = 4
_SILENCE_S = 60.0
_GRACE_S = 10.0
_SAID = 12  # last lines of a trial that failed


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be found out.

    Attributes:
        step_s: seconds of a training step.
        seconds: to measure each setting.
        backends: to try.
        most: workers at most.
        rounds: how often those near the best are measured in all.
        tensors: read ``dataset()`` rather than NumPy arrays.
        single: the source takes no shard, so that it can have one worker only.
    """

    source: Source
    step_s: float
    seconds: float = 3.0
    backends: tuple[str, ...] = BACKENDS
    most: int = field(default_factory=most_local_workers)
    rounds: int = 2
    tensors: bool = True
    single: bool = False

    def trial(self, setting: Setting) -> Trial:
        """The trial of a setting."""
        return Trial(self.source, setting, self.step_s, self.seconds, self.tensors)


@dataclass(slots=True)
class Row:
    """One setting and what was seen of it.

    Attributes:
        outcomes: of each round.
        error: why there is none.
    """

    setting: Setting
    outcomes: list[Outcome] = field(default_factory=list)
    error: str = ""

    @property
    def rate(self) -> float:
        """Batches a second: the median over the rounds; 0 where it failed."""
        return statistics.median(outcome.rate for outcome in self.outcomes) if self.outcomes else 0.0

    @property
    def typical(self) -> Outcome:
        """The outcome nearest to that rate."""
        return min(self.outcomes, key=lambda outcome: abs(outcome.rate - self.rate))


Try = Callable[[Setting], Row]


def search(task: Task, attempt: Try) -> list[Row]:
    """Try the settings that are worth it; all rows, in the order in which they were tried."""
    rows: list[Row] = []

    def tried(backend: str, workers: int) -> Row:
        rows.append(attempt(Setting(backend, workers)))
        return rows[-1]

    if "inprocess" in task.backends:
        tried("inprocess", 1)
    for backend in task.backends:
        if task.single and backend != "inprocess":
            tried(backend, 1)
        elif not task.single:
            _climb(task, backend, tried)
    for _ in range(task.rounds - 1):
        for row in _near_the_best(rows):
            again = attempt(row.setting)
            row.outcomes += again.outcomes
    return rows


def _climb(task: Task, backend: str, tried: Callable[[str, int], Row]) -> None:
    """More workers while that helps, from as many as there are cores; fewer while those keep up."""
    least = 2 if backend == "inprocess" else 1
    if least > task.most:
        return
    workers = max(least, min(usable_cpus(), task.most))
    row = first = tried(backend, workers)
    while row.outcomes and row.typical.waiting > _WAITS and workers < task.most:
        before, workers = row, min(2 * workers, task.most)
        row = tried(backend, workers)
        if row.rate < _HELPED * before.rate:
            break
    workers = first.setting.workers
    while first.outcomes and first.typical.waiting <= _WAITS and workers > least:
        workers = max(least, workers // 2)
        first = tried(backend, workers)


def _near_the_best(rows: list[Row]) -> list[Row]:
    best = max((row.rate for row in rows), default=0.0)
    near = [row for row in rows if row.outcomes and row.rate >= _NEAR * best]
    return sorted(near, key=lambda row: -row.rate)[:_AGAIN]


def advised(rows: list[Row]) -> Row | None:
    """The setting to use; None where all failed."""
    best = max((row.rate for row in rows), default=0.0)
    good = [row for row in rows if row.outcomes and row.rate >= _AS_WELL * best]
    return min(good, key=lambda row: _price(row.setting), default=None)


def _price(setting: Setting) -> tuple[int, int]:
    if setting == Setting("inprocess", 1):
        return 0, 0
    return ("process", "inprocess", "ray").index(setting.backend) + 1, setting.workers


def code(source: Source, setting: Setting) -> str:
    """The call that makes the feed, to be copied into a program."""
    function = source.name.partition(":")[2]
    call, items = ("from_generator", "") if source.items is None else ("from_map", source.items.partition(":")[2])
    arguments = [function, *([items] if items else []), f'backend="{setting.backend}"', f"workers={setting.workers}"]
    if source.batch_size is not None:
        arguments.append(f"batch_size={source.batch_size}")
    return f"feed = mpfeed.{call}({', '.join(arguments)})"


def reason(rows: list[Row], chosen: Row, step_s: float) -> str:
    """Why that one, in a sentence with figures."""
    seen = chosen.typical
    said = f"{chosen.setting}: {chosen.rate:.1f} batches/s, waiting {seen.waiting:.0%} of the time"
    plain = next((row for row in rows if row.setting == Setting("inprocess", 1) and row.outcomes), None)
    if plain is not None and plain is not chosen and plain.rate:
        said += f"; {chosen.rate / plain.rate:.1f} times one in-process worker"
    if chosen is plain and seen.waiting <= _WAITS:
        said += "; the source keeps up by itself, so plain tf.data would do"
    others = [row for row in rows if row is not chosen and row.rate >= _AS_WELL * chosen.rate]
    if others:
        said += f"; as good: {', '.join(str(row.setting) for row in others)}"
    if seen.waiting > _WAITS and step_s:
        said += f". The step would allow {1 / step_s:.1f} batches/s"
    return said


# ------------------------------------------------------------------------------------- one trial, in its process


def attempt(trial: Trial, follow: Callable[[int], None]) -> Row:
    """Try a setting in a fresh process; ``follow`` hears how many batches it has measured. A failure is a row too."""
    row = Row(trial.setting)
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "mpfeed._trial", str(writer)],
            stdin=subprocess.PIPE, stdout=said, stderr=said, pass_fds=(writer,), env=_environment(),
        )  # fmt: skip
        os.close(writer)
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(asdict(trial)).encode())
            process.stdin.close()
            for kind, content in _heard(reader):
                if kind == "measured":
                    follow(content)
                elif kind == "outcome":
                    row.outcomes.append(Outcome.from_json(content))
                else:
                    row.error = content
        finally:
            os.close(reader)
            _end(process)
        if not row.outcomes and not row.error:
            row.error = f"it ended with exit code {process.returncode}\n{_last_lines(said)}"
    return row


def _environment() -> dict[str, str]:
    path = [os.getcwd(), *(entry for entry in sys.path if entry)]
    return {**_QUIET, **os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}


def _heard(reader: int) -> Iterator[tuple[str, Any]]:
    """(kind, content) of what the process says; an error where it is silent for too long."""
    buffered, heard = b"", time.monotonic()
    while True:
        if not select.select([reader], [], [], 1.0)[0]:
            if time.monotonic() - heard > _SILENCE_S:
                yield "error", f"no batch within {_SILENCE_S:.0f} s"
                return
            continue
        piece = os.read(reader, 1 << 20)
        if not piece:
            return
        heard = time.monotonic()
        *lines, buffered = (buffered + piece).split(b"\n")
        for line in lines:
            yield from json.loads(line).items()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its end, helped along where it takes long: its workers and its Ray go with it."""
    for help_along in (None, process.terminate, process.kill):
        if help_along is not None:
            help_along()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            return


def _last_lines(said: IO[str]) -> str:
    said.seek(0)
    return "".join(said.readlines()[-_SAID:])
