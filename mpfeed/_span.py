"""``mpfeed.span``: names a stretch of the user's code, for traces and the TensorFlow profiler."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

# (name, begun, ended) by ``time.perf_counter``
Stretch = tuple[str, float, float]
# A message of many quick samples must not carry more names than data.
MOST_A_MESSAGE = 1024


class _Here(threading.local):
    spans: list[Stretch] | None = None


_here = _Here()


def record(spans: list[Stretch] | None) -> None:
    """From now on the calling thread's spans go to that list; None: nowhere."""
    _here.spans = spans


def recorded() -> list[Stretch] | None:
    """Where the calling thread's spans go."""
    return _here.spans


def add(name: str, begun_s: float, ended_s: float) -> None:
    """Record a stretch that is over."""
    spans = _here.spans
    if spans is not None and len(spans) < MOST_A_MESSAGE:
        spans.append((name, begun_s, ended_s))


class _Span:
    """A stretch in the making."""

    __slots__ = ("_annotation", "_begun_s", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._annotation: Any = None

    def __enter__(self) -> None:
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is not None and hasattr(tensorflow, "profiler"):  # it may be half imported
            self._annotation = tensorflow.profiler.experimental.Trace(self._name)
            self._annotation.__enter__()
        self._begun_s = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        add(self._name, self._begun_s, time.perf_counter())
        if self._annotation is not None:
            self._annotation.__exit__(*exc)


def span(name: str) -> _Span:
    """Name what the code inside ``with`` does, so that a trace tells it apart: ``with mpfeed.span("decode"): ...``.

    In a source, ``collate`` or a function of ``numpy_function`` it appears in ``feed.trace(path)``; in the training
    process also in TensorFlow's profiler. It takes under 1 µs, whether anyone listens or not.

    Args:
        name: of the stretch; those of one name should be of one kind.
    """
    return _Span(name)
