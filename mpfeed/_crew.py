"""The workers of one feed: who does what, who died, and who waits.

Runs (iterations of a feed, calls of a ``numpy_function``) hand in *units* of work. The crew turns a unit into a
numbered request for a worker, and the reply back to the run. A worker that dies is replaced and its unanswered
units are sent again; the run says from which position. No thread runs in the background: whichever consumer
waits drives the engine for all of them, and while nobody waits, workers live on what they were sent.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from mpfeed import _interrupts
from mpfeed._auto import Auto
from mpfeed._counters import WorkerCount
from mpfeed._errors import FeedClosed, FeedTimeout, MpfeedError, WorkerDied
from mpfeed._memory import memory_words
from mpfeed._messages import (
    Arrived,
    Died,
    Drop,
    Event,
    Failure,
    Homeless,
    Joined,
    Late,
    Leaving,
    Parcel,
    Reply,
    Request,
    Unfit,
)
from mpfeed._serialize import error_of
from mpfeed._sleepers import Sleepers
from mpfeed._trace import Trace
from mpfeed.backends.base import GRACE_S, Backend, Engine, Plan

T = TypeVar("T")
Unit = Any
log = logging.getLogger("mpfeed")

# Without a timeout, a wait of this long is worth a word.
SILENCE_S = 60.0


class Run(Protocol):
    """What the crew needs of a run. All are called with the crew's lock held."""

    number: int

    def request(self, number: int, unit: Unit, worker: int, incarnation: int) -> Request:
        """The request for a unit, as it must read for this worker now."""

    def receive(self, unit: Unit, reply: Reply) -> None:
        """A unit's reply has come; the last of them unless ``reply.more``."""

    def fail(self, unit: Unit, error: MpfeedError) -> None:
        """A unit has no reply and never will."""

    def position(self, unit: Unit) -> Hashable:
        """What deaths are counted by."""

    def describe(self, unit: Unit) -> str:
        """The unit in words."""

    def holds(self, worker: int) -> bool:
        """Whether something was begun on a worker that only that one can go on with."""

    def resized(self) -> None:
        """Other workers are at work than before: what was not begun may go to them."""

    def retry(self, unit: Unit) -> list[Unit]:
        """The units to send in place of one whose worker died on it."""

    def starves(self, unit: Unit) -> bool:
        """Whether a worker that idles before a unit waits for work: nothing more could have been asked of it before."""

    def narrow(self, unit: Unit, error: MpfeedError) -> list[Unit]:
        """The units that bring what came before a fatal death and find its place, after which ``error`` is raised.

        None where the unit is that place, or order means nothing: it is failed.
        """


@dataclass(slots=True, eq=False)
class _Ticket:
    run: Run
    unit: Unit
    starved: bool = False  # a worker that idled before it waited for work, not for room


@dataclass(slots=True)
class _Member:
    """One worker as the crew sees it."""

    state: str = "absent"  # absent, starting, ready
    incarnation: int = 0
    pid: int | None = None
    node: str = ""
    sent: int = 0
    unanswered: dict[int, _Ticket] = field(default_factory=dict)
    # Held back until a worker that has done max_tasks_per_worker is replaced.
    waiting: list[_Ticket] = field(default_factory=list)
    # Not at work, a worker finishes what it has begun and ends; coming, it will be at work once it is ready.
    at_work: bool = True
    coming: bool = False
    doomed: WorkerDied | None = None
    latest_run: int = 0  # its number
    # Not there, or about to go: this worker gets what is meant for it.
    deputy: int | None = None
    count: WorkerCount = field(default_factory=WorkerCount)


