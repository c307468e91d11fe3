"""What user code can ask of the worker it runs in: ``mpfeed.worker()`` and ``mpfeed.empty()``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpfeed._layout import Allocator
from mpfeed._leaves import Array


@dataclass(frozen=True, slots=True)
class Worker:
    """The worker that runs the calling code.

    Attributes:
        index: which worker, ``0 <= index < count``.
        count: number of workers of the feed; with ``workers="auto"`` the most there may be.
        state: what ``worker_init`` returned, or what the context manager it returned gave on entering.
    """

    index: int
    count: int
    state: Any = None


class _Here(threading.local):
    worker: Worker | None = None
    allocator: Allocator | None = None


_here = _Here()


@contextmanager
def inside(worker: Worker, allocator: Allocator | None) -> Iterator[None]:
    """Within, the calling thread runs that worker's user code."""
    before = _here.worker, _here.allocator
    _here.worker, _here.allocator = worker, allocator
    try:
        yield
    finally:
        _here.worker, _here.allocator = before


def worker() -> Worker:
    """The worker this code runs in.

    Raises:
        RuntimeError: the caller is not user code of a feed (source, collate, worker_init).
    """
    if _here.worker is None:
        raise RuntimeError(
            "mpfeed.worker() was called outside a worker: only sources, collate and worker_init run in one"
        )
    return _here.worker


def empty(shape: int | tuple[int, ...], dtype: Any = np.float32) -> Array:
    """An uninitialised array; in a worker it already lies where the batch will travel from.

    Yield the array itself, whole, and as an element of its own (no ``batch_size``), and from 256 KiB on nothing is
    copied on the process backend, nor on Ray where the worker is on the consumer's node: it becomes read-only in the
    worker at that moment, so that a later write is an error there and never a changed element. A smaller one, a view
    of it, an array of which other views live, and a sample that is collated into a batch are copied like any other. A
    worker has 65,536 places for those that are kept and those on their way; where a source keeps them all, the next
    is an ``MpfeedError`` in a worker process, and an ordinary array on Ray. Outside a worker, on other nodes of Ray
    and in the in-process backend, this is ``numpy.empty``.

    Args:
        shape: of the array.
        dtype: of the array; object arrays are not supported in a worker's memory and come from NumPy.
    """
    if _here.allocator is None or np.dtype(dtype) == object:
        return np.empty(shape, dtype)
    return _here.allocator.empty(shape, dtype)
