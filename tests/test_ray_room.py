"""Ray: room for workers, and what is said where there is too little; parts that share one set of producers."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streams import Gate, Tally, eventually, numbers, reader_of

import mpfeed
from mpfeed import Feed, Ray, _shared
from mpfeed._interrupts import Interrupted
from mpfeed._opening import Opening
from mpfeed._roster import Member
from mpfeed._serialize import dumps
from mpfeed.backends import ray_engine, ray_hub, ray_nodes, ray_session

Keep = Callable[[Feed], Feed]


def counted(shard: mpfeed.Shard) -> Any:
    for number in shard.of(range(21)):
        yield np.array(number)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_nodes, "NO_ROOM_S", 0.3)
    monkeypatch.setattr(ray_nodes, "_ROOM_S", 0.3)


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    ("backend", "said"),
    [
        (Ray(resources={"unicorn": 1}), "no node has so much unicorn at all"),
        (Ray(num_cpus=512), "no node has so much CPU at all"),
        (Ray(label_selector={"zone": "moon"}), "no living node is one that workers may go to"),
    ],
)
def test_too_few_resources_are_named_with_what_was_asked_and_what_is_free(backend: Ray, said: str, keep: Keep) -> None:
    feed = keep(mpfeed.from_generator(counted, workers=2, backend=backend))
    with pytest.raises(mpfeed.MpfeedError, match=said) as caught:
        next(iter(feed))
    assert "each asks for" in str(caught.value)
    assert "free are" in str(caught.value)


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("how", ["timeout", "close"])
def test_waiting_for_room_ends_with_the_time_and_with_the_feed(
    how: str, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_nodes, "NO_ROOM_S", 600.0)
    timeout = 0.2 if how == "timeout" else None
    feed = keep(mpfeed.from_generator(counted, workers=2, backend=Ray(num_cpus=512), timeout=timeout))
    if how == "timeout":
        with pytest.raises(
            mpfeed.FeedTimeout, match=r"within timeout=0\.2 s: the Ray cluster has no room for a worker"
        ):
            next(iter(feed))
        return
    looked = threading.Event()

    def none_free(*_: Any) -> dict[str, Any]:
        looked.set()
        return {}

    def close() -> None:
        looked.wait(60)
        feed.close()

    monkeypatch.setattr(ray_nodes, "_free_by_node", none_free)
    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(mpfeed.FeedClosed, match="closed while its workers were to be started"):
        next(iter(feed))
    closer.join()


def test_a_wait_for_room_ends_with_ctrl_c_that_the_main_thread_cannot_raise() -> None:
    opening = Opening(lambda: False, None)
    opening.interrupt(opening.begun_s[0] - 1.0, unheard=False)  # of a wait before
    opening.pause(0.0, str)
    opening.interrupt(opening.begun_s[0], unheard=True)
    with pytest.raises(Interrupted) as caught:
        opening.pause(60.0, str)
    assert caught.value.unheard


@pytest.mark.usefixtures("local_ray")
def test_workers_without_room_leave_it_to_those_the_feed_begins_with(keep: Keep) -> None:
    feed = keep(mpfeed.from_generator(counted, workers=3, shards=3, backend=Ray(num_cpus=4)))
    with pytest.warns(RuntimeWarning, match="room for 2 of the 3 workers"):
        assert numbers(feed) == list(range(21))
    assert _states(feed) == ["ready", "ready", "starting"]


def test_a_slow_start_is_not_taken_for_want_of_room(
    local_ray: Any, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room is left once the only worker has it, and its process starts for longer than room is waited for."""
    monkeypatch.setattr(ray_engine, "_LOOK_S", 0.05)
    assert eventually(lambda: local_ray.available_resources().get("CPU") == 8)
    feed = keep(mpfeed.from_generator(counted, workers=1, backend=Ray(num_cpus=8)))
    assert numbers(feed) == list(range(21))


