"""The workers of one feed: what they are sent, and what becomes of it.

Runs (iterations of a feed, calls of a ``numpy_function``) hand in *units* of work. The crew turns a unit into a
numbered request for a worker, and the reply back to the run. A worker that dies is replaced and its unanswered
units are sent again; the run says from which position. Who waits for all this: ``_waits``.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, TypeVar

from mpfeed._auto import Auto
from mpfeed._counters import WorkerCount
from mpfeed._errors import FeedClosed, MpfeedError, WorkerDied
from mpfeed._messages import (
    Arrived,
    Died,
    Draining,
    Drop,
    Event,
    Failure,
    Joined,
    Late,
    Parcel,
    Reply,
    StartFailed,
    Unschedulable,
)
from mpfeed._obituary import obituary, overdue
from mpfeed._roster import Member, Roster, Run, Ticket, Unit
from mpfeed._serialize import error_of
from mpfeed._trace import Trace
from mpfeed._waits import Awaited, Waits
from mpfeed.backends.base import Backend, Engine, Plan

T = TypeVar("T")
A = TypeVar("A", bound=Awaited)
log = logging.getLogger("mpfeed")


class Crew:
    """Workers of one feed.

    Args:
        backend: where they run.
        plan: what they need; its ``workers`` is how many there may be.
        max_restarts: deaths at one position that are made good.
        max_tasks: requests after which a worker is replaced, or None.
        timeout_s: longest wait, or None.
        present: how many of the workers there is room for now; the others join when there is. None: all.

    Attributes:
        roster: the workers, as the crew's books show them.
        lock: held whenever the roster, the engine or a run is touched.
        live: runs that are not over.
        closed: ``close`` was called.
    """

    def __init__(  # noqa: PLR0913 (the options of a feed that concern workers)
        self, backend: Backend, plan: Plan, max_restarts: int, max_tasks: int | None, timeout_s: float | None,
        *, present: int | None = None,
    ) -> None:  # fmt: skip
        self._backend = backend
        self._plan = plan
        self._max_restarts = max_restarts
        self._max_tasks = max_tasks
        self._engine: Engine | None = None
        self.roster = Roster(plan.workers, present or plan.workers)
        self._deaths: Counter[Hashable] = Counter()
        self._requests = 0
        self._runs = 0
        self.live: weakref.WeakSet[Run] = weakref.WeakSet()
        self.largest_bytes = 0  # of all messages that have come
        self.auto: Auto | None = None
        self.trace: Trace | None = None
        self.closed = False
        self._waits = Waits(self, timeout_s)
        self.lock = self._waits.lock

    # ------------------------------------------------------------------------------------- what runs use

    @property
    def workers(self) -> int:
        """How many workers are at work."""
        return len(self.roster.at_work)

    @property
    def remote(self) -> bool:
        """Whether the workers run elsewhere than in this process."""
        return self._backend.remote

    @property
    def started(self) -> bool:
        """Whether any worker was ever started."""
        return self._engine is not None

    @property
    def traced(self) -> bool:
        """Whether replies shall tell what was done when."""
        return self.trace is not None

    @property
    def waited_s(self) -> float:
        """Seconds all consumers have waited, over all elements."""
        return self._waits.waited_s

    def new_run(self) -> int:
        """A number for a new run."""
        self._runs += 1
        return self._runs

    def freeze(self, value: Any) -> Any:
        """Data in the form in which workers take it. Any thread."""
        return self._backend.freeze(value)

    @property
    def exact(self) -> bool:
        """Whether a worker gets a request only once all its answers are there: the first death ends all.

        What it had made before must not be lost with it, nor be what is blamed.
        """
        return self._max_restarts == 0 and self.engine().may_lose

    def credit(self, wanted: int) -> int:
        """Units a worker may have in hand: as many as wanted, but for a backend whose memory they would fill."""
        if self.exact:
            return 1
        room = self.engine().room_bytes
        if room is None:
            return wanted
        if not self.largest_bytes:  # nothing is known yet: one each
            return 1
        return max(1, min(wanted, room // (self.largest_bytes * self.workers)))

    def submit(self, run: Run, unit: Unit, worker: int) -> None:
        """Send a unit to a worker, or to its deputy, starting it if need be. The lock is held."""
        worker = self.roster.standing_in(worker)
        member = self.roster[worker]
        if member.doomed is not None:
            error, member.doomed = member.doomed, None
            run.fail(unit, error)
        else:
            member.waiting.append(Ticket(run, unit))
            self._send_waiting(worker)

    def _send_waiting(self, worker: int) -> None:
        """Send what waits for a worker, as far as it may have it now; one that has done its tasks is replaced first."""
        member = self.roster[worker]
        while member.waiting and not ((member.singly or self.exact) and member.unanswered):
            if self._max_tasks is not None and member.sent >= self._max_tasks and not self._replaced(worker):
                return
            self._send(worker, member.waiting.pop(0))

    def _replaced(self, worker: int) -> bool:
        """Whether a worker that has done its tasks could be replaced: not before all of them are answered."""
        member = self.roster[worker]
        if member.unanswered or member.dying:
            return False
        if member.state != "absent":
            self.engine().retire_worker(worker)
        member.state, member.sent = "absent", 0
        return True

    def _send(self, worker: int, ticket: Ticket) -> None:
        member = self.roster[worker]
        if member.state == "absent" and (error := self._start(worker)) is not None:
            ticket.run.fail(ticket.unit, error)
            return
        self._requests += 1
        number = self._requests
        member.unanswered[number] = ticket
        ticket.starved = ticket.run.number != member.latest_run or ticket.run.starves(ticket.unit)
        member.latest_run = ticket.run.number
        member.sent += 1
        request = ticket.run.request(number, ticket.unit, worker, member.incarnation)
        self.engine().send(worker, request)

    def drop(self, run: Run) -> None:
        """Forget a run: its unanswered units, and its iterators in the workers. The lock is held."""
        if self.forked():
            return  # the channels are the parent's, who reads on
        self.live.discard(run)
        for worker, member in self.roster:
            member.forget(run)
            if member.state != "absent" and not self.closed:
                self.engine().send(worker, Drop(run.number))
                if self.engine().may_lose:  # what was not begun is not answered there
                    self._send_waiting(worker)
                self._let_go(worker)
        self._waits.wake()

    # ------------------------------------------------------------------------------------------ waiting

    def wait_for(self, ready: Callable[[], T | None], timeout_s: float | None = None) -> T:
        """Wait until ``ready()``, called with the lock held, gives something.

        Args:
            ready: takes what there is, asking for more if need be.
            timeout_s: longest wait, instead of the crew's own.

        Raises:
            FeedClosed: the crew was closed.
            FeedTimeout: nothing came in time.
        """
        return self._waits.wait_for(ready, timeout_s)

    def wait_for_answer(self, ask: Callable[[], A], since: Callable[[A], float]) -> A:
        """Wait for what ``ask()``, called with the lock held, asked for; until it is handed over.

        Args:
            ask: asks for it; what it raises passes through.
            since: from when on the wait counts, by ``time.monotonic``, where that is later than its beginning.

        Raises:
            FeedClosed, FeedTimeout: see ``wait_for``.
            MpfeedError: see ``refuse_fork``.
        """
        return self._waits.wait_for_answer(ask, since)

    def hand_over(self, awaited: Awaited) -> None:
        """What ``wait_for_answer`` waits for is answered. The lock is held."""
        self._waits.hand_over(awaited)

    def served(self) -> None:
        """A consumer got what it waited for: the moment to think about the number of workers. The lock is held."""
        if self.auto is not None:
            self.auto.consider(self)

    def overdue(self, waited_s: float) -> str:
        """What every worker is doing, for a wait that takes too long. The lock is held."""
        stacks = {} if self._waits.driven else self.engine().stacks()
        return overdue(waited_s, self.roster, stacks)

    def abandon(self, close: Callable[[], None]) -> None:
        """Close a run whose iterator was collected. Any thread, also inside the garbage collector."""
        if not self.closed and not self.forked() and self._waits.abandon(close):
            self.close_dropped()

    def close_dropped(self) -> None:
        """Where workers run only while somebody waits, let them close the iterators of dropped runs now."""
        if self._backend.remote or self._engine is None or not self.lock.acquire(blocking=False):
            return  # whoever holds the lock is about to wait
        try:
            self._waits.drive_once(0.0)
        except Exception:
            log.warning("a source raised while it was closed", exc_info=True)
        finally:
            self.lock.release()

    def forked(self) -> bool:
        """Whether this process is a fork of the one that the workers belong to."""
        return self._waits.forked()

    def refuse_fork(self) -> None:
        """MpfeedError where ``forked``."""
        self._waits.refuse_fork()

    # ----------------------------------------------------------------------------------- how many workers

    def adapt(self, auto: Auto, workers: int) -> None:
        """Begin with so many of the workers there may be, and let ``auto`` change the number."""
        self.auto = auto
        self.roster.keep(workers)
        self.roster.renew()

    def resize(self, workers: int) -> None:
        """Have so many workers at work, the new ones once they are ready. The lock is held."""
        self.roster.keep(workers)
        for worker in self.roster.add(workers - self.workers):
            if self._start(worker) is not None:
                self._not_coming(self.roster[worker])
        self._resized()

    def _resized(self) -> None:
        self.roster.renew()
        for run in self.live:
            run.resized()
        for worker in range(self.roster.most):
            self._let_go(worker)

    def _let_go(self, worker: int) -> None:
        """End a worker that is no longer at work and has finished what it had begun."""
        member = self.roster[worker]
        spent = member.idle and not member.at_work
        if spent and not self.closed and not any(run.holds(worker) for run in self.live):
            self.engine().retire_worker(worker)
            member.state = "absent"

    def start_all(self) -> None:
        """Start the workers that were never started, so that they are ready when they are asked. The lock is held."""
        for worker in self.roster.unstarted():
            self._start(worker)

    def _start(self, worker: int) -> MpfeedError | None:
        """Start a worker; what hindered it, after which it is absent as before."""
        try:
            self.engine().start_worker(worker)
        except FeedClosed:
            raise
        except MpfeedError as error:
            log.info("worker %d could not start: %s", worker, error)
            return error
        member = self.roster[worker]
        member.state, member.sent = "starting", 0
        member.incarnation += 1
        return None

    # ------------------------------------------------------------------------------------------- events

    def take_events(self) -> None:
        """Take what the engine reports. The lock is held."""
        events = self.engine().events()
        for event in events:
            if isinstance(event, Died):  # the engine knows it no more, while its last replies are still to be taken
                self.roster[event.worker].dying = True
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        member = self.roster[event.worker]
        match event:
            case Joined():
                self._joined(event, member)
            case Arrived():
                self._arrived(event.worker, member, event.reply)
            case StartFailed():
                self._start_failed(event.worker, member, event.failure)
            case Died():
                self._died(event, member)
            case Late():
                member.incarnation, member.sent = member.incarnation + 1, 0  # what it was sent is gone with it
                if member.deputy is None:
                    self.roster.appoint_deputy(event.worker)
                self._send_again(member.take_tickets(), event.worker)
            case Draining():
                self.roster.appoint_deputy(event.worker)
                self._move_draining(event.worker)
            case Unschedulable():
                member.state = "absent"
                _fail(member.take_tickets(), MpfeedError(event.text))

    def _joined(self, event: Joined, member: Member) -> None:
        member.join(event.pid, event.node)
        self._deaths.pop(("start", event.worker), None)
        if member.coming:
            member.coming, member.at_work = False, True
            self._resized()
        for worker in self.roster.awaited():
            self._start(worker)

    def _arrived(self, worker: int, member: Member, reply: Reply) -> None:
        self._deaths.pop(("idle", worker), None)
        self.largest_bytes = max(self.largest_bytes, sum(payload.nbytes for payload in reply.payloads))
        ticket = member.unanswered.get(reply.number)
        self._count(worker, reply, starved=ticket is None or ticket.starved)
        if not reply.more:
            member.unanswered.pop(reply.number, None)
            member.singly = max(0, member.singly - 1)
        if ticket is not None:
            for parcel in reply.payloads:
                assert isinstance(parcel, Parcel)
                parcel.worker = worker
            if reply.failure is not None:
                reply.failure = self._placed(reply.failure, worker)
            ticket.run.receive(ticket.unit, reply)
        if member.waiting:
            self._send_waiting(worker)
        elif not member.at_work:
            self._let_go(worker)
        elif member.deputy is not None:
            self._move_draining(worker)

    def _count(self, worker: int, reply: Reply, *, starved: bool) -> None:
        member = self.roster[worker]
        made_s = _count(member.count, reply, starved=starved)
        if self.trace is not None and reply.effort is not None and reply.effort.spans:
            self.trace.replied(worker, member.pid, reply.effort.spans, made_s - reply.effort.done_s, starved=starved)

    def _placed(self, failure: Failure, worker: int) -> Failure:
        member = self.roster[worker]
        return replace(failure, worker=worker, pid=member.pid if self._backend.remote else None, node=member.node)

    def _move_draining(self, worker: int) -> None:
        """Start a leaving worker anew, elsewhere, once it has answered what it was sent."""
        member = self.roster[worker]
        if member.deputy is not None and member.at_work and member.idle:
            self.engine().retire_worker(worker)
            self._start(worker)

    # ------------------------------------------------------------------------------------------- deaths

    def _start_failed(self, worker: int, member: Member, failure: Failure) -> None:
        tickets = member.take_tickets()
        member.state = "absent"
        self._not_coming(member)
        _fail(tickets, error_of(self._placed(failure, worker)))

    def _not_coming(self, member: Member) -> None:
        """A worker that was added could not start: the feed goes on with those it has."""
        if member.coming and self.auto is not None:
            member.coming = False
            self.auto.failed(self.workers)

    def _died(self, event: Died, member: Member) -> None:
        worker = event.worker
        starting = member.state == "starting"
        answered, tickets = _parted(member.take_tickets())
        member.state, member.sent, member.dying = "absent", 0, False
        may_lose = self.engine().may_lose and not event.deserted
        member.singly = int(may_lose)
        member.count.restarts += 1
        blamed = tickets[0] if tickets else None
        place: Hashable = ("start", worker) if starting else ("idle", worker)
        if blamed is not None and not starting:
            place = (blamed.run.number, blamed.run.position(blamed.unit))
        self._deaths[place] += 1
        self._not_coming(member)
        log.info("worker %d (pid %s) %s", worker, event.pid, event.text)
        if self._deaths[place] > self._max_restarts:
            deaths = self._deaths.pop(place)
            error = obituary(event, starting=starting, blamed=blamed, deaths=deaths, max_restarts=self._max_restarts)
            tickets = self._give_up(worker, tickets, error, starting=starting)
        if event.deserted:
            self.roster.appoint_deputy(worker)
        self._send_again(tickets, worker)
        for ticket in answered:
            ticket.run.resized()  # the word that it was the last, after which more is sent, does not come
        if may_lose:
            member.singly = member.load
        if event.deserted or member.deputy is not None:
            self._bring_back(worker)

    def _bring_back(self, worker: int) -> None:
        member = self.roster[worker]
        if member.state == "absent" and member.at_work and not self.closed:
            self._start(worker)

    def _give_up(self, worker: int, tickets: list[Ticket], error: WorkerDied, *, starting: bool) -> list[Ticket]:
        """Let a death be an error of what it concerns; the tickets that it does not concern."""
        if not tickets:
            self.roster[worker].doomed = error
            return []
        if starting:
            _fail(tickets, error)
            return []
        blamed = tickets[0]
        units = blamed.run.narrow(blamed.unit, error)
        if not units:
            blamed.run.fail(blamed.unit, error)
        for unit in units:
            self.submit(blamed.run, unit, worker)
        return tickets[1:]

    def _send_again(self, tickets: list[Ticket], worker: int) -> None:
        for ticket in tickets:
            for unit in ticket.run.retry(ticket.unit):
                self.submit(ticket.run, unit, worker)

    # ---------------------------------------------------------------------------------------------- end

    def untrace(self, trace: Trace) -> None:
        """Record no more."""
        if self.trace is trace:
            self.trace = None

    def engine(self) -> Engine:
        """The engine, opened by whoever needs it first. The lock is held.

        Raises:
            FeedClosed: the crew was closed before.
        """
        if self._engine is None:
            if self.closed:
                raise FeedClosed("the feed was closed")
            self._engine = self._backend.open(self._plan)
        return self._engine

    def wake(self) -> None:
        """End a wait for the engine's events, the present one or the next. Any thread."""
        if self._engine is not None:
            self._engine.wake()

    def stop(self) -> None:
        """Stop the engine. The lock is held."""
        if self._engine is not None:
            self._engine.stop()
        elif (abandon := getattr(self._backend, "abandon", None)) is not None:
            abandon()

    def close(self) -> None:
        """The close order of ``backends.base``. Idempotent; any thread; never raises because a worker is dead."""
        if self.forked() or self.closed:
            return
        self.closed = True  # step 1; before the lock, so that a driver that ends now sees it
        self._waits.end()
        with self.lock:
            for _, member in self.roster:
                member.take_tickets()  # half answered, they alias the workers' memory


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


def _parted(tickets: list[Ticket]) -> tuple[list[Ticket], list[Ticket]]:
    """Those of which all has come, but not the word that it was the last; and the others."""
    answered = [ticket for ticket in tickets if ticket.run.answered(ticket.unit)]
    return answered, [ticket for ticket in tickets if ticket not in answered]


def _fail(tickets: list[Ticket], error: MpfeedError) -> None:
    for ticket in tickets:
        ticket.run.fail(ticket.unit, error)
