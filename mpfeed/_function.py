"""``numpy_function``: what ``tf.numpy_function`` does, in the workers of a backend.

Threads of TensorFlow that wait for their results drive the crew in turn; none of them holds the GIL meanwhile.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from mpfeed import _seed
from mpfeed._call_run import CallRun, useful_callers
from mpfeed._counters import Counters, label
from mpfeed._cpus import usable_cpus
from mpfeed._crew import Crew
from mpfeed._errors import FeedClosed, MpfeedError
from mpfeed._interrupts import Interrupted
from mpfeed._leaves import leaves_of
from mpfeed._leaving import calls
from mpfeed._messages import Arguments
from mpfeed._opening import Opening
from mpfeed._options import BackendName, Options, backend_of, worker_count
from mpfeed._producer import Settings, Work
from mpfeed._source import CallSource, check_call, name_of, takes_rng
from mpfeed._spec import Signature
from mpfeed._stats import FeedStats
from mpfeed._structure import flatten
from mpfeed._verdict import judge_calls
from mpfeed.backends.base import Backend, Plan

if TYPE_CHECKING:
    import tensorflow as tf


class NumpyFunction:
    """A function of tensors that runs in worker processes or actors; made by ``numpy_function``.

    Use it as ``ds.map(f, num_parallel_calls=tf.data.AUTOTUNE).with_options(f.options())``, in ``with`` or with
    ``close()``; when it is collected, its workers end.

    Attributes:
        name: of the function.
        takes_rng: whether calls have one more last argument, an integer that seeds it.
        workers: how many workers there are: the least useful ``num_parallel_calls``.
    """

    def __init__(self, source: CallSource, output_signature: Any, options: Options, seed: int) -> None:
        from mpfeed import _tf

        self._backend: Backend = backend_of(options.backend)
        self._work = self._backend.prepare(Work(source, None, options.worker_init))
        self._options = options
        self._seed = seed
        self.name = name_of(source.function)
        self._function = source.function
        self.takes_rng = source.takes_rng
        self._specs, self._signature = _tf.declared(output_signature)
        self._counters = Counters(label(self._backend), options.buffer)
        self._lock = threading.Lock()
        self._run: CallRun | None = None
        self._closed = False
        self._refused: tuple[float, type[MpfeedError], str] | None = None  # when there was no room for a worker
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self.workers = worker_count(options.workers, self._backend)
        # Deaths and tasks are counted exactly: where few may be, each call is a message of its own.
        exact = options.max_restarts == 0 or options.max_tasks_per_worker is not None
        self._together = self._backend.remote and not exact

    def __call__(self, *arguments: Any) -> Any:
        """The result for some tensors, of ``output_signature``'s structure, shapes and dtypes.

        Arguments may be structures; ``fn`` gets the same structures of NumPy arrays, as ``tf.numpy_function`` would
        hand them over (strings as bytes).

        Raises:
            TypeError: ``fn`` takes another number of arguments, or the one that seeds its ``rng`` is no integer.
        """
        from mpfeed import _tf

        return _tf.traced_call(self, arguments)

    def call(self, arguments: tuple[Any, ...]) -> list[Any]:
        """The leaves of the result for some positional arguments, structures of arrays; waits for it.

        Raises:
            WorkerError, WorkerDied, FeedTimeout, SignatureError, FeedClosed.
        """
        values, treespec = flatten(arguments)
        leaves_of(values, treespec)  # refused here, before anything is on its way
        return self.answer(Arguments(values, treespec))

    def answer(self, arguments: Arguments) -> list[Any]:
        """See ``call``."""
        run = self._run or self._opened()
        call = run.make(arguments)
        parcel = call.result()
        arrays = self._signature.conform(parcel, call.number)
        copies = parcel.crowded is not None and parcel.crowded(parcel)
        with self._lock:
            self._counters.elements += 1
            self._counters.nbytes += parcel.nbytes
            self._counters.copied_held += copies
        return [array.copy() for array in arrays] if copies else arrays

    def options(self) -> tf.data.Options:
        """Threads for tf.data, which are one a CPU otherwise: a call keeps one until it is answered.

        With fewer, tf.data asks for too little at once, and workers idle while a result is on its way. The option
        holds for the whole dataset that ``with_options`` is called on. A thread that waits takes neither CPU nor GIL.
        """
        from mpfeed import _tf

        return _tf.options(useful_callers(self.workers, together=self._together) + usable_cpus())

    def check(self, arguments: tuple[Any, ...]) -> None:
        """TypeError unless the function can be called with these."""
        check_call(self._function, len(arguments))

    @property
    def signature(self) -> Signature:
        """What every result must look like."""
        return self._signature

    @property
    def specs(self) -> Any:
        """``output_signature`` with tuples for lists."""
        return self._specs

    @property
    def waiting(self) -> int:
        """Calls that wait for a worker to have room for them."""
        return 0 if self._run is None else self._run.waiting

    def _opened(self) -> CallRun:
        asked_s = time.monotonic()
        with self._lock:
            if self._refused is not None and asked_s < self._refused[0]:  # calls that waited beside the refused one
                _, kind, text = self._refused
                raise kind(text)
            if self._run is None and not self._closed:
                workers = self._fit()
                settings = Settings(workers, None, self._seed)
                o = self._options
                plan = Plan(self._work, settings, workers, o.buffer, o.threads_per_worker, has_arguments=True)
                crew = Crew(self._backend, plan, o.max_restarts, o.max_tasks_per_worker, o.timeout)
                self._run = CallRun(crew, together=self._together)
                self._finalizer = weakref.finalize(self, crew.close)
                calls.end_with(self, self._finalizer)
            if self._closed or self._run is None:
                if self._run is not None:  # closed meanwhile, perhaps by a thread that saw no crew
                    self._run.crew.close()
                raise FeedClosed("the numpy_function was closed")
            return self._run

    def _fit(self) -> int:
        """How many workers there is room for."""
        try:
            return self._backend.fit(self.workers, Opening(lambda: self._closed, self._options.timeout))
        except (FeedClosed, Interrupted):
            raise
        except MpfeedError as error:
            self._refused = time.monotonic(), type(error), str(error)
            raise

    def stats(self) -> FeedStats:
        """What the function has seen of itself so far: ``elements`` are calls."""
        run = self._run
        stats = self._counters.snapshot(run.crew.roster.counts() if run is not None else [])
        return replace(stats, verdict=judge_calls(stats))

    def close(self) -> None:
        """Stop the workers; calls raise ``FeedClosed``. Idempotent, from any thread."""
        self._closed = True
        if self._run is not None:
            self._run.crew.close()

    def __enter__(self) -> NumpyFunction:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<mpfeed.numpy_function of {self.name} on {self._backend.name}>"


def numpy_function(  # noqa: PLR0913 (the options a feed has, by the names it has)
    fn: Callable[..., Any],
    output_signature: Any,
    *,
    workers: int | Literal["auto"] = "auto",
    backend: BackendName | Backend = "process",
    seed: int | None = 0,
    timeout: float | None = None,
    max_restarts: int = 3,
    worker_init: Callable[[], Any] | None = None,
    threads_per_worker: int = 1,
    max_tasks_per_worker: int | None = None,
) -> NumpyFunction:
    """A callable for ``Dataset.map`` that runs ``fn`` past the GIL, in workers.

    Args:
        fn: called with NumPy arrays, as ``tf.numpy_function`` hands them over; returns the structure of
            ``output_signature``. Where it has a parameter ``rng``, the callable takes one more last argument, an
            integer tensor (from ``Dataset.random`` or ``enumerate``), and rng is seeded by (seed, that tensor).
        output_signature: structure of ``tf.TensorSpec``.
        workers: how many, or "auto": one a usable CPU (in-process: one). See ``FeedOptions`` for all that follow.
        backend: where they run.
        seed: of all random numbers. Without a parameter ``rng`` it seeds ``random``, ``np.random`` and OpenCV's
            generator once in each worker (in-process: for each call), so that none repeats another; which call gets
            which number depends on the workers' speed.
        timeout: longest wait for one call in seconds, start of the workers included. Calls that wait for their turn
            do not count it while others are answered.
        max_restarts: deaths of workers on one call that are made good.
        worker_init: called without arguments in each worker.
        threads_per_worker: limit for BLAS, OpenMP and OpenCV in a worker.
        max_tasks_per_worker: a worker is replaced after this many calls.

    Raises:
        TypeError, ValueError: a bad argument, or a function that cannot travel to a worker.
        ImportError: TensorFlow is missing.
    """
    if not callable(fn):
        raise TypeError(f"numpy_function needs a function, not {type(fn).__name__}")
    given: Any = {
        "workers": workers, "backend": backend, "seed": seed, "timeout": timeout, "max_restarts": max_restarts,
        "worker_init": worker_init, "threads_per_worker": threads_per_worker,
        "max_tasks_per_worker": max_tasks_per_worker,
    }  # fmt: skip
    options = Options.of(given, "numpy_function")
    chosen = _seed.draw_seed() if seed is None else seed
    return NumpyFunction(CallSource(fn, takes_rng(fn)), output_signature, options, chosen)
