"""Misbehaving sources, as a table: what goes wrong, where, and what the consumer must see."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from conftest import BACKENDS, REMOTE
from streams import Gate, Tally, drain, eventually, numbers

import mpfeed
from mpfeed import Shard
from mpfeed._options import BackendName
from mpfeed.backends import spawn, worker_process

Keep = Callable[[mpfeed.Feed], mpfeed.Feed]

COUNT = 6
# Where it happens: the number of the element, or None for before all of them.
PLACES: dict[str, int | None] = {"worker_init": None, "first": 0, "middle": 3, "last": COUNT - 1, "after": COUNT}
TIMEOUT_S = {"process": 3.0, "ray": 12.0}


@dataclass(frozen=True)
class Fault:
    """What goes wrong and how it must read.

    Attributes:
        act: makes the misbehaving function; workers get it by value.
        error: the class that the consumer sees.
        words: in its message.
        cause: the class of its ``__cause__``, where that survives on every backend.
        dies: the worker vanishes, so this is no fault for code in the calling process; it is tried twice.
        hangs: it never comes back; ``timeout=`` ends it.
        exit_code: as ``WorkerDied`` names it, where the backend can know it.
        element: it is about an element, so that worker_init cannot do it.
    """

    act: Callable[[], Callable[[], Any]]
    error: type[mpfeed.MpfeedError]
    words: tuple[str, ...] = ()
    cause: type[BaseException] | None = None
    dies: bool = False
    hangs: bool = False
    exit_code: int | None = None
    element: bool = False


def _raise() -> Callable[[], NoReturn]:
    def act() -> NoReturn:
        raise ZeroDivisionError("the very reason")

    return act


def _raise_unpicklable() -> Callable[[], NoReturn]:
    class Stubborn(Exception):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.lock = __import__("threading").Lock()

        def __reduce__(self) -> NoReturn:
            raise TypeError("not me")

    def act() -> NoReturn:
        raise Stubborn("salt and pepper")

    return act


def _raise_with_two_arguments() -> Callable[[], NoReturn]:
    class TwoArguments(Exception):
        def __init__(self, path: str, line: int) -> None:
            super().__init__(f"{path}:{line}")
            self.line = line

    def act() -> NoReturn:
        raise TwoArguments("data.csv", 17)

    return act


def _sys_exit() -> Callable[[], NoReturn]:
    def act() -> NoReturn:
        sys.exit(5)

    return act


def _keyboard_interrupt() -> Callable[[], NoReturn]:
    def act() -> NoReturn:
        raise KeyboardInterrupt("from within")

    return act


def _exit(code: int) -> Callable[[], Callable[[], NoReturn]]:
    def make() -> Callable[[], NoReturn]:
        def act() -> NoReturn:
            os._exit(code)

        return act

    return make


def _signal(number: int) -> Callable[[], Callable[[], None]]:
    def make() -> Callable[[], None]:
        def act() -> None:
            os.kill(os.getpid(), number)
            __import__("threading").Event().wait(600)  # until it has arrived

        return act

    return make


def _loop() -> Callable[[], NoReturn]:
    def spins_for_ever() -> NoReturn:
        while True:
            pass

    return spins_for_ever


def _sleep() -> Callable[[], None]:
    def waits_for_godot() -> None:
        __import__("time").sleep(600)

    return waits_for_godot


def _ragged() -> Callable[[], Any]:
    def act() -> Any:
        return {"n": [np.zeros(2), [np.zeros(3), None]]}

    return act


def _wrong_shape() -> Callable[[], Any]:
    def act() -> Any:
        return {"n": np.zeros((2, 2), np.int64)}

    return act


def _nothing() -> Callable[[], Any]:
    def act() -> Any:
        return {"n": None}

    return act


FAULTS: dict[str, Fault] = {
    "raise": Fault(_raise, mpfeed.WorkerError, ("ZeroDivisionError: the very reason", "Traceback"), ZeroDivisionError),
    "unpicklable": Fault(_raise_unpicklable, mpfeed.WorkerError, ("Stubborn: salt and pepper", "Traceback")),
    "two arguments": Fault(_raise_with_two_arguments, mpfeed.WorkerError, ("TwoArguments: data.csv:17", "Traceback")),
    "sys.exit": Fault(_sys_exit, mpfeed.WorkerError, ("SystemExit: 5",), SystemExit),
    "exit 0": Fault(_exit(0), mpfeed.WorkerDied, ("exit code 0",), dies=True, exit_code=0),
    "exit 7": Fault(_exit(7), mpfeed.WorkerDied, ("exit code 7",), dies=True, exit_code=7),
    "SIGKILL": Fault(_signal(signal.SIGKILL), mpfeed.WorkerDied, ("SIGKILL", "memory", "GiB"), dies=True, exit_code=-9),
    "SIGSEGV": Fault(_signal(signal.SIGSEGV), mpfeed.WorkerDied, ("SIGSEGV", "C code"), dies=True, exit_code=-11),
    "SIGSTOP": Fault(_signal(signal.SIGSTOP), mpfeed.FeedTimeout, ("stopped by a signal",), hangs=True),
    "endless loop": Fault(_loop, mpfeed.FeedTimeout, ("spins_for_ever",), hangs=True),
    "endless sleep": Fault(_sleep, mpfeed.FeedTimeout, ("waits_for_godot",), hangs=True),
    "ragged": Fault(_ragged, mpfeed.SignatureError, ("['n']", "in worker 0"), element=True),
    "none": Fault(_nothing, mpfeed.SignatureError, ("leaf ['n'] is None", "in worker 0"), element=True),
}

# What takes more than about 5 s (hangs take their timeout, and Ray starts an actor twice) is left to `-m long`.
QUICK_ON_RAY = {("raise", "middle"), ("two arguments", "worker_init"), ("SIGKILL", "middle"), ("exit 0", "first")}
QUICK_HANGS = {("SIGSTOP", "middle"), ("endless loop", "first")}


def rows() -> list[Any]:
    chosen = []
    for name, fault in FAULTS.items():
        for place in PLACES:
            for backend in BACKENDS:
                if (fault.dies or fault.hangs) and backend not in REMOTE:
                    continue
                if fault.element and place == "worker_init":
                    continue
                quick = (name, place) in QUICK_ON_RAY if backend == "ray" else True
                quick = quick and (not fault.hangs or (name, place) in QUICK_HANGS)
                chosen.append(
                    pytest.param(
                        name, place, backend, id=f"{name}-{place}-{backend}", marks=() if quick else pytest.mark.long
                    )
                )
    return chosen


def misbehaving(fault: Fault, place: int | None, tally: Tally) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """(a source that does it at a place and notes how often, a worker_init that may)."""
    act, notes = fault.act(), Tally(tally.path)

    def init() -> Any:
        if place is None:
            notes.note("tried")
            act()

    def source(shard: Shard) -> Iterator[Any]:
        for i in range(COUNT + 1):
            if i == place:
                notes.note("tried")
                bad = act()
                if bad is not None:
                    yield bad
                    return
            if i < COUNT:
                yield {"n": np.int64(i)}

    return source, init


@pytest.mark.parametrize(("name", "place", "backend"), rows())
def test_a_fault_is_seen_as_what_it_is_after_the_elements_before_it(
    name: str, place: str, backend: BackendName, tally: Tally, request: pytest.FixtureRequest
) -> None:
    if backend == "ray":
        request.getfixturevalue("local_ray")
    fault, at = FAULTS[name], PLACES[place]
    source, init = misbehaving(fault, at, tally)
    restarts = 1 if fault.dies else 0
    timeout = TIMEOUT_S[backend] if fault.hangs else None
    with mpfeed.from_generator(
        source, shards=1, workers=1, backend=backend, worker_init=init, max_restarts=restarts, timeout=timeout, epochs=1
    ) as feed:
        got, error = drain(feed)
    assert type(error) is fault.error, error
    text = str(error)
    if backend == "process" or not (fault.dies or fault.hangs):
        assert [word for word in fault.words if word not in text] == [], text
    if not (fault.hangs and name == "SIGSTOP"):  # a stopped process cannot even send what it has ready
        assert numbers(got, "n") == list(range(at or 0))
    if not fault.dies or not at:  # elsewhere a death inside a message of several counts for its first
        assert len(tally.lines()) == 1 + restarts
    check_attributes(fault, at, error, backend)


def check_attributes(fault: Fault, at: int | None, error: Any, backend: BackendName) -> None:
    if isinstance(error, mpfeed.WorkerDied):
        assert error.worker == 0
        if backend == "process":
            assert error.exit_code == fault.exit_code
        assert ("while it started" in str(error)) == (at is None)
        assert "2 times" in str(error)
        assert "max_restarts=1" in str(error)
        if at is not None:
            assert f"element {at} of shard 0 (epoch 0)" in str(error)
    if isinstance(error, mpfeed.WorkerError):
        assert (error.worker, error.shard, error.index) == (0, None if at is None else 0, at)
        assert isinstance(error.__cause__, fault.cause or Exception)
        assert ("worker_init" in str(error)) == (at is None)


# -------------------------------------------------------------------------- what a table cannot say


@pytest.mark.parametrize("make", ["map", "generator"])
def test_a_worker_that_dies_once_is_replaced_and_the_stream_is_exact(
    remote: BackendName, make: str, tally: Tally
) -> None:
    if remote == "ray" and make == "generator":
        pytest.skip("one of two on Ray")
    notes = Tally(tally.path)

    def once(i: int) -> np.int64:
        if i == 11 and not notes.lines():
            notes.note("died")
            os.kill(os.getpid(), signal.SIGKILL)
        return np.int64(i)

    def source(shard: Shard) -> Iterator[np.int64]:
        return map(once, shard.of(range(30)))

    options: Any = {"workers": 2, "backend": remote, "max_restarts": 1}
    with (
        mpfeed.from_map(once, range(30), **options)
        if make == "map"
        else mpfeed.from_generator(source, shards=2, **options) as feed
    ):
        assert numbers(feed) == list(range(30))
        assert sum(worker.restarts for worker in feed.stats().workers) == 1
        assert numbers(feed) == list(range(30))
    assert tally.lines() == ["died"]


def test_deaths_are_counted_by_place_so_many_places_may_die_once_each(tally: Tally) -> None:
    notes = Tally(tally.path)

    def fragile(i: int) -> np.int64:
        if i % 3 == 1 and str(i) not in notes.lines():
            notes.note(i)
            os._exit(1)
        return np.int64(i)

    with mpfeed.from_map(fragile, range(13), workers=2, backend="process", max_restarts=1, batch_size=1) as feed:
        assert numbers(feed) == list(range(13))
    assert sorted(map(int, tally.lines())) == [1, 4, 7, 10]


@pytest.mark.parametrize("at", [0, 5, 300])
@pytest.mark.parametrize("make", ["map", "generator"])
def test_without_restarts_what_came_before_a_deadly_element_is_delivered_and_it_is_named(make: str, at: int) -> None:
    def deadly(i: int) -> np.int64:
        if i == at:
            os._exit(7)
        return np.int64(i)

    def source(shard: Shard) -> Iterator[np.int64]:
        yield from map(deadly, shard.of(range(400)))

    options: Any = {"workers": 1, "backend": "process", "max_restarts": 0}
    with (
        mpfeed.from_map(deadly, range(400), **options)
        if make == "map"
        else mpfeed.from_generator(source, shards=1, **options) as feed
    ):
        got, error = drain(feed)
    assert numbers(got) == list(range(at))
    assert type(error) is mpfeed.WorkerDied
    assert f"{'item' if make == 'map' else 'element'} {at} " in str(error)
    assert "exit code 7" in str(error)


@pytest.mark.parametrize("make", ["map", "generator"])
def test_without_restarts_a_death_that_does_not_come_again_is_an_error_all_the_same(make: str, tally: Tally) -> None:
    notes = Tally(tally.path)

    def once(i: int) -> np.int64:
        if i == 5 and not notes.lines():
            notes.note("died")
            os._exit(7)
        return np.int64(i)

    def source(shard: Shard) -> Iterator[np.int64]:
        yield from map(once, shard.of(range(50)))

    options: Any = {"workers": 1, "backend": "process", "max_restarts": 0}
    with (
        mpfeed.from_map(once, range(50), **options)
        if make == "map"
        else mpfeed.from_generator(source, shards=1, **options) as feed
    ):
        got, error = drain(feed)
    assert type(error) is mpfeed.WorkerDied
    assert numbers(got) == list(range(len(got)))


def test_held_batches_that_leave_no_room_for_a_larger_one_are_no_deadlock() -> None:
    def sized(i: int) -> Any:
        return np.full(600_000 if i % 10 == 9 else 100_000, i, np.uint8)

    limited = mpfeed.Process(memory_limit=1_000_000)
    with mpfeed.from_map(sized, range(30), workers=1, backend=limited, timeout=60) as feed:
        held = list(feed)
    assert [(int(array[0]), int(array[-1]), array.shape) for array in held] == [
        (i, i, sized(i).shape) for i in range(30)
    ]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_element_larger_than_the_memory_limit_is_mpfeeds_own_error(on_error: Any) -> None:
    def sized(i: int) -> Any:
        return np.zeros(2_000_000 if i == 3 else 1000, np.uint8)

    limited = mpfeed.Process(memory_limit=1_000_000)
    with mpfeed.from_map(sized, range(6), workers=1, backend=limited, on_error=on_error) as feed:
        got, error = drain(feed)
    assert len(got) == 3
    assert isinstance(error, mpfeed.MpfeedError)
    assert not isinstance(error, mpfeed.WorkerError)
    assert "item 3 in worker 0" in str(error)
    assert "2,000,000 bytes" in str(error)
    assert "1,000,000 bytes" in str(error)


def test_a_source_that_is_the_first_to_import_opencv_draws_the_same_everywhere(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import sys
import numpy as np
import mpfeed

def drawn(i):
    import cv2
    return cv2.randu(np.zeros(4, np.int32), 0, 1 << 30)

assert "cv2" not in sys.modules
for backend in ("inprocess", "process"):
    with mpfeed.from_map(drawn, range(3), workers=1, backend=backend, seed=3) as feed:
        print([element.tolist() for element in feed])
print([finder for finder in sys.meta_path if "Cv2" in type(finder).__name__])
"""
    )
    pytest.importorskip("cv2")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
    here, there, finders = done.stdout.splitlines()
    assert here == there
    assert finders == "[]"


