"""Frames over a socket: whatever pieces they come in, whole; and the driver's side never blocks."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfeed.transport.channel import DriverChannel, Frames, WorkerChannel

frames = st.lists(st.binary(max_size=300), max_size=8)


def wire(messages: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(m)) + m for m in messages)


def parsed(pieces: list[bytes]) -> list[bytes]:
    """The frames in a stream that arrives in these pieces."""
    ours, theirs = socket.socketpair()
    parser, got = Frames(), []
    with ours, theirs:
        for piece in pieces:
            theirs.sendall(piece)
            left = len(piece)
            while left:
                count, some = parser.read_from(ours)
                left -= count
                got += [bytes(frame) for frame in some]
    return got


@settings(deadline=None)
@given(messages=frames, cuts=st.lists(st.integers(0, 2000), max_size=20))
def test_frames_are_cut_right_whatever_pieces_they_come_in(messages: list[bytes], cuts: list[int]) -> None:
    data = wire(messages)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert parsed([data[a:b] for a, b in pairwise(edges)]) == messages


def test_an_unfinished_frame_is_not_given() -> None:
    assert parsed([wire([b"abc", b"de"])[:-1]]) == [b"abc"]


@pytest.fixture
def ends() -> Iterator[tuple[DriverChannel, WorkerChannel, socket.socket]]:
    """The driver's and the worker's channel, and the worker's socket."""
    mine, theirs = socket.socketpair()
    driver = DriverChannel(mine)
    yield driver, WorkerChannel(theirs), theirs
    driver.close()
    theirs.close()


Ends = tuple[DriverChannel, WorkerChannel, socket.socket]


def test_frames_go_both_ways_in_order(ends: Ends) -> None:
    driver, worker, _ = ends
    for i in range(3):
        driver.send(b"%d" % i)
    assert [worker.receive() for _ in range(3)] == [b"0", b"1", b"2"]
    assert not worker.buffered
    worker.send(b"")
    worker.send(b"reply")
    assert driver.receive() == [b"", b"reply"]
    assert (driver.receive(), driver.ended) == ([], False)


def test_the_driver_does_not_block_on_a_worker_that_does_not_read(ends: Ends) -> None:
    driver, worker, _ = ends
    large = [bytes([i]) * (4 << 20) for i in range(3)]
    for frame in large:
        driver.send(frame)  # returns at once, although the socket holds far less
    assert driver.fileno() >= 0
    assert select.select([], [driver], [], 0)[1] == []  # all that the socket takes is in it
    got: list[object] = []
    reader = threading.Thread(target=lambda: got.extend(worker.receive() for _ in large))
    reader.start()
    while reader.is_alive():
        select.select([], [driver], [], 0.1)
        driver.flush()
    reader.join()
    assert got == large


def test_what_was_sent_before_the_end_is_read_first(ends: Ends) -> None:
    driver, worker, theirs = ends

    def speak() -> None:
        worker.send(b"x" * (1 << 20))
        worker.send(b"last")
        theirs.close()

    sender = threading.Thread(target=speak)
    sender.start()
    got: list[object] = []
    while len(got) < 2 and select.select([driver], [], [], 10)[0]:
        got += driver.receive()
    sender.join(10)
    assert got == [b"x" * (1 << 20), b"last"]
    assert (driver.receive(), driver.ended) == ([], True)


def test_a_send_to_a_peer_that_is_gone_is_seen_by_receive_only(ends: Ends) -> None:
    driver, _, theirs = ends
    theirs.close()
    driver.send(b"x" * (1 << 20))
    assert (driver.unsent, driver.receive(), driver.ended) == (False, [], True)


def test_the_worker_sees_the_end_of_its_requests_after_the_last_of_them(ends: Ends) -> None:
    driver, worker, _ = ends
    driver.send(b"one")
    driver.close()
    assert worker.receive() == b"one"
    assert worker.receive() is None
    with pytest.raises(OSError, match="Broken pipe"):
        worker.send(b"x" * (1 << 20))
