"""Frames of bytes over a stream socket: 8 bytes of length, then that many bytes.

The driver's side never blocks: what the socket does not take waits in memory, so a worker that writes can never
deadlock with a driver that does. The worker's side blocks.
"""

from __future__ import annotations

import socket
import struct
from collections import deque

_HEADER = struct.Struct("<Q")
_CHUNK = 1 << 18


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._need = _HEADER.size
        self._header = True

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """The frames that are complete with this data."""
        self._buffer += data
        frames, start = [], 0
        while len(self._buffer) - start >= self._need:
            part = self._buffer[start : start + self._need]
            start += self._need
            if self._header:
                (self._need,) = _HEADER.unpack(part)
            else:
                frames.append(bytes(part))
                self._need = _HEADER.size
            self._header = not self._header
        del self._buffer[:start]
        return frames


class DriverChannel:
    """The driver's end: never blocks."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
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

    def receive(self) -> list[bytes]:
        """The frames that have come; ``ended`` is set once the peer's end is closed and all was read."""
        frames: list[bytes] = []
        while not self.ended:
            try:
                data = self._socket.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            if not data:
                self.ended = True
                break
            frames += self._frames.feed(data)
            if len(data) < _CHUNK:
                break
        return frames

    def close(self) -> None:
        """Close the socket; the worker sees the end of its requests."""
        self._socket.close()


class WorkerChannel:
    """The worker's end: blocks."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._frames = Frames()
        self._ready: deque[bytes] = deque()

    @property
    def buffered(self) -> bool:
        """Whether ``receive`` would return at once."""
        return bool(self._ready)

    def receive(self) -> bytes | None:
        """The next frame; None when the driver closed its end."""
        while not self._ready:
            data = self._socket.recv(_CHUNK)
            if not data:
                return None
            self._ready.extend(self._frames.feed(data))
        return self._ready.popleft()

    def send(self, frame: bytes) -> None:
        """Send a frame. OSError when the driver is gone."""
        self._socket.sendall(_HEADER.pack(len(frame)) + frame if len(frame) < _CHUNK else _HEADER.pack(len(frame)))
        if len(frame) >= _CHUNK:
            self._socket.sendall(frame)