def test_a_worker_killed_while_it_is_idle_is_replaced(tally: Tally) -> None:
    def pid(i: int) -> int:
        return os.getpid()

    with mpfeed.from_map(pid, range(4), workers=1, backend="process", max_restarts=1, epochs=3) as feed:
        first = set(numbers(feed))
        os.kill(next(iter(first)), signal.SIGKILL)
        second = set(numbers(feed)) - first
        assert len(second) == 1
        assert set(numbers(feed)) == second


def test_the_epoch_after_an_error_is_whole(backend: BackendName) -> None:
    if backend == "ray":
        pytest.skip("nothing of it depends on where the worker runs")

    def moody(shard: Shard) -> Iterator[np.int64]:
        for i in range(4):
            if shard.epoch == 0 and i == 2:
                raise ValueError("only today")
            yield np.int64(i)

    with mpfeed.from_generator(moody, shards=1, workers=1, backend=backend) as feed:
        got, error = drain(feed)
        assert numbers(got) == [0, 1]
        assert type(error) is mpfeed.WorkerError
        assert numbers(feed) == [0, 1, 2, 3]


CLEAN_UPS = {"raise": _raise, "sys.exit": _sys_exit}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", CLEAN_UPS)
def test_a_generator_that_raises_while_it_is_closed_harms_neither_the_next_epoch_nor_close(
    name: str, workers: int, backend: BackendName, keep: Callable[[mpfeed.Feed], mpfeed.Feed]
) -> None:
    if backend == "ray" and (name, workers) != ("sys.exit", 1):
        pytest.skip("one of four on Ray, each start of which takes seconds")
    act = CLEAN_UPS[name]()

    def source(shard: Shard) -> Iterator[np.int64]:
        try:
            yield from map(np.int64, range(8))
        except GeneratorExit:
            act()

    options: Any = {"workers": workers, "backend": backend, "batch_size": 1, "buffer": 1}
    feed = keep(mpfeed.from_generator(source, shards=2, **options))
    for element in feed:
        assert numbers([element]) == [0]
        break
    assert numbers(feed) == [i for i in range(8) for _ in range(2)]
    held = iter(feed)
    next(held)
    feed.close()
    assert sum(worker.restarts for worker in feed.stats().workers) == 0


