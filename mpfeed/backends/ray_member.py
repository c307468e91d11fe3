"""One actor as its engine knows it, and what its calls came to."""

from __future__ import annotations

import itertools
import pickle
import re
import time
from collections import deque
from typing import Any

from mpfeed._layout import Bytes
from mpfeed._messages import Calls, Parcel, Reply, Request
from mpfeed.backends.arguments import Packer
from mpfeed.backends.base import deliver
from mpfeed.backends.layouts import SeenLayouts
from mpfeed.backends.ray_loans import Loans
from mpfeed.backends.ray_memory import Offer
from mpfeed.backends.ray_session import OVERLAPPING
from mpfeed.backends.worker_memory import WorkerMemory

# Characters of an error of Ray's that a message takes.
_WORDS = 800
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # colours, and underlines of a traceback


class ActorMember:
    """One actor.

    Args:
        worker: its index.
        actor: Ray's handle.
        patience_s: how long it may be waited for while it has no process.
        haven: the node it was sent to, where that was not left to Ray.
        offer: of shared memory, or None.
        overlaps: its messages own their memory, wherever they lie.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what an engine knows of an actor as it starts it
        self, worker: int, actor: Any, patience_s: float, haven: str | None, offer: Offer | None, overlaps: bool
    ) -> None:
        self.worker = worker
        self.actor = actor
        self.started_s = time.monotonic()
        self.patience_s = patience_s
        self.haven = haven
        self.pid: int | None = None  # once there is a process
        self.joined = False
        self.node = ""
        self.host = ""
        self.leaving = False
        self.calls: deque[tuple[str, Any]] = deque()  # unanswered, in the order they were made
        self.presence: Any = None  # a call that is never answered, and fails when its process ends, also an idle one
        self.awaited_s: float | None = None  # since when somebody waits for it
        self.failed_s: float | None = None  # since when one of its calls has failed
        self.asked_about = False  # ... and its node was asked whether it is there
        self.memory: WorkerMemory | None = None  # once it has said that it shares it
        self._packer: Packer | None = None
        self._offer = offer
        self._layouts = SeenLayouts()
        self._numbers = itertools.count()
        self._choose_group(overlaps)

    def _choose_group(self, overlaps: bool) -> None:
        group = {"concurrency_group": OVERLAPPING} if overlaps else {}
        self._answer = self.actor.answer.options(**group)
        self._more = self.actor.more.options(**group)

    def greeted(self, pid: int, node: str, host: str, shares: bool) -> None:
        """It has said where it is, and whether it shares the memory that it was offered.

        OSError, ValueError where this process cannot map it: all that the actor makes is lost.
        """
        self.pid, self.node, self.host = pid, node, host
        offer, self._offer = self._offer, None
        if offer is None:
            return
        if not shares:
            offer.close()
        else:
            self.memory, self._packer = offer.mapped()
            # What it was given before runs in the other group: its calls are numbered, and none waits for a later one.
            self._choose_group(True)

    def ask(self, request: Request | None) -> Any:
        """A call for the next reply, which hands in a request, if there is one."""
        if request is None:
            return self._more.remote(next(self._numbers))
        sent: Any = request
        if self._packer is not None and isinstance(request, Calls):
            sent = self._packer.pack(request)
        data = pickle.dumps(sent, pickle.HIGHEST_PROTOCOL)  # before it has a number, for which the actor would wait
        return self._answer.remote(next(self._numbers), data)

    def deliver(self, reply: Reply, stored: list[Bytes], loans: Loans) -> Reply:
        """A reply with its messages unpacked in place: of this actor's memory, or of what lay in the store."""
        self._layouts.resolve_all(reply)
        memory = self.memory
        if memory is None:
            return deliver(reply, lambda i: loans.lend(stored[i]), loans.crowded)

        def crowded(parcel: Parcel) -> bool:
            return memory.crowded(parcel) or loans.crowded(parcel)

        def resolve(name: Any) -> Bytes:
            region: Bytes = memory.resolve(name) if isinstance(name, tuple) else loans.lend(stored[name])
            return region

        return deliver(reply, resolve, crowded if stored else memory.crowded)

    def leave(self) -> None:
        """It is of the past, but for what the consumer holds of its memory. Idempotent."""
        offer, self._offer = self._offer, None
        if offer is not None:
            offer.close()
        memory, self.memory, self._packer = self.memory, None, None
        if memory is not None:
            memory.leave()

    def errors(self) -> list[BaseException]:
        """What those of its calls came to that failed, in their order."""
        futures = [*(future for _, future in self.calls), self.presence]
        return [error for future in futures if future.done() and (error := future.exception())]


def shortened(text: str) -> str:
    """Ray's words in one line: what it says first, and the end of a traceback, where the cause is."""
    words = " ".join(_ESCAPES.sub("", text).split())
    return words if len(words) <= _WORDS else f"{words[: _WORDS // 2]} ... {words[-_WORDS // 2 :]}"
