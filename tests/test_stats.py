"""What a feed says of itself: counts that add up, bounded memory, and the right verdict for given figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from streams import Tally, eventually

import mpfeed
from mpfeed._counters import Counters, WorkerCount
from mpfeed._effort import Effort, host
from mpfeed._options import BackendName
from mpfeed._verdict import judge, judge_calls

# ------------------------------------------------------------------------------------------- the counts


def _slow_seventh(item: int) -> int:
    return item + 0 * sum(range(4_000_000 if item == 7 else 20_000))


def test_counts_of_elements_messages_and_workers_add_up(backend: BackendName) -> None:
    with mpfeed.from_map(_slow_seventh, range(24), batch_size=2, workers=2, epochs=1, backend=backend) as feed:
        assert len(list(feed)) == 12
        stats = feed.stats()
    assert stats.elements == sum(worker.elements for worker in stats.workers) == 12
    assert stats.waits == 11  # the first element is told by first_s
    assert stats.first_s is not None
    assert sum(worker.messages for worker in stats.workers) == 12
    for worker in stats.workers:
        if worker.messages:
            assert 0 < worker.collate_s < worker.busy_s <= worker.total_s
            assert worker.elements_per_s > 0
    assert 0 <= stats.waiting <= 1
    assert stats.message_p95_ms <= stats.message_max_ms
    assert stats.slowest is not None
    assert stats.slowest.where == "item 7"


def test_the_slowest_element_of_a_generator_is_named_by_shard_and_position(backend: BackendName) -> None:
    def source(shard: mpfeed.Shard) -> Iterator[int]:
        for number in range(6):
            yield number + 0 * sum(range(4_000_000 if (shard.index, number) == (1, 4) else 20_000))

    with mpfeed.from_generator(source, shards=2, workers=2, batch_size=3, backend=backend) as feed:
        list(feed)
        slowest = feed.stats().slowest
    assert slowest is not None
    assert slowest.where == "element 4 of shard 1"
    assert slowest.seconds > 0


def test_buffers_are_full_when_all_was_made_before_the_consumer_asked(remote: BackendName, tally: Tally) -> None:
    def source(item: int) -> int:
        tally.note(item)
        return item

    with mpfeed.from_map(source, range(12), batch_size=1, workers=1, buffer=2, backend=remote) as feed:
        for number, _ in enumerate(feed):
            # Once another is begun, the one before it has left its worker.
            assert eventually(lambda n=number: tally.reached(min(12, n + 3)))  # type: ignore[misc]
        stats = feed.stats()
    assert stats.buffer_fill is not None
    assert stats.buffer_fill > 0.4
    assert stats.workers[0].room_s > 0


def test_a_worker_that_comes_to_the_next_epoch_waited_for_work(remote: BackendName) -> None:
    with mpfeed.from_map(abs, range(4), batch_size=4, workers=1, buffer=1, backend=remote) as feed:
        for _ in range(3):
            list(feed)
        worker = feed.stats().workers[0]
    assert worker.work_s > 0


def test_a_snapshot_does_not_change_and_its_table_ends_in_the_verdict(backend: BackendName) -> None:
    with mpfeed.from_map(abs, range(40), batch_size=2, workers=2, backend=backend) as feed:
        list(feed)
        stats = feed.stats()
        text = repr(stats)
        list(feed)
        assert repr(stats) == text
        assert feed.stats().elements == 40
    assert text.endswith(str(stats.verdict))
    assert len(text.splitlines()) == 2 + 1 + 2 + 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.elements = 0  # type: ignore[misc]


def test_a_feed_that_was_never_read_has_nothing_to_say() -> None:
    with mpfeed.from_map(abs, range(4), workers=1) as feed:
        stats = feed.stats()
    assert (stats.elements, stats.first_s, stats.waiting, stats.workers) == (0, None, 0.0, ())
    assert stats.verdict.kind == "unknown"


def test_small_elements_that_come_as_chunks_are_counted_one_by_one() -> None:
    with mpfeed.from_map(abs, range(100), workers=1, backend="inprocess") as feed:
        iterator = iter(feed)
        rows = 0
        while rows < 100:
            rows += iterator.next_chunk()[1]
        assert feed.stats().elements == 100


def test_counters_keep_a_bounded_number_of_values() -> None:
    counters, worker = Counters("process", 2), WorkerCount()
    for i in range(20_000):
        counters.waited(float(i), i + 0.5, None)
        counters.took(float(i), i - 0.25, i + 0.5)
        worker.replied(Effort(done_s=float(i), busy_s=1.0), 1, i + 0.5, starved=False)
    assert len(counters.waits._kept) == 4096
    assert len(counters.fill._asks) <= 2048
    assert len(worker.busy._kept) == 512
    assert counters.fill.asks == 19_999 + 1
    assert counters.snapshot([worker]).wait_mean_ms == pytest.approx(500)


def test_a_clock_of_another_machine_is_set_by_the_quickest_reply() -> None:
    here, there = WorkerCount(), WorkerCount()
    assert here.replied(Effort(done_s=5.0, host=host()), 1, 6.0, starved=False) == 5.0
    assert there.replied(Effort(done_s=1005.0, host="elsewhere"), 1, 6.0, starved=False) == 6.0
    assert there.replied(Effort(done_s=1006.0), 1, 6.5, starved=False) == 6.5
    assert there.replied(Effort(done_s=1007.0), 1, 8.5, starved=False) == 7.5


# ---------------------------------------------------------------------------------------- the verdicts


def _worker(number: int = 0, **figures: Any) -> mpfeed.WorkerStats:
    usual = {
        "messages": 100, "elements": 100, "busy_s": 10.0, "collate_s": 0.1, "room_s": 0.0, "work_s": 0.0, "cpu_s": 9.0,
        "queued_s": 0.0, "memory_bytes": 1, "restarts": 0,
    }  # fmt: skip
    return mpfeed.WorkerStats(worker=number, **{**usual, **figures})


def _stats(workers: list[mpfeed.WorkerStats], **figures: Any) -> mpfeed.FeedStats:
    known = Counters("process/shared_memory", 2).snapshot([])
    usual: dict[str, Any] = {"waits": 200, "wait_s": 6.0, "step_s": 4.0, "cpus": 2, "message_mean_ms": 100.0}
    usual |= {"message_p95_ms": 110.0, "message_max_ms": 120.0}
    return dataclasses.replace(known, workers=tuple(workers), **{**usual, **figures})


_SLOW = mpfeed.SlowestSample(3.0, "item 17")
_CASES: dict[str, tuple[str, Callable[[], mpfeed.FeedStats]]] = {
    "few waits": ("unknown", lambda: _stats([_worker()], waits=3)),
    "hardly waits": ("consumer-bound", lambda: _stats([_worker(room_s=30)], wait_s=0.1)),
    "workers sleep": ("io-bound", lambda: _stats([_worker(cpu_s=0.5), _worker(1, cpu_s=0.5)])),
    "workers compute": ("cpu-bound", lambda: _stats([_worker(), _worker(1)])),
    "more workers than CPUs": (
        "oversubscribed", lambda: _stats([_worker(n, cpu_s=5.0, queued_s=4.5) for n in range(4)])
    ),
    "no more workers than CPUs": ("cpu-bound", lambda: _stats([_worker(n, cpu_s=5.0, queued_s=4.5) for n in range(2)])),
    "many workers that sleep": ("io-bound", lambda: _stats([_worker(n, cpu_s=0.5) for n in range(16)])),
    "one is slow": ("slow-worker", lambda: _stats([_worker(messages=30), _worker(1, busy_s=3.0, room_s=7.0)])),
    "one sample is slow": (
        "slow-item", lambda: _stats([_worker(room_s=5.0)] * 2, slowest=_SLOW, message_max_ms=3000.0)
    ),
    "times vary": ("jitter", lambda: _stats([_worker(room_s=5.0)] * 2, message_p95_ms=400.0)),
    "on its way": ("transport-bound", lambda: _stats([_worker(room_s=5.0)], travel_s=4.0, backend="process/queue")),
    "nothing left to do": ("uneven", lambda: _stats([_worker(), _worker(1, work_s=9.0)])),
    "in the training's thread": ("cpu-bound", lambda: _stats([_worker(room_s=7.0)], backend="inprocess")),
    "in the training's thread, sleeping": (
        "io-bound", lambda: _stats([_worker(room_s=7.0, cpu_s=0.1)], backend="inprocess")
    ),
    "threads under one GIL": (
        "gil-bound", lambda: _stats([_worker(n, cpu_s=2.5) for n in range(4)], backend="inprocess")
    ),
    "threads that sleep": ("io-bound", lambda: _stats([_worker(n, cpu_s=0.5) for n in range(4)], backend="inprocess")),
}  # fmt: skip


@pytest.mark.parametrize("case", _CASES)
def test_figures_have_the_verdict_that_fits_them(case: str) -> None:
    kind, stats = _CASES[case]
    verdict = judge(stats())
    assert verdict.kind == kind
    assert verdict.input_bound == (kind not in ("unknown", "consumer-bound"))
    assert verdict.text
    assert verdict.advice


def test_advice_has_numbers_that_follow_from_the_figures() -> None:
    # Two workers take 0.1 s a message, and the training step 0.02 s: it needs 5, and a tenth more.
    assert judge(_stats([_worker(cpu_s=0.5), _worker(1, cpu_s=0.5)])).workers == 6
    assert judge(_stats([_worker()], wait_s=6.0)).workers == 2
    assert judge(_stats([_worker(room_s=30)] * 8, wait_s=0.1)).workers == 3
    assert judge(_stats([_worker(room_s=5.0)] * 2, message_p95_ms=400.0)).buffer == 5
    assert "item 17" in judge(_stats([_worker(room_s=5.0)] * 2, slowest=_SLOW)).text


@pytest.mark.parametrize(
    ("kind", "figures"),
    [
        ("unknown", {"elements": 3}),
        ("consumer-bound", {"work_s": 9.0}),
        ("cpu-bound", {}),
        ("io-bound", {"cpu_s": 0.5}),
        ("gil-bound", {"cpu_s": 5.0, "backend": "inprocess"}),
    ],
)
def test_a_function_is_judged_by_whether_its_workers_keep_up_with_the_calls(kind: str, figures: dict[str, Any]) -> None:
    of_feed = {"waits": 0, "wait_s": 0.0, "step_s": 0.0, "elements": 200, "backend": "process/shared_memory"}
    of_feed |= {name: figures[name] for name in of_feed if name in figures}
    of_worker = {name: value for name, value in figures.items() if name not in of_feed}
    verdict = judge_calls(_stats([_worker(**of_worker), _worker(1, **of_worker)], **of_feed))
    assert verdict.kind == kind
    assert "consumer" not in verdict.text
    assert verdict.advice


def test_what_the_training_itself_waits_takes_precedence() -> None:
    stats = _stats([_worker(cpu_s=0.5)] * 2)
    assert judge(stats, waiting=0.01).kind == "consumer-bound"
    assert judge(stats, waiting=0.5, step_s=0.05).workers == 3
    quick = _stats([_worker(room_s=5.0)], wait_s=0.01, travel_s=0.01)
    assert judge(quick, waiting=0.4, step_s=0.01).kind == "transport-bound"
    assert "handing over" in judge(quick, waiting=0.4, step_s=0.01).text
    late = _stats([_worker(), _worker(1)], wait_s=6.0, travel_s=4.0)
    assert judge(late, waiting=0.5, step_s=0.5).kind == "cpu-bound"  # 20 ms of travel do not explain 0.5 s
    assert judge(late, waiting=0.5, step_s=0.03).kind == "transport-bound"