@pytest.mark.parametrize("how", ["break", "close"])
def test_where_an_iterator_cannot_be_closed_the_others_are_and_worker_init_is_left(
    how: str, backend: BackendName, tally: Tally, keep: Callable[[mpfeed.Feed], mpfeed.Feed]
) -> None:
    if backend == "ray" and how == "break":
        pytest.skip("one of two on Ray")
    notes, act = Tally(tally.path), _raise()

    class Opened:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *raised: object) -> None:
            notes.note(f"left {raised}")
            act()

    def source(shard: Shard) -> Iterator[np.int64]:
        try:
            yield from map(np.int64, range(8))
        except GeneratorExit:
            notes.note("closed")
            act()

    options: Any = {"workers": 1, "backend": backend, "batch_size": 1, "epochs": 1, "worker_init": Opened}
    feed = keep(mpfeed.from_generator(source, shards=3, **options))
    iterator = iter(feed)
    assert numbers([next(iterator) for _ in range(3)]) == [0, 0, 0]
    if how == "break":
        iterator.close()
        assert eventually(lambda: tally.reached(3))
        assert tally.lines() == ["closed"] * 3
    feed.close()
    assert eventually(lambda: tally.reached(4))
    assert tally.lines() == ["closed"] * 3 + ["left (None, None, None)"]


