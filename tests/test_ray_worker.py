"""The actor of the Ray backend, without Ray."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from streams import eventually

from mpfeed.backends.ray_member import shortened
from mpfeed.backends.ray_worker import Actor


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


def test_a_long_error_of_ray_keeps_its_end_where_the_cause_is() -> None:
    text = shortened("The actor died\n" + "  ^^^^\n" * 1000 + "\x1b[36mray::f()\x1b[39m ImportError: no mpfeed")
    assert text.startswith("The actor died ^^^^")
    assert text.endswith("^^^^ ray::f() ImportError: no mpfeed")
    assert len(text) < 1000
    assert shortened("it is\ngone") == "it is gone"
