"""No garbage is collected by whoever holds a crew's lock."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

import mpfeed
from mpfeed._uncollected import UncollectedLock


@pytest.fixture
def lock() -> Iterator[UncollectedLock]:
    assert gc.isenabled()
    yield UncollectedLock()
    assert gc.isenabled()


def test_the_collector_pauses_while_a_lock_is_held_and_another_is(lock: UncollectedLock) -> None:
    other = UncollectedLock()
    with lock:
        assert not gc.isenabled()
        with other:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    assert lock.acquire()
    assert not lock.acquire(blocking=False)
    assert not lock.acquire(timeout=0.001)
    lock.release()


def test_what_the_user_switched_off_stays_off(lock: UncollectedLock) -> None:
    gc.disable()
    try:
        with lock:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_condition_gives_the_collector_back_while_it_waits(lock: UncollectedLock) -> None:
    changed = threading.Condition(lock)  # type: ignore[arg-type]
    seen: list[bool] = []

    def look() -> None:
        with changed:
            pass  # the other waits by now
        seen.append(gc.isenabled())
        with changed:
            changed.notify()

    with changed:
        threading.Thread(target=look).start()
        assert changed.wait(30)
    assert seen == [True]


def test_in_a_fork_the_collector_runs_whatever_the_parents_threads_hold(lock: UncollectedLock) -> None:
    with lock:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write, b"1" if gc.isenabled() else b"0")
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(read, 1) == b"1"
    os.close(read)
    os.close(write)


class Freed:
    """Something in a cycle whose end wants the feed, as that of an iterator of tf.data's does."""

    def __init__(self, end: threading.Event, ended: list[bool]) -> None:
        self.itself = self
        self._end = end
        self._ended = ended

    def __del__(self) -> None:
        self._ended.append(self._end.wait(5))


def test_who_holds_the_crews_lock_frees_nothing_that_waits_for_those_who_want_it() -> None:
    got, ended = threading.Event(), []  # type: ignore[var-annotated]
    with mpfeed.from_map(abs, range(10), workers=1, backend="inprocess") as feed:
        next(iter(feed))
        crew = feed._crew
        assert crew is not None

        def want() -> None:
            with crew.lock:
                got.set()

        with crew.lock:
            Freed(got, ended)
            thread = threading.Thread(target=want)
            thread.start()
            kept = [[] for _ in range(100_000)]  # type: ignore[var-annotated]  # would collect, and find what waits
            assert ended == []
        thread.join()
    assert len(kept) == 100_000
    gc.collect()
    assert ended == [True]