@pytest.mark.usefixtures("local_ray")
def test_a_worker_that_is_starting_again_keeps_its_work(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others would do it only if there were no room, or no node, for the one who died."""
    monkeypatch.setattr(ray_engine, "PATIENCE_S", 0.05)
    monkeypatch.setattr(ray_engine, "_LOOK_S", 0.05)

    def who(shard: mpfeed.Shard) -> Any:
        for number in shard.of(range(120)):
            yield number, os.getpid(), np.zeros(1 << 16)

    feed = keep(mpfeed.from_generator(who, shards=3, workers=3, backend=Ray(num_cpus=0)))
    elements = iter(feed)
    got = [(int(number), int(pid)) for number, pid, _ in (next(elements) for _ in range(9))]
    first = {pid for _, pid in got}
    os.kill(got[4][1], signal.SIGKILL)
    got += [(int(number), int(pid)) for number, pid, _ in elements]
    assert [number for number, _ in got] == list(range(120))
    assert len({pid for _, pid in got} - first) == 1


@pytest.mark.usefixtures("local_ray")
def test_the_death_of_an_idle_worker_is_heard_of(keep: Keep) -> None:
    """Otherwise it would be asked for what its neighbours' deaths leave undone."""
    feed = keep(mpfeed.from_generator(counted, shards=2, workers=2, backend=Ray(num_cpus=0)))
    assert numbers(feed) == list(range(21))
    assert eventually(lambda: _states(feed) and _member(feed, 1).idle)  # the next epoch's first element is made
    pid = _member(feed, 1).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: _states(feed) == ["ready", "absent"])
    assert numbers(feed) == list(range(21))


@pytest.mark.usefixtures("local_ray")
def test_workers_that_are_waited_for_on_a_node_that_is_gone_are_given_up(
    keep: Keep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tally: Tally
) -> None:
    """Their calls fail only when their own processes have noticed."""
    gate = Gate(tmp_path / "gate")
    lost: list[str] = []

    def refusing(addresses: dict[str, str]) -> set[str]:
        if addresses and not lost and len(tally.lines()) == 2:  # both are there, and at work
            lost.extend(addresses)
            gate.open()
            return set(addresses)
        return set()

    def slow(shard: mpfeed.Shard) -> Any:
        tally.note(str(shard.index))
        gate.wait()
        yield from counted(shard)

    monkeypatch.setattr(ray_engine, "refusing", refusing)
    feed = keep(mpfeed.from_generator(slow, shards=2, workers=2, backend=Ray()))
    assert numbers(feed) == list(range(21))
    assert [worker.restarts for worker in feed.stats().workers] == [1, 1]


class Sites:
    """As much of Ray as tells of nodes: some answer, one does not, each has two free CPUs."""

    def __init__(self, ports: dict[str, int]) -> None:
        self._ports = ports
        self._private = self.state = self

    def nodes(self) -> list[Any]:
        return [
            {"NodeID": name, "Alive": True, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port, "Resources": {}}
            for name, port in self._ports.items()
        ]

    def available_resources_per_node(self) -> dict[str, Any]:
        return {name: {"CPU": 2.0} for name in self._ports}


def test_while_a_node_is_lost_workers_go_where_nodes_answer_and_have_room() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        with socket.create_server(("127.0.0.1", 0)) as lost:
            ports = {name: at.getsockname()[1] for name, at in (("one", one), ("two", two), ("lost", lost))}
        there, nobody = Sites(ports), Counter[str]()
        assert ray_nodes.havens(there, Ray(), nobody) == ["one", "two", "one", "two"]
        assert ray_nodes.havens(there, Ray(), Counter(one=2, two=1)) == ["two"]
        assert ray_nodes.havens(there, Ray(num_cpus=0), nobody) == ["one", "two"]
        assert ray_nodes.havens(there, Ray(num_cpus=4), nobody) == []
        assert ray_nodes.havens(there, Ray(scheduling_strategy=object()), nobody) == []  # the user has said where
        del ports["lost"]
        assert ray_nodes.havens(there, Ray(), nobody) == []  # all is well: Ray knows best


