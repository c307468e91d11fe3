"""The main loop of a worker process."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from dataclasses import dataclass
from typing import Any, NoReturn

from mpfeed import _seed
from mpfeed._layout import Allocator
from mpfeed._messages import Drop, Failure, Joined, Reply, Request
from mpfeed._producer import Producer, Settings, Work
from mpfeed._serialize import failure_of, loads
from mpfeed.backends.arguments import PackedCalls, Unpacker
from mpfeed.backends.environment import ALLOCATOR
from mpfeed.backends.layouts import SentLayouts
from mpfeed.transport.arena import Heap, Writer
from mpfeed.transport.channel import WorkerChannel

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


@dataclass(frozen=True, slots=True)
class Start:
    """The first frame to a worker."""

    work: bytes
    settings: Settings
    worker: int
    arguments: list[str]
    threads: int
    memory_limit: int | None


@dataclass(frozen=True, slots=True)
class Room:
    """Driver to worker: a slot came back while it was waiting for room, or ``none`` will: the consumer holds them."""

    none: bool = False


@dataclass(frozen=True, slots=True)
class NeedRoom:
    """Worker to driver: the memory limit is reached."""


def stack_signal() -> int:
    """The signal on which a worker writes its Python stacks: a real-time one, which libraries leave alone."""
    return int(getattr(signal, "SIGRTMAX", signal.SIGUSR2)) - (3 if hasattr(signal, "SIGRTMAX") else 0)


def _die_with_parent(parent: int) -> None:
    """The kernel kills this process when its parent dies, also while it is stuck in C."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the signal was armed
        os._exit(1)


def main(arguments: dict[str, Any]) -> NoReturn:
    """Run a worker until the driver closes its end of the channel.

    Args:
        arguments: descriptors of the channel, the arena, the calls' arguments (-1: none) and the stack dump; lengths
            of the arenas; pid of the parent.
    """
    _die_with_parent(arguments["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ALLOCATOR:  # for this process alone, not for what the source starts
        os.environ.pop(name, None)
    for fd in (arguments[name] for name in ("channel", "arena", "arguments", "stacks")):
        if fd >= 0:
            os.set_inheritable(fd, False)
    faulthandler.enable(all_threads=True)
    if arguments["stacks"] >= 0:
        faulthandler.register(stack_signal(), file=arguments["stacks"], all_threads=True, chain=False)
    channel = WorkerChannel(socket.socket(fileno=arguments["channel"]))
    frame = channel.receive()
    code = 0
    if frame is not None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the driver no longer listens
            code = _Loop(channel, pickle.loads(frame), arguments).run()
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End at once: threads of the user's must not hold the process back."""
    try:
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


class _Loop:
    """Reads requests, answers them in order."""

    def __init__(self, channel: WorkerChannel, start: Start, arguments: dict[str, Any]) -> None:
        self._channel = channel
        self._start = start
        self._socket = arguments["channel"]
        self._inbox: deque[Request | Drop] = deque()
        self._dropped: set[int] = set()
        self._rooms: deque[Room] = deque()
        self._ended = False
        self._sending = threading.RLock()
        self._layouts = SentLayouts()
        self._unpacker: Unpacker | None = None
        if arguments["arguments"] >= 0:
            self._unpacker = Unpacker(arguments["arguments"], arguments["arguments_length"])
        self._allocator: Allocator
        if arguments["arena"] >= 0:
            self._allocator = Writer(arguments["arena"], arguments["length"], start.memory_limit, self._wait_for_room)
        else:
            self._allocator = Heap(adopts=True)

    def run(self) -> int:
        """Until the driver goes; the exit code."""
        sys.argv = self._start.arguments
        producer: Producer | None = None

        def cv2_imported(cv2: Any) -> None:
            cv2.setNumThreads(self._start.threads)
            if producer is not None:
                producer.seed_cv2()

        _seed.watch_cv2(cv2_imported)
        try:
            work = Work(*loads(self._start.work))
            producer = Producer(
                work, self._start.settings, self._start.worker, self._allocator, remote=True, emit=self._reply
            )
            producer.open()
        except BaseException as error:
            where = "the source (unpickling it)" if producer is None else "worker_init"
            self._send(failure_of(error, where, remote=True))
            return 1
        gc.collect()
        gc.freeze()  # the source's own objects are here for good: later collections need not walk them
        try:
            # Answers that the driver left unread as it closed its end make an error of what is the end of the requests.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._send(Joined(self._start.worker, os.getpid()))
                self._serve(producer)
            producer.close()
        except BaseException:
            traceback.print_exc()
        return 0

    def _serve(self, producer: Producer) -> None:
        while (message := self._next()) is not None:
            if isinstance(message, Drop):
                producer.drop(message)
                self._dropped.discard(message.run)
            elif message.run not in self._dropped:
                self._reply(producer.handle(message))

    def _next(self) -> Request | Drop | None:
        """The next message. All that have come are looked at first, since a Drop makes earlier requests needless."""
        while not self._ended and (not self._inbox or self._readable()):
            self._receive()
        return self._inbox.popleft() if self._inbox and not self._ended else None

    def _readable(self) -> bool:
        return self._channel.buffered or bool(select.select([self._socket], [], [], 0)[0])

    def _receive(self) -> None:
        frame = self._channel.receive()
        if frame is None:
            self._ended = True
            return
        message = pickle.loads(frame)
        if isinstance(message, Room):
            self._rooms.append(message)
            return
        if isinstance(message, Drop):
            self._dropped.add(message.run)
        elif isinstance(message, PackedCalls):
            assert self._unpacker is not None
            message = self._unpacker.unpack(message)
        self._inbox.append(message)

    def _wait_for_room(self) -> bool:
        """Whether there will be none. SystemExit, out of the user's code, where the driver has gone meanwhile."""
        self._rooms.clear()
        try:
            if not self._ended:
                with self._sending:
                    self._send(NeedRoom())
            while not self._rooms and not self._ended:
                self._receive()
        except (BrokenPipeError, ConnectionResetError):  # it left something unread
            self._ended = True
        if self._ended:
            raise SystemExit("the feed was closed")
        return self._rooms.popleft().none

    def _reply(self, reply: Reply) -> None:
        with self._sending:
            self._layouts.refer_all(reply)
            self._send(reply)

    def _send(self, message: Reply | Joined | Failure | NeedRoom) -> None:
        try:
            data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        except Exception:
            # Namedtuples and leaf types of a source's own `__main__` travel by value.
            from mpfeed._serialize import dumps

            data = dumps(message)
        self._channel.send(data)
