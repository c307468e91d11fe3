"""Ray clusters of several nodes on this machine: nodes die, join and are drained; the store in the long run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from streams import digest, eventually, reader_of

import mpfeed
from benchmarks._nodes import Nodes
from mpfeed import Feed, Ray

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
Keep = Callable[[Feed], Feed]
STORE = 150 << 20
CPUS = 2
# A node tells the others of objects that are free when it has so many of them, or a second has passed
# (`free_objects_batch_size` and `free_objects_period_milliseconds` in Ray's ray_config_def.h).
FREED_TOGETHER = 100


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """What a test holds when several nodes of Ray were here is Ray's own: what feeds leave is seen elsewhere."""


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """A cluster that this process is connected to, as yet without a node that has CPUs."""
    ray = pytest.importorskip("ray")
    ray.shutdown()  # that of other tests
    with Nodes(CPUS, STORE) as made:
        ray.init(address=made.address, log_to_driver=False, logging_level="error")
        yield made
        ray.shutdown()


def drain(nodes: Nodes, node: Any) -> None:
    """Announce the end of a node, as a cloud does before it takes a machine back."""
    import ray

    client = ray._raylet.GcsClient(address=nodes.address)
    accepted, why = client.drain_node(node.node_id, 2, "preempted", int((time.time() + 60) * 1e3))
    assert accepted, why


def noisy(item: int, rng: np.random.Generator) -> Any:
    time.sleep(0.01)
    return rng.integers(0, 255, 200_000).astype(np.uint8)


def of_items(backend: Any, count: int) -> Feed:
    return mpfeed.from_map(noisy, range(count), shuffle=True, workers=4, backend=backend, max_restarts=10)


def of_shards(backend: Any, count: int) -> Feed:
    def source(shard: mpfeed.Shard) -> Iterator[Any]:
        for _ in shard.of(range(count)):
            yield shard.rng.integers(0, 255, 200_000).astype(np.uint8)

    return mpfeed.from_generator(source, shards=4, workers=4, backend=backend, max_restarts=10)


@pytest.mark.parametrize("make", [of_items, of_shards])
def test_the_stream_is_exact_while_nodes_die_and_join(make: Any, nodes: Nodes, keep: Keep) -> None:
    count, every = 2000, 500
    with make("inprocess", count) as feed:
        expected = digest(feed)
    nodes.add(3)
    nodes.ready()

    def disturbed(batches: Any) -> Iterator[Any]:
        for number, batch in enumerate(batches, 1):
            yield batch
            if number % every == 0:
                nodes.add()
                nodes.kill(nodes.living[0])

    assert digest(disturbed(keep(make(Ray(), count)))) == expected


def test_a_node_that_joins_later_is_used(nodes: Nodes, keep: Keep) -> None:
    nodes.add()
    nodes.ready()
    feed = keep(of_items(Ray(), 3000))
    with pytest.warns(RuntimeWarning, match="room for 2 of the 4 workers"):
        batches = iter(feed)
    for _ in range(100):
        next(batches)
    nodes.add()
    for _ in batches:
        pass
    assert all(worker.messages > 0 for worker in feed.stats().workers)


@pytest.mark.parametrize("make", [of_items, of_shards])
def test_a_drained_node_hands_over(make: Any, nodes: Nodes, keep: Keep) -> None:
    count = 1500
    with make("inprocess", count) as feed:
        expected = digest(feed)
    nodes.add(3)
    nodes.ready()
    feed = keep(make(Ray(), count))
    leaving = nodes.living[0]

    def disturbed(batches: Any) -> Iterator[Any]:
        for number, batch in enumerate(batches, 1):
            yield batch
            if number == 200:
                drain(nodes, leaving)
            if number == count - 100:
                assert eventually(lambda: leaving.node_id not in _nodes_of_actors())

    assert digest(disturbed(feed)) == expected
    assert not any(worker.restarts for worker in feed.stats().workers)


def _nodes_of_actors() -> set[str]:
    from ray._private.state import state

    actors = state.actor_table(None).values()
    return {actor["Address"]["NodeID"] for actor in actors if actor["State"] == "ALIVE"}


@pytest.mark.parametrize("on_lost", ["raise", "continue"])
def test_consumers_on_two_nodes_get_equal_disjoint_parts_and_hear_of_each_others_death(
    on_lost: Any, nodes: Nodes, keep: Keep
) -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes.add(2)
    nodes.ready()
    feed = keep(mpfeed.from_map(np.int64, range(400), batch_size=4, workers=2, backend=Ray(), epochs=1))
    parts = feed.split(2, shared=True, on_lost=on_lost)
    one, other = (
        reader_of(part, ray, scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False))
        for part, node in zip(parts, nodes.living, strict=True)
    )
    got = [ray.get([reader.read.remote(5) for reader in (one, other)]) for _ in range(4)]
    mine, theirs = ([batch for turn in got for batch in turn[k]] for k in (0, 1))
    assert mine == [list(range(8 * i, 8 * i + 4)) for i in range(20)]
    assert theirs == [list(range(8 * i + 4, 8 * i + 8)) for i in range(20)]
    other.die.remote()
    if on_lost == "raise":
        with pytest.raises(mpfeed.MpfeedError, match="part 1 of 2 is lost"):
            ray.get(one.read.remote(30))
    else:
        assert ray.get(one.read.remote(30)) == [list(range(8 * i, 8 * i + 4)) for i in range(20, 50)]


def test_the_store_stays_bounded_over_many_batches_and_nothing_is_spilled(nodes: Nodes, keep: Keep) -> None:
    nodes.add(2)
    nodes.ready()
    batch_bytes, workers = 500_000, 4

    def source(shard: mpfeed.Shard) -> Iterator[Any]:
        for number in shard.of(range(5000)):
            yield np.full(batch_bytes, number % 251, np.uint8)

    used = []
    feed = keep(mpfeed.from_generator(source, batch_size=1, workers=workers, buffer=2, backend=Ray()))
    for number, _ in enumerate(feed):
        if number % 250 == 249:
            used.append(_store(nodes))
    # Each batch lies in its worker's store and in the consumer's; a few are on their way from each worker.
    bound = 2 * batch_bytes * (FREED_TOGETHER * len(nodes.living) + 4 * workers)
    assert max(stats.object_store_bytes_used for stats in used) <= bound
    assert not any(stats.spilled_bytes_total or stats.object_store_bytes_fallback for stats in used)


def test_workers_of_the_consumers_node_share_memory_and_others_do_not_in_one_stream(nodes: Nodes, keep: Keep) -> None:
    import ray

    nodes.add()
    nodes.ready()
    with of_items("inprocess", 400) as feed:
        expected = digest(feed)
    feed = keep(of_items(Ray(num_cpus=0), 400))
    batches = iter(feed)
    first = [np.array(next(batches)) for _ in range(200)]
    members = feed._crew.engine()._members.values()  # type: ignore[union-attr]
    here = ray.get_runtime_context().get_node_id()
    assert {(member.node == here, member.memory is not None) for member in members} == {(True, True), (False, False)}
    assert feed._crew.engine().room_bytes is not None  # type: ignore[union-attr]
    assert digest([*first, *batches]) == expected


def _store(nodes: Nodes) -> Any:
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    return get_memory_info_reply(get_state_from_address(nodes.address)).store_stats
