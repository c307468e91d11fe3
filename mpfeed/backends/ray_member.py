"""One actor as its engine knows it, and what its calls came to."""

from __future__ import annotations

import itertools
import re
import time
from collections import deque
from typing import Any

from mpfeed.backends.ray_session import OVERLAPPING

# Characters of an error of Ray's that a message takes.
_WORDS = 800
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # colours, and underlines of a traceback


class ActorMember:
    """One actor."""

    def __init__(self, worker: int, actor: Any, patience_s: float, haven: str | None, *, overlaps: bool) -> None:
        self.worker = worker
        self.actor = actor
        self.started_s = time.monotonic()
        self.patience_s = patience_s  # how long it may be waited for while it has no process
        self.haven = haven  # the node it was sent to, where that was not left to Ray
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
        self._numbers = itertools.count()
        group = {"concurrency_group": OVERLAPPING} if overlaps else {}
        self._answer = actor.answer.options(**group)
        self._more = actor.more.options(**group)

    def ask(self, request: bytes | None) -> Any:
        """A call for the next reply, which hands in a request, if there is one."""
        number = next(self._numbers)
        return self._more.remote(number) if request is None else self._answer.remote(number, request)

    def errors(self) -> list[BaseException]:
        """What those of its calls came to that failed, in their order."""
        futures = [*(future for _, future in self.calls), self.presence]
        return [error for future in futures if future.done() and (error := future.exception())]


def shortened(text: str) -> str:
    """Ray's words in one line: what it says first, and the end of a traceback, where the cause is."""
    words = " ".join(_ESCAPES.sub("", text).split())
    return words if len(words) <= _WORDS else f"{words[: _WORDS // 2]} ... {words[-_WORDS // 2 :]}"