def test_worker_init_is_left_where_a_feed_is_closed_before_it_read_what_was_made(tally: Tally) -> None:
    notes = Tally(tally.path)

    @contextmanager
    def opened() -> Iterator[None]:
        yield
        notes.note("left")

    def sample(i: int) -> int:
        notes.note(i)
        return i

    options: Any = {"batch_size": 1, "buffer": 4, "workers": 1, "backend": "process", "worker_init": opened}
    with mpfeed.from_map(sample, range(10), **options) as feed:
        iterator = iter(feed)
        next(iterator)
        assert eventually(lambda: tally.reached(4))  # that before it is on its way, and nobody reads it
    assert eventually(lambda: "left" in tally.lines(), 5)


@pytest.mark.parametrize("workers", [1, 2])
def test_in_the_calling_process_a_failing_clean_up_is_logged(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    act = _raise()

    def source(shard: Shard) -> Iterator[np.int64]:
        try:
            yield from map(np.int64, range(8))
        except GeneratorExit:
            act()

    with mpfeed.from_generator(source, shards=workers, workers=workers, batch_size=1, backend="inprocess") as feed:
        held = iter(feed)
        next(held)
    assert "a source raised while it was closed" in caplog.text
    assert "the very reason" in caplog.text


def test_an_iterator_that_can_neither_go_on_nor_be_closed_is_the_error_it_raised(backend: BackendName) -> None:
    if backend == "ray":
        pytest.skip("nothing of it depends on where the worker runs")

    class Broken:
        def __init__(self) -> None:
            self.made = 0

        def __iter__(self) -> Broken:
            return self

        def __next__(self) -> np.int64:
            if self.made == 2:
                raise ValueError("cannot go on")
            self.made += 1
            return np.int64(self.made)

        def close(self) -> None:
            raise LookupError("cannot be closed")

    with mpfeed.from_generator(lambda shard: Broken(), shards=1, workers=1, backend=backend) as feed:
        got, error = drain(feed)
    assert numbers(got) == [1, 2]
    assert isinstance(error, mpfeed.WorkerError)
    assert isinstance(error.__cause__, ValueError)


def test_what_could_not_be_entered_is_not_left(backend: BackendName, tally: Tally) -> None:
    if backend == "ray":
        pytest.skip("nothing of it depends on where the worker runs")
    notes = Tally(tally.path)

    class Shut:
        def __enter__(self) -> None:
            raise LookupError("no such door")

        def __exit__(self, *raised: object) -> None:
            notes.note("left")

    with mpfeed.from_map(np.int64, range(3), worker_init=Shut, workers=1, backend=backend) as feed:
        _, error = drain(feed)
    assert "no such door" in str(error)
    assert tally.lines() == []


def test_what_was_asked_of_a_worker_that_could_not_start_is_not_made_later() -> None:
    tried, made = list[int](), list[int]()

    def init() -> None:
        tried.append(1)
        if len(tried) == 1:
            raise LookupError("not yet")

    def sample(i: int) -> np.int64:
        made.append(i)
        return np.int64(i)

    options: Any = {"workers": 1, "batch_size": 1, "epochs": 2, "worker_init": init}
    with mpfeed.from_map(sample, range(6), backend="inprocess", **options) as feed:
        with pytest.raises(mpfeed.WorkerError, match="not yet"):
            next(iter(feed))
        assert numbers(feed) == list(range(6))
    assert made == list(range(6))


def test_a_failing_collate_is_a_worker_error_that_names_the_batch(backend: BackendName) -> None:
    def collate(samples: list[Any]) -> Any:
        if 4 in samples:
            raise LookupError("no such pair")
        return np.stack(samples)

    with mpfeed.from_map(np.int64, range(9), batch_size=3, collate=collate, workers=1, backend=backend) as feed:
        got, error = drain(feed)
    assert numbers(got) == [0, 1, 2]
    assert type(error) is mpfeed.WorkerError
    assert isinstance(error.__cause__, LookupError)
    assert "the batch of items 3, 4, 5 (collate)" in str(error)


def test_an_item_that_cannot_be_read_is_an_error_of_the_calling_process(remote: BackendName) -> None:
    if remote == "ray":
        pytest.skip("nothing of it depends on where the worker runs")

    class Holey:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, i: int) -> int:
            if i == 3:
                raise OSError("bad sector")
            return i

    with mpfeed.from_map(np.int64, Holey(), workers=1, backend=remote, batch_size=1) as feed:
        got, error = drain(feed)
    assert numbers(got) == [0, 1, 2]
    assert type(error) is mpfeed.WorkerError
    assert (error.worker, error.index) == (None, 3)
    assert "bad sector" in str(error)


