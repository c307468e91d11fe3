"""The crew against an engine that plays a script: what is sent, and to whom, when events come together."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import queue
import threading
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from streams import eventually

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
from mpfeed._sleepers import Sleepers, sleep
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


def crew_of(
    engine: Any, workers: int, *, max_restarts: int = 3, max_tasks: int | None = None, timeout_s: float | None = None
) -> Crew:
    plan = Plan(None, Settings(workers, None, 0), workers, 2, 1)
    return Crew(engine, plan, max_restarts=max_restarts, max_tasks=max_tasks, timeout_s=timeout_s)


def asked(run: CallRun, count: int = 1) -> list[Call]:
    with run.crew.lock:
        return [run.ask(Arguments([0], flatten(0)[1])) for _ in range(count)]


def waited(run: CallRun, call: Call) -> Parcel:
    return run.crew.wait_for_answer(lambda: call, run.since).result()


def test_a_worn_worker_that_died_with_its_last_answer_is_replaced_once() -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 1, max_tasks=1)
    run = CallRun(crew, together=False)
    first, second = asked(run, 2)
    assert len(engine.sent) == 1  # the second waits for a new worker
    engine.alive.clear()
    engine.coming += [answer(engine.sent[0].number), Died(0, "was killed")]
    waited(run, first)
    assert len(engine.sent) == 2
    assert engine.alive == {0}
    engine.coming.append(answer(engine.sent[1].number))
    waited(run, second)


def answers_to(calls: Calls, call_s: float) -> Arrived:
    """All results of a message, each of which took so long."""
    layout = Layout(flatten(0)[1], ())
    count = len(calls.arguments)
    parcels = tuple(Parcel(layout, [np.zeros(1)], 1, False, 8) for _ in range(count))
    return Arrived(0, Reply(calls.number, parcels, samples=count, effort=Effort(busy_s=count * call_s)))


def sizes_of(engine: Any) -> list[int]:
    return [len(sent.arguments) for sent in engine.sent]


@pytest.mark.parametrize(("call_s", "size"), [(0.0001, 10), (0.007, 6), (0.008, 5), (0.018, 2), (0.032, 1), (1.0, 1)])
def test_calls_that_take_about_forty_milliseconds_together_share_a_message(call_s: float, size: int) -> None:
    engine: Any = Scripted()
    run = CallRun(crew_of(engine, 1), together=True)
    calls = asked(run, 12)
    assert sizes_of(engine) == [1, 1]  # nothing is known of them yet
    engine.coming.append(answers_to(engine.sent[0], call_s))
    waited(run, calls[0])
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


@pytest.mark.parametrize(("since_s", "fails"), [(0.0, True), (math.inf, False)])
def test_a_wait_counts_from_the_moment_it_is_told(since_s: float, fails: bool) -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 1, timeout_s=0.0)
    engine.stacks = dict
    run = CallRun(crew, together=False)
    (call,) = asked(run)
    engine.wait = lambda timeout_s: engine.coming.append(answer(engine.sent[0].number))
    with pytest.raises(FeedTimeout) if fails else contextlib.nullcontext():
        assert crew.wait_for_answer(lambda: call, lambda _: since_s).answered


class Gated(Scripted):
    """An engine in which a driver waits until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.drivers: queue.Queue[str] = queue.Queue()
        self.go_on: queue.Queue[None] = queue.Queue()

    def wait(self, timeout_s: float | None) -> None:
        self.drivers.put(threading.current_thread().name)
        self.go_on.get(timeout=60)  # longer than the test, which no mishap may help on

    def stacks(self) -> dict[int, str]:
        return {}