class Crew:
    """Workers of one feed.

    Args:
        backend: where they run.
        plan: what they need; its ``workers`` is how many there may be.
        max_restarts: deaths at one position that are made good.
        max_tasks: requests after which a worker is replaced, or None.
        timeout_s: longest wait, or None.
        present: how many of the workers there is room for now; the others join when there is. None: all.
    """

    def __init__(  # noqa: PLR0913 (the options of a feed that concern workers)
        self, backend: Backend, plan: Plan, max_restarts: int, max_tasks: int | None, timeout_s: float | None,
        *, present: int | None = None,
    ) -> None:  # fmt: skip
        self._backend = backend
        self._plan = plan
        self._max_restarts = max_restarts
        self._max_tasks = max_tasks
        self._timeout_s = timeout_s
        self._engine: Engine | None = None
        self._members = [_Member() for _ in range(plan.workers)]
        for worker in range(present or plan.workers, plan.workers):
            self._members[worker].deputy = worker % (present or plan.workers)
        self._at_work = list(range(plan.workers))
        self.auto: Auto | None = None
        self.live: weakref.WeakSet[Run] = weakref.WeakSet()
        self._waited_s = 0.0
        self._deaths: Counter[Hashable] = Counter()
        self._numbers = 0
        self._largest_bytes = 0
        self._runs = 0
        self._driver: int | None = None
        self._closed = False
        self._pid = os.getpid()
        self._abandoned: list[Callable[[], None]] = []
        self.trace: Trace | None = None
        # When each of the waits for an element began, and up to which of them Ctrl-C ended them.
        self.waits: list[float] = []
        self._interrupted_s = -math.inf
        self._unheard = False
        lock = threading.Lock()
        self.lock = threading.Condition(lock)
        self._sleepers = Sleepers(lock)
        _interrupts.watch(self)

    # ------------------------------------------------------------------------------------- what runs use

    @property
    def workers(self) -> int:
        """How many workers are at work."""
        return len(self._at_work)

    @property
    def most(self) -> int:
        """How many workers there may be."""
        return len(self._members)

    @property
    def waited_s(self) -> float:
        """Seconds all consumers have waited, over all elements."""
        return self._waited_s

    @property
    def coming(self) -> bool:
        """Whether a worker that was added is not ready yet."""
        return any(member.coming for member in self._members)

    def at_work(self) -> list[int]:
        """The workers that are given new work."""
        return self._at_work

    def pids(self) -> list[int]:
        """Processes of the workers that are ready, as far as the backend names them."""
        return [member.pid for member in self._members if member.state == "ready" and member.pid is not None]

    @property
    def remote(self) -> bool:
        """Whether the workers run elsewhere than in this process."""
        return self._backend.remote

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest message that has come."""
        return self._largest_bytes

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    @property
    def started(self) -> bool:
        """Whether any worker was ever started."""
        return self._engine is not None

    def new_run(self) -> int:
        """A number for a new run."""
        self._runs += 1
        return self._runs

    def freeze(self, value: Any) -> Any:
        """Data in the form in which workers take it. Any thread."""
        return self._backend.freeze(value)

    def credit(self, wanted: int) -> int:
        """Units a worker may have in hand: as many as wanted, but for a backend whose memory they would fill."""
        room = self._opened().room_bytes
        if room is None:
            return wanted
        if not self._largest_bytes:  # nothing is known yet: one each
            return 1
        return max(1, min(wanted, room // (self._largest_bytes * self.workers)))

    def load(self, worker: int) -> int:
        """Units a worker has been sent and has not answered."""
        member = self._members[worker]
        return len(member.unanswered) + len(member.waiting)

    def freest(self) -> int:
        """The worker at work with the fewest unanswered units, of those that are there."""
        present = [worker for worker in self._at_work if self._members[worker].deputy is None]
        return min(present or self._at_work, key=self.load)

    def away(self, worker: int) -> bool:
        """Whether a worker's units go to another: it is not there yet, or about to go."""
        return self._members[worker].deputy is not None

    def incarnation(self, worker: int) -> int:
        """How often the worker was started; the run's open shards live in one incarnation."""
        return self._members[worker].incarnation

    def start_all(self) -> None:
        """Start the workers that were never started, so that they are ready when they are asked. The lock is held."""
        for worker, member in enumerate(self._members):
            if member.at_work and member.deputy is None and not member.incarnation:
                self._start(worker)

    def adapt(self, auto: Auto, workers: int) -> None:
        """Begin with so many of the workers there may be, and let ``auto`` change the number."""
        self.auto = auto
        for member in self._members[workers:]:
            member.at_work = False
        self._at_work = self._at_work[:workers]

    def resize(self, workers: int) -> None:
        """Have so many workers at work, the new ones once they are ready. The lock is held."""
        at_work = self._at_work
        for worker in at_work[workers:]:
            self._members[worker].at_work = False
        others = [w for w, member in enumerate(self._members) if not member.at_work and not member.coming]
        for worker in others[: max(0, workers - len(at_work))]:
            member = self._members[worker]
            member.at_work, member.coming = member.state == "ready", member.state != "ready"
            if member.state == "absent":
                self._start(worker)
        self._resized()

    def _resized(self) -> None:
        self._at_work = [worker for worker, member in enumerate(self._members) if member.at_work]
        for run in self.live:
            run.resized()
        for worker in range(len(self._members)):
            self._let_go(worker)

    def _let_go(self, worker: int) -> None:
        """End a worker that is no longer at work and has finished what it had begun."""
        member = self._members[worker]
        spent = member.state == "ready" and not member.at_work and not member.unanswered and not member.waiting
        if spent and not self._closed and not any(run.holds(worker) for run in self.live):
            self._opened().retire_worker(worker)
            member.state = "absent"

    def submit(self, run: Run, unit: Unit, worker: int) -> None:
        """Send a unit to a worker, or to its deputy, starting it if need be. The lock is held."""
        worker = self._standing_in(worker)
        member = self._members[worker]
        if member.doomed is not None:
            error, member.doomed = member.doomed, None
            run.fail(unit, error)
        elif self._max_tasks is not None and member.sent >= self._max_tasks:
            member.waiting.append(_Ticket(run, unit))
            self._replace_worn(worker)
        else:
            self._send(worker, _Ticket(run, unit))

    def _standing_in(self, worker: int) -> int:
        for _ in self._members:
            deputy = self._members[worker].deputy
            if deputy is None:
                break
            worker = deputy
        return worker

    def _send(self, worker: int, ticket: _Ticket) -> None:
        member = self._members[worker]
        if member.state == "absent":
            self._start(worker)
        self._numbers += 1
        number = self._numbers
        member.unanswered[number] = ticket
        ticket.starved = ticket.run.number != member.latest_run or ticket.run.starves(ticket.unit)
        member.latest_run = ticket.run.number
        member.sent += 1
        request = ticket.run.request(number, ticket.unit, worker, member.incarnation)
        if self.trace is not None:
            request = replace(request, traced=True)
        self._opened().send(worker, request)

    def drop(self, run: Run) -> None:
        """Forget a run: its unanswered units, and its iterators in the workers. The lock is held."""
        if self.forked():
            return  # the channels are the parent's, who reads on
        self.live.discard(run)
        for worker, member in enumerate(self._members):
            for number in [n for n, ticket in member.unanswered.items() if ticket.run is run]:
                del member.unanswered[number]
            member.waiting = [ticket for ticket in member.waiting if ticket.run is not run]
            if member.state != "absent" and not self._closed:
                self._opened().send(worker, Drop(run.number))
                self._let_go(worker)

    def abandon(self, close: Callable[[], None]) -> None:
        """Close a run whose iterator was collected. Any thread, also inside the garbage collector."""
        if self._closed or self.forked():
            return
        self._abandoned.append(close)
        if self._driver is None and self.lock.acquire(blocking=False):
            try:
                self._bury_abandoned()
            finally:
                self.lock.release()
            self.close_dropped()

    def _bury_abandoned(self) -> None:
        while self._abandoned:
            self._abandoned.pop()()

    def close_dropped(self) -> None:
        """Where workers run only while somebody waits, let them close the iterators of dropped runs now."""
        if self._backend.remote or self._engine is None or not self.lock.acquire(blocking=False):
            return  # whoever holds the lock is about to wait
        try:
            if self._driver is None and not self._closed:
                self._drive(0.0)
        except Exception:
            log.warning("a source raised while it was closed", exc_info=True)
        finally:
            self.lock.release()

    # ------------------------------------------------------------------------------------------ waiting

    def wait_for(
        self, ready: Callable[[], T | None], timeout_s: float | None = None, served: Callable[[], bool] | None = None
    ) -> T:
        """Wait until ``ready()``, called with the lock held, gives something.

        Args:
            ready: takes what there is, asking for more if need be.
            timeout_s: longest wait, instead of the crew's own.
            served: whether ``ready()`` would give something, where that can be told without calling it.

        Raises:
            FeedClosed: the crew was closed.
            FeedTimeout: nothing came in time.
        """
        self._check_process()
        start = time.monotonic()
        limit = timeout_s if timeout_s is not None else self._timeout_s
        warned = False
        with self.lock, self._waiting(start):
            while True:
                if start <= self._interrupted_s:
                    raise _interrupts.Interrupted(unheard=self._unheard)
                if self._closed:
                    raise FeedClosed("the feed was closed while it was being read")
                self._bury_abandoned()
                value = ready()
                waited = time.monotonic() - start
                if value is not None:
                    if limit is not None and waited > limit:
                        log.warning("an element took %.1f s, more than timeout=%s", waited, limit)
                    self._waited_s += waited
                    if self.auto is not None:
                        self.auto.consider(self)
                    return value
                if limit is not None and waited >= limit and self._backend.remote:
                    raise FeedTimeout(self._late(waited))
                if not warned and waited >= SILENCE_S and limit is None:
                    warned = True
                    log.warning("%s", self._late(waited))
                left = (limit if limit is not None else waited + SILENCE_S if warned else SILENCE_S) - waited
                self._drive(max(left, 0.0) if self._backend.remote or limit is None else None, served)

    @contextmanager
    def _waiting(self, start: float) -> Iterator[None]:
        self.waits.append(start)
        try:
            yield
        finally:
            self.waits.remove(start)
            self._sleepers.wake_served()  # what was done meanwhile may have failed the units of others
            if self._driver is None:
                self._sleepers.wake_one()

    def interrupt(self, until_s: float, *, unheard: bool) -> None:
        """End the waits that began by then with ``Interrupted``. Any thread."""
        self._unheard = unheard
        self._interrupted_s = until_s
        if self._engine is not None and not self.forked():
            self._engine.wake()
        if self.lock.acquire(timeout=GRACE_S):
            try:
                self._sleepers.wake_all()
            finally:
                self.lock.release()

    def _drive(self, timeout_s: float | None, served: Callable[[], bool] | None = None) -> None:
        """Wait for events, or for the consumer that does. The lock is held, but for the wait itself."""
        if self._driver == threading.get_ident():
            raise MpfeedError("a source read the very feed it makes: it would wait for itself")
        if self._driver is not None:
            self._sleepers.wait(timeout_s, served)
            return
        engine = self._opened()
        self._driver = threading.get_ident()
        try:
            self.lock.release()
            try:
                engine.wait(timeout_s)
            finally:
                self.lock.acquire()
        finally:
            self._driver = None
            if self._closed:
                engine.stop()  # step 2 of the close order fell to this thread
                self.lock.notify_all()
                self._sleepers.wake_all()
        if not self._closed:
            for event in engine.events():
                self._take(event)
            self._sleepers.wake_served()

    def _take(self, event: Event) -> None:
        member = self._members[event.worker]
        match event:
            case Joined():
                member.state, member.pid, member.node = "ready", event.pid, event.node
                member.deputy = member.doomed = None
                member.count.pid, member.count.node = event.pid, event.node
                self._deaths.pop(("start", event.worker), None)
                if member.coming:
                    member.coming, member.at_work = False, True
                    self._resized()
                self._start_away()
            case Arrived():
                self._arrived(event.worker, member, event.reply)
            case Unfit():
                self._unfit(event.worker, member, event.failure)
            case Died():
                self._died(event, member)
            case Late():
                member.incarnation += 1  # what it was sent is gone with it
                self._appoint_deputy(event.worker)
                self._pass_on(event.worker)
            case Leaving():
                self._appoint_deputy(event.worker)
                self._retire_leaving(event.worker)
            case Homeless():
                self._strand(event, member)

    def _arrived(self, worker: int, member: _Member, reply: Reply) -> None:
        self._deaths.pop(("idle", worker), None)
        size = sum(payload.nbytes for payload in reply.payloads)
        self._largest_bytes = max(self._largest_bytes, size)
        ticket = member.unanswered.get(reply.number)
        starved = ticket is None or ticket.starved
        made_s = _count(member.count, reply, starved=starved)
        if self.trace is not None and reply.effort is not None and reply.effort.spans:
            name = "" if member.pid is None else f" (pid {member.pid})"
            self.trace.replied(worker, name, reply.effort.spans, made_s - reply.effort.done_s, starved=starved)
        if not reply.more:
            member.unanswered.pop(reply.number, None)
        if ticket is not None:
            for parcel in reply.payloads:
                assert isinstance(parcel, Parcel)
                parcel.worker = worker
            if reply.failure is not None:
                reply.failure = self._placed(reply.failure, worker, member)
            ticket.run.receive(ticket.unit, reply)
        if member.waiting:
            self._replace_worn(worker)
        elif not member.at_work:
            self._let_go(worker)
        elif member.deputy is not None:
            self._retire_leaving(worker)

    def _placed(self, failure: Failure, worker: int, member: _Member) -> Failure:
        return replace(failure, worker=worker, pid=member.pid if self._backend.remote else None, node=member.node)

    # ------------------------------------------------------------------------------- starting and deaths

    def _opened(self) -> Engine:
        """The engine. The lock is held."""
        if self._engine is None:
            if self._closed:
                raise FeedClosed("the feed was closed")
            self._engine = self._backend.open(self._plan)
        return self._engine

    def _start_away(self) -> None:
        """Ask for the workers there was no room for, once the others are there: earlier they might take their room."""
        if any(member.at_work and member.deputy is None and member.state != "ready" for member in self._members):
            return
        for worker, member in enumerate(self._members):
            if member.at_work and member.deputy is not None and member.state == "absent":
                self._start(worker)

    def _start(self, worker: int) -> None:
        member = self._members[worker]
        member.state, member.sent = "starting", 0
        member.incarnation += 1
        self._opened().start_worker(worker)

    def _replace_worn(self, worker: int) -> None:
        """Replace a worker that has done its tasks, once all of them are answered; then send what waited."""
        member = self._members[worker]
        if member.unanswered:
            return
        waiting, member.waiting = member.waiting, []
        self._opened().retire_worker(worker)
        member.state = "absent"
        for i, ticket in enumerate(waiting):
            if self._max_tasks is not None and i >= self._max_tasks:
                member.waiting.append(ticket)
            else:
                self._send(worker, ticket)

    def _unfit(self, worker: int, member: _Member, failure: Failure) -> None:
        tickets = self._take_unanswered(member)
        member.state = "absent"
        self._not_coming(member)
        for ticket in tickets:
            ticket.run.fail(ticket.unit, error_of(self._placed(failure, worker, member)))

    def _not_coming(self, member: _Member) -> None:
        """A worker that was added could not start: the feed goes on with those it has."""
        if member.coming and self.auto is not None:
            member.coming = False
            self.auto.failed(self.workers)

    @staticmethod
    def _take_unanswered(member: _Member) -> list[_Ticket]:
        tickets = [*member.unanswered.values(), *member.waiting]
        member.unanswered, member.waiting = {}, []
        return tickets

    def _died(self, event: Died, member: _Member) -> None:
        worker = event.worker
        starting = member.state == "starting"
        tickets = self._take_unanswered(member)
        member.state, member.sent = "absent", 0
        member.count.restarts += 1
        blamed = tickets[0] if tickets else None
        place: Hashable = ("start", worker) if starting else ("idle", worker)
        if blamed is not None and not starting:
            place = (blamed.run.number, blamed.run.position(blamed.unit))
        self._deaths[place] += 1
        self._not_coming(member)
        log.info("worker %d (pid %s) %s", worker, event.pid, event.text)
        if self._deaths[place] > self._max_restarts:
            error = self._obituary(event, starting, blamed, self._deaths.pop(place))
            if blamed is None:
                member.doomed = error
            else:
                self._condemn(worker, tickets if starting else tickets[:1], error, narrowed=not starting)
            tickets = [] if starting else tickets[1:]
        for ticket in tickets:
            for unit in ticket.run.retry(ticket.unit):
                self.submit(ticket.run, unit, worker)
        if member.deputy is not None and not self._closed:
            self._start(worker)

    # ------------------------------------------------------------------------------------- late and leaving

    def _appoint_deputy(self, worker: int) -> None:
        """Somebody who is ready and stands in for nobody's absence; nobody where there is no such worker."""
        there = [w for w in self._at_work if w != worker and self._members[w].deputy is None]
        ready = [w for w in there if self._members[w].state == "ready"]
        if ready:
            self._members[worker].deputy = min(ready, key=self.load)
            log.info("worker %d is away; its work goes to worker %s", worker, self._members[worker].deputy)

    def _pass_on(self, worker: int) -> None:
        for ticket in self._take_unanswered(self._members[worker]):
            for unit in ticket.run.retry(ticket.unit):
                self.submit(ticket.run, unit, worker)

    def _retire_leaving(self, worker: int) -> None:
        """Start a leaving worker anew, elsewhere, once it has answered what it was sent."""
        member = self._members[worker]
        idle = member.state == "ready" and not member.unanswered and not member.waiting
        if member.deputy is not None and member.at_work and idle:
            self._opened().retire_worker(worker)
            self._start(worker)

    def _strand(self, event: Homeless, member: _Member) -> None:
        member.state = "absent"
        for ticket in self._take_unanswered(member):
            ticket.run.fail(ticket.unit, MpfeedError(event.text))

    def _condemn(self, worker: int, tickets: list[_Ticket], error: WorkerDied, *, narrowed: bool) -> None:
        """Fail units, or send others in their place that find where exactly the worker died."""
        for ticket in tickets:
            units = ticket.run.narrow(ticket.unit, error) if narrowed else []
            if not units:
                ticket.run.fail(ticket.unit, error)
            for unit in units:
                self.submit(ticket.run, unit, worker)

    def _obituary(self, event: Died, starting: bool, blamed: _Ticket | None, deaths: int) -> WorkerDied:
        doing = "while it started" if starting else "while it was idle"
        if blamed is not None and not starting:
            doing = f"while making {blamed.run.describe(blamed.unit)}"
        pid = f" (pid {event.pid}{', node ' + event.node if event.node else ''})" if event.pid else ""
        times = f", {deaths} times at this place (max_restarts={self._max_restarts})" if deaths > 1 else ""
        text = f"worker {event.worker}{pid} {event.text} {doing}{times}.{_advice(event.exit_code, self._max_restarts)}"
        return WorkerDied(text, worker=event.worker, pid=event.pid, exit_code=event.exit_code)

    def _late(self, waited: float) -> str:
        """What every worker is doing, for a wait that takes too long."""
        lines = [f"no element came within {waited:.1f} s"]
        stacks = self._opened().stacks() if self._driver is None else {}
        for worker, member in enumerate(self._members):
            doing = "idle"
            if member.unanswered:
                ticket = next(iter(member.unanswered.values()))
                doing = f"making {ticket.run.describe(ticket.unit)}"
            if member.state != "absent":
                pid = f" (pid {member.pid}{', node ' + member.node if member.node else ''})" if member.pid else ""
                state = "starting" if member.state == "starting" else doing
                lines.append(f"worker {worker}{pid}: {state}\n{_indent(stacks.get(worker, 'no stack'))}")
        lines.append("Raise timeout= if this is as slow as it should be")
        return "\n".join(lines)

    # ---------------------------------------------------------------------------------------------- end

    def counts(self) -> list[WorkerCount]:
        """Counters of each worker, up to the last that is or was at work."""
        last = max(w for w, member in enumerate(self._members) if member.at_work or member.incarnation)
        return [member.count for member in self._members[: last + 1]]

    def untrace(self, trace: Trace) -> None:
        """Record no more."""
        if self.trace is trace:
            self.trace = None

    def forked(self) -> bool:
        """Whether this process is a fork of the one that the workers belong to."""
        return os.getpid() != self._pid

    def _check_process(self) -> None:
        if self.forked():
            raise MpfeedError(
                "this feed was started in another process, of which this one is a fork: build a feed of its own here"
            )

    def close(self) -> None:
        """The close order of ``backends.base``. Idempotent; any thread; never raises because a worker is dead."""
        if self.forked() or self._closed:
            return
        self._closed = True  # step 1; before the lock, so that a driver that ends now sees it
        engine = self._engine
        if engine is not None:
            engine.wake()
        with self.lock:
            self._sleepers.wake_all()
            if self._driver not in (None, threading.get_ident()):
                self.lock.wait_for(lambda: self._driver is None, GRACE_S)
            if self._driver is None and self._engine is not None:
                self._engine.stop()
            for member in self._members:
                self._take_unanswered(member)  # half answered, they alias the workers' memory


def _count(count: WorkerCount, reply: Reply, *, starved: bool) -> float:
    """Count a reply; when it was made, by this process's clock."""
    now_s = made_s = time.perf_counter()
    parcels: Any = reply.payloads
    elements = sum(parcel.count for parcel in parcels)
    if reply.effort is None:
        count.elements += elements
    else:
        made_s = count.replied(reply.effort, elements, now_s, starved=starved)
    for parcel in parcels:
        parcel.ready_s = made_s
    return made_s


def _indent(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())


def _advice(exit_code: int | None, max_restarts: int) -> str:
    if exit_code == -9:
        memory = memory_words()
        return (
            f" SIGKILL is what the kernel sends when memory runs out{f' ({memory})' if memory else ''}: use fewer "
            "workers, a smaller batch or buffer, or look for a leak (max_tasks_per_worker= replaces a worker that has "
            "one)"
        )
    if exit_code in (-11, -7, -6, -4, -8):
        return " This is a crash in C code: its Python stack is on the worker's stderr"
    if exit_code is not None and exit_code >= 0:
        return " Something in it left with os._exit or ended the process: an exit code is not the end of its data"
    return ""
