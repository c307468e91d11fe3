"""The crew against an engine that plays a script: what is sent, and to whom, when events come together."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpfeed._call_run import CallRun
from mpfeed._crew import Crew
from mpfeed._layout import Layout
from mpfeed._messages import Arguments, Arrived, Died, Event, Joined, Parcel, Reply
from mpfeed._producer import Settings
from mpfeed._structure import flatten
from mpfeed.backends.base import Plan


class Scripted:
    """A backend and its engine: a worker joins when it is started; a test appends what happens then."""

    name, remote, room_bytes = "scripted", True, None

    def __init__(self) -> None:
        self.alive: set[int] = set()
        self.sent: list[Any] = []
        self.to: list[int] = []
        self.coming: list[Event] = []

    def open(self, plan: Plan) -> Scripted:
        return self

    def start_worker(self, worker: int) -> None:
        self.alive.add(worker)
        self.coming.append(Joined(worker))

    def retire_worker(self, worker: int) -> None:
        self.alive.remove(worker)

    def send(self, worker: int, message: Any) -> None:
        self.sent.append(message)
        self.to.append(worker)

    def events(self) -> list[Event]:
        events, self.coming = self.coming, []
        return events

    def wait(self, timeout_s: float | None) -> None: ...
    def wake(self) -> None: ...
    def stop(self) -> None: ...


def answer(number: int, worker: int = 0) -> Arrived:
    layout = Layout(flatten(0)[1], ())
    return Arrived(worker, Reply(number, (Parcel(layout, [np.zeros(1)], 1, False, 8),)))


def test_a_worn_worker_that_died_with_its_last_answer_is_replaced_once() -> None:
    engine: Any = Scripted()
    crew = Crew(engine, Plan(None, Settings(1, None, 0), 1, 2, 1), max_restarts=3, max_tasks=1, timeout_s=None)
    run = CallRun(crew, together=False)
    first, second = (run.ask(Arguments([0], flatten(0)[1])) for _ in range(2))
    assert len(engine.sent) == 1  # the second waits for a new worker
    engine.alive.clear()
    engine.coming += [answer(engine.sent[0].number), Died(0, "was killed")]
    crew.wait_for(first.answer)
    assert len(engine.sent) == 2
    assert engine.alive == {0}
    engine.coming.append(answer(engine.sent[1].number))
    crew.wait_for(second.answer)


def test_a_worker_whose_machine_is_gone_is_started_elsewhere_while_another_does_its_work() -> None:
    engine: Any = Scripted()
    crew = Crew(engine, Plan(None, Settings(2, None, 0), 2, 2, 1), max_restarts=3, max_tasks=None, timeout_s=None)
    run = CallRun(crew, together=False)
    first, second = (run.ask(Arguments([0], flatten(0)[1])) for _ in range(2))
    assert engine.to == [0, 1]
    engine.coming.append(answer(engine.sent[0].number))
    crew.wait_for(first.answer)
    engine.alive.discard(1)
    engine.coming.append(Died(1, "lost its machine", deserted=True))
    crew.wait_for(lambda: len(engine.sent) == 3 or None)
    assert engine.to == [0, 1, 0]
    assert engine.alive == {0, 1}
    engine.coming.append(answer(engine.sent[2].number))
    crew.wait_for(second.answer)
