"""The process backend: worker processes that hand batches over in shared memory."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import select
import sys
import time
import warnings
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from mpfeed._cpus import most_local_workers, usable_cpus
from mpfeed._errors import MpfeedError
from mpfeed._messages import Arrived, Calls, Died, Drop, Event, Failure, Joined, Reply, Request, StartFailed
from mpfeed._opening import Opening
from mpfeed._producer import Work
from mpfeed._serialize import dump_source, freeze, loads
from mpfeed.backends import spawn
from mpfeed.backends.base import GRACE_S, Engine, Plan
from mpfeed.backends.worker import NeedRoom, Room
from mpfeed.backends.worker_process import WorkerProcess, stacks, words

# A consumer that has waited so long for a worker that waits for room will not make any.
_ROOM_S = 0.2


@dataclass(frozen=True, slots=True)
class Process:
    """Run the source in worker processes on this machine.

    Args:
        transport: "shared_memory": arrays travel in place, without a copy in this process. "queue": arrays are
            pickled through a pipe, as ``multiprocessing.Queue`` does; for comparison, and where shared memory fails.
        memory_limit: bytes of shared memory that all workers together may use, or None. The arguments of a
            ``numpy_function`` are not counted.

    Raises:
        ValueError: another transport, or a limit below 1.
        MpfeedError: on Windows.
    """

    transport: Literal["shared_memory", "queue"] = "shared_memory"
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        if sys.platform == "win32":
            raise MpfeedError('backend="process" is not supported on Windows: use backend="inprocess" or "ray", or WSL')
        if self.transport not in ("shared_memory", "queue"):
            raise ValueError(f'transport={self.transport!r}: choose "shared_memory" or "queue"')
        limit: Any = self.memory_limit
        if limit is not None:
            if not isinstance(limit, int) or isinstance(limit, bool):
                raise TypeError(f"memory_limit={self.memory_limit!r}: give a number of bytes, or None")
            if limit < 1:
                raise ValueError(f"memory_limit={self.memory_limit}: give a positive number of bytes, or None")

    @property
    def name(self) -> str:
        return "process"

    @property
    def remote(self) -> bool:
        return True

    def default_workers(self) -> int:
        return usable_cpus()

    def most_workers(self, workers: int) -> int:
        # A limit of memory is shared out among the workers when they start.
        return workers if self.memory_limit is not None else most_local_workers()

    def fit(self, workers: int, opening: Opening) -> int:
        return workers

    def prepare(self, work: Work) -> bytes:
        return dump_source({"source": work.source, "collate": work.collate, "worker_init": work.worker_init})

    def freeze(self, value: Any) -> bytes:
        return freeze(value)

    def open(self, plan: Plan) -> Engine:
        if self.transport == "shared_memory" and not hasattr(os, "memfd_create"):
            warnings.warn(
                "this platform has no memfd_create, so batches travel in an unlinked temporary file, which may be "
                'written to a disk: let TMPDIR name a folder in memory, or use Process(transport="queue")',
                RuntimeWarning,
                stacklevel=2,
            )
        return _Engine(plan, self)


class _Engine:
    may_lose = False
    room_bytes: int | None = None

    def __init__(self, plan: Plan, backend: Process) -> None:
        self._plan = plan
        self._backend = backend
        self._members: dict[int, WorkerProcess] = {}
        self._left: weakref.WeakSet[Any] = weakref.WeakSet()
        self._by_fd: dict[int, WorkerProcess] = {}
        self._poll = select.poll()
        self._woken_read, self._woken_write = _wake_pipe()
        self._poll.register(self._woken_read, select.POLLIN)
        self._events: deque[Event] = deque()
        self._roomy: deque[WorkerProcess] = deque()
        self._starved: list[WorkerProcess] = []
        self._ready: list[tuple[int, int]] = []

    # ------------------------------------------------------------------------------------ workers

    def start_worker(self, worker: int) -> None:
        try:
            shares = self._backend.transport == "shared_memory"
            limit = self._backend.memory_limit
            member = WorkerProcess(worker, self._plan, shares=shares, memory_limit=limit, left=self._left)
        except OSError as error:
            raise MpfeedError(_why_none(worker, error)) from error
        self._members[worker] = member
        for fd in (member.channel.fileno(), member.child.sentinel):
            if fd >= 0:
                self._by_fd[fd] = member
                self._poll.register(fd, select.POLLIN)
        self.wake()  # a poll that another thread is in does not know the new descriptors

    def send(self, worker: int, message: Request | Drop) -> None:
        if (member := self._members.get(worker)) is not None:
            self._send(member, message)

    def _send(self, member: WorkerProcess, message: Request | Drop | Room) -> None:
        sent: Any = message
        if isinstance(message, Calls) and member.packer is not None:
            sent = member.packer.pack(message)
        member.channel.send(pickle.dumps(sent, pickle.HIGHEST_PROTOCOL))
        self._watch_writes(member)

    def _watch_writes(self, member: WorkerProcess) -> None:
        wanted = select.POLLIN | (select.POLLOUT if member.channel.unsent else 0)
        if wanted != member.wanted:
            member.wanted = wanted
            self._poll.modify(member.channel.fileno(), wanted)
            self.wake()

    def retire_worker(self, worker: int) -> None:
        member = self._forget(worker)
        member.channel.close()
        spawn.end_all([member.child], GRACE_S)

    def _forget(self, worker: int) -> WorkerProcess:
        member = self._members.pop(worker)
        member.leave()
        for fd in (member.channel.fileno(), member.child.sentinel):
            if fd >= 0:
                del self._by_fd[fd]
                self._poll.unregister(fd)
        return member

    # ------------------------------------------------------------------------------------- events

    def wait(self, timeout_s: float | None) -> None:
        starving = [member for member in list(self._members.values()) if member.starves]
        if starving:
            timeout_s = _ROOM_S if timeout_s is None else min(timeout_s, _ROOM_S)
        begun = time.monotonic()
        ready = self._poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000))
        if starving and not ready and time.monotonic() - begun >= _ROOM_S:
            self._starved += starving
        self._ready += ready

    def events(self) -> list[Event]:
        ready, self._ready = self._ready, []
        starved, self._starved = self._starved, []
        for starving in starved:
            self._give_room(starving, none=True)
        touched: dict[int, tuple[WorkerProcess, bool]] = {}
        for fd, _ in ready:
            if fd == self._woken_read:
                self._woken()
            elif (member := self._by_fd.get(fd)) is not None:
                _, ended = touched.get(member.worker, (member, False))
                touched[member.worker] = member, ended or fd == member.child.sentinel
        for member, ended in touched.values():
            self._hear(member, ended)
        events = list(self._events)
        self._events.clear()
        return events

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # stopped in the meantime, or already full of wakes
            os.write(self._woken_write, b"\1" * 8)

    def _woken(self) -> None:
        _drain(self._woken_read)
        while self._roomy:
            self._give_room(self._roomy.popleft(), none=False)

    def _give_room(self, member: WorkerProcess, *, none: bool) -> None:
        memory = member.memory
        if self._members.get(member.worker) is member and member.starves and memory is not None:
            member.starves, memory.reader.returned = False, None
            member.returns_told = memory.reader.returns
            memory.tight |= none
            self._send(member, Room(none))

    def _hear(self, member: WorkerProcess, ended: bool) -> None:
        """Everything a worker has to say: first its replies to the last, then its end."""
        if member.channel.unsent:
            member.channel.flush()
        # The descriptor may have been another's when it was polled.
        ended = ended and member.child.reap(0) is not None
        for frame in member.channel.receive():
            self._take(member, loads(frame))
        while ended and not member.channel.ended:  # what it had sent before it ended lies in the socket
            frames = member.channel.receive()
            for frame in frames:
                self._take(member, loads(frame))
            if not frames:
                break
        if ended or member.channel.ended or member.heard:
            self._bury(member)  # also one that could not start: its place is free once that is known
        else:
            self._watch_writes(member)

    def _take(self, member: WorkerProcess, message: Any) -> None:
        match message:
            case Reply():
                self._events.append(Arrived(member.worker, member.deliver(message)))
            case Joined():
                member.joined = True
                self._events.append(message)
            case Failure():
                member.heard = True
                self._events.append(StartFailed(member.worker, message))
            case NeedRoom():
                self._make_room(member)

    def _make_room(self, member: WorkerProcess) -> None:
        """Tell a worker that waits for room as soon as a slot comes back."""
        assert member.memory is not None
        reader = member.memory.reader
        member.starves = True

        def returned() -> None:
            reader.returned = None
            self._roomy.append(member)
            self.wake()

        reader.returned = returned
        if reader.returns != member.returns_told:  # one came back before the worker's word was heard
            returned()

    def _bury(self, member: WorkerProcess) -> None:
        self._forget(member.worker)
        member.channel.close()
        code = member.child.reap(GRACE_S)
        spawn.end_all([member.child], 0)
        if not member.heard:
            self._events.append(Died(member.worker, words(code), member.child.pid, code))

    # --------------------------------------------------------------------------------------- end

    def stacks(self) -> dict[int, str]:
        return stacks(self._members.values())

    def stop(self) -> None:
        members = [self._forget(worker) for worker in list(self._members)]
        for member in members:  # step 2
            member.channel.close()
        spawn.end_all([member.child for member in members], GRACE_S)  # step 3
        if self._woken_read >= 0:  # step 4
            read, write = self._woken_read, self._woken_write
            self._woken_read = self._woken_write = -1
            self._poll.unregister(read)
            os.close(read)
            if write != read:
                os.close(write)


def _why_none(worker: int, error: OSError) -> str:
    text = f"worker {worker} could not be started: {error}"
    if error.errno == errno.EMFILE:
        text += ". Each worker takes 3 descriptors of this process: raise `ulimit -n` or use fewer workers"
    return text


def _wake_pipe() -> tuple[int, int]:
    if hasattr(os, "eventfd"):
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return fd, fd
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(fd, 8)