class Callers:
    """Threads that each make a call, by name: the first drives, the others lie down after it."""

    def __init__(self, *names: str) -> None:
        self.engine: Any = Gated()
        self.crew = crew_of(self.engine, 1, timeout_s=0.0)
        self.run = CallRun(self.crew, together=False)
        self.overdue: set[str] = set()
        self.came_to: dict[str, object] = {}
        self.threads = {
            name: threading.Thread(target=self._call, args=(name,), name=name, daemon=True) for name in names
        }
        for count, thread in enumerate(self.threads.values(), 1):
            thread.start()
            assert eventually(functools.partial(self._asked, count), 10)
        assert self.engine.drivers.get(timeout=10) == names[0]

    def _asked(self, count: int) -> bool:
        """Whether so many have asked, so that they drive or lie down."""
        with self.crew.lock:
            return len(self.came_to) == count

    def _call(self, name: str) -> None:
        def ask() -> Call:
            self.came_to[name] = None
            return self.run.ask(Arguments([0], flatten(0)[1]))

        def since(_: Call) -> float:
            return 0.0 if name in self.overdue else math.inf

        try:
            self.came_to[name] = self.crew.wait_for_answer(ask, since)
        except BaseException as error:
            self.came_to[name] = error

    def answer(self, number: int) -> None:
        """The worker answers its so manieth message, which the present driver hears."""
        self.engine.coming.append(answer(self.engine.sent[number].number))
        self.engine.go_on.put(None)

    def fail(self, number: int) -> None:
        """A unit is given up. The crew's lock is held."""
        self.run.fail(self.crew.roster[0].unanswered.pop(number).unit, MpfeedError("given up"))

    def goes_on(self, name: str, number: int) -> None:
        """It is this caller that drives now, until its message, the so manieth, is answered."""
        assert self.engine.drivers.get(timeout=10) == name
        self.answer(number)
        assert isinstance(self.ended(name), Call)

    def ended(self, name: str) -> object:
        """What a thread's call came to."""
        self.threads[name].join(10)
        assert not self.threads[name].is_alive()
        return self.came_to[name]


def test_of_callers_one_drives_and_the_last_of_those_asleep_after_it() -> None:
    callers = Callers("a", "b", "c")
    callers.answer(1)
    assert isinstance(callers.ended("b"), Call)
    callers.goes_on("a", 0)
    callers.goes_on("c", 2)


def test_a_caller_that_was_to_drive_and_gives_up_has_another_drive() -> None:
    callers = Callers("a", "b", "c")
    callers.overdue.add("c")
    callers.answer(0)
    assert isinstance(callers.ended("c"), FeedTimeout)
    assert isinstance(callers.ended("a"), Call)
    callers.goes_on("b", 1)


