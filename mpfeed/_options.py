"""The options all feeds share, checked before any worker starts."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict

from mpfeed import _seed
from mpfeed._collate import collate_padded
from mpfeed.backends.base import Backend
from mpfeed.backends.in_process import InProcess
from mpfeed.backends.processes import Process
from mpfeed.backends.ray_actors import Ray

BackendName = Literal["inprocess", "process", "ray"]
NAMES: dict[str, Callable[[], Backend]] = {"inprocess": InProcess, "process": Process, "ray": Ray}


class FeedOptions(TypedDict, total=False):
    """Keyword options of ``from_generator`` and ``from_map``; each is explained in the README's table.

    Attributes:
        workers: how many, or "auto": one a usable CPU (in-process: one) to begin with, then more while that helps and
            fewer where they only wait.
        backend: "inprocess", "process", "ray", or an instance of InProcess, Process or Ray.
        batch_size: samples a batch; None delivers elements as the source makes them.
        drop_remainder: drop the epoch's last batch if it is short.
        collate: makes a batch of a list of samples; the default stacks them along a new first axis.
        ordered: False delivers whatever is there first.
        seed: of all random numbers, or None to draw one and record it in the state.
        vary_epochs: False repeats epoch 0 at every iteration.
        epochs: how many will be iterated; nothing is made beyond. None: no limit.
        buffer: messages ready per worker.
        timeout: longest wait for an element in seconds, start of the workers included; then ``FeedTimeout`` says what
            every worker is doing. In-process, where a source cannot be ended, a longer wait is logged.
        max_restarts: deaths of workers at one position that are made good.
        worker_init: called without arguments in each worker; see ``mpfeed.worker``.
        threads_per_worker: limit for BLAS, OpenMP and OpenCV in a worker.
        max_tasks_per_worker: a worker is replaced after this many messages. A from_generator shard is run again up to
            where it was, so that what leaks in its own run leaks again: divide it into more ``shards``.
    """

    workers: int | Literal["auto"]
    backend: BackendName | Backend
    batch_size: int | None
    drop_remainder: bool
    collate: Callable[[list[Any]], Any] | None
    ordered: bool
    seed: int | None
    vary_epochs: bool
    epochs: int | None
    buffer: int
    timeout: float | None
    max_restarts: int
    worker_init: Callable[[], Any] | None
    threads_per_worker: int
    max_tasks_per_worker: int | None


@dataclass(frozen=True, slots=True)
class Options:
    """``FeedOptions`` with defaults, checked."""

    workers: int | Literal["auto"] = "auto"
    backend: BackendName | Backend = "process"
    batch_size: int | None = None
    drop_remainder: bool = False
    collate: Callable[[list[Any]], Any] | None = None
    ordered: bool = True
    seed: int | None = 0
    vary_epochs: bool = True
    epochs: int | None = None
    buffer: int = 2
    timeout: float | None = None
    max_restarts: int = 3
    worker_init: Callable[[], Any] | None = None
    threads_per_worker: int = 1
    max_tasks_per_worker: int | None = None

    @classmethod
    def of(cls, given: FeedOptions, call: str, *own: str) -> Options:
        """Options from keywords of ``call``, which has some ``own`` ones beside them.

        Raises:
            TypeError: an unknown name or a value of a wrong type.
            ValueError: a value out of range.
        """
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(f"{call} has no option {name!r}; it has {', '.join(sorted([*known, *own]))}")
        options = cls(**given)
        options._check()
        plain: dict[str, Any] = {name: _plain(value) for name, value in given.items()}
        return cls(**plain)

    def _check(self) -> None:
        if self.workers != "auto":
            _integer("workers", self.workers, 1, 'or "auto"')
        for name, least in (("buffer", 1), ("max_restarts", 0), ("threads_per_worker", 1)):
            _integer(name, getattr(self, name), least)
        for name, least in (("batch_size", 1), ("epochs", 1), ("max_tasks_per_worker", 1), ("seed", 0)):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), least, "or None")
        for name in ("drop_remainder", "ordered", "vary_epochs"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r}: give True or False")
        for name in ("collate", "worker_init"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(f"{name}={getattr(self, name)!r}: give a function, or None")
        if self.collate is collate_padded:
            raise TypeError(
                "collate=collate_padded: call it, collate=mpfeed.collate_padded(), or with the value to pad with"
            )
        if self.timeout is not None:
            _seconds(self.timeout)
        for name in ("collate", "drop_remainder"):
            if getattr(self, name) and self.batch_size is None:
                raise ValueError(
                    f"{name}= needs batch_size=: without it elements are delivered as the source makes them"
                )
        backend_of(self.backend)

    def drawn_seed(self) -> int:
        """The seed, drawn now where None was asked for."""
        return _seed.draw_seed() if self.seed is None else int(self.seed)


def _integer(name: str, value: Any, least: int, instead: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}={value!r}: give a whole number of at least {least}{' ' + instead if instead else ''}")
    if int(value) < least:
        raise ValueError(f"{name}={value}: give at least {least}{' ' + instead if instead else ''}")


def _plain(value: Any) -> Any:
    """A whole number of NumPy's as Python's: states are written as JSON."""
    return value if isinstance(value, bool) or not isinstance(value, numbers.Integral) else int(value)


def _seconds(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"timeout={value!r}: give seconds, or None")
    if not float(value) > 0:
        raise ValueError(f"timeout={value}: give more than 0 seconds, or None")


def backend_of(value: Any) -> Backend:
    """The backend for a name or an instance.

    Raises:
        ValueError: no backend has that name.
        TypeError: it is neither.
    """
    if isinstance(value, str):
        if value not in NAMES:
            raise ValueError(
                f"backend={value!r}: choose one of {', '.join(map(repr, sorted(NAMES)))}, or give an instance"
            )
        return NAMES[value]()
    if isinstance(value, type) or not hasattr(value, "prepare"):
        raise TypeError(f"backend={value!r}: give a name or an instance, such as mpfeed.Process()")
    return value  # type: ignore[no-any-return]


def worker_count(workers: int | str, backend: Backend) -> int:
    """How many workers are meant."""
    return backend.default_workers() if workers == "auto" else int(workers)
