"""The crew against an engine that plays a script: what is sent, and to whom, when events come together."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mpfeed._auto import Auto
from mpfeed._call_run import Call, CallRun, Message
from mpfeed._crew import Crew
from mpfeed._effort import Effort
from mpfeed._errors import FeedTimeout, MpfeedError, WorkerDied, WorkerError
from mpfeed._layout import Layout
from mpfeed._messages import Arguments, Arrived, Calls, Died, Event, Joined, Late, Parcel, Reply, StartFailed
from mpfeed._producer import Settings
from mpfeed._roster import Roster
from mpfeed._serialize import failure_of
from mpfeed._structure import flatten
from mpfeed.backends.base import Plan


class Scripted:
    """A backend and its engine: a worker joins when it is started; a test appends what happens then."""

    name, remote, room_bytes, may_lose = "scripted", True, None, False

    def __init__(self) -> None:
        self.alive: set[int] = set()
        self.sent: list[Any] = []
        self.to: list[int] = []
        self.coming: list[Event] = []
        self.hindered = False

    def open(self, plan: Plan) -> Scripted:
        return self

    def start_worker(self, worker: int) -> None:
        if self.hindered:
            raise MpfeedError("too many open files")
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


def crew_of(engine: Any, workers: int, *, max_restarts: int = 3, max_tasks: int | None = None) -> Crew:
    plan = Plan(None, Settings(workers, None, 0), workers, 2, 1)
    return Crew(engine, plan, max_restarts=max_restarts, max_tasks=max_tasks, timeout_s=None)


def test_a_worn_worker_that_died_with_its_last_answer_is_replaced_once() -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 1, max_tasks=1)
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


def asked(run: CallRun, count: int) -> list[Call]:
    return [run.ask(Arguments([0], flatten(0)[1])) for _ in range(count)]


def answers_to(calls: Calls, call_s: float) -> Arrived:
    """All results of a message, each of which took so long."""
    layout = Layout(flatten(0)[1], ())
    count = len(calls.arguments)
    parcels = tuple(Parcel(layout, [np.zeros(1)], 1, False, 8) for _ in range(count))
    return Arrived(0, Reply(calls.number, parcels, samples=count, effort=Effort(busy_s=count * call_s)))


def sizes_of(engine: Any) -> list[int]:
    return [len(sent.arguments) for sent in engine.sent]


@pytest.mark.parametrize(("call_s", "size"), [(0.0001, 10), (0.0034, 6), (0.004, 5), (0.009, 2), (0.016, 1), (1.0, 1)])
def test_calls_that_take_about_twenty_milliseconds_together_share_a_message(call_s: float, size: int) -> None:
    engine: Any = Scripted()
    run = CallRun(crew_of(engine, 1), together=True)
    calls = asked(run, 12)
    assert sizes_of(engine) == [1, 1]  # nothing is known of them yet
    engine.coming.append(answers_to(engine.sent[0], call_s))
    run.crew.wait_for(calls[0].answer)
    assert sizes_of(engine) == [1, 1, size]


def test_a_call_that_waits_for_its_turn_counts_from_the_latest_answer_and_one_that_was_sent_from_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = itertools.count(100)
    monkeypatch.setattr("mpfeed._call_run.time.monotonic", lambda: next(now_s))
    engine: Any = Scripted()
    run = CallRun(crew_of(engine, 1), together=False)
    calls = asked(run, 4)
    assert [call.sent_s for call in calls] == [100, 101, math.inf, math.inf]
    for number in range(2):
        run.receive(run.crew.roster[0].unanswered[engine.sent[number].number].unit, Reply(0, more=True))
        assert [run.since(call) for call in calls] == [100, 101, 102 + number, 102 + number]


@pytest.mark.parametrize(("since", "fails"), [(None, True), (lambda: math.inf, False)])
def test_a_wait_counts_from_the_moment_it_is_told(since: Any, fails: bool) -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 1)
    engine.stacks = dict
    ready = iter([None, None, "there"])
    with pytest.raises(FeedTimeout) if fails else contextlib.nullcontext():
        assert crew.wait_for(lambda: next(ready), timeout_s=0.0, since=since) == "there"


def test_one_slow_call_among_quick_ones_makes_messages_small_for_a_while() -> None:
    engine: Any = Scripted()
    run = CallRun(crew_of(engine, 1), together=True)
    asked(run, 60)
    for number in range(12):  # each answer lets one more message leave
        engine.coming.append(answers_to(engine.sent[number], 0.2 if number == 1 else 0.001))
        run.crew.wait_for(lambda: not engine.coming or None)
    assert sizes_of(engine)[2:] == [20, *[1] * 9, 20, 9]


@pytest.mark.parametrize("may_lose", [False, True])
@pytest.mark.parametrize("max_restarts", [0, 3])
def test_where_the_first_death_ends_all_a_worker_that_may_lose_answers_has_one_request(
    max_restarts: int, may_lose: bool
) -> None:
    engine: Any = Scripted()
    engine.may_lose = may_lose
    crew = crew_of(engine, 1, max_restarts=max_restarts)
    exact = may_lose and max_restarts == 0
    assert crew.credit(3) == (1 if exact else 3)
    run = CallRun(crew, together=False)
    first, _ = (run.ask(Arguments([0], flatten(0)[1])) for _ in range(2))
    assert len(engine.sent) == (1 if exact else 2)
    engine.coming.append(answer(engine.sent[0].number))
    crew.wait_for(first.answer)
    assert len(engine.sent) == 2


def test_a_worker_whose_machine_is_gone_is_started_elsewhere_while_another_does_its_work() -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 2)
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


@pytest.mark.parametrize("may_lose", [False, True])
def test_after_a_death_units_go_one_by_one_where_an_answer_may_be_lost_with_its_worker(may_lose: bool) -> None:
    engine: Any = Scripted()
    engine.may_lose = may_lose
    crew = crew_of(engine, 1)
    run, other = CallRun(crew, together=False), CallRun(crew, together=False)
    calls = [asker.ask(Arguments([0], flatten(0)[1])) for asker in (run, other)]
    engine.alive.clear()
    engine.coming.append(Died(0, "was killed"))
    with crew.lock:
        crew.take_events()
    assert len(engine.sent) == (3 if may_lose else 4)
    engine.coming.append(answer(engine.sent[2].number))
    crew.wait_for(calls[0].answer)
    assert len(engine.sent) == 4
    engine.coming.append(answer(engine.sent[3].number))
    crew.wait_for(calls[1].answer)


def test_where_the_first_death_ends_all_calls_of_a_deadly_message_go_one_by_one() -> None:
    engine: Any = Scripted()
    engine.may_lose = True
    crew = crew_of(engine, 1, max_restarts=0)
    run = CallRun(crew, together=False)
    with crew.lock:
        calls = [Call(number, Arguments([0], flatten(0)[1])) for number in range(4)]
        crew.submit(run, Message(deque(calls), 4), 0)
        engine.alive.clear()
        engine.coming.append(Died(0, "was killed"))
        crew.take_events()
    assert [len(request.arguments) for request in engine.sent] == [4, 1]
    engine.coming.append(answer(engine.sent[1].number))
    with crew.lock:
        crew.take_events()
    assert calls[0].answered
    assert [len(request.arguments) for request in engine.sent] == [4, 1, 1]


def test_calls_that_waited_for_a_message_are_sent_though_its_worker_died_after_the_last_answer() -> None:
    engine: Any = Scripted()
    engine.may_lose = True
    crew = crew_of(engine, 1, max_restarts=0)
    run = CallRun(crew, together=False)
    first, second = (run.ask(Arguments([0], flatten(0)[1])) for _ in range(2))
    engine.alive.clear()
    early = answer(engine.sent[0].number)
    engine.coming += [replace(early, reply=replace(early.reply, more=True)), Died(0, "was killed")]
    crew.wait_for(first.answer)
    with pytest.raises(WorkerDied):
        crew.wait_for(second.answer)


def test_a_worker_that_never_came_up_is_not_replaced_after_its_tasks() -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 1, max_tasks=1)
    run = CallRun(crew, together=False)
    calls = [run.ask(Arguments([0], flatten(0)[1])) for _ in range(3)]
    engine.coming = [StartFailed(0, failure_of(ValueError("no table"), "worker_init", remote=True))]
    engine.alive.clear()
    for call in calls[:2]:
        with pytest.raises(WorkerError, match="no table"):
            crew.wait_for(call.answer)
    engine.coming.append(answer(engine.sent[-1].number))
    crew.wait_for(calls[2].answer)


def test_a_worker_that_was_started_anew_has_all_its_tasks_before_it() -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 1, max_tasks=1)
    run = CallRun(crew, together=False)
    call = run.ask(Arguments([0], flatten(0)[1]))
    engine.retired = []
    engine.retire_worker = engine.retired.append
    engine.coming = [Late(0)]
    with crew.lock:
        crew.take_events()
    assert engine.retired == []
    engine.coming.append(answer(engine.sent[-1].number))
    crew.wait_for(call.answer)


def test_what_waits_for_an_answer_is_sent_when_nobody_wants_that_any_more() -> None:
    engine: Any = Scripted()
    engine.may_lose = True
    crew = crew_of(engine, 1)
    dropped, other = CallRun(crew, together=False), CallRun(crew, together=False)
    for asker in (dropped, other):
        asker.ask(Arguments([0], flatten(0)[1]))
    engine.alive.clear()
    engine.coming += [Died(0, "was killed"), Joined(0)]
    with crew.lock:
        crew.take_events()
        crew.drop(dropped)
    assert engine.sent[-1].run == other.number


@pytest.mark.parametrize("deserted", [True, False])
def test_idle_workers_whose_machine_is_gone_are_started_at_once_also_where_nobody_is_left(deserted: bool) -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 2)
    run = CallRun(crew, together=False)
    calls = [run.ask(Arguments([0], flatten(0)[1])) for _ in range(2)]
    engine.coming += [answer(engine.sent[worker].number, worker) for worker in range(2)]
    for call in calls:
        crew.wait_for(call.answer)
    engine.alive.clear()
    engine.coming += [Died(worker, "is gone", deserted=deserted) for worker in range(2)]
    with crew.lock:
        crew.take_events()
    assert engine.alive == ({0, 1} if deserted else set())


def test_those_who_are_away_are_shared_out_among_those_who_are_there() -> None:
    roster = Roster(5, 5)
    for worker in (0, 2, 4):
        roster[worker].join(1, "here")
    for worker in (1, 3):
        roster.appoint_deputy(worker)
    assert [roster[worker].deputy for worker in (1, 3)] == [0, 2]


def test_a_worker_that_could_not_start_is_started_when_it_is_asked_again() -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 1)
    run = CallRun(crew, together=False)
    engine.hindered = True
    refused = run.ask(Arguments([0], flatten(0)[1]))
    with pytest.raises(MpfeedError, match="too many open files"):
        crew.wait_for(refused.answer)
    engine.hindered = False
    call = run.ask(Arguments([0], flatten(0)[1]))
    engine.coming.append(answer(engine.sent[0].number))
    assert crew.wait_for(call.answer).count == 1


def test_workers_that_cannot_be_added_leave_the_others_at_work() -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 4)
    crew.adapt(Auto(4), 1)
    run = CallRun(crew, together=False)
    first = run.ask(Arguments([0], flatten(0)[1]))
    engine.hindered = True
    crew.resize(3)
    assert (crew.workers, crew.roster.coming) == (1, False)
    engine.coming.append(answer(engine.sent[0].number))
    assert crew.wait_for(first.answer).count == 1


def test_a_death_after_all_calls_of_a_message_were_answered_is_nobodys() -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 1, max_restarts=0)
    run = CallRun(crew, together=False)
    first, second = (run.ask(Arguments([0], flatten(0)[1])) for _ in range(2))
    early = answer(engine.sent[0].number)
    engine.coming += [Arrived(0, replace(early.reply, more=True)), Died(0, "was killed")]
    assert crew.wait_for(first.answer).count == 1
    with pytest.raises(WorkerDied, match="call 2"):
        crew.wait_for(second.answer)
