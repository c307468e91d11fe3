"""Ray: batches of actors on the consumer's node lie in mpfeed's shared memory; those of all others in the store."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
from streams import Gate, copied, digest, eventually, mapping_at

import mpfeed
from mpfeed import Feed, Ray
from mpfeed._errors import MpfeedError
from mpfeed.backends import ray_engine, ray_memory, ray_session
from mpfeed.backends.ray_memory import Invitation, Offer, RoomyWriter, accepted, offer
from mpfeed.transport import arena
from mpfeed.transport.arena import TABLE_BYTES, create_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere batches of actors lie in the store")
Keep = Callable[[Feed], Feed]
ANYWHERE = Ray(num_cpus=0)
BATCH = 800_000


def engine_of(feed: Feed) -> Any:
    assert feed._crew is not None
    return feed._crew.engine()


def shared(array: Any) -> bool:
    return "memfd:mpfeed" in mapping_at(array.ctypes.data)


def descriptors() -> int:
    """How many this process has, but for connections, which Ray opens whenever it likes."""
    gc.collect()
    targets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue  # the listing's own
    return sum("memfd:mpfeed" in target for target in targets)


def mapped(inode: int) -> set[int]:
    """The processes that have a file of shared memory mapped."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/maps") as maps:
                if any("memfd:mpfeed" in line and line.split()[4] == str(inode) for line in maps):
                    found.add(int(pid))
        except OSError:
            continue  # it has ended
    return found


def inode_of(array: Any) -> int:
    return int(mapping_at(array.ctypes.data).split()[4])


def filled(i: int) -> Any:
    return np.full(BATCH, i % 251, np.uint8)


def assert_all_come_through_the_store(feed: Feed) -> None:
    """Of a feed of eight ``filled``; nothing is left of what was offered."""
    held = list(feed)
    assert [int(array[-1]) for array in held] == list(range(8))
    assert not any(shared(array) for array in held)
    assert descriptors() == 0


@pytest.fixture
def through_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on any node but the consumer's."""
    monkeypatch.setattr(ray_engine, "offer", lambda *_, **__: None)


def limit(feed: Feed) -> int | None:
    room: int | None = engine_of(feed).room_bytes
    return room


# --------------------------------------------------------------------------------------------- shared memory


def test_batches_of_this_node_are_read_in_place_and_are_not_in_the_store(local_ray: Any, keep: Keep) -> None:
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    state = get_state_from_address(local_ray.get_runtime_context().gcs_address)

    def stored() -> int:
        return int(get_memory_info_reply(state).store_stats.object_store_bytes_used)

    before = stored()
    feed = keep(mpfeed.from_map(filled, range(20), workers=2, backend=ANYWHERE))
    held = list(feed)
    assert [int(array[-1]) for array in held] == list(range(20))
    assert all(shared(array) and array.ctypes.data % 64 == 0 and not array.flags.writeable for array in held)
    assert stored() < before + BATCH
    assert limit(feed) is None


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("letters", [10, 400_000])
def test_text_too_long_for_a_message_lies_in_the_store_which_limits_it(letters: int, keep: Keep) -> None:
    feed = keep(mpfeed.from_map(lambda i: "x" * letters + str(i), range(6), workers=1, backend=ANYWHERE))
    assert [str(text)[letters:] for text in feed] == list("012345")
    assert (limit(feed) is None) == (letters == 10)


@pytest.mark.usefixtures("local_ray")
def test_a_worker_that_finds_no_room_does_not_limit_those_that_share_memory(keep: Keep) -> None:
    feed = keep(mpfeed.from_map(filled, range(40), workers=2, backend=ANYWHERE))
    elements = iter(feed)
    next(elements)
    engine = engine_of(feed)
    assert eventually(lambda: next(elements) is not None and len(engine._members) == 2 and limit(feed) is None)
    engine.retire_worker(1)
    engine._backend = Ray(num_cpus=10_000)
    engine._reserves = True
    engine.start_worker(1)
    assert limit(feed) is None


@pytest.mark.usefixtures("local_ray")
def test_a_feed_that_is_dropped_leaves_no_descriptor() -> None:
    before = descriptors()
    feed = mpfeed.from_map(filled, range(40), workers=2, backend=ANYWHERE)
    held = next(iter(feed))
    assert shared(held)
    with pytest.warns(ResourceWarning, match="was forgotten"):
        del feed, held
    assert eventually(lambda: descriptors() == before)


