"""The actor of the Ray backend, without Ray."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from streams import eventually

from mpfeed._layout import Layout, Leaf, Payload
from mpfeed._messages import Arguments, Calls, Reply
from mpfeed._structure import flatten
from mpfeed.backends.arguments import Packer, Unpacker
from mpfeed.backends.ray_member import ActorMember, shortened
from mpfeed.backends.ray_worker import Actor
from mpfeed.transport.arena import create_file


@pytest.fixture
def actor() -> Actor:
    return Actor(b"", None, 0, (1, [], []))


def test_a_request_is_handed_in_while_the_reply_before_is_not_out(actor: Actor) -> None:
    with ThreadPoolExecutor(2) as calls:
        replies = [calls.submit(actor.answer, number, pickle.dumps(f"request {number}")) for number in range(2)]
        assert [actor._requests.get(timeout=20) for _ in range(2)] == ["request 0", "request 1"]
        assert not any(reply.done() for reply in replies)
        actor._put("reply 0")
        actor._put("reply 1")
        assert [reply.result(20) for reply in replies] == ["reply 0", "reply 1"]


def test_calls_that_begin_in_another_order_keep_the_order_of_requests_and_replies(actor: Actor) -> None:
    with ThreadPoolExecutor(3) as calls:
        third = calls.submit(actor.answer, 2, pickle.dumps("request 2"))
        more = calls.submit(actor.more, 1)
        assert eventually(lambda: len(actor._early) == 2)
        assert actor._requests.empty()
        first = calls.submit(actor.answer, 0, pickle.dumps("request 0"))
        assert [actor._requests.get(timeout=20) for _ in range(2)] == ["request 0", "request 2"]
        for number in range(3):
            actor._put(f"reply {number}")
        assert [call.result(20) for call in (first, more, third)] == ["reply 0", "reply 1", "reply 2"]


def test_calls_before_and_after_it_is_known_that_memory_is_shared_run_in_two_groups(actor: Actor) -> None:
    """Ray runs those of one group one at a time, and two of the other: whichever begins first, all are answered."""
    with ThreadPoolExecutor(1) as one_at_a_time, ThreadPoolExecutor(2) as overlapping:
        later = [overlapping.submit(actor.answer, number, pickle.dumps(number)) for number in range(3, 7)]
        assert eventually(lambda: len(actor._early) == 2)
        sooner = [one_at_a_time.submit(actor.answer, number, pickle.dumps(number)) for number in range(3)]
        for number in range(7):
            assert actor._requests.get(timeout=20) == number
            actor._put(f"reply {number}")
        assert [call.result(20) for call in (*sooner, *later)] == [f"reply {number}" for number in range(7)]


def test_a_reply_names_slots_as_they_are_and_brings_what_lies_elsewhere_along(actor: Actor) -> None:
    memory = [np.full(3, i, np.uint8) for i in range(3)]
    layout = Layout(flatten(0)[1], (Leaf(np.dtype("u1"), (3,), False, 0, 0), Leaf(np.dtype("u1"), (3,), False, 1, 0)))
    slot = (5, 4096, 3)
    for number in range(2):
        payloads = Payload(layout, [memory[0], slot], [], 1, False), Payload(layout, [slot, memory[1]], [], 1, False)
        actor._reply(Reply(number, payloads))
    actor._reply(Reply(2, (Payload(layout, [slot, slot], [], 1, False),)))
    (first, stored), (second, _) = [actor._replies[number] for number in range(2)]
    assert [payload.regions for payload in pickle.loads(actor._replies[2]).payloads] == [[slot, slot]]
    assert [payload.regions for payload in pickle.loads(first).payloads] == [[0, slot], [slot, 1]]
    assert [array.tolist() for array in stored] == [[0] * 3, [1] * 3]
    assert [type(payload.layout) for payload in pickle.loads(first).payloads] == [Layout, int]
    assert [payload.layout for payload in pickle.loads(second).payloads] == [0, 0]


def test_arguments_are_unpacked_in_their_order_also_those_of_a_run_that_was_dropped(actor: Actor) -> None:
    fd, length = create_file()
    packer, actor._unpacker = Packer(fd, length), Unpacker(fd, length)
    os.close(fd)
    heard: list[Any] = []

    class Producer:
        def handle(self, request: Calls) -> Reply:
            heard.append((request.run, [int(array[-1]) for array in request.arguments[0].values]))
            return Reply(request.number)

        def close(self) -> None:
            pass

    actor._dropped.add(1)
    for number in range(6):
        arguments = Arguments([np.full(10_000 + number % 2, number)], flatten(0)[1])
        actor._requests.put(pickle.loads(pickle.dumps(packer.pack(Calls(number, 1 + number // 2, (arguments,))))))
    actor._requests.put(None)
    producer: Any = Producer()
    actor._serve(producer)
    assert heard == [(2, [2]), (2, [3]), (3, [4]), (3, [5])]
    assert [actor._replies[number] for number in range(2)] == [None, None]
    packer.allocate(100_000)
    assert len(packer._writer._lent) == 1, "all the others came back"
    actor._unpacker = None


def test_a_request_that_cannot_be_sent_takes_no_number() -> None:
    made: list[tuple[int, bytes]] = []

    class Method:
        def options(self, **_: Any) -> Method:
            return self

        def remote(self, *arguments: Any) -> None:
            made.append(arguments)

    handle: Any = type("Handle", (), {"answer": Method(), "more": Method()})()
    member = ActorMember(0, handle, 1.0, None, None, False)
    arguments = Arguments([threading.Lock()], flatten(0)[1])
    with pytest.raises(TypeError, match="lock"):
        member.ask(Calls(1, 1, (arguments,)))
    member.ask(Calls(2, 1, ()))
    assert [number for number, _ in made] == [0]


def test_a_worker_that_cannot_read_a_request_ends_so_that_it_is_heard_of() -> None:
    program = (
        "import os, pickle\n"
        "from mpfeed._producer import Settings\n"
        "from mpfeed._serialize import dump_source\n"
        "from mpfeed._source import CallSource\n"
        "from mpfeed.backends.arguments import PackedCalls\n"
        "from mpfeed.backends.ray_worker import Actor\n"
        "work = dump_source({'source': CallSource(abs, False), 'collate': None, 'worker_init': None})\n"
        "actor = Actor(work, Settings(1, None, 0), 0, (1, [], []))\n"
        "assert actor.start() is None\n"
        "actor.answer(0, pickle.dumps(PackedCalls(1, 1, [], False)))\n"  # without memory for its arguments
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "AssertionError" in done.stderr


def test_a_long_error_of_ray_keeps_its_end_where_the_cause_is() -> None:
    text = shortened("The actor died\n" + "  ^^^^\n" * 1000 + "\x1b[36mray::f()\x1b[39m ImportError: no mpfeed")
    assert text.startswith("The actor died ^^^^")
    assert text.endswith("^^^^ ray::f() ImportError: no mpfeed")
    assert len(text) < 1000
    assert shortened("it is\ngone") == "it is gone"
