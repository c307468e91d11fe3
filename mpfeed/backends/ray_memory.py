"""Shared memory between the consumer and actors on its own node: offered by the one, taken by the others.

Ray's object store costs several times what a batch in shared memory does. An actor on the consumer's node therefore
opens the files of an arena through the consumer's entries in /proc, and only slots' numbers travel through Ray. Where
it cannot (another node, container or user), messages go through the store.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from dataclasses import dataclass
from typing import Any

from mpfeed._errors import ArenaFull, MpfeedError
from mpfeed._layout import Bytes, heap
from mpfeed.backends.arguments import Packer, Unpacker
from mpfeed.backends.worker_memory import WorkerMemory
from mpfeed.transport.arena import Slot, Writer, create_file

# Part of the descriptors that this process may have: with more in use it offers no memory.
_SPARE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class File:
    """One nameless file, as another process finds it and knows that it is the one."""

    fd: int
    device: int
    inode: int
    length: int

    @classmethod
    def of(cls, fd: int, length: int) -> File:
        """What is known of a file of this process."""
        status = os.fstat(fd)
        return cls(fd, status.st_dev, status.st_ino, length)

    def opened(self, pid: int) -> int:
        """A descriptor of one's own for this file of another process. OSError where it cannot be had."""
        # In another container it may be anything, and opening it may do anything: looked at without opening it.
        found = os.open(f"/proc/{pid}/fd/{self.fd}", os.O_PATH | os.O_CLOEXEC)
        try:
            status = os.fstat(found)
            if (status.st_dev, status.st_ino, status.st_size) != (self.device, self.inode, self.length):
                raise FileNotFoundError("another file")
            return os.open(f"/proc/self/fd/{found}", os.O_RDWR | os.O_CLOEXEC)
        finally:
            os.close(found)


@dataclass(frozen=True, slots=True)
class Invitation:
    """What an actor is told of an offer.

    Attributes:
        node: the consumer's, in Ray's words.
        pid: the consumer's.
        arena: where messages are to lie.
        arguments: where those of calls will lie, or None.
    """

    node: str
    pid: int
    arena: File
    arguments: File | None


class Offer:
    """Memory for one actor, until it has said whether it shares it.

    Args:
        node: this process's.
        left: see ``WorkerMemory``.
        has_arguments: whether requests carry arrays.

    Attributes:
        invitation: for the actor.

    Raises:
        OSError, MpfeedError: no descriptors, or no address space.
    """

    def __init__(self, node: str, left: weakref.WeakSet[Any], *, has_arguments: bool) -> None:
        self._left = left
        with contextlib.ExitStack() as open_files:
            files = []
            for _ in range(1 + has_arguments):
                fd, length = create_file()
                open_files.callback(os.close, fd)
                files.append(File.of(fd, length))
            self.invitation = Invitation(node, os.getpid(), files[0], files[1] if has_arguments else None)
            self._files = open_files.pop_all()

    def mapped(self) -> tuple[WorkerMemory, Packer | None]:
        """It was accepted: (what the actor writes, what packs the arguments that it reads). Closes the offer.

        Only now, since a large cluster's actors would take all address space, to share nothing. OSError, ValueError
        where none is left, or no descriptors.
        """
        arena, given = self.invitation.arena, self.invitation.arguments
        with self._files:
            packer = Packer(given.fd, given.length) if given is not None else None
            return WorkerMemory(arena.fd, arena.length, self._left), packer

    def close(self) -> None:
        """It was not. Idempotent."""
        self._files.close()


def offer(node: str, left: weakref.WeakSet[Any], *, has_arguments: bool) -> Offer | None:
    """Memory for one more actor; None where this process has none to offer."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        return Offer(node, left, has_arguments=has_arguments) if _descriptors_to_spare() else None
    except (OSError, MpfeedError):
        return None


def _descriptors_to_spare() -> bool:
    """Whether most are free: any number of actors may wait for a node, and have their offers open as long."""
    import resource  # not on Windows

    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return allowed == resource.RLIM_INFINITY or len(os.listdir("/proc/self/fd")) < _SPARE_SHARE * allowed


def accepted(invitation: Invitation, node: str) -> tuple[RoomyWriter, Unpacker | None] | None:
    """The ends of an actor on ``node`` of what it is offered; None where that is another node, or out of reach."""
    # A machine may hold several of Ray's nodes; what is to be like a cluster then goes from node to node.
    if node != invitation.node:
        return None
    with contextlib.ExitStack() as open_files:
        try:
            fd = invitation.arena.opened(invitation.pid)
            open_files.callback(os.close, fd)
            writer = RoomyWriter(fd, invitation.arena.length)
            if invitation.arguments is None:
                return writer, None
            given = invitation.arguments.opened(invitation.pid)
            open_files.callback(os.close, given)
            return writer, Unpacker(given, invitation.arguments.length)
        except (OSError, ValueError):  # also: less address space here than there
            return None


class RoomyWriter(Writer):
    """Gives out private memory where its own is full: that travels through the object store."""

    def allocate(self, nbytes: int) -> tuple[Slot | Bytes, Bytes]:
        """A slot, or memory that is its own name."""
        try:
            return super().allocate(nbytes)
        except ArenaFull:
            memory = heap(nbytes)
            return memory, memory
