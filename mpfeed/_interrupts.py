"""Ctrl-C while TensorFlow's main thread waits for an element that this library has yet to produce.

Python runs signal handlers in the main thread between two instructions of its own. While that thread is inside
TensorFlow, waiting for a generator that runs in another thread, there are none, so Ctrl-C would be held back until
the element arrives. The C-level handler, however, writes each signal to the wake-up descriptor at once: a thread
that reads it ends the wait of the other thread, TensorFlow returns, and Python raises KeyboardInterrupt.

TensorFlow then turns the end of the wait into an exception, by calls into Python. A KeyboardInterrupt raised in one
of them would come out as a RuntimeError of pybind11's, so the handler puts it off until TensorFlow has returned.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
import weakref
from types import FrameType
from typing import Any, Protocol

from mpfeed._errors import MpfeedError

# A main thread that has run no Python for so long after SIGINT is held inside foreign code.
_HELD_S = 0.25
# So long after KeyboardInterrupt was raised, what holds the main thread may be the way out.
_UNWINDING_S = 5.0


class Interruptible(Protocol):
    """Waits that can be ended; ``begun_s`` tells when each of them began, by ``time.monotonic``."""

    begun_s: list[float]

    def interrupt(self, until_s: float, *, unheard: bool) -> None:
        """End the waits that began by then with ``Interrupted``. Any thread."""


class Interrupted(MpfeedError):
    """Ctrl-C came while an element was awaited; the main thread raises KeyboardInterrupt.

    Attributes:
        unheard: the main thread is inside TensorFlow and this is the only wait there is, or it is leaving the dataset:
            KeyboardInterrupt takes the place of whatever comes of this.
    """

    def __init__(self, *, unheard: bool) -> None:
        super().__init__("Ctrl-C came while an element was awaited")
        self.unheard = unheard


class _Wakeup:
    """The wake-up descriptor of this process and the handler of SIGINT, installed when they are free."""

    def __init__(self) -> None:
        # ctypes frees a callback with its object, and the interpreter may call it late, also in a fork.
        self._note_run = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._main_runs)
        self._begin()

    def _begin(self) -> None:
        self._read = self._write = -1
        self._lock = threading.Lock()
        self._watched: weakref.WeakSet[Interruptible] = weakref.WeakSet()
        self._ran = threading.Event()
        # What the main thread was executing when waits were ended for it.
        self.held: FrameType | None = None

    def renew(self) -> None:
        """In a fork: its signals are not those of the process that reads the pipe, nor are the waits its own."""
        if self.installed:
            signal.set_wakeup_fd(-1)
            for fd in (self._read, self._write):
                with contextlib.suppress(OSError):  # closed by the program, as a daemon does
                    os.close(fd)
        self._begin()

    @property
    def installed(self) -> bool:
        """Whether the descriptor was ever this library's in this process."""
        return self._read >= 0

    def install(self) -> None:
        """Take the descriptor and the handler; others' (an event loop's, the user's own) are left alone."""
        if threading.current_thread() is not threading.main_thread():
            return
        if not self.installed:
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            threading.Thread(target=self._listen, name="mpfeed-signals", daemon=True).start()
        other = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if other not in (-1, self._write):
            signal.set_wakeup_fd(other)
        elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _raise_when_tensorflow_returned)

    def watch(self, waits: Interruptible) -> None:
        """Interrupt these."""
        with self._lock:
            self._watched.add(waits)

    def _listen(self) -> None:
        while data := os.read(self._read, 64):
            # Another handler than Python's own may mean to go on.
            if signal.SIGINT in data and signal.getsignal(signal.SIGINT) in _RAISING:
                self._until_handled()
                self._while_unwinding()

    def _until_handled(self) -> None:
        """End waits until the main thread has come to its handler; the one it is held by may only be about to begin."""
        while not self._main_is_free():
            frame = _main_frame()
            if signal.getsignal(signal.SIGINT) is _raise_when_tensorflow_returned:  # which lets go of it
                self.held = frame
            unheard = _in_tensorflow(frame) and len(self._all_waits()) == 1
            for waits in self._all_watched():
                waits.interrupt(time.monotonic(), unheard=unheard)

    def _while_unwinding(self) -> None:
        """End waits where the main thread is held once more: leaving a dataset waits for its generator."""
        handled = time.monotonic()
        while time.monotonic() < handled + _UNWINDING_S:
            free = self._main_is_free()
            if select.select([self._read], [], [], _HELD_S if free else 0)[0]:
                return  # the next Ctrl-C
            if free:
                continue
            begun_s = self._all_waits()
            reads_on = _in_tensorflow(_main_frame())  # what is being left is in the hands of other code
            until = handled if reads_on else time.monotonic()
            unheard = not reads_on and len(begun_s) == 1 and begun_s[0] <= handled + _HELD_S
            for waits in self._all_watched():
                waits.interrupt(until, unheard=unheard)

    def _all_waits(self) -> list[float]:
        return [start for waits in self._all_watched() for start in list(waits.begun_s)]

    def _all_watched(self) -> list[Interruptible]:
        with self._lock:
            return list(self._watched)

    def _main_is_free(self) -> bool:
        """Whether the main thread runs Python: it takes a call where it could have run a handler, and after it."""
        self._ran.clear()
        ctypes.pythonapi.Py_AddPendingCall(self._note_run, None)
        return self._ran.wait(_HELD_S)

    def _main_runs(self, _: Any) -> int:
        self._ran.set()
        return 0


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _in_tensorflow(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_globals.get("__name__", "").startswith("tensorflow.")


def _raise_when_tensorflow_returned(number: int, frame: FrameType | None) -> None:
    """Python's own handler of SIGINT, but for frames in which the exception would be lost.

    These are calls that foreign code makes on its way back to the held frame, and ``__del__``, which ignores it.
    """
    held, _wakeup.held = _wakeup.held, None
    target, inner = None, frame
    while inner is not None:
        if inner is held and inner is not frame:
            target = inner
        if inner.f_code.co_name == "__del__":
            target = inner.f_back
        inner = inner.f_back
    if target is None:
        signal.default_int_handler(number, frame)
    else:
        _raise_in(target)


def _raise_in(target: FrameType) -> None:
    """Raise KeyboardInterrupt as soon as this frame goes on: a trace function may raise where no handler runs."""
    trace = sys.gettrace()

    def on_return(frame: FrameType, event: str, argument: Any) -> None:
        target.f_trace = None
        sys.settrace(trace)
        raise KeyboardInterrupt from None

    target.f_trace = on_return
    sys.settrace(lambda *_: None)


_wakeup = _Wakeup()
_RAISING = (signal.default_int_handler, _raise_when_tensorflow_returned)


def install() -> None:
    """See ``_Wakeup.install``."""
    _wakeup.install()


def watch(waits: Interruptible) -> None:
    """Let Ctrl-C end these while the main thread cannot run its handler, once ``install`` was called."""
    _wakeup.watch(waits)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_wakeup.renew)
