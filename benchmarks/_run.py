"""Runs a row in a fresh process, follows it, and reports what became of it: a row that fails is a row."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psutil

from benchmarks._backends import backend_of
from benchmarks._job import Job
from benchmarks._measure import Outcome, Progress
from benchmarks._memory import PeakMemory, tree
from benchmarks._rows import Row, Surroundings

_CHECKOUT = Path(__file__).resolve().parents[1]
_TICK_S = 0.1
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "RAY_USAGE_STATS_ENABLED": "0"}
_GRACE_S = 15.0
_NOISE = ("WARNING: All log messages before absl", "I0000 ", "W0000 ")  # of TensorFlow's start


def run(job: Job, follow: Callable[[Progress], None]) -> Row:
    """Measure one row; ``follow`` hears how far it is."""
    backend = backend_of(job)
    workers = backend.workers(job.workload.workers)
    surroundings = Surroundings.now()
    with tempfile.TemporaryFile("w+", errors="replace") as output, _process(job, output) as process:
        process.follow(follow)
        notes = process.end()
        error = process.error(output)
    return Row(
        job=job,
        label=backend.label.format(workers=workers),
        workers=workers,
        step_s=job.workload.step_s if backend.trains else 0.0,
        surroundings=surroundings,
        outcome=None if error else process.outcome,
        error=error,
        peak_pss_bytes=process.memory.peak_bytes,
        notes=tuple(notes),
    )


class _RowProcess:
    """The process of a row, seen through the lines it writes."""

    def __init__(self, job: Job, popen: subprocess.Popen[Any], channel: int) -> None:
        self.memory = PeakMemory(popen.pid)
        self.outcome: Outcome | None = None
        self._failure: str | None = None
        self._job = job
        self._popen = popen
        self._channel = channel
        self._phase = ""

    def follow(self, follow: Callable[[Progress], None]) -> None:
        """Until it has said all it has to say, or has been silent for too long."""
        for line in self._lines():
            if line is None:
                if self._phase in ("warm-up", "after"):
                    self.memory.look()
            elif "progress" in line:
                progress = Progress(**line["progress"])
                self._phase = progress.phase
                follow(progress)
            elif "outcome" in line:
                self.outcome = Outcome.from_json(line["outcome"])
            else:
                self._failure = line["error"]

    def _lines(self) -> Iterator[dict[str, Any] | None]:
        """The lines as they come, and None at every tick without one."""
        buffered = b""
        heard = time.monotonic()
        while True:
            if select.select([self._channel], [], [], _TICK_S)[0]:
                piece = os.read(self._channel, 1 << 20)
                if not piece:
                    return
                heard = time.monotonic()
                *lines, buffered = (buffered + piece).split(b"\n")
                yield from map(json.loads, lines)
            elif time.monotonic() - heard > self._job.limits.silence_s:
                self._give_up()
                return
            yield None

    def _give_up(self) -> None:
        silence_s = self._job.limits.silence_s
        self._failure = f"TimeoutError: no batch for {silence_s:.0f} s ({self._phase or 'before the start'})"
        self._popen.send_signal(signal.SIGUSR1)  # it writes where it is stuck
        time.sleep(0.5)
        for process in tree(self._popen.pid):
            _kill(process)

    def end(self) -> list[str]:
        """Wait for the end of the process; what it leaves running is ended and told of."""
        family = tree(self._popen.pid)[1:]
        notes = []
        try:
            self._popen.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            notes.append(f"did not end by itself within {_GRACE_S:.0f} s")
            self._popen.kill()
            self._popen.wait()
        left = _still_there(family, 5.0)
        if left:
            notes.append(f"left running: {', '.join(_name(process) for process in left)}")
        for process in left:
            _kill(process)
        return notes

    def error(self, output: IO[str]) -> str | None:
        """Why there is no outcome; None if there is one."""
        if self._failure is None and self.outcome is not None:
            return None
        ended = f"the process ended with exit code {self._popen.returncode}"
        return f"{_said(output)}{self._failure or ended}".strip()


def _said(output: IO[str]) -> str:
    """Where the process was stuck, if it was asked; otherwise the last lines that it wrote."""
    output.seek(0)
    lines = [line for line in output if not line.startswith(_NOISE)]
    stacks = [i for i, line in enumerate(lines) if "most recent call first" in line]
    return "".join(lines[stacks[-1] : stacks[-1] + 10] if stacks else lines[-10:])


@contextmanager
def _process(job: Job, output: IO[str]) -> Iterator[_RowProcess]:
    reader, writer = os.pipe()
    popen = subprocess.Popen(
        [sys.executable, "-m", "benchmarks._worker", str(writer)],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        pass_fds=(writer,),
        env=_environment(job),
        start_new_session=True,
    )
    os.close(writer)
    try:
        assert popen.stdin is not None
        popen.stdin.write(json.dumps(job.to_json()).encode())
        popen.stdin.close()
        yield _RowProcess(job, popen, reader)
    except BaseException:
        _stop(popen)
        raise
    finally:
        os.close(reader)


def _environment(job: Job) -> dict[str, str]:
    paths = [str(_CHECKOUT), os.getcwd(), os.environ.get("PYTHONPATH", "")]
    python_path = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    # Keras is not needed, and its import costs every row 2 s; someone else's source may want it.
    spared = {"TF_USE_LEGACY_KERAS": "1"} if job.workload.leaves else {}
    return {**os.environ, **_QUIET, **spared, **(backend_of(job).environment or {}), **python_path}


def _stop(popen: subprocess.Popen[Any]) -> None:
    """Ctrl-C for the row, and soon the end of it and of what it started."""
    family = tree(popen.pid)
    popen.send_signal(signal.SIGINT)
    for process in _still_there(family, _GRACE_S):
        _kill(process)
    popen.wait()


def _still_there(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that have not ended by then; one that ended and that nobody has asked about has ended."""
    deadline = time.monotonic() + timeout_s
    left = processes
    while (left := [process for process in left if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return str(process.pid)


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        process.kill()
