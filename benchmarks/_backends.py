"""The rows of a table by name, and how each is opened."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks import references
from benchmarks._job import Job, Workload
from benchmarks.references import Stream

BARE, BARE_PARALLEL, PLAIN = "bare", "bare/parallel", "plain"
# One thread to a worker, for rows whose own workers fill the cores, as OpenCV and the BLAS libraries advise.
# mpfeed does that itself, and in a single process their own threads are the user's gain.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"), "1")


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to get batches into the training loop.

    Attributes:
        label: how the table calls it; ``{workers}`` is filled in.
        open: a context that gives the stream of batches; it is timed up to the first batch.
        parallel: whether it uses the workers asked for, or one.
        tensors: whether TensorFlow takes part.
        trains: whether the loop has a training step; a bare loop has none.
        numbers: whether the batches themselves arrive, so that one that came twice is seen.
        environment: of the row's process, beside the caller's.
    """

    label: str
    open: Callable[[Workload, int], AbstractContextManager[Stream]]
    parallel: bool = True
    tensors: bool = True
    trains: bool = True
    numbers: bool = True
    environment: dict[str, str] | None = None

    def workers(self, asked: int) -> int:
        return asked if self.parallel else 1


def backend_of(job: Job) -> Backend:
    """How the job's row gets its batches."""
    backends: dict[str, Backend] = importlib.import_module(job.table).BACKENDS
    return backends[job.backend]


def _mpfeed(make: Callable[[], Any]) -> Callable[[Workload, int], AbstractContextManager[Stream]]:
    @contextmanager
    def open_feed(workload: Workload, workers: int) -> Iterator[Stream]:
        import mpfeed

        source = workload.source
        # A source that is not ours may end with a short batch: its signature leaves the batch size open.
        spec = None if workload.leaves else references.signature(workload)
        with mpfeed.from_generator(
            source.function, workers=workers, batch_size=source.batch_size, backend=make()
        ) as feed:
            yield feed.dataset(output_signature=spec)

    return open_feed


def _process(transport: str) -> Callable[[], Any]:
    def make() -> Any:
        import mpfeed

        return mpfeed.Process(transport=transport)  # type: ignore[arg-type]

    return make


BACKENDS: dict[str, Backend] = {
    BARE: Backend("bare loop", references.bare, parallel=False, tensors=False, trains=False, environment=ONE_THREAD),
    BARE_PARALLEL: Backend(
        "{workers} bare loops at once",
        references.bare_parallel,
        tensors=False,
        trains=False,
        numbers=False,
        environment=ONE_THREAD,
    ),
    PLAIN: Backend("tf.data from_generator", references.plain, parallel=False),
    "interleave": Backend("tf.data interleave, {workers} threads", references.interleave, environment=ONE_THREAD),
    "mp_queue": Backend("multiprocessing.Queue by hand", references.mp_queue, environment=ONE_THREAD),
    "ray_iter": Backend("ray.util.iter", references.ray_iter, environment=ONE_THREAD),
    "inprocess": Backend("mpfeed inprocess", _mpfeed(lambda: "inprocess"), parallel=False),
    "threads": Backend("mpfeed inprocess, {workers} threads", _mpfeed(lambda: "inprocess")),
    "process/queue": Backend("mpfeed process, queue", _mpfeed(_process("queue"))),
    "process/shared_memory": Backend("mpfeed process, shared_memory", _mpfeed(_process("shared_memory"))),
    "ray": Backend("mpfeed ray", _mpfeed(lambda: "ray")),
}
