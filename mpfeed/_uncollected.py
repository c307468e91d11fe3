"""A lock whose holders are not made to collect garbage.

Whatever is in a cycle is freed by whichever thread allocates next. Freeing an iterator of tf.data's waits until its
calls of a ``numpy_function`` or a feed are over, and those need the crew's lock: a thread that came to free one while
it held that lock would wait for ever. So Python's collector pauses while any is held, which is for microseconds.
"""

from __future__ import annotations

import gc
import os
import threading


class _Pause:
    """Pauses the collector while anybody wants that; what the user switched off stays off."""

    def __init__(self) -> None:
        # Nothing here takes a lock: a collection may run in any line, and in it whatever comes back to here.
        self._wanted: list[None] = []
        self._ours = False

    def begin(self) -> None:
        self._wanted.append(None)
        if gc.isenabled():
            gc.disable()
            self._ours = True

    def end(self) -> None:
        if self._wanted:  # none in a fork by who held a lock
            self._wanted.pop()
        if self._ours and not self._wanted:
            self._ours = False
            gc.enable()
            if self._wanted:  # another thread began between the lines
                self._ours = True
                gc.disable()

    def forget(self) -> None:
        """In a fork: those who wanted it are threads of the parent."""
        self._wanted.clear()
        if self._ours:
            self._ours = False
            gc.enable()


_pause = _Pause()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pause.forget)


class UncollectedLock:
    """As ``threading.Lock``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See ``threading.Lock.acquire``."""
        _pause.begin()
        got = False
        try:
            got = self._lock.acquire(blocking, timeout)
        finally:
            if not got:
                _pause.end()
        return got

    def release(self) -> None:
        """See ``threading.Lock.release``."""
        self._lock.release()
        _pause.end()

    def locked(self) -> bool:
        """See ``threading.Lock.locked``."""
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
