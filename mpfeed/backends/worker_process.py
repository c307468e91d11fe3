"""One worker process as the driver sees it: how it is started, what it lends, and what it says of itself."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import time
import weakref
from collections.abc import Iterable
from typing import Any

from mpfeed._messages import Reply
from mpfeed._serialize import main_arguments
from mpfeed.backends import spawn
from mpfeed.backends.arguments import Packer
from mpfeed.backends.base import Plan, deliver
from mpfeed.backends.environment import worker_environment
from mpfeed.backends.layouts import SeenLayouts
from mpfeed.backends.worker import Start, stack_signal
from mpfeed.backends.worker_memory import WorkerMemory
from mpfeed.transport.arena import create_file
from mpfeed.transport.channel import DriverChannel

_DUMP_S = 1.0


class WorkerProcess:
    """One worker process and its two channels: requests and replies, and shared memory.

    Args:
        worker: its index.
        plan: of the feed.
        shares: whether arrays travel in shared memory.
        memory_limit: bytes of it for all workers together, or None.
        left: the mappings of the feed's workers of the past that arrays still hold.
    """

    def __init__(
        self, worker: int, plan: Plan, *, shares: bool, memory_limit: int | None, left: weakref.WeakSet[Any]
    ) -> None:
        self.worker = worker
        self._layouts = SeenLayouts()
        self.joined = False
        self.wanted = select.POLLIN
        self.returns_told = 0
        self.starves = False  # it waits for room
        self.heard = False  # its end was explained: StartFailed was reported
        with contextlib.ExitStack() as theirs:  # the worker's alone once it is started
            arena, length = create_file() if shares else (-1, 0)
            theirs.callback(_close, arena)
            given, given_length = create_file() if shares and plan.has_arguments else (-1, 0)
            theirs.callback(_close, given)
            self.packer = Packer(given, given_length) if given >= 0 else None
            self.stacks_fd = os.memfd_create("mpfeed-stacks", 0) if hasattr(os, "memfd_create") else -1
            theirs.callback(_close, self.stacks_fd)
            mine, channel = spawn.socket_pair()
            theirs.callback(channel.close)
            arguments = {
                "channel": channel.fileno(),
                "arena": arena,
                "length": length,
                "arguments": given,
                "arguments_length": given_length,
                "stacks": self.stacks_fd,
            }
            fds = tuple(fd for fd in (channel.fileno(), arena, given, self.stacks_fd) if fd >= 0)
            try:
                self.child = spawn.Child(arguments, fds, worker_environment(plan.threads_per_worker))
                limit = memory_limit and max(1, memory_limit // plan.workers)
                self.memory: WorkerMemory | None = WorkerMemory(arena, length, left, limit) if arena >= 0 else None
            except BaseException:
                mine.close()
                raise
        self.channel = DriverChannel(mine)
        start = Start(plan.work, plan.settings, worker, main_arguments(), plan.threads_per_worker, limit)
        self.channel.send(pickle.dumps(start, pickle.HIGHEST_PROTOCOL))

    def deliver(self, reply: Reply) -> Reply:
        """A reply with its messages unpacked in place."""
        self._layouts.resolve_all(reply)
        if self.memory is None:
            return deliver(reply, lambda name: name)
        return deliver(reply, self.memory.resolve, self.memory.crowded)

    def leave(self) -> None:
        """It is of the past, but for what the consumer holds of its memory."""
        if self.memory is not None:
            self.memory.leave()

    def state(self) -> str:
        """The kernel's word for what the process does, for one whose Python cannot answer."""
        try:
            with open(f"/proc/{self.child.pid}/stat") as stat:
                letter = stat.read().rpartition(")")[2].split()[0]
        except OSError:
            return "gone"
        names = {
            "T": "stopped by a signal",
            "R": "running",
            "S": "sleeping",
            "D": "waiting for a device",
            "Z": "dead",
        }
        return names.get(letter, letter)

    def handles(self, number: int) -> bool:
        """Whether it has a handler for a signal, which would otherwise end it: one that starts has none at first."""
        try:
            with open(f"/proc/{self.child.pid}/status") as status:
                caught = next(line for line in status if line.startswith("SigCgt:"))
        except (OSError, StopIteration):
            return self.joined
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)

    def read_dump(self) -> str:
        """What it has written to its stack dump so far."""
        try:
            with open(f"/proc/{self.child.pid}/fd/{self.stacks_fd}", "rb") as dump:
                return dump.read().decode(errors="replace")
        except OSError:
            return ""


def stacks(members: Iterable[WorkerProcess]) -> dict[int, str]:
    """Their Python stacks, by worker; for one that writes none, what its process does.

    One wait for all: a stopped worker writes nothing, and many would hold up whoever waits for the crew's lock.
    """
    members = list(members)
    asked = {member: len(member.read_dump()) for member in members if member.handles(stack_signal())}
    for member in asked:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.child.pid, stack_signal())
    deadline = time.monotonic() + _DUMP_S
    texts = dict.fromkeys(members, "")
    partial = set(asked)
    while partial and time.monotonic() < deadline:
        time.sleep(0.02)
        for member in list(partial):
            text = member.read_dump()[asked[member] :]
            if text and text == texts[member]:  # it comes in pieces
                partial.discard(member)
            texts[member] = text
    return {m.worker: text.strip() or f"no Python stack (the process is {m.state()})" for m, text in texts.items()}


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


def words(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "ended, and its exit code is unknown"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name} (signal {-code})"
