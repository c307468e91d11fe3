"""A fourth backend, as small as they come: workers that take turns in the thread that waits."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from mpfeed._messages import Arrived, Drop, Event, Joined, Request, StartFailed
from mpfeed._opening import Opening
from mpfeed._producer import Producer, Work
from mpfeed._serialize import failure_of
from mpfeed.backends.base import Engine, Plan, deliver
from mpfeed.transport.arena import Heap


@dataclass(frozen=True, slots=True)
class Turns:
    """The settings: what a user passes as ``backend=``. Here there is nothing to set."""

    @property
    def name(self) -> str:
        return "turns"

    @property
    def remote(self) -> bool:
        return False  # user code runs in the calling process

    def default_workers(self) -> int:
        return 2

    def most_workers(self, workers: int) -> int:
        return workers  # more would not be faster

    def fit(self, workers: int, opening: Opening) -> int:
        return workers  # there is room for any number

    def prepare(self, work: Work) -> Work:
        return work  # nothing has to travel; a remote backend pickles it here

    def freeze(self, value: Any) -> Any:
        return value

    def open(self, plan: Plan) -> Engine:
        return TurnsEngine(plan)


class TurnsEngine:
    """The backend at work: it answers requests, and knows nothing of order, epochs or positions."""

    may_lose = False
    room_bytes: int | None = None

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._producers: dict[int, Producer] = {}
        self._messages: deque[tuple[int, Request | Drop]] = deque()
        self._events: deque[Event] = deque()
        self._woken = threading.Event()

    def start_worker(self, worker: int) -> None:
        producer = Producer(self._plan.work, self._plan.settings, worker, Heap(adopts=False), remote=False)
        try:
            producer.open()  # runs worker_init
        except Exception as error:
            self._events.append(StartFailed(worker, failure_of(error, "worker_init", remote=False)))
        else:
            self._producers[worker] = producer
            self._events.append(Joined(worker))

    def send(self, worker: int, message: Request | Drop) -> None:
        self._messages.append((worker, message))

    def wait(self, timeout_s: float | None) -> None:
        """Answer one request. With none there is nothing to wait for but ``wake``."""
        if self._messages and not self._events:
            worker, message = self._messages.popleft()
            if isinstance(message, Drop):
                self._producers[worker].drop(message)
            else:
                reply = self._producers[worker].handle(message)
                self._events.append(Arrived(worker, deliver(reply, lambda region: region)))
        elif not self._events:
            self._woken.wait(timeout_s)
        self._woken.clear()

    def events(self) -> list[Event]:
        events = list(self._events)
        self._events.clear()
        return events

    def wake(self) -> None:
        self._woken.set()

    def retire_worker(self, worker: int) -> None:
        self._producers.pop(worker).close()  # leaves worker_init

    def stacks(self) -> dict[int, str]:
        return {}

    def stop(self) -> None:
        self._messages.clear()
        for worker in list(self._producers):
            self.retire_worker(worker)
