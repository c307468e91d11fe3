"""TensorFlow's threads leave Python before the interpreter is torn down.

A thread that asks for the GIL after that never returns, and an iterator that a module's global kept alive waits for
ever, when it is freed, for its prefetching thread. So at exit the feeds are closed first, which ends every wait, and
the interpreter goes on once no thread of TensorFlow calls any more: each is then parked at a full buffer, or over.
"""

from __future__ import annotations

import atexit
import gc
import sys
import threading
import time
import weakref
from typing import Any

# A thread that was going to call again has done so within this time, unless it was not given a core for so long.
_QUIET_S = 0.05
# Where calls go on for so long, something swallows the errors (`ignore_errors`), and would for ever.
_SWALLOWED_S = 3.0
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
        if not self._quiet_within(_SWALLOWED_S):
            _drop_iterators()
            self._quiet_within(_LONGEST_S)

    def _quiet_within(self, longest_s: float) -> bool:
        """Whether no thread of TensorFlow calls any more before that time is over."""
        deadline = time.monotonic() + longest_s
        while time.monotonic() < deadline:
            seen = self._count
            time.sleep(_QUIET_S)
            if not self._inside and self._count == seen:
                return True
        return False


def _drop_iterators() -> None:
    """Cancel every iterator of TensorFlow's that is left, which waits for the calls that it is in."""
    module = sys.modules.get("tensorflow.python.data.ops.iterator_ops")
    kind = getattr(module, "OwnedIterator", ())
    for found in gc.get_objects():
        if issubclass(type(found), kind):  # unlike isinstance, it asks nothing of a proxy
            vars(found).pop("_iterator_resource", None)


calls = _Calls()
