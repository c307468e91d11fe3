"""Ctrl-C, and the death of a program: both end everything, at once."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from streams import eventually

# Well above what it takes on a busy machine, and far below the 600 s of the element that is waited for.
_ENDS_WITHIN_S = 20

PROGRAM = """
import sys, time
import numpy as np
import mpfeed

def source(shard):
    yield np.int64(0)
    with open(sys.argv[1], "w") as ready:
        ready.write("x")
    time.sleep(600)
    yield np.int64(1)

feed = mpfeed.from_generator(source, shards=1, workers=1, batch_size=1, backend=sys.argv[2])

def call(number):
    return source(None).__next__() if number == 0 else list(source(None))[1]

def calls():
    import tensorflow as tf
    f = mpfeed.numpy_function(call, tf.TensorSpec((), tf.int64), workers=1, backend=sys.argv[2])
    return tf.data.Dataset.range(9).map(f, num_parallel_calls=4).with_options(f.options())

for element in {stream}:
    pass
"""
STREAMS = {"numpy": "feed", "tensorflow": "feed.dataset()", "calls": "calls()"}


@contextmanager
def running(tmp_path: Path, stream: str, backend: str) -> Iterator[tuple[subprocess.Popen[str], set[psutil.Process]]]:
    """A program whose main thread waits for an element that takes 600 s, and the processes it started."""
    program, ready = tmp_path / "program.py", tmp_path / "ready"
    program.write_text(PROGRAM.format(stream=STREAMS[stream]))
    os.mkfifo(ready)
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TMPDIR": str(tmp_path / "tmp")}
    with (
        open(os.open(ready, os.O_RDONLY | os.O_NONBLOCK), "rb") as gate,
        open(tmp_path / "stderr", "w") as stderr,
        subprocess.Popen(
            [sys.executable, str(program), str(ready), backend],
            stdout=subprocess.DEVNULL, stderr=stderr, text=True, env=environment, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        family: set[psutil.Process] = set()
        try:
            assert select.select([gate], [], [], 90)[0], (tmp_path / "stderr").read_text()
            family = set(psutil.Process(process.pid).children(recursive=True))
            yield process, family
        finally:
            for left in {*family, psutil.Process()} - {psutil.Process()}:
                if left.is_running():
                    left.kill()
            process.kill()


def gone(family: set[psutil.Process]) -> bool:
    return not any(member.is_running() and member.status() != psutil.STATUS_ZOMBIE for member in family)


ROWS = [("numpy", "inprocess"), ("numpy", "process"), ("tensorflow", "process"), ("calls", "process")]


@pytest.mark.parametrize(("stream", "backend"), ROWS)
def test_control_c_ends_a_wait_with_one_traceback_and_leaves_nothing(stream: str, backend: str, tmp_path: Path) -> None:
    names = set(os.listdir("/dev/shm"))
    with running(tmp_path, stream, backend) as (process, family):
        assert bool(family) == (backend == "process")
        os.killpg(process.pid, signal.SIGINT)
        process.wait(_ENDS_WITHIN_S)
        assert eventually(lambda: gone(family), 10)
        assert process.returncode in (-signal.SIGINT, 130, 1)
    text = (tmp_path / "stderr").read_text()
    assert text.count("Traceback (most recent call last)") == 1, text
    assert "RuntimeError" not in text
    assert text.strip().splitlines()[-1].startswith("KeyboardInterrupt"), text
    assert os.listdir(tmp_path / "tmp") == []
    assert set(os.listdir("/dev/shm")) <= names


def test_a_program_that_catches_control_c_in_tensorflow_reads_the_next_epoch(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import os, signal, sys, threading, time
import numpy as np
import mpfeed

ready, gate = sys.argv[1:]

def source(shard):
    if shard.epoch == 0:
        open(ready, "w").close()
        while not os.path.exists(gate):
            time.sleep(0.01)
    yield np.int64(shard.epoch)

def interrupt():
    while not os.path.exists(ready):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

with mpfeed.from_generator(source, workers=1, shards=1, backend="process") as feed:
    import tensorflow as tf
    dataset = feed.dataset(output_signature=tf.TensorSpec((), tf.int64))
    threading.Thread(target=interrupt).start()
    try:
        for element in dataset:
            print("not reached")
    except KeyboardInterrupt as interruption:
        print("interrupted", interruption.__suppress_context__ or interruption.__context__ is None, sys.gettrace())
    open(gate, "w").close()
    print([int(element) for element in dataset])
"""
    )
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "ready"), str(tmp_path / "gate")],
        capture_output=True, text=True, timeout=90, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=False,
    )  # fmt: skip
    assert done.stdout == "interrupted True None\n[1]\n", done.stderr


def test_a_fork_hears_of_its_own_control_c_alone(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import os, signal, sys, threading
from mpfeed import _interrupts

class Waits:
    def __init__(self):
        self.begun_s, self.ended = [], threading.Event()

    def interrupt(self, until_s, *, unheard):
        self.ended.set()

def pipe_of_signals():
    fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(fd)
    return os.readlink(f"/proc/self/fd/{fd}")

def held():  # descriptors may be those of the listing itself
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    return links

signal.signal(signal.SIGINT, signal.default_int_handler)
parents = Waits()
_interrupts.install()
_interrupts.watch(parents)
pipe = pipe_of_signals()
if os.fork() == 0:
    print("forgets", pipe not in held(), flush=True)
    own = Waits()
    _interrupts.install()
    _interrupts.watch(own)
    print("has another", pipe_of_signals() != pipe, flush=True)
    _interrupts._wakeup._main_is_free = lambda: own.ended.is_set()  # as if TensorFlow held the main thread until then
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        print("ends its wait", own.ended.wait(60), flush=True)
    print("and no other", not parents.ended.is_set(), flush=True)
    os._exit(0)
os.wait()
print("goes on", pipe_of_signals() == pipe, not parents.ended.is_set())
"""
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout.splitlines() == [
        "forgets True", "has another True", "ends its wait True", "and no other True", "goes on True True",
    ], done.stderr  # fmt: skip


def test_the_death_of_a_program_takes_its_workers_along(tmp_path: Path) -> None:
    with running(tmp_path, "numpy", "process") as (process, family):
        assert family
        process.kill()
        process.wait(_ENDS_WITHIN_S)
        assert eventually(lambda: gone(family), 10)
    assert os.listdir(tmp_path / "tmp") == []


def test_a_program_that_ends_without_closing_leaves_nothing_and_says_nothing_wrong(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import os
import mpfeed

def pid(i):
    return os.getpid()

feed = mpfeed.from_map(pid, range(100), workers=2, backend="process", batch_size=1)
batches = iter(feed)
print(*{int(next(batches)[0]) for _ in range(10)})
"""
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=True)
    assert "Traceback" not in done.stderr
    workers = [int(word) for word in done.stdout.split()]
    assert workers
    assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in workers), 10)