@pytest.mark.parametrize("woken", [False, True])
def test_a_caller_that_is_interrupted_in_its_sleep_or_as_it_wakes_has_another_drive(
    woken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(place: threading.Lock, timeout_s: float | None) -> bool:
        if threading.current_thread().name != "c":
            return sleep(place, timeout_s)
        assert not woken or sleep(place, 10)
        raise KeyboardInterrupt

    monkeypatch.setattr("mpfeed._waits.sleep", interrupted)
    callers = Callers("a", "b", "c")
    assert woken or isinstance(callers.ended("c"), KeyboardInterrupt)
    callers.answer(0)
    assert isinstance(callers.ended("a"), Call)
    assert callers.engine.drivers.get(timeout=10) == "b"
    assert isinstance(callers.ended("c"), KeyboardInterrupt)
    callers.answer(1)
    assert isinstance(callers.ended("b"), Call)


def test_a_driver_that_is_interrupted_as_it_hands_the_turn_on_has_another_drive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call_one = Sleepers.call_one
    cut: list[bool] = []

    def interrupted(sleepers: Sleepers) -> None:
        if threading.current_thread().name == "a" and not cut:
            cut.append(True)
            raise KeyboardInterrupt
        call_one(sleepers)

    monkeypatch.setattr(Sleepers, "call_one", interrupted)
    callers = Callers("a", "b")
    callers.answer(0)
    assert isinstance(callers.ended("a"), KeyboardInterrupt)
    callers.goes_on("b", 1)


def test_what_is_answered_at_once_does_not_wait_for_the_driver_and_is_not_to_drive_later() -> None:
    callers = Callers("a", "b")
    done = Call(9, None, error=MpfeedError("refused"))
    assert callers.crew.wait_for_answer(lambda: done, lambda _: math.inf) is done
    callers.answer(0)
    callers.goes_on("b", 1)


def test_all_who_are_answered_together_with_the_driver_are_woken() -> None:
    callers = Callers("a", "b")
    callers.engine.coming.append(answer(callers.engine.sent[1].number))
    callers.answer(0)
    assert isinstance(callers.ended("a"), Call)
    assert isinstance(callers.ended("b"), Call)


def test_who_is_failed_by_one_that_asks_is_woken_while_another_drives() -> None:
    callers = Callers("a", "b")

    def ask() -> Call:
        callers.fail(2)
        return callers.run.ask(Arguments([0], flatten(0)[1]))

    asks = threading.Thread(target=callers.crew.wait_for_answer, args=(ask, lambda _: math.inf), name="c", daemon=True)
    asks.start()
    assert isinstance(callers.ended("b"), Call)
    callers.answer(0)
    assert isinstance(callers.ended("a"), Call)
    assert callers.engine.drivers.get(timeout=10) == "c"
    callers.answer(2)
    asks.join(10)
    assert not asks.is_alive()


def test_who_is_answered_leaves_though_another_holds_the_lock() -> None:
    callers = Callers("a", "b")
    with callers.crew.lock:
        callers.fail(2)
        callers.crew._waits._sleepers.wake_served()
        assert isinstance(callers.ended("b"), Call)
    callers.answer(0)
    assert isinstance(callers.ended("a"), Call)


def test_a_caller_that_is_answered_as_it_is_called_to_drive_has_another_drive(monkeypatch: pytest.MonkeyPatch) -> None:
    callers: Callers

    def answered_late(place: threading.Lock, timeout_s: float | None) -> bool:
        woken = sleep(place, timeout_s)
        if threading.current_thread().name == "c":
            with callers.crew.lock:
                callers.fail(3)
        return woken

    monkeypatch.setattr("mpfeed._waits.sleep", answered_late)
    callers = Callers("a", "b", "c")
    callers.answer(0)
    assert isinstance(callers.ended("c"), Call)
    assert isinstance(callers.ended("a"), Call)
    callers.goes_on("b", 1)


def test_a_caller_that_looked_up_while_another_drives_lies_down_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, lies = threading.Event(), threading.Event()

    def impatient(place: threading.Lock, timeout_s: float | None) -> bool:
        if threading.current_thread().name == "b":
            if not looked.is_set():
                looked.set()
                return False
            lies.set()
        return sleep(place, timeout_s)

    monkeypatch.setattr("mpfeed._waits.sleep", impatient)
    callers = Callers("a", "b")
    assert lies.wait(10)
    callers.answer(0)
    assert isinstance(callers.ended("a"), Call)
    callers.goes_on("b", 1)


def test_a_worker_that_comes_back_is_given_calls_though_the_others_have_all_they_may() -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 2)
    run = CallRun(crew, together=False)
    asked(run, 2)
    with crew.lock:
        crew.take_events()
        engine.alive.discard(1)
        engine.coming.append(Died(1, "lost its machine", deserted=True))
        crew.take_events()
        back, engine.coming = engine.coming, []
    asked(run, 3)
    assert engine.to == [0, 1, 0]
    with crew.lock:
        engine.coming = back
        crew.take_events()
    asked(run)
    assert engine.to == [0, 1, 0, 1, 1]


def test_one_slow_call_among_quick_ones_makes_messages_small_for_a_while() -> None:
    engine: Any = Scripted()
    run = CallRun(crew_of(engine, 1), together=True)
    asked(run, 100)
    for number in range(12):  # each answer lets one more message leave
        engine.coming.append(answers_to(engine.sent[number], 0.4 if number == 1 else 0.001))
        run.crew.wait_for(lambda: not engine.coming or None)
    assert sizes_of(engine)[2:] == [40, *[1] * 9, 40, 9]


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
    first, _ = asked(run, 2)
    assert len(engine.sent) == (1 if exact else 2)
    engine.coming.append(answer(engine.sent[0].number))
    waited(run, first)
    assert len(engine.sent) == 2


