"""Frames of bytes over a stream socket: 8 bytes of length, then that many bytes.

The driver's side never blocks: what the socket does not take waits in memory, so a worker that writes can never
deadlock with a driver that does. The worker's side blocks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import deque

_HEADER = struct.Struct("<Q")
_CHUNK = 1 << 18

Frame = bytes | bytearray


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._body: bytearray | None = None
        self._filled = 0
        # One for all: a new one for each message is 256 KiB that malloc maps and gives back, 50 us in page faults.
        self._buffer = memoryview(bytearray(_CHUNK))

    def read_from(self, sock: socket.socket) -> tuple[int, list[Frame]]:
        """(bytes that one ``recv`` gave, the frames that are complete with them); its errors pass through."""
        if (
            self._body is not None and len(self._body) - self._filled >= _CHUNK
        ):  # a large one goes straight to its place
            count = sock.recv_into(memoryview(self._body)[self._filled :])
            self._filled += count
            return count, self._completed()
        count = sock.recv_into(self._buffer)
        data = self._buffer[:count]
        if count and self._body is None and not self._header and count == _whole_frame(data):  # the usual case
            return count, [bytes(data[_HEADER.size :])]
        return count, self._feed(data)

    def _feed(self, data: memoryview) -> list[Frame]:
        frames: list[Frame] = []
        while data:
            if self._body is None:
                data = self._take_header(data)
                if self._body is None:
                    break
            room = len(self._body) - self._filled
            part, data = data[:room], data[room:]
            self._body[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            frames += self._completed()
        return frames

    def _take_header(self, data: memoryview) -> memoryview:
        missing = _HEADER.size - len(self._header)
        self._header += data[:missing]
        if len(self._header) == _HEADER.size:
            self._body, self._filled = bytearray(_HEADER.unpack(self._header)[0]), 0
            self._header.clear()
        return data[missing:]

    def _completed(self) -> list[Frame]:
        if self._body is None or self._filled < len(self._body):
            return []
        body, self._body = self._body, None
        return [body]


def _whole_frame(data: memoryview) -> int:
    """Bytes that the frame at the start of ``data`` takes, its header included; 0 where the header is cut off."""
    return _HEADER.size + int(_HEADER.unpack_from(data)[0]) if len(data) >= _HEADER.size else 0


class DriverChannel:
    """The driver's end: never blocks."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._owner = os.getpid()
        self._frames = Frames()
        self._unsent: deque[memoryview] = deque()
        self.ended = False

    def fileno(self) -> int:
        """Of the socket, for polling."""
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """Whether ``flush`` should be called when the socket takes more."""
        return bool(self._unsent)

    def send(self, frame: bytes) -> None:
        """Send a frame, or keep what the socket does not take now. A peer that is gone shows in ``receive``."""
        self._unsent.append(
            memoryview(_HEADER.pack(len(frame)) + frame if len(frame) < _CHUNK else _HEADER.pack(len(frame)))
        )
        if len(frame) >= _CHUNK:
            self._unsent.append(memoryview(frame))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        while self._unsent:
            part = self._unsent[0]
            try:
                sent = self._socket.send(part)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._unsent.clear()
                return
            if sent == len(part):
                self._unsent.popleft()
            else:
                self._unsent[0] = part[sent:]

    def receive(self) -> list[Frame]:
        """The frames that have come; ``ended`` is set once the peer's end is closed and all was read."""
        frames: list[Frame] = []
        while not self.ended:
            try:
                count, complete = self._frames.read_from(self._socket)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                count, complete = 0, []
            frames += complete
            self.ended = not count
            if count < _CHUNK:
                break
        return frames

    def close(self) -> None:
        """Close the socket; the worker sees the end of its requests, also where a fork of this process lives on."""
        if os.getpid() == self._owner:
            with contextlib.suppress(OSError):  # the worker is gone
                self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class WorkerChannel:
    """The worker's end: blocks."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._frames = Frames()
        self._ready: deque[Frame] = deque()

    @property
    def buffered(self) -> bool:
        """Whether ``receive`` would return at once."""
        return bool(self._ready)

    def receive(self) -> Frame | None:
        """The next frame; None when the driver closed its end."""
        while not self._ready:
            count, complete = self._frames.read_from(self._socket)
            if not count:
                return None
            self._ready.extend(complete)
        return self._ready.popleft()

    def send(self, frame: bytes) -> None:
        """Send a frame. OSError when the driver is gone."""
        self._socket.sendall(_HEADER.pack(len(frame)) + frame if len(frame) < _CHUNK else _HEADER.pack(len(frame)))
        if len(frame) >= _CHUNK:
            self._socket.sendall(frame)
