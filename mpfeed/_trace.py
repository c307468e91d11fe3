"""``feed.trace(path)``: a timeline of the consumer and all workers, in the Trace Event format.

The format is Google's "Trace Event Format" (JSON object form), which https://ui.perfetto.dev and chrome://tracing open:
complete events (``ph`` "X", ``ts`` and ``dur`` in microseconds) and metadata (``ph`` "M") that names the tracks.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mpfeed._span import Stretch

log = logging.getLogger("mpfeed")
_MOST_EVENTS = 1_000_000  # 100 MB in memory, and as much in the file
_CONSUMER = 1  # pid of its track; worker w has _CONSUMER + 1 + w
_NOTES = 0  # a thread of it


class Trace:
    """A recording under way; see ``Feed.trace``. Use it in ``with``, or call ``close()``.

    Attributes:
        path: where it will be written.
        dropped: events beyond the million that are kept.
    """

    def __init__(self, path: str | os.PathLike[str], stop: Callable[[Trace], None]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.dropped = 0
        self._stop = stop
        self._records: list[tuple[int, int, str, Sequence[Stretch], float]] = []
        self._count = 0  # of stretches in them
        self._workers: dict[int, int | None] = {}  # the process of each, where it has one
        self._threads: dict[int, int] = {}
        self._closed = False
        self._lock = threading.Lock()
        with open(self.path, "w"):
            pass  # a path that cannot be written is told now

    # ------------------------------------------------------------------------------------ recording

    def add(self, pid: int, tid: int, category: str, stretches: Sequence[Stretch], shift_s: float = 0.0) -> None:
        """Record what happened on a track, on a clock that ``shift_s`` brings to this process's.

        The stretches are kept as they are, since training waits for this; the rest is done when they are written.
        """
        room = _MOST_EVENTS - self._count
        if len(stretches) > room:
            self.dropped += len(stretches) - room
            stretches = stretches[:room]
        self._count += len(stretches)
        self._records.append((pid, tid, category, stretches, shift_s))

    def waited(self, begun_s: float, now_s: float, left_s: float | None) -> None:
        """The consumer waited, and before that did something else."""
        thread = self._threads.setdefault(threading.get_ident(), len(self._threads) + 1)
        wait = ("wait", begun_s, now_s)
        self.add(_CONSUMER, thread, "consumer", (wait,) if left_s is None else (("step", left_s, begun_s), wait))

    def replied(self, worker: int, pid: int | None, spans: list[Stretch], shift_s: float, *, starved: bool) -> None:
        """A worker sent the spans of a message; the unnamed one is what it waited for: work (``starved``) or room."""
        self._workers[worker] = pid
        name, begun_s, ended_s = spans[0]
        if not name:
            waited = "wait for work" if starved else "wait for room"
            spans[:1] = [(waited, begun_s, ended_s)] if ended_s > begun_s else []
        self.add(_CONSUMER + 1 + worker, 1, "worker", spans, shift_s)

    def note(self, name: str) -> None:
        """Record something that takes no time, such as a decision."""
        now_s = time.perf_counter()
        self.add(_CONSUMER, _NOTES, "note", [(name, now_s, now_s)])

    # -------------------------------------------------------------------------------------- writing

    def close(self) -> None:
        """Stop recording and write the file. Idempotent, from any thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stop(self)
        if self.dropped:
            log.warning("the trace is full: %d events were dropped", self.dropped)
        with open(self.path, "w") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            file.write(",\n".join(map(_line, self._named())))
            file.write("\n]}\n")

    def _named(self) -> Iterator[dict[str, Any]]:
        """All events, and before them what names their tracks; times from the first of them on."""
        yield _meta("process_name", _CONSUMER, 0, f"consumer (pid {os.getpid()})")
        yield _meta("thread_name", _CONSUMER, _NOTES, "notes")
        for thread in self._threads.values():
            yield _meta("thread_name", _CONSUMER, thread, "waits and steps")
        for worker, pid in sorted(self._workers.items()):
            name = f"worker {worker}" if pid is None else f"worker {worker} (pid {pid})"
            yield _meta("process_name", _CONSUMER + 1 + worker, 0, name)
            yield _meta("thread_name", _CONSUMER + 1 + worker, 1, "messages")
        events = [
            (pid, tid, category, name, begun_s + shift_s, ended_s + shift_s)
            for pid, tid, category, stretches, shift_s in self._records
            for name, begun_s, ended_s in stretches
        ]
        zero_s = min((event[4] for event in events), default=0.0)
        # What contains another begins no later, and comes before it.
        for pid, tid, category, name, begun_s, ended_s in sorted(events, key=lambda e: (e[4], -e[5])):
            yield {
                "name": name, "cat": category, "ph": "X", "pid": pid, "tid": tid,
                "ts": round((begun_s - zero_s) * 1e6, 3), "dur": round(max(0.0, ended_s - begun_s) * 1e6, 3),
            }  # fmt: skip

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _meta(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _line(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))