def test_a_worker_whose_process_does_not_come_is_brought_to_a_haven(
    local_ray: Any, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = local_ray.get_runtime_context().get_node_id()
    answers = iter([[here], [here]])  # when it is late, and again: it is starting there
    monkeypatch.setattr(ray_engine, "havens", lambda *_: next(answers, []))
    monkeypatch.setattr(ray_engine, "_FIRST_PATIENCE_S", 0.0)
    monkeypatch.setattr(ray_engine, "_LOOK_S", 0.0)
    feed = keep(mpfeed.from_generator(counted, workers=1, backend=Ray()))
    assert numbers(feed) == list(range(21))
    crew = feed._crew
    assert crew is not None
    engine: Any = crew.engine()
    assert engine._members[0].haven == here
    assert list(answers) == [[here]]


@pytest.mark.long
@pytest.mark.usefixtures("local_ray")
def test_workers_without_room_join_when_there_is_and_the_stream_is_the_same(
    keep: Keep, gate: Gate, tally: Tally
) -> None:
    def made(item: int) -> int:
        tally.note(mpfeed.worker().index)
        if item > 20:
            gate.wait()
        return item

    half = Ray(num_cpus=4)
    other = keep(mpfeed.from_map(abs, range(4), workers=1, backend=half))
    assert numbers(other) == list(range(4))
    feed = keep(mpfeed.from_map(made, range(60), batch_size=2, workers=2, backend=half))
    with pytest.warns(RuntimeWarning, match="room for 1 of the 2 workers"):
        batches = iter(feed)
    got = numbers([next(batches)])
    other.close()
    assert eventually(lambda: "starting" not in _states(feed))
    gate.open()
    got += numbers(batches)
    assert got == list(range(60))
    assert {"0", "1"} <= set(tally.lines())


def _member(feed: Feed, worker: int) -> Member:
    assert feed._crew is not None
    return feed._crew.roster[worker]


def _states(feed: Feed) -> list[str]:
    crew = feed._crew
    assert crew is not None
    with crew.lock:
        crew._waits.drive_once(0.05)
    return [member.state for member in crew.roster.members]


class Switch:
    """As much of Ray as a session needs, but for the cluster: it is up or down."""

    up = False
    begun = 0

    def init(self, **_: Any) -> None:
        self.up = True
        self.begun += 1

    def is_initialized(self) -> bool:
        return self.up

    def shutdown(self) -> None:
        self.up = False

    def remote(self, **_: Any) -> Callable[[type], type]:
        return lambda actor: actor

    def get_runtime_context(self) -> Switch:
        return self

    def get_node_id(self) -> str:
        return "here"

    def get_job_id(self) -> str:
        return str(self.begun)

    def nodes(self) -> list[Any]:
        return []


def test_a_feed_of_a_ray_that_the_user_shut_down_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Switch()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_session, "_import_ray", lambda: ray)
    monkeypatch.setattr(ray_session, "_session", None)
    monkeypatch.setattr(ray_session, "_users", 0)
    stale = ray_session.connect(Ray())
    ray.shutdown()
    second = ray_session.connect(Ray())
    ray_session.disconnect(stale)
    ray_session.disconnect(ray_session.connect(Ray()))
    assert ray.up, "the second feed still uses it"
    ray_session.disconnect(second)
    assert not ray.up


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    ("remainder", "parts"),
    [
        ("drop", [[0, 2, 4, 6, 8, 10, 12, 14, 16, 18], [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]]),
        ("keep", [[0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20], [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]]),
    ],
)
def test_parts_of_a_shared_split_are_disjoint_and_each_iteration_is_the_next_epoch(
    remainder: Any, parts: list[list[int]], keep: Keep
) -> None:
    feed = keep(mpfeed.from_generator(counted, shards=2, workers=2, backend=Ray(num_cpus=0)))
    one, other = feed.split(2, shared=True, remainder=remainder, window=32)
    for _ in range(2):
        assert [numbers(one), numbers(other)] == parts
    left = iter(one)
    assert next(left) == 0
    left.close()
    assert numbers(one) == parts[0]


