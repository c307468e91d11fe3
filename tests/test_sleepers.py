"""Consumers that wait for one another: who is woken, and by what."""

from __future__ import annotations

import threading
from collections.abc import Callable

from streams import eventually

from mpfeed._sleepers import Sleepers
from mpfeed._uncollected import UncollectedLock


class Asleep:
    """Threads asleep under one lock, by name."""

    def __init__(self, served: dict[str, Callable[[], bool] | None]) -> None:
        self.lock = UncollectedLock()
        self.sleepers = Sleepers(self.lock)
        self.woken: list[str] = []
        self.threads = []
        for name, fulfilled in served.items():
            begun = threading.Event()
            thread = threading.Thread(target=self._sleep, args=(name, fulfilled, begun), daemon=True)
            thread.start()
            assert begun.wait(10)
            with self.lock:  # it has given the lock up, so that it is asleep
                self.threads.append(thread)

    def _sleep(self, name: str, served: Callable[[], bool] | None, begun: threading.Event) -> None:
        with self.lock:
            begun.set()
            self.sleepers.wait(10, served)
            self.woken.append(name)

    def after(self, wake: Callable[[], None], count: int) -> list[str]:
        """Who woke, of whom so many are expected."""
        with self.lock:
            wake()
        assert eventually(lambda: sum(not thread.is_alive() for thread in self.threads) >= count, 10)
        return sorted(self.woken)


def test_only_those_are_woken_for_whom_there_may_be_something() -> None:
    answered: set[str] = set()
    asleep = Asleep({"a": lambda: "a" in answered, "b": lambda: "b" in answered, "unknown": None})
    answered.add("b")
    assert asleep.after(asleep.sleepers.wake_served, 2) == ["b", "unknown"]
    assert asleep.after(asleep.sleepers.wake_served, 2) == ["b", "unknown"]
    assert asleep.after(asleep.sleepers.wake_all, 3) == ["a", "b", "unknown"]


def test_the_last_that_fell_asleep_is_woken_to_drive() -> None:
    asleep = Asleep({"a": lambda: False, "b": lambda: False})
    assert asleep.after(asleep.sleepers.wake_one, 1) == ["b"]
    assert asleep.after(asleep.sleepers.wake_one, 2) == ["a", "b"]
    with asleep.lock:
        asleep.sleepers.wake_one()  # nobody is left
