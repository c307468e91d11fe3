"""The calls of one ``numpy_function``: who makes which, and which of them travel together.

A worker has at most AHEAD messages in hand; calls beyond that wait here for whichever worker answers first. Calls
that have proved quick leave in one message: a message, and threads that wake for it, cost about 0.2 ms of CPU.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from mpfeed._collating import ANSWERS_S
from mpfeed._crew import Crew
from mpfeed._errors import FeedClosed, MpfeedError
from mpfeed._messages import Arguments, Calls, Parcel, Reply
from mpfeed._serialize import error_of

# One that is being answered and one behind it, so that a worker never waits for the next.
AHEAD = 2
# As many calls travel in one message as take about so long: what was made by then leaves without the rest.
_MESSAGE_S = ANSWERS_S
_MOST_CALLS = 64
# The mean of so many messages tells how long a call takes. Not their median: a worker that has a message of calls, one
# of which is slow, keeps the others from workers that are free.
_REMEMBERED = 9
# Threads of tf.data for each message that a worker may have in hand, so that there are calls to travel together.
_CALLERS = 3


@dataclass(slots=True, eq=False)
class Call:
    """One call, from its arguments to what came of it.

    Attributes:
        arguments: kept until it is answered, for a worker that dies on it.
        sent_s: when it was first sent to a worker; infinite while it waits for one.
        place: where its caller sleeps (``mpfeed._waits.Awaited``).
    """

    number: int
    arguments: Arguments | None
    sent_s: float = math.inf
    parcel: Parcel | None = None
    error: MpfeedError | None = None
    place: threading.Lock | None = None

    @property
    def answered(self) -> bool:
        """Whether ``result`` gives or raises something."""
        return self.parcel is not None or self.error is not None

    @property
    def failed(self) -> bool:
        """Whether ``result`` raises something."""
        return self.error is not None

    def result(self) -> Parcel:
        """What it came to, once it is answered; raises what it failed with."""
        if self.error is not None:
            raise self.error
        assert self.parcel is not None
        return self.parcel


@dataclass(slots=True, eq=False)
class Message:
    """Calls that travel together; those at the front are answered first."""

    calls: deque[Call]
    count: int


def useful_callers(workers: int, *, together: bool) -> int:
    """Calls at a time that keep workers busy, and the next ones gathered meanwhile where they share messages."""
    return (AHEAD + 1) * workers * (_CALLERS if together else 1)


class CallRun:
    """All calls of one function; see ``mpfeed._roster.Run``.

    Args:
        crew: who makes them.
        together: whether calls may share a message.
    """

    def __init__(self, crew: Crew, *, together: bool) -> None:
        self.crew = crew
        self.number = crew.new_run()
        self._most = _MOST_CALLS if together else 1
        self._calls = 0
        self._waiting: deque[Call] = deque()
        self._took_s: deque[float] = deque(maxlen=_REMEMBERED)  # by a call of the latest messages
        self._heard_s = -math.inf  # when the latest answer came

    @property
    def waiting(self) -> int:
        """Calls that are not yet on their way."""
        return len(self._waiting)

    def make(self, arguments: Arguments) -> Call:
        """A new call, once it is answered.

        Raises:
            FeedClosed, FeedTimeout, MpfeedError: see ``Crew.wait_for_answer``.
        """
        return self.crew.wait_for_answer(lambda: self.ask(arguments), self.since)

    def ask(self, arguments: Arguments) -> Call:
        """A new call, on its way or next in turn. The lock is held.

        Raises:
            FeedClosed: the crew was closed.
        """
        if self.crew.closed:
            raise FeedClosed("the numpy_function was closed")
        self._calls += 1
        call = Call(self._calls, arguments)
        self._waiting.append(call)
        self._send_waiting()
        return call

    def since(self, call: Call) -> float:
        """From when on the wait for a call counts: not while others before it are answered."""
        return min(call.sent_s, self._heard_s)

    def _send_waiting(self) -> None:
        while self._waiting:
            worker = self.crew.roster.freest()
            if self.crew.roster.load(worker) >= (1 if self.crew.exact else AHEAD):
                return
            calls = deque(self._waiting.popleft() for _ in range(self._gathered()))
            self.crew.submit(self, Message(calls, len(calls)), worker)

    def _gathered(self) -> int:
        """How many of the calls that wait go into the next message."""
        if len(self._waiting) == 1 or not self._took_s:
            return 1
        call_s = sum(self._took_s) / len(self._took_s)
        quick = round(_MESSAGE_S / max(call_s, 1e-9))
        share = -(-len(self._waiting) // self.crew.workers)
        return max(1, min(quick, share, self._most))

    def request(self, number: int, unit: Message, worker: int, incarnation: int) -> Calls:
        """See ``Run.request``."""
        sent_s = time.monotonic()
        for call in unit.calls:
            call.sent_s = min(call.sent_s, sent_s)
        arguments = tuple(call.arguments for call in unit.calls if call.arguments is not None)
        return Calls(number, self.number, arguments, self.crew.traced)

    def receive(self, unit: Message, reply: Reply) -> None:
        """See ``Run.receive``: results and, after them, a failure answer the calls in their order."""
        self._heard_s = time.monotonic()
        for parcel in reply.payloads:
            assert isinstance(parcel, Parcel)
            self._answer(unit, parcel=parcel)
        if reply.failure is not None:
            self._answer(unit, error=error_of(reply.failure))
        if not reply.more:
            self._took_s.append(reply.busy_s / unit.count)
            self._send_waiting()

    def _answer(self, unit: Message, *, parcel: Parcel | None = None, error: MpfeedError | None = None) -> None:
        call = unit.calls.popleft()
        call.arguments = None
        call.parcel, call.error = parcel, error
        self.crew.hand_over(call)

    def fail(self, unit: Message, error: MpfeedError) -> None:
        """See ``Run.fail``."""
        while unit.calls:
            self._answer(unit, error=error)
        self._send_waiting()

    def answered(self, unit: Message) -> bool:
        """See ``Run.answered``."""
        return not unit.calls

    def position(self, unit: Message) -> Hashable:
        """See ``Run.position``: a call alone counts its own deaths, several cannot tell whose it was."""
        return unit.calls[0].number if unit.count == 1 else ("calls", unit.calls[0].number)

    def describe(self, unit: Message) -> str:
        """See ``Run.describe``."""
        first, last = unit.calls[0].number, unit.calls[-1].number
        return f"call {first}" if first == last else f"calls {first} to {last}"

    def holds(self, worker: int) -> bool:
        """See ``Run.holds``: any worker can make any call."""
        return False

    def resized(self) -> None:
        """See ``Run.resized``."""
        self._send_waiting()

    def retry(self, unit: Message) -> list[Message]:
        """See ``Run.retry``: one by one, so that the deadly call is found."""
        return [Message(deque([call]), 1) for call in unit.calls]

    def narrow(self, unit: Message, error: MpfeedError) -> list[Message]:
        """See ``Run.narrow``: of several calls, each by itself tells whether it was the deadly one."""
        return self.retry(unit) if unit.count > 1 else []

    def starves(self, unit: Message) -> bool:
        """See ``Run.starves``."""
        return True
