"""Consumers that wait for one another: who is woken, and by what."""

from __future__ import annotations

import threading
from collections.abc import Callable

from streams import eventually

from mpfeed._sleepers import Sleepers, sleep
from mpfeed._uncollected import UncollectedLock


class Asleep:
    """Threads asleep under one lock, by name: two of them until what is theirs is there, one until anything is."""

    def __init__(self) -> None:
        self.lock = UncollectedLock()
        self.sleepers = Sleepers(self.lock)
        self.woken: list[str] = []
        self.places: dict[str, threading.Lock] = {}
        self.threads = [self._begin(name) for name in ("a", "b", "any")]

    def _begin(self, name: str) -> threading.Thread:
        begun = threading.Event()
        thread = threading.Thread(target=self._sleep, args=(name, begun), daemon=True)
        thread.start()
        assert begun.wait(10)
        with self.lock:  # it has given the lock up, so that it is asleep
            return thread

    def _sleep(self, name: str, begun: threading.Event) -> None:
        with self.lock:
            begun.set()
            if name == "any":
                self.sleepers.wait(10)
                self.woken.append(name)
                return
            place = self.places[name] = self.sleepers.lie_down()
        assert sleep(place, 10)
        self.woken.append(name)

    def called(self) -> threading.Lock | None:
        """The place of who is to drive."""
        return self.sleepers.called

    def after(self, wake: Callable[[], object], count: int) -> list[str]:
        """Who woke, of whom so many are expected."""
        with self.lock:
            wake()
        assert eventually(lambda: sum(not thread.is_alive() for thread in self.threads) >= count, 10)
        return sorted(self.woken)


def test_who_is_served_is_woken_and_none_of_the_others() -> None:
    asleep = Asleep()
    with asleep.lock:
        asleep.sleepers.serve(asleep.places["b"])
    assert asleep.after(asleep.sleepers.wake_served, 1) == ["b"]
    with asleep.lock:
        asleep.sleepers.stir()
    assert asleep.after(asleep.sleepers.wake_served, 2) == ["any", "b"]
    assert asleep.after(asleep.sleepers.wake_all, 3) == ["a", "any", "b"]


def test_the_last_that_fell_asleep_is_called_to_drive_until_it_rises() -> None:
    asleep = Asleep()
    assert asleep.after(asleep.sleepers.call_one, 1) == ["any"]
    assert asleep.called() is None  # it rose
    assert asleep.after(asleep.sleepers.call_one, 2) == ["any", "b"]
    with asleep.lock:
        assert asleep.called() is asleep.places["b"]
        asleep.sleepers.rise(asleep.places["b"])
    assert asleep.after(asleep.sleepers.call_one, 3) == ["a", "any", "b"]
    with asleep.lock:
        asleep.sleepers.rise(asleep.places["a"])
        asleep.sleepers.call_one()  # nobody is left
        assert asleep.called() is None


def test_who_rises_is_neither_served_nor_called_to_drive() -> None:
    sleepers = Sleepers(UncollectedLock())
    place = sleepers.lie_down()
    sleepers.rise(place)
    sleepers.serve(place)
    sleepers.wake_served()
    sleepers.call_one()
    assert sleepers.called is None
    assert not sleep(place, 0)
