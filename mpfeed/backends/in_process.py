"""The in-process backend: sources run in the calling process, under its GIL."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from mpfeed._messages import Arrived, Calls, Drop, Event, Joined, Reply, Request, StartFailed
from mpfeed._opening import Opening
from mpfeed._producer import Producer, Work
from mpfeed._serialize import failure_of
from mpfeed.backends.base import GRACE_S, Engine, Plan, deliver
from mpfeed.transport.arena import Heap


@dataclass(frozen=True, slots=True)
class InProcess:
    """Run the source in the calling process: the baseline, and the way to debug.

    With one worker (``workers="auto"``) it runs in the thread that asks for a batch. With more it runs in that
    many threads, which is right for code that releases the GIL (waiting for I/O, large OpenCV operations).
    """

    @property
    def name(self) -> str:
        return "inprocess"

    @property
    def remote(self) -> bool:
        return False

    def default_workers(self) -> int:
        return 1

    def most_workers(self, workers: int) -> int:
        return workers

    def fit(self, workers: int, opening: Opening) -> int:
        return workers

    def prepare(self, work: Work) -> Work:
        return work

    def freeze(self, value: Any) -> Any:
        return value

    def open(self, plan: Plan) -> Engine:
        return _Inline(plan) if plan.workers == 1 else _Threads(plan)


def _producer(plan: Plan, worker: int) -> Producer:
    settings = replace(plan.settings, threaded=plan.workers > 1)
    return Producer(plan.work, settings, worker, Heap(adopts=False), remote=False)


def _open(producer: Producer, worker: int) -> Event:
    try:
        producer.open()
    except BaseException as error:
        producer.pass_interrupt(error)
        return StartFailed(worker, failure_of(error, "worker_init", remote=False))
    return Joined(worker)


def _answer(producer: Producer, worker: int, message: Request | Drop) -> list[Event]:
    if isinstance(message, Drop):
        producer.drop(message)
        return []
    return [Arrived(worker, deliver(producer.handle(message), lambda region: region))]


class _Inline:
    """One worker, run by whoever waits: each ``wait`` answers at most one request, and one of 0 seconds none."""

    may_lose = False
    room_bytes: int | None = None

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._producer: Producer | None = None
        self._events: deque[Event] = deque()
        self._messages: deque[Request | Drop] = deque()
        self._dropped: set[int] = set()
        self._woken = threading.Event()

    def start_worker(self, worker: int) -> None:
        self._messages.clear()  # meant for one that never came up: nobody waits for the answers
        self._producer = _producer(self._plan, worker)
        self._events.append(_open(self._producer, worker))

    def send(self, worker: int, message: Request | Drop) -> None:
        if isinstance(message, Drop):
            self._dropped.add(message.run)  # seen at once, so that the requests before it are passed over
        self._messages.append(message)

    def wait(self, timeout_s: float | None) -> None:
        while self._messages and not self._events and self._producer is not None:
            message = self._messages[0]
            wanted = not isinstance(message, Drop) and message.run not in self._dropped
            if wanted and timeout_s == 0:
                return
            self._messages.popleft()
            if wanted or isinstance(message, Drop):
                try:
                    self._events.extend(_answer(self._producer, 0, message))
                except BaseException as error:  # Ctrl-C, which is the caller's
                    if isinstance(message, Calls):  # its place is free again, and who waits for it hears why
                        failure = failure_of(error, "a call", remote=False)
                        self._events.append(Arrived(0, Reply(message.number, failure=failure)))
                    raise
        if not self._events:
            self._woken.wait(timeout_s)
        self._woken.clear()

    def events(self) -> list[Event]:
        events = list(self._events)
        self._events.clear()
        return events

    def wake(self) -> None:
        self._woken.set()

    def retire_worker(self, worker: int) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def stacks(self) -> dict[int, str]:
        return {0: "runs in the thread that waits"}

    def stop(self) -> None:
        self._messages.clear()
        self.retire_worker(0)


class _Threads:
    """Several workers, a thread each."""

    may_lose = False
    room_bytes: int | None = None

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self._heard: list[Event | None] = []
        self._requests: dict[int, SimpleQueue[Request | Drop | None]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._dropped: set[int] = set()

    def start_worker(self, worker: int) -> None:
        requests: SimpleQueue[Request | Drop | None] = SimpleQueue()
        self._requests[worker] = requests
        name = f"mpfeed-worker-{worker}"
        thread = threading.Thread(target=self._run, args=(worker, requests), name=name, daemon=True)
        self._threads[worker] = thread
        thread.start()

    def _run(self, worker: int, requests: SimpleQueue[Request | Drop | None]) -> None:
        producer = _producer(self._plan, worker)
        joined = _open(producer, worker)
        self._events.put(joined)
        if isinstance(joined, StartFailed):
            return
        while (message := requests.get()) is not None:
            if isinstance(message, Drop) or message.run not in self._dropped:
                for event in _answer(producer, worker, message):
                    self._events.put(event)
        producer.close()

    def send(self, worker: int, message: Request | Drop) -> None:
        if isinstance(message, Drop):
            self._dropped.add(message.run)  # seen at once, so that the requests before it are passed over
        self._requests[worker].put(message)

    def wait(self, timeout_s: float | None) -> None:
        with contextlib.suppress(Empty):
            self._heard.append(self._events.get(timeout=timeout_s))

    def events(self) -> list[Event]:
        try:
            while True:
                self._heard.append(self._events.get_nowait())
        except Empty:
            pass
        events = [event for event in self._heard if event is not None]
        self._heard.clear()
        return events

    def wake(self) -> None:
        self._events.put(None)

    def retire_worker(self, worker: int) -> None:
        self._requests.pop(worker).put(None)
        self._threads.pop(worker).join(GRACE_S)

    def stacks(self) -> dict[int, str]:
        frames = sys._current_frames()
        return {
            worker: "".join(traceback.format_stack(frames[thread.ident]))
            for worker, thread in self._threads.items()
            if thread.ident in frames
        }

    def stop(self) -> None:
        threads = list(self._threads.values())
        for requests in self._requests.values():
            requests.put(None)
        self._requests.clear()
        self._threads.clear()
        deadline = time.monotonic() + GRACE_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