@pytest.mark.parametrize("place", ["worker_init", "middle"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_keyboard_interrupt_inside_a_worker_is_just_an_error(
    workers: int, place: str, backend: BackendName, tally: Tally
) -> None:
    if backend == "ray":
        pytest.skip("the code is that of the process backend")
    fault = Fault(_keyboard_interrupt, mpfeed.WorkerError)
    source, init = misbehaving(fault, PLACES[place], tally)
    with mpfeed.from_generator(source, shards=2, workers=workers, backend=backend, worker_init=init) as feed:
        if (backend, workers) == ("inprocess", 1):  # there it may be Ctrl-C, which is the caller's
            with pytest.raises(KeyboardInterrupt, match="from within"):
                drain(feed)
            return
        _, error = drain(feed)
    assert type(error) is mpfeed.WorkerError
    assert "KeyboardInterrupt: from within" in str(error)


@pytest.mark.parametrize("place", [0, 3])
def test_an_element_unlike_the_declared_signature_is_refused_there(place: int) -> None:
    tf = pytest.importorskip("tensorflow")
    act = _wrong_shape()

    def source(shard: Shard) -> Iterator[Any]:
        for i in range(COUNT):
            yield act() if i == place else {"n": np.int64(i)}

    with mpfeed.from_generator(source, shards=1, workers=1, backend="process") as feed:
        feed.dataset(output_signature={"n": tf.TensorSpec((), tf.int64)})
        got, error = drain(feed)
    assert numbers(got, "n") == list(range(place))
    assert type(error) is mpfeed.SignatureError
    assert f"element {place}: leaf ['n'] has shape (2, 2)" in str(error)
    assert "(made by worker 0)" in str(error)


def test_an_exception_class_of_the_main_module_comes_back_as_itself(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import sys
import mpfeed

class Spoilt(Exception):
    def __init__(self, what, when):
        super().__init__(what, when)

def sample(i):
    raise Spoilt("milk", i)

with mpfeed.from_map(sample, range(3), workers=1, backend="process") as feed:
    try:
        next(iter(feed))
    except mpfeed.WorkerError as error:
        cause = error.__cause__
        text = str(error)
        print(isinstance(cause, Spoilt), cause.args, "program.py" in text, 'raise Spoilt("milk", i)' in text)
"""
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
    assert done.stdout == "True ('milk', 0) True True\n"


def test_closing_a_feed_from_another_thread_ends_a_wait(remote: BackendName, tally: Tally) -> None:
    notes = Tally(tally.path)

    def stuck(i: int) -> None:
        notes.note("stuck")
        __import__("time").sleep(600)

    feed = mpfeed.from_map(stuck, range(2), workers=1, backend=remote)
    seen: list[BaseException | None] = []
    reader = threading.Thread(target=lambda: seen.append(drain(feed)[1]))
    reader.start()
    assert eventually(tally.lines)
    feed.close()
    reader.join(30)
    assert [type(error) for error in seen] == [mpfeed.FeedClosed]
    with pytest.raises(mpfeed.FeedClosed):
        iter(feed)


def test_closing_an_iterator_from_another_thread_ends_its_wait_and_keeps_the_workers(
    backend: BackendName, gate: Gate, keep: Keep
) -> None:
    gates = Gate(gate.path)

    def slow(i: int) -> int:
        if i > 2:
            gates.wait()
        return i

    feed = keep(mpfeed.from_map(slow, range(100), workers=2, backend=backend))
    elements, got, taken = iter(feed), list[int](), threading.Event()

    def read() -> None:
        for element in elements:
            got.append(int(element))
            if len(got) == 3:
                taken.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert taken.wait(60)
    elements.close()
    reader.join(60)
    assert not reader.is_alive()
    assert got == [0, 1, 2]
    assert next(elements, None) is None
    gate.open()
    assert [int(element) for element in feed] == list(range(100))


def test_in_this_process_a_wait_beyond_the_timeout_goes_on() -> None:
    def set_up(*_: Any) -> None:
        """It takes longer than the timeout, as anything does."""

    for workers in (1, 2):
        options: Any = {"backend": "inprocess", "workers": workers, "timeout": 1e-6}
        with mpfeed.from_map(abs, range(5), worker_init=set_up, batch_size=2, **options) as feed:
            assert [batch.tolist() for batch in feed] == [[0, 1], [2, 3], [4]]


def test_a_stopped_worker_does_not_hold_up_the_stacks_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first goes on once the stack of the second is read; the wait for both lasts longer than that ever takes."""
    monkeypatch.setattr(worker_process, "_DUMP_S", 30.0)
    stopped: list[int] = []
    read_dump = worker_process.WorkerProcess.read_dump

    def read(member: worker_process.WorkerProcess) -> str:
        text = read_dump(member)
        if text and member.worker == 1:
            os.kill(stopped[0], signal.SIGCONT)
        return text

    monkeypatch.setattr(worker_process.WorkerProcess, "read_dump", read)
    with mpfeed.from_generator(lambda shard: iter([0]), shards=2, workers=2, backend="process") as feed:
        assert numbers(feed) == [0, 0]
        first, crew = feed.stats().workers[0].pid, feed._crew
        assert first is not None
        assert crew is not None
        stopped.append(first)
        os.kill(first, signal.SIGSTOP)
        with crew.lock:
            stacks = crew.engine().stacks()
    assert sorted(stacks) == [0, 1]
    assert all("most recent call first" in stack for stack in stacks.values()), stacks


@pytest.mark.parametrize("how", ["close", "exception", "break", "forgotten"])
def test_however_a_feed_ends_nothing_is_left(how: str) -> None:  # the leak guard sees to it
    def sample(i: int) -> Any:
        return np.zeros(10_000)

    feed = mpfeed.from_map(sample, range(100), workers=2, backend="process")
    if how == "forgotten":
        next(iter(feed))
        with pytest.warns(ResourceWarning, match="was forgotten"):  # noqa: PT031 (the object must die inside)
            del feed
            gc.collect()
        return
    try:
        for element in feed:
            assert element.shape == (10_000,)
            if how == "exception":
                raise LookupError
            if how == "break":
                break
    except LookupError:
        pass
    finally:
        feed.close()
        feed.close()


def test_a_worker_that_is_killed_at_the_end_is_reaped() -> None:
    child = spawn.Child.__new__(spawn.Child)
    child._process = subprocess.Popen(["sleep", "60"], process_group=0)
    child.pid, child._pidfd = child._process.pid, -1
    spawn.end_all([child], 0)
    assert child.reap(0) == -signal.SIGKILL