@pytest.mark.usefixtures("local_ray")
def test_no_answer_is_on_its_way_when_ray_may_be_shut_down(
    gate: Gate, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Gate(gate.path)

    def slow(i: int) -> int:
        if i >= 4:
            held.wait()
        return i

    feed = keep(mpfeed.from_map(slow, range(40), workers=2, backend=ANYWHERE))
    elements = iter(feed)
    assert [int(next(elements)) for _ in range(4)] == [0, 1, 2, 3]
    answers = [future for member in engine_of(feed)._members.values() for _, future in member.calls]
    assert not all(future.done() for future in answers)
    seen: list[bool] = []

    def shut_down(session: Any) -> None:
        seen.extend(future.done() for future in answers)
        ray_session.disconnect(session)

    monkeypatch.setattr(ray_engine, "disconnect", shut_down)
    feed.close()
    assert seen
    assert all(seen)


@pytest.mark.usefixtures("local_ray")
def test_an_array_of_empty_is_not_copied(keep: Keep) -> None:
    def source() -> Any:
        for i in range(4):
            array = mpfeed.empty(BATCH, np.uint8)
            array[:] = i
            yield array
            assert not array.flags.writeable, "it has left"

    feed = keep(mpfeed.from_generator(source, workers=1, backend=ANYWHERE))
    assert [int(array[-1]) for array in feed] == list(range(4))


@pytest.mark.usefixtures("local_ray")
def test_thousands_of_held_batches_stay_as_they_were_and_are_copies_but_for_a_few(keep: Keep) -> None:
    feed = keep(mpfeed.from_map(lambda i: np.full(20_000, i), range(1500), workers=2, backend=ANYWHERE))
    held = list(feed)
    assert all(int(array[0]) == int(array[-1]) == i for i, array in enumerate(held))
    assert feed.stats().copied_held > 0
    assert all(member.memory.reader.lent <= 70 for member in engine_of(feed)._members.values())


@pytest.mark.usefixtures("local_ray")
def test_batches_of_an_actor_that_was_killed_stay_valid_and_the_stream_goes_on(keep: Keep) -> None:
    def sample(i: int) -> Any:
        return os.getpid(), np.full(BATCH, i % 251, np.uint8)

    feed = keep(mpfeed.from_map(sample, range(60), workers=1, backend=ANYWHERE))
    elements = iter(feed)
    held = [next(elements) for _ in range(5)]
    before = copied(held)
    os.kill(int(held[0][0]), signal.SIGKILL)
    rest = list(elements)
    assert len({int(pid) for pid, _ in (*held, *rest)}) == 2
    assert [int(array[0]) for _, array in (*held, *rest)] == list(range(60))
    assert digest(held) == digest(before)
    assert all(shared(array) for _, array in held)


@pytest.mark.usefixtures("local_ray")
def test_workers_come_and_go_and_one_descriptor_each_is_all_they_take(keep: Keep) -> None:
    feed = keep(mpfeed.from_map(filled, range(10), workers=1, max_tasks_per_worker=2, backend=ANYWHERE))
    elements = iter(feed)
    inodes = set()
    for i in range(10):
        array = next(elements)
        inodes.add(inode_of(array))
        # The worker's mapping, that of the one before where it made this array, and the offer to one that starts.
        assert 1 <= descriptors() <= 3, i
    assert len(inodes) == 5
    del array
    assert next(elements, None) is None
    feed.close()
    assert descriptors() == 0
    assert eventually(lambda: not any(mapped(inode) for inode in inodes))


@pytest.mark.usefixtures("local_ray")
def test_a_worker_that_cannot_start_takes_no_descriptor(keep: Keep) -> None:
    def refuse() -> None:
        raise RuntimeError("no camera")

    feed = keep(mpfeed.from_map(filled, range(3), workers=1, worker_init=refuse, backend=ANYWHERE))
    with pytest.raises(mpfeed.WorkerError, match="no camera"):
        next(iter(feed))
    assert descriptors() == 0


@pytest.mark.usefixtures("local_ray")
def test_workers_that_find_no_room_leave_their_descriptors(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "_LOOK_S", 0.05)
    feed = keep(mpfeed.from_map(filled, range(3), workers=3, backend=Ray(num_cpus=4)))
    with pytest.warns(RuntimeWarning, match="room for 2 of the 3 workers"):
        assert [int(array[0]) for array in feed] == [0, 1, 2]
    assert descriptors() == 2 + 1  # of the third, which waits for room, the offer
    feed.close()
    assert descriptors() == 0


def test_a_killed_training_process_leaves_no_actor_and_no_memory(local_ray: Any) -> None:
    program = (
        "import os, numpy as np, mpfeed\n"
        "from streams import mapping_at\n"
        "def sample(i): return os.getpid(), np.full(800_000, i % 251, np.uint8)\n"
        f"backend = mpfeed.Ray(address={local_ray.get_runtime_context().gcs_address!r}, num_cpus=0)\n"
        "elements = iter(mpfeed.from_map(sample, range(10**6), workers=1, backend=backend))\n"
        "pid, array = next(elements)\n"
        "print(int(pid), mapping_at(array.ctypes.data).split()[4], flush=True)\n"
        "for _ in elements: pass\n"
    )
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as driver:
        try:
            assert driver.stdout is not None
            pid, inode = map(int, driver.stdout.readline().split())
            assert mapped(inode) == {pid, driver.pid}
        finally:
            driver.kill()
    assert eventually(lambda: not mapped(inode))
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))


