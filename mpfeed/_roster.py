"""The workers of a crew as its books show them: who is there, who stands in for whom, and who has how much in hand.

Nothing here sends, starts or waits. All methods are called with the crew's lock held.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from mpfeed._counters import WorkerCount
from mpfeed._errors import MpfeedError, WorkerDied
from mpfeed._messages import Reply, Request

Unit = Any
log = logging.getLogger("mpfeed")


class Run(Protocol):
    """What the crew needs of a run. All are called with the crew's lock held."""

    number: int

    def request(self, number: int, unit: Unit, worker: int, incarnation: int) -> Request:
        """The request for a unit, as it must read for this worker now."""

    def receive(self, unit: Unit, reply: Reply) -> None:
        """A unit's reply has come; the last of them unless ``reply.more``."""

    def answered(self, unit: Unit) -> bool:
        """Whether all that was asked for has come, though not yet the word that it was the last."""

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

        No unit where this one is that place, or order means nothing: it is failed.
        """


@dataclass(slots=True, eq=False)
class Ticket:
    """A unit of a run that a worker has in hand."""

    run: Run
    unit: Unit
    starved: bool = False  # a worker that idled before it waited for work, not for room


@dataclass(slots=True)
class Member:
    """One worker as the crew sees it.

    Attributes:
        incarnation: how often it was started.
        sent: requests of this incarnation.
        unanswered: what it was sent, by the request's number.
        waiting: what is held back: until a worker that has done ``max_tasks_per_worker`` is replaced, or one by one.
        singly: units still to be sent one by one. It died where answers may be lost with their worker, so that the one
            that is blamed need not be the deadly one.
        at_work: given new work. Not at work, a worker finishes what it has begun and ends.
        coming: it will be at work once it is ready.
        dying: its death is among the events that are being taken.
        doomed: its death while it was idle was one too many: the next unit meant for it fails.
        latest_run: the number of the run it was last sent a unit of.
        deputy: not there, or about to go: this worker gets what is meant for it.
    """

    state: Literal["absent", "starting", "ready"] = "absent"
    incarnation: int = 0
    pid: int | None = None
    node: str = ""
    sent: int = 0
    unanswered: dict[int, Ticket] = field(default_factory=dict)
    waiting: list[Ticket] = field(default_factory=list)
    singly: int = 0
    at_work: bool = True
    coming: bool = False
    dying: bool = False
    doomed: WorkerDied | None = None
    latest_run: int = 0
    deputy: int | None = None
    count: WorkerCount = field(default_factory=WorkerCount)

    @property
    def load(self) -> int:
        """Units it has not answered."""
        return len(self.unanswered) + len(self.waiting)

    @property
    def idle(self) -> bool:
        """Ready, and nothing is expected of it."""
        return self.state == "ready" and not self.load and not self.dying

    def join(self, pid: int | None, node: str) -> None:
        """It is ready."""
        self.state, self.pid, self.node = "ready", pid, node
        self.deputy = self.doomed = None
        self.count.pid, self.count.node = pid, node

    def take_tickets(self) -> list[Ticket]:
        """All it had in hand, oldest first; it has none now."""
        tickets = [*self.unanswered.values(), *self.waiting]
        self.unanswered, self.waiting = {}, []
        return tickets

    def forget(self, run: Run) -> None:
        """What it has in hand of a run is not expected any more."""
        for number in [n for n, ticket in self.unanswered.items() if ticket.run is run]:
            del self.unanswered[number]
        self.waiting = [ticket for ticket in self.waiting if ticket.run is not run]

    def where(self) -> str:
        """Its process and node in brackets, as far as they are known."""
        node = f", node {self.node}" if self.node else ""
        return f" (pid {self.pid}{node})" if self.pid else ""


class Roster:
    """The members of a crew.

    Args:
        most: how many there may be.
        present: how many of them there is room for now; the others have deputies until they join.
    """

    def __init__(self, most: int, present: int) -> None:
        self.members = [Member() for _ in range(most)]
        for worker in range(present, most):
            self.members[worker].deputy = worker % present
        self.at_work = list(range(most))

    def __getitem__(self, worker: int) -> Member:
        return self.members[worker]

    def __iter__(self) -> Iterator[tuple[int, Member]]:
        return iter(enumerate(self.members))

    @property
    def most(self) -> int:
        """How many workers there may be."""
        return len(self.members)

    @property
    def coming(self) -> bool:
        """Whether a worker that was added is not ready yet."""
        return any(member.coming for member in self.members)

    def pids(self) -> list[int]:
        """Processes of the workers that are ready, as far as the backend names them."""
        return [member.pid for member in self.members if member.state == "ready" and member.pid is not None]

    def counts(self) -> list[WorkerCount]:
        """Counters of each worker, up to the last that is or was at work."""
        last = max(worker for worker, member in self if member.at_work or member.incarnation)
        return [member.count for member in self.members[: last + 1]]

    def load(self, worker: int) -> int:
        """Units a worker has been sent and has not answered."""
        return self.members[worker].load

    def freest(self) -> int:
        """The worker at work with the fewest unanswered units, of those that are there."""
        present = [worker for worker in self.at_work if self.members[worker].deputy is None]
        return min(present or self.at_work, key=self.load)

    def away(self, worker: int) -> bool:
        """Whether a worker's units go to another: it is not there yet, or about to go."""
        return self.members[worker].deputy is not None

    def standing_in(self, worker: int) -> int:
        """Who gets what is meant for a worker."""
        for _ in self.members:
            deputy = self.members[worker].deputy
            if deputy is None:
                break
            worker = deputy
        return worker

    def appoint_deputy(self, worker: int) -> None:
        """Somebody who is ready, with the least to do and to stand in for; nobody where there is no such worker."""
        there = [w for w in self.at_work if w != worker and self.members[w].deputy is None]
        ready = [w for w in there if self.members[w].state == "ready" and not self.members[w].dying]
        if ready:
            stands_in = Counter(member.deputy for member in self.members)
            self.members[worker].deputy = min(ready, key=lambda w: self.load(w) + stands_in[w])
            log.info("worker %d is away; its work goes to worker %s", worker, self.members[worker].deputy)

    def unstarted(self) -> list[int]:
        """Workers at work that were never started and that there is room for."""
        return [w for w, member in self if member.at_work and member.deputy is None and not member.incarnation]

    def awaited(self) -> list[int]:
        """Workers that there was no room for, once all others are ready: earlier they might take their room."""
        at_work = [(worker, member) for worker, member in self if member.at_work]
        if any(member.deputy is None and member.state != "ready" for _, member in at_work):
            return []
        return [worker for worker, member in at_work if member.deputy is not None and member.state == "absent"]

    def keep(self, workers: int) -> None:
        """Have only the first so many of those at work stay so."""
        for worker in self.at_work[workers:]:
            self.members[worker].at_work = False

    def add(self, count: int) -> list[int]:
        """Have so many more at work, or coming; those of them that must be started."""
        others = [worker for worker, member in self if not member.at_work and not member.coming][: max(0, count)]
        for worker in others:
            member = self.members[worker]
            member.at_work, member.coming = member.state == "ready", member.state != "ready"
        return [worker for worker in others if self.members[worker].state == "absent"]

    def renew(self) -> None:
        """Bring ``at_work`` up to date."""
        self.at_work = [worker for worker, member in self if member.at_work]