def test_a_worker_whose_machine_is_gone_is_started_elsewhere_while_another_does_its_work() -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 2)
    run = CallRun(crew, together=False)
    first, second = asked(run, 2)
    assert engine.to == [0, 1]
    engine.coming.append(answer(engine.sent[0].number))
    waited(run, first)
    engine.alive.discard(1)
    engine.coming.append(Died(1, "lost its machine", deserted=True))
    crew.wait_for(lambda: len(engine.sent) == 3 or None)
    assert engine.to == [0, 1, 0]
    assert engine.alive == {0, 1}
    engine.coming.append(answer(engine.sent[2].number))
    waited(run, second)


@pytest.mark.parametrize("may_lose", [False, True])
def test_after_a_death_units_go_one_by_one_where_an_answer_may_be_lost_with_its_worker(may_lose: bool) -> None:
    engine: Any = Scripted()
    engine.may_lose = may_lose
    crew = crew_of(engine, 1)
    run, other = CallRun(crew, together=False), CallRun(crew, together=False)
    calls = [*asked(run), *asked(other)]
    engine.alive.clear()
    engine.coming.append(Died(0, "was killed"))
    with crew.lock:
        crew.take_events()
    assert len(engine.sent) == (3 if may_lose else 4)
    engine.coming.append(answer(engine.sent[2].number))
    waited(run, calls[0])
    assert len(engine.sent) == 4
    engine.coming.append(answer(engine.sent[3].number))
    waited(other, calls[1])


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
    first, second = asked(run, 2)
    engine.alive.clear()
    early = answer(engine.sent[0].number)
    engine.coming += [replace(early, reply=replace(early.reply, more=True)), Died(0, "was killed")]
    waited(run, first)
    with pytest.raises(WorkerDied):
        waited(run, second)


def test_a_worker_that_never_came_up_is_not_replaced_after_its_tasks() -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 1, max_tasks=1)
    run = CallRun(crew, together=False)
    calls = asked(run, 3)
    engine.coming = [StartFailed(0, failure_of(ValueError("no table"), "worker_init", remote=True))]
    engine.alive.clear()
    for call in calls[:2]:
        with pytest.raises(WorkerError, match="no table"):
            waited(run, call)
    engine.coming.append(answer(engine.sent[-1].number))
    waited(run, calls[2])


def test_a_worker_that_was_started_anew_has_all_its_tasks_before_it() -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 1, max_tasks=1)
    run = CallRun(crew, together=False)
    (call,) = asked(run)
    engine.retired = []
    engine.retire_worker = engine.retired.append
    engine.coming = [Late(0)]
    with crew.lock:
        crew.take_events()
    assert engine.retired == []
    engine.coming.append(answer(engine.sent[-1].number))
    waited(run, call)


def test_what_waits_for_an_answer_is_sent_when_nobody_wants_that_any_more() -> None:
    engine: Any = Scripted()
    engine.may_lose = True
    crew = crew_of(engine, 1)
    dropped, other = CallRun(crew, together=False), CallRun(crew, together=False)
    for asker in (dropped, other):
        asked(asker)
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
    calls = asked(run, 2)
    engine.coming += [answer(engine.sent[worker].number, worker) for worker in range(2)]
    for call in calls:
        waited(run, call)
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
    (refused,) = asked(run)
    with pytest.raises(MpfeedError, match="too many open files"):
        waited(run, refused)
    engine.hindered = False
    (call,) = asked(run)
    engine.coming.append(answer(engine.sent[0].number))
    assert waited(run, call).count == 1


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
    assert waited(run, first).count == 1


def test_a_death_after_all_calls_of_a_message_were_answered_is_nobodys() -> None:
    engine: Any = Scripted()
    crew = crew_of(engine, 1, max_restarts=0)
    run = CallRun(crew, together=False)
    first, second = asked(run, 2)
    early = answer(engine.sent[0].number)
    engine.coming += [Arrived(0, replace(early.reply, more=True)), Died(0, "was killed")]
    assert waited(run, first).count == 1
    with pytest.raises(WorkerDied, match="call 2"):
        waited(run, second)