@pytest.mark.usefixtures("local_ray")
def test_a_part_waits_for_the_slowest_at_the_end_of_the_window_and_says_so(
    keep: Keep, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_shared, "TELL_S", 0.3)
    feed = keep(mpfeed.from_generator(counted, workers=1, backend=Ray(num_cpus=0)))
    fast, slow = feed.split(2, shared=True, window=3)
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.extend(fast), daemon=True)
    reader.start()
    assert eventually(lambda: "window of 3 elements is full for part 1 (was never read)" in caplog.text)
    assert numbers(got) == [0, 2, 4]
    assert numbers(slow) == list(range(1, 20, 2))
    reader.join()
    assert numbers(got) == list(range(0, 20, 2))


@pytest.mark.parametrize("on_lost", ["raise", "continue"])
def test_a_lost_part_ends_the_others_or_lets_them_go_on(on_lost: Any, local_ray: Any, keep: Keep) -> None:
    feed = keep(mpfeed.from_generator(counted, workers=1, backend=Ray(num_cpus=0)))
    one, other = feed.split(2, shared=True, window=2, on_lost=on_lost)
    reader = reader_of(other, local_ray)
    batches = iter(one)
    assert next(batches) == 0
    assert local_ray.get(reader.read.remote(1)) == [1]
    reader.die.remote()
    if on_lost == "raise":
        with pytest.raises(mpfeed.MpfeedError, match="part 1 of 2 is lost"):
            numbers(batches)
    else:
        assert numbers(batches) == list(range(2, 20, 2))


@pytest.mark.parametrize(("how", "on_lost"), [("dies", "raise"), ("dies", "continue"), ("leaves", "continue")])
def test_the_end_of_the_process_that_read_a_part_before_is_none_of_its_reader(
    how: str, on_lost: Any, local_ray: Any
) -> None:
    feed = mpfeed.from_generator(counted, workers=1, backend="inprocess")
    hub = ray_hub.Hub(dumps(feed), ray_hub.Sharing(2, "drop", 4, on_lost), [])
    former, reader = [local_ray.remote(ray_hub.Beacon).options(num_cpus=0).remote() for _ in range(2)]
    hub.join(1, former)
    visit, number = hub.join(1, reader)
    if how == "leaves":
        hub.leave(1, former)
    local_ray.kill(former)
    assert eventually(lambda: watches() == 1)  # its end was heard of
    dealt = hub.take(1, visit, number)
    assert (dealt.kind, dealt.value) == ("element", 1)
    local_ray.kill(reader)
    assert eventually(lambda: hub._parts[1].state == "gone")
    hub.leave(0, None)
    hub.close()


def watches() -> int:
    return sum(thread.name == "mpfeed-beacon" for thread in threading.enumerate())


@pytest.mark.usefixtures("local_ray")
def test_a_part_that_is_read_elsewhere_ends_the_reader_before_who_leaves_the_new_one_alone(keep: Keep) -> None:
    feed = keep(mpfeed.from_generator(counted, workers=1, backend=Ray(num_cpus=0)))
    travelled = pickle.dumps(feed.split(2, shared=True, window=32)[0])
    former, reader = keep(pickle.loads(travelled)), keep(pickle.loads(travelled))  # as other processes have it
    before = iter(former)
    assert next(before) == 0
    now = iter(reader)
    first = int(next(now))
    with pytest.raises(mpfeed.MpfeedError, match="part 0 is read by another process now"):
        numbers(before)
    former.close()
    assert [first, *numbers(now)] == list(range(first, 20, 2))


