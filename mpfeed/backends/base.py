"""The contract of a backend, and the order in which a feed closes.

A backend starts workers, sends one a numbered request, reports replies and deaths as events, and stops. Which
request goes where and when, order, replay, read-ahead and seeding are decided above it, once for all backends.
A new backend is one module with a settings class (``Backend``), an engine (``Engine``) and a line in ``NAMES``.

THE CLOSE ORDER, cited where it is carried out:
 1. The crew is marked closed and its engine woken: every wait ends with ``FeedClosed``, new ones are refused.
 2. The engine closes each worker's requests. Workers close their iterators, leave ``worker_init``, and end.
 3. Workers that have not ended within GRACE_S are killed, with the processes they started.
 4. The engine gives back its descriptors. Memory that live arrays alias ends with the last of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mpfeed._layout import Bytes, Payload, unpack
from mpfeed._messages import Drop, Event, Parcel, Reply, Request
from mpfeed._opening import Opening
from mpfeed._producer import Settings, Work

GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What an engine needs to start workers.

    Attributes:
        work: what ``Backend.prepare`` made of the user's code.
        settings: the producers' options.
        workers: how many there may be.
        buffer: messages ready per worker.
        threads_per_worker: limit for BLAS, OpenMP and OpenCV.
        has_arguments: requests carry arrays (``Calls``).
        owns_memory: messages lie in memory of their own, which no source refills: a worker may go on while one is on
            its way.
    """

    work: Any
    settings: Settings
    workers: int
    buffer: int
    threads_per_worker: int
    has_arguments: bool = False
    owns_memory: bool = False


class Engine(Protocol):
    """A backend at work. The crew calls it under its lock, one thread at a time; but for ``wait`` and ``wake``."""

    may_lose: bool
    """Whether an answer may be lost with the process that gave it."""

    @property
    def room_bytes(self) -> int | None:
        """Bytes of messages that may be on their way at once; None where only their number is limited."""

    def start_worker(self, worker: int) -> None:
        """Begin to start a worker; ``Joined``, ``StartFailed`` or ``Died`` tells what became of it. Does not wait."""

    def send(self, worker: int, message: Request | Drop) -> None:
        """Hand a message to a worker, in order. Does not wait; a worker that is gone shows as ``Died``."""

    def wait(self, timeout_s: float | None) -> None:
        """Block until something may have happened, ``wake`` was called or the time is over.

        The crew's lock is not held, so other threads may call every other method meanwhile.
        """

    def events(self) -> list[Event]:
        """What has happened, oldest first. Does not wait."""

    def wake(self) -> None:
        """End a ``wait``, the present one or the next. Any thread, any time."""

    def retire_worker(self, worker: int) -> None:
        """End an idle worker; it reports nothing more. The index may be started again."""

    def stacks(self) -> dict[int, str]:
        """What each worker is doing: its Python stack as far as it can be had."""

    def stop(self) -> None:
        """Steps 2 to 4 of the close order. Idempotent."""


class Backend(Protocol):
    """A backend's settings, as the user gives them."""

    @property
    def name(self) -> str:
        """Its short name, as ``backend=`` takes it."""

    @property
    def remote(self) -> bool:
        """Whether user code runs outside the calling process."""

    def default_workers(self) -> int:
        """What ``workers="auto"`` means here."""

    def most_workers(self, workers: int) -> int:
        """How many there may be of a feed with ``workers="auto"`` that begins with so many."""

    def fit(self, workers: int, opening: Opening) -> int:
        """How many of so many workers can run now, at least 1; a warning where they are fewer.

        MpfeedError, after a while, where there is room for none. It waits with ``opening.pause``.
        What it starts for the engine, a method ``abandon()`` ends where none is opened; a backend may lack it.
        """

    def prepare(self, work: Work) -> Any:
        """Make the user's code ready to travel. TypeError, naming the part, where it cannot."""

    def freeze(self, value: Any) -> Any:
        """Data for a request, in the form in which workers take it. Any thread."""

    def open(self, plan: Plan) -> Engine:
        """Make an engine; no worker starts yet. MpfeedError where the platform or a package is missing."""


def deliver(reply: Reply, resolve: Callable[[Any], Bytes], crowded: Callable[[Parcel], bool] | None = None) -> Reply:
    """The reply with its payloads unpacked to read-only arrays that alias the regions ``resolve`` finds."""
    parcels = []
    for payload in reply.payloads:
        assert isinstance(payload, Payload)
        regions = [resolve(name) for name in payload.regions]
        arrays = unpack(payload, regions)
        nbytes = sum(region.nbytes for region in regions)
        nbytes += sum(len(one) for column in payload.texts for one in column)
        parcels.append(Parcel(payload.layout, arrays, payload.count, payload.stacked, nbytes, crowded))
    reply.payloads = tuple(parcels)
    return reply
