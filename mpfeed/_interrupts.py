"""Ctrl-C while TensorFlow's main thread waits for an element that this library has yet to produce.

Python runs signal handlers in the main thread between two instructions of its own. While that thread is inside
TensorFlow, waiting for a generator that runs in another thread, there are none, so Ctrl-C would be held back until
the element arrives. The C-level handler, however, writes each signal to the wake-up descriptor at once: here it ends
the wait of the other thread, TensorFlow returns, and Python raises the pending KeyboardInterrupt.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from typing import Any

from mpfeed._errors import MpfeedError

# A main thread that has not moved for so long after SIGINT is held inside foreign code.
_HELD_S = 0.25


class Interrupted(MpfeedError):
    """Ctrl-C came while an element was awaited; the main thread raises KeyboardInterrupt."""


class _Wakeup:
    """The wake-up descriptor of this process, installed from the main thread when it is free."""

    def __init__(self) -> None:
        self._read = self._write = -1
        self._lock = threading.Lock()
        self._crews: weakref.WeakSet[Any] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    @property
    def installed(self) -> bool:
        """Whether the descriptor is this library's."""
        return self._read >= 0

    def install(self) -> None:
        """Take the descriptor, once; another user's (an event loop's) is left alone."""
        if self._read >= 0 or threading.current_thread() is not threading.main_thread():
            return
        read, write = os.pipe()
        os.set_blocking(write, False)
        other = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if other != -1:
            signal.set_wakeup_fd(other)
            os.close(read)
            os.close(write)
            return
        self._read, self._write = read, write
        self._thread = threading.Thread(target=self._listen, name="mpfeed-signals", daemon=True)
        self._thread.start()

    def watch(self, crew: Any) -> None:
        """Interrupt this crew's waits."""
        with self._lock:
            self._crews.add(crew)

    def _listen(self) -> None:
        while data := os.read(self._read, 64):
            # Another handler than Python's own may mean to go on.
            ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            if ours and signal.SIGINT in data and _main_is_held():
                with self._lock:
                    crews = list(self._crews)
                for crew in crews:
                    crew.interrupt()


def _main_is_held() -> bool:
    """Whether the main thread stays at one instruction: a handler that could run would have moved it."""
    before = _main_place()
    deadline = time.monotonic() + _HELD_S
    while time.monotonic() < deadline:
        time.sleep(_HELD_S / 10)
        if _main_place() != before:
            return False
    return True


def _main_place() -> tuple[int, int] | None:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return None if frame is None else (id(frame), frame.f_lasti)


_wakeup = _Wakeup()


def install() -> None:
    """See ``_Wakeup.install``."""
    _wakeup.install()


def watch(crew: Any) -> None:
    """Let Ctrl-C end this crew's waits while the main thread cannot run its handler, once ``install`` was called."""
    _wakeup.watch(crew)


def _forget_in_child() -> None:
    """A fork shares the pipe: the child's signals are not this process's."""
    if _wakeup.installed:
        signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