@pytest.mark.usefixtures("local_ray")
def test_a_newer_iterator_of_a_shared_part_reads_the_next_epoch_and_ends_the_one_before(keep: Keep) -> None:
    def marked(shard: mpfeed.Shard) -> Any:
        return ((shard.epoch, number) for number in range(8))

    feed = keep(mpfeed.from_generator(marked, workers=1, backend=Ray(num_cpus=0)))
    part, _ = feed.split(2, shared=True, window=32)
    before, now = iter(part), iter(part)
    assert _pairs(before, 1) == [(0, 0)]
    first = _pairs(now, 1)
    with pytest.raises(mpfeed.MpfeedError, match="part 0 is read by a newer iterator now"):
        list(before)  # what was made before is still its own
    assert first + _pairs(now, 9) == [(1, 0), (1, 2), (1, 4), (1, 6)]
    assert _pairs(iter(part), 9) == [(2, 0), (2, 2), (2, 4), (2, 6)]


def _pairs(batches: Any, count: int) -> list[tuple[int, int]]:
    return [(int(epoch), int(number)) for epoch, number in islice(batches, count)]


def test_a_part_of_a_closed_feed_says_so_each_time_and_keeps_no_connection(local_ray: Any, keep: Keep) -> None:
    feed = keep(mpfeed.from_generator(counted, workers=1, backend=Ray(num_cpus=0)))
    part = keep(pickle.loads(pickle.dumps(feed.split(2, shared=True)[0])))  # as another process has it
    feed.close()
    assert eventually(lambda: local_ray.util.list_named_actors(all_namespaces=True) == [])
    users = ray_session._users
    for _ in range(2):
        with pytest.raises(mpfeed.FeedClosed, match="the feed of this part was closed"):
            numbers(part)
    assert ray_session._users == users


def test_of_a_ray_that_mpfeed_started_no_folder_stays() -> None:
    program = (
        "import mpfeed\n"
        "for _ in range(2):\n"
        "    with mpfeed.from_map(lambda i: i, range(3), workers=1, backend='ray') as feed:\n"
        "        print(sum(int(n) for n in feed))\n"
        "feed = mpfeed.from_map(lambda i: i, range(3), workers=1, backend='ray')\n"
        "print(sum(int(n) for n in feed))\n"  # ends with the program
    )
    with tempfile.TemporaryDirectory(prefix="r") as folder:  # Ray's sockets lie there, whose paths must be short
        environment = {**os.environ, "RAY_TMPDIR": folder}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, env=environment, check=True
        )
        assert done.stdout == "3\n3\n3\n"
        assert [path for path in Path(folder).rglob("*") if path.name.startswith("session_")] == []


def printed(program: str) -> str:
    """What a program with a Ray of its own prints; it must end well."""
    words = [sys.executable, "-c", program]
    return subprocess.run(words, capture_output=True, text=True, timeout=100, check=True).stdout


def test_a_ray_that_mpfeed_started_has_the_workers_of_its_feeds_and_no_idle_ones() -> None:
    program = (
        "import os, psutil, sys, mpfeed\n"
        "with mpfeed.from_map(lambda i: os.getpid(), range(3), workers=1, backend='ray') as feed:\n"
        "    actors = {int(pid) for pid in feed}\n"
        "    lines = {c.pid: ' '.join(c.cmdline()) for c in psutil.Process().children(recursive=True)}\n"
        "    assert 'RAY_prestart_worker_first_driver' not in os.environ\n"
        "kinds = 'ray::IDLE', 'ray::Actor', sys.executable\n"  # the last before it has taken the title of its task
        "workers = {p for p, l in lines.items() if l.startswith(kinds) and ('ray::' in l or 'default_worker' in l)}\n"
        "print(workers == actors)\n"
    )
    assert printed(program) == "True\n"


