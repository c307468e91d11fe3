"""The loop of a worker process, without the process."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from mpfeed._producer import Settings
from mpfeed.backends import worker
from mpfeed.transport.channel import WorkerChannel


@pytest.mark.parametrize("unread", [False, True])
def test_a_wait_for_room_that_will_not_come_unwinds_the_users_code(unread: bool) -> None:
    mine, driver = socket.socketpair()
    with mine, driver:
        start = worker.Start(b"", Settings(1, None, 0, True), 0, [], 1, None)
        none: dict[str, Any] = {"channel": mine.fileno(), "arena": -1, "arguments": -1}
        loop = worker._Loop(WorkerChannel(mine), start, none)
        if unread:
            loop._send(worker.NeedRoom())
            driver.close()
        else:
            driver.shutdown(socket.SHUT_WR)
        for _ in range(2):  # also where the user's code goes on after the first
            with pytest.raises(SystemExit, match="the feed was closed"):
                loop._wait_for_room()
