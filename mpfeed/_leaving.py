"""TensorFlow's threads leave Python before the interpreter is torn down.

A thread that asks for the GIL after that never returns, and an iterator that a module's global kept alive waits for
ever, when it is freed, for its prefetching thread. So at exit the feeds are closed first, which ends every wait, and
the interpreter goes on once no thread of TensorFlow calls any more: each is then parked at a full buffer, or over.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from typing import Any

# A thread that was going to call again has done so within this time, unless it was not given a core for so long.
_QUIET_S = 0.05
# A large buffer is filled with errors first, and user code in an in-process worker may not return any sooner; but the
# exit does not wait for ever.
_LONGEST_S = 30.0


class _Calls:
    """TensorFlow's calls of this library: ``with calls:`` around each."""

    def __init__(self) -> None:
        self._inside: set[int] = set()
        self._count = 0
        self._installed = False
        self._finalizers: weakref.WeakKeyDictionary[Any, weakref.finalize[Any, Any]] = weakref.WeakKeyDictionary()

    def __enter__(self) -> None:
        self._count += 1
        self._inside.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self._inside.discard(threading.get_ident())

    def end_with(self, owner: Any, finalizer: weakref.finalize[Any, Any]) -> None:
        """Have a feed or function end its waits by this finalizer before TensorFlow's threads are awaited."""
        self._finalizers[owner] = finalizer

    def install(self) -> None:
        """Await the threads at exit, before whatever was registered until now."""
        if not self._installed:
            self._installed = True
            atexit.register(self._leave)

    def _leave(self) -> None:
        if not self._count:
            return
        for finalizer in list(self._finalizers.values()):
            finalizer()
        deadline = time.monotonic() + _LONGEST_S
        quiet = False
        while not quiet and time.monotonic() < deadline:
            seen = self._count
            time.sleep(_QUIET_S)
            quiet = not self._inside and self._count == seen


calls = _Calls()