def test_a_feed_ends_the_ray_that_it_started_and_no_other() -> None:
    program = (
        "import threading, mpfeed, ray\n"
        "def feed():\n"
        "    def slow(i): i < 3 or threading.Event().wait(); return i\n"
        "    return mpfeed.from_map(slow, range(50), workers=1, backend='ray')\n"
        "with feed() as unread: iter(unread)\n"
        "print(ray.is_initialized())\n"
        "with feed() as one:\n"
        "    iterator = iter(one)\n"
        "    next(iterator)\n"
        "    ray.shutdown()\n"
        "    for _ in range(2):\n"
        "        try: print(list(iterator or one))\n"
        "        except mpfeed.MpfeedError as error: print('Ray was shut down' in str(error))\n"
        "        iterator = None\n"
        "    ray.init(address='local', num_cpus=1, include_dashboard=False)\n"
        "print(ray.is_initialized())\n"
    )
    assert printed(program) == "False\nTrue\nTrue\nTrue\n"


def test_a_shared_part_tells_that_ray_was_shut_down_and_starts_no_other() -> None:
    program = (
        "import mpfeed, ray\n"
        "feed = mpfeed.from_map(abs, range(400), batch_size=4, workers=1, backend='ray')\n"
        "part = iter(feed.split(2, shared=True)[0])\n"
        "next(part)\n"
        "ray.shutdown()\n"
        "try: print(list(part))\n"
        "except mpfeed.MpfeedError as error: print('Ray was shut down' in str(error))\n"
        "feed.close()\n"
        "print(ray.is_initialized())\n"
    )
    assert printed(program) == "True\nFalse\n"


def test_a_ray_that_a_thread_started_outlives_it() -> None:
    program = (
        "import threading, mpfeed\n"
        "with mpfeed.from_map(abs, range(200), workers=1, backend='ray') as feed:\n"
        "    def begin():\n"
        "        global iterator, first\n"
        "        iterator = iter(feed)\n"
        "        first = next(iterator)\n"
        "    thread = threading.Thread(target=begin)\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "    print(len([first, *iterator]), len(list(feed)))\n"
    )
    assert printed(program) == "200 200\n"


def test_shared_parts_on_a_ray_that_mpfeed_started_are_not_limited_by_cores() -> None:
    program = (
        "import os, mpfeed\n"
        "os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])\n"
        "def counted(shard): return iter(shard.of(range(8)))\n"
        "options = {'shards': 2, 'workers': 2, 'backend': 'ray', 'batch_size': 2}\n"
        "feeds = [mpfeed.from_generator(counted, **options) for _ in range(3)]\n"
        "parts = [iter(feed.split(2, shared=True)[0]) for feed in feeds]\n"
        "print([next(part).tolist() for part in parts])\n"
        "for feed in feeds: feed.close()\n"
    )
    assert printed(program) == "[[0, 2], [0, 2], [0, 2]]\n"


def test_a_shared_split_needs_ray(keep: Keep) -> None:
    feed = keep(mpfeed.from_generator(counted, workers=1, backend="process"))
    with pytest.raises(ValueError, match=r"backend=mpfeed\.Ray\(\)"):
        feed.split(2, shared=True)


def test_a_closed_feed_that_is_held_keeps_nothing_in_the_store(
    local_ray: Any, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "offer", lambda *_, **__: None)  # as on any node but the consumer's
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    state = get_state_from_address(local_ray.get_runtime_context().gcs_address)

    def used() -> int:
        return int(get_memory_info_reply(state).store_stats.object_store_bytes_used)

    before = used()
    feed = keep(mpfeed.from_map(lambda _: np.zeros(100_000), range(40), workers=2, backend=Ray(num_cpus=0)))
    for element in feed:  # the workers begin the next epoch meanwhile
        del element
    assert eventually(lambda: used() > 0)
    feed.close()
    assert eventually(lambda: used() <= before)
