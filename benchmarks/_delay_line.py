"""A cable between two network namespaces, with a delay and a rate: ``python -m benchmarks._delay_line A B 20 1000``.

What ``tc netem`` does where the kernel has it; this needs only TUN devices. Packets are large (MTU 65,000), so that
Python keeps up with a gigabit a second: what a packet costs by itself is therefore left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

MTU = 65_000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # <linux/if_tun.h>
_CLONE_NEWNET = 0x40000000
_QUEUE_BYTES = 16 << 20


def _open_end(namespace: str, device: str) -> int:
    """A TUN device of that name in the namespace; the process is in it afterwards."""
    with open(f"/var/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", device.encode(), _IFF_TUN | _IFF_NO_PI))
    return end


class _Way:
    """One direction."""

    def __init__(self, source: int, sink: int, delay_s: float, bytes_per_s: float) -> None:
        self.source, self._sink = source, sink
        self._delay_s, self._bytes_per_s = delay_s, bytes_per_s
        self._line: deque[tuple[float, bytes]] = deque()
        self._free_s = 0.0
        self._queued = 0
        self.carried = 0

    def take_in(self) -> None:
        now_s = time.monotonic()
        for _ in range(64):
            try:
                packet = os.read(self.source, MTU + 64)
            except BlockingIOError:
                return
            if self._queued > _QUEUE_BYTES:
                continue  # lost, as in a full switch
            self._free_s = max(now_s, self._free_s) + len(packet) / self._bytes_per_s
            self._line.append((self._free_s + self._delay_s, packet))
            self._queued += len(packet)

    def give_out(self) -> float | None:
        """Hand over what has arrived; seconds until the next packet does."""
        now_s = time.monotonic()
        while self._line and self._line[0][0] <= now_s:
            _, packet = self._line.popleft()
            self._queued -= len(packet)
            self.carried += len(packet)
            with contextlib.suppress(OSError):  # the other end is down: lost
                os.write(self._sink, packet)
        return self._line[0][0] - now_s if self._line else None


def main(one: str, other: str, delay_ms: float, mbit_per_s: float) -> None:
    ends = [_open_end(name, "wire") for name in (one, other)]
    ways = [_Way(a, b, delay_ms / 1e3, mbit_per_s * 1e6 / 8) for a, b in (ends, ends[::-1])]
    print("ready", flush=True)
    poll = select.epoll()
    for way in ways:
        poll.register(way.source, select.EPOLLIN)
    while True:
        waits = [wait for way in ways if (wait := way.give_out()) is not None]
        for source, _ in poll.poll(max(0.0, min(waits)) if waits else None):
            next(way for way in ways if way.source == source).take_in()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