# ----------------------------------------------------------------------------------------- offers and answers


def elsewhere(invitation: Invitation, why: str) -> Invitation:
    """The same, but for what makes an actor decline."""
    file, given = invitation.arena, invitation.arguments
    made = {
        "another node": lambda: replace(invitation, node="another"),
        "another process": lambda: replace(invitation, pid=os.getppid()),
        "no process": lambda: replace(invitation, pid=1 << 30),
        "another file": lambda: replace(invitation, arena=replace(file, inode=file.inode + 1)),
        "another device": lambda: replace(invitation, arena=replace(file, device=file.device + 1)),
        "another length": lambda: replace(invitation, arena=replace(file, length=file.length * 2)),
        "no arguments": lambda: replace(invitation, arguments=given and replace(given, fd=1 << 20)),
    }
    return made[why]()


WHY = ["another node", "another process", "no process", "another file", "another device", "another length"]


@pytest.mark.parametrize("why", [*WHY, "no arguments"])
def test_an_offer_is_declined_where_it_is_not_the_same_memory(why: str) -> None:
    offered = Offer("here", WeakSet(), has_arguments=True)
    before = descriptors()
    assert accepted(elsewhere(offered.invitation, why), "here") is None
    assert descriptors() == before
    taken = accepted(offered.invitation, "here")
    assert taken is not None
    ours, packer = offered.mapped()
    offered.close()
    writer, unpacker = taken
    assert packer is not None
    assert unpacker is not None
    slot, memory = writer.allocate(1000)
    memory[:] = 7
    assert ours.resolve(slot).tolist() == [7] * 1000
    assert descriptors() == 4  # of two files, each mapped on both sides
    del ours, packer, taken, writer, unpacker, memory
    assert descriptors() == 0


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("why", ["another node", "another process", "another file"])
def test_the_stream_of_actors_that_decline_comes_through_the_store(
    why: str, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def altered(*given: Any, **options: Any) -> Offer | None:
        offered = offer(*given, **options)
        assert offered is not None
        offered.invitation = elsewhere(offered.invitation, why)
        return offered

    monkeypatch.setattr(ray_engine, "offer", altered)
    feed = keep(mpfeed.from_map(filled, range(8), workers=1, backend=ANYWHERE))
    assert_all_come_through_the_store(feed)
    assert engine_of(feed).room_bytes == int(ray_engine.IN_FLIGHT_SHARE * (256 << 20))


@pytest.mark.parametrize("error", [OSError, MpfeedError])
def test_a_process_without_descriptors_or_address_space_offers_nothing(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = iter([create_file()])

    def refuse() -> Any:
        for file in files:
            return file
        raise error("no descriptors, or no address space")

    monkeypatch.setattr(ray_memory, "create_file", refuse)
    assert offer("here", WeakSet(), has_arguments=True) is None
    assert descriptors() == 0


def test_a_process_that_uses_half_of_its_descriptors_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    allowed = iter([2 * used + 8, 2 * used - 8])
    monkeypatch.setattr(resource, "getrlimit", lambda _: (next(allowed), most))
    first = offer("here", WeakSet(), has_arguments=False)
    assert first is not None
    first.close()
    assert offer("here", WeakSet(), has_arguments=False) is None


@pytest.mark.usefixtures("local_ray")
def test_an_actor_whose_memory_cannot_be_mapped_here_is_replaced_by_one_that_uses_the_store(
    keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError("no descriptors")

    monkeypatch.setattr(ray_memory, "WorkerMemory", refuse)
    feed = keep(mpfeed.from_map(filled, range(8), workers=2, backend=ANYWHERE))
    assert_all_come_through_the_store(feed)


def test_memory_that_is_full_is_helped_out_by_private_memory() -> None:
    fd = os.memfd_create("small")
    os.ftruncate(fd, TABLE_BYTES + 8192)
    writer = RoomyWriter(fd, TABLE_BYTES + 8192)
    names = [writer.allocate(4096)[0] for _ in range(4)]
    assert [type(name) for name in names] == [tuple, tuple, np.ndarray, np.ndarray]
    assert writer.adopt(writer.empty(4096, np.uint8), goes_on=False) is None
    os.close(fd)


@pytest.mark.usefixtures("local_ray")
def test_messages_that_have_no_room_come_through_the_store_between_the_others(
    keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each element is two arrays: one that lies in memory of its own already, and one that is copied."""

    def sample(i: int) -> Any:
        mine = mpfeed.empty(BATCH, np.uint8)
        mine[:] = i
        return mine, np.full(BATCH, i, np.uint8), f"{i}"

    monkeypatch.setattr(arena, "_SPAN_BYTES", 8 * BATCH)
    monkeypatch.setattr(arena, "_SMALLEST_SPAN_BYTES", 1)
    feed = keep(mpfeed.from_map(sample, range(20), workers=1, backend=ANYWHERE))
    held = list(feed)
    assert [(int(a[-1]), int(b[0]), str(text)) for a, b, text in held] == [(i, i, f"{i}") for i in range(20)]
    kinds = [shared(array) for a, b, _ in held for array in (a, b)]
    assert 1 <= sum(kinds) <= 8


# -------------------------------------------------------------------------------------------- through the store


@pytest.mark.usefixtures("local_ray", "through_store")
@pytest.mark.parametrize("batch_size", [None, 4])
def test_the_store_delivers_the_same_stream_also_after_a_worker_was_killed(batch_size: Any, keep: Keep) -> None:
    def sample(i: int, rng: np.random.Generator) -> Any:
        return {"image": rng.integers(0, 255, 100_000).astype(np.uint8), "name": f"{i}\0", "n": np.int64(i)}

    options: dict[str, Any] = {"shuffle": True, "workers": 2, "batch_size": batch_size}
    with mpfeed.from_map(sample, range(60), backend="inprocess", **{**options, "workers": 1}) as alone:
        expected = [copied(element) for element in alone]
    feed = keep(mpfeed.from_map(sample, range(60), backend=ANYWHERE, **options))
    elements = iter(feed)
    got = [next(elements) for _ in range(3)]
    assert not any(shared(element["image"]) for element in got)
    os.kill(next(member.pid for member in engine_of(feed)._members.values() if member.pid), signal.SIGKILL)
    got += elements
    assert digest(got) == digest(expected)
    assert descriptors() == 0


@pytest.mark.usefixtures("local_ray", "through_store")
def test_what_is_held_of_the_store_beyond_its_share_is_copied(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpfeed.backends.ray_loans.LENT_SHARE", 4 * BATCH / (256 << 20))
    feed = keep(mpfeed.from_map(filled, range(20), workers=1, backend=ANYWHERE))
    held = list(feed)
    assert [int(array[-1]) for array in held] == list(range(20))
    assert 10 <= feed.stats().copied_held < 20


@pytest.mark.usefixtures("local_ray", "through_store")
def test_through_the_store_a_source_may_refill_its_array(keep: Keep) -> None:
    """Ray copies it before its source goes on."""
    buffer = np.zeros(BATCH, np.uint8)

    def source() -> Any:
        for i in range(20):
            buffer[:] = i
            yield buffer

    feed = keep(mpfeed.from_generator(source, workers=1, backend=ANYWHERE))
    assert [(int(array[0]), int(array[-1])) for array in feed] == [(i, i) for i in range(20)]


@pytest.mark.usefixtures("local_ray", "through_store")
def test_arguments_of_calls_travel_in_the_request(keep: Any) -> None:
    tf = pytest.importorskip("tensorflow")
    signature = tf.TensorSpec(None, tf.int64), tf.TensorSpec((), tf.string)
    function = keep(mpfeed.numpy_function(lambda x, word: (x + 1, word), signature, backend=ANYWHERE, workers=1))
    for size in (3, 100_000):
        got, word = function.call((np.arange(size), b"w"))
        assert (int(got[-1]), word.item()) == (size, b"w")
        assert not shared(got)
