"""The errors of mpfeed.

MpfeedError
├── WorkerError      the user's code raised in a worker (source, collate or worker_init)
├── WorkerDied       a worker process or actor vanished
├── FeedTimeout      no element within `timeout` seconds
├── SignatureError   an element does not have the promised structure, dtype or shape
├── FeedClosed       the feed was closed while, or before, it was read
├── ArenaFull        one element needs more shared memory than there may be
└── Interrupted      (in ``_interrupts``) Ctrl-C ended a wait in another thread than the main one

Bad arguments are plain ``ValueError`` and ``TypeError``, raised before any worker starts.
"""

from __future__ import annotations


class MpfeedError(Exception):
    """Base of every error mpfeed raises about a running feed."""


class WorkerError(MpfeedError):
    """The user's code raised an exception in a worker.

    The message holds the remote traceback; the original exception is ``__cause__`` where it could
    be brought back, else a ``RuntimeError`` with its type and text.

    Attributes:
        worker: index of the worker, or None where the calling process itself failed (reading ``items``).
        shard: index of the shard, or None for ``from_map`` and ``numpy_function``.
        index: ``from_map``: the item's own index. ``from_generator``: the number of the element within
            its shard. None where neither applies (``worker_init``, ``collate`` of several samples).
    """

    def __init__(
        self, message: str, *, worker: int | None = None, shard: int | None = None, index: int | None = None
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.shard = shard
        self.index = index


class WorkerDied(MpfeedError):
    """A worker vanished without a word: a signal, ``os._exit``, a crash in C code, a lost node.

    Attributes:
        worker: index of the worker.
        pid: process id, where known.
        exit_code: exit code, or the negated signal number, where known.
    """

    def __init__(
        self, message: str, *, worker: int | None = None, pid: int | None = None, exit_code: int | None = None
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.pid = pid
        self.exit_code = exit_code


class FeedTimeout(MpfeedError):
    """No element came within ``timeout`` seconds. The message says what every worker was doing."""


class SignatureError(MpfeedError):
    """An element cannot be a tensor, or differs from the declared or first element."""


class ArenaFull(MpfeedError):
    """``memory_limit``, or the number of slots, leaves no room for a message; users see it as an MpfeedError."""


class FeedClosed(MpfeedError):
    """The feed was closed; live iterators and datasets over it end with this error."""
