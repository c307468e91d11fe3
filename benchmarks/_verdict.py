"""Which backend to use here, in one sentence that follows from the rows.

The simplest of the backends that do about as well as the best is the one to use: threads where the source
leaves the GIL free, processes where it holds it, Ray where a cluster helps. What counts is the time lost: the
wait, and what a step took beyond its own time, as it does where the training loop must get the GIL back from
threads. "About as well": 5 % more time a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks._backends import BARE, PLAIN
from benchmarks._rows import Figures, Row

_SIMPLEST_FIRST = ("inprocess", "threads", "process/shared_memory", "process/queue", "ray")
_SLACK = 0.05
_CLEARLY = 0.1  # of the step: less says nothing about the source
_CODE = {
    "inprocess": 'backend="inprocess"',
    "threads": 'backend="inprocess" with {workers} workers (threads)',
    "process/shared_memory": 'backend="process" with {workers} workers',
    "process/queue": 'backend=mpfeed.Process(transport="queue") with {workers} workers',
    "ray": 'backend="ray" with {workers} workers',
}


@dataclass(frozen=True, slots=True)
class _Seen:
    row: Row
    figures: Figures

    @property
    def code(self) -> str:
        return _CODE[self.row.backend].format(workers=self.row.workers)

    def __str__(self) -> str:
        return f"waiting {self.figures.wait_mean_ms:.3g} ms a batch and losing {self.figures.lost_ms:.3g} ms"


def verdict(rows: list[Row]) -> str:
    """The sentence for the rows of one workload."""
    seen = {row.backend: _Seen(row, row.figures) for row in rows if row.figures is not None and not row.fault}
    ours = [seen[name] for name in _SIMPLEST_FIRST if name in seen]
    name = rows[0].workload
    if not ours:
        return f"{name}: no backend of mpfeed was measured, so none can be advised."
    step_ms = rows[0].job.workload.step_s * 1e3
    sentence = _by_loss(ours, seen, step_ms) if step_ms else _by_rate(ours, seen)
    return f"{name}: {sentence}."


def _by_loss(ours: list[_Seen], seen: dict[str, _Seen], step_ms: float) -> str:
    best_ms = min(one.figures.lost_ms for one in ours)
    enough_ms = best_ms + _SLACK * (best_ms + step_ms)
    chosen = next(one for one in ours if one.figures.lost_ms <= enough_ms)
    plain = seen.get(PLAIN)
    if plain is not None and plain.figures.lost_ms <= enough_ms:
        return f"plain from_generator keeps up here, {plain}; with {chosen.code} it would be {chosen}"
    than = f", instead of {plain} with plain from_generator" if plain is not None else ""
    said = f"use {chosen.code}, {chosen}{than}"
    return said + _reason(chosen, seen, step_ms) + _price(chosen, seen, step_ms) + _not_enough(chosen)


def _reason(chosen: _Seen, seen: dict[str, _Seen], step_ms: float) -> str:
    if chosen.row.backend in ("inprocess", "threads"):
        return "; threads suffice: the source leaves the GIL free" if chosen.row.workers > 1 else ""
    threads = seen.get("threads")
    if threads is None or threads.figures.lost_ms - chosen.figures.lost_ms < _CLEARLY * step_ms:
        return ""
    return f"; threads lose {threads.figures.lost_ms:.3g} ms a batch, as the source holds the GIL too long"


def _price(chosen: _Seen, seen: dict[str, _Seen], step_ms: float) -> str:
    """What threads take from the training process, where that is much."""
    other = seen.get("process/shared_memory")
    if other is None or chosen.figures.cpu_ms - other.figures.cpu_ms < 0.05 * step_ms:
        return ""
    return (
        f"; where training itself needs the CPU or the GIL, {other.code} costs its process "
        f"{other.figures.cpu_ms:.1f} instead of {chosen.figures.cpu_ms:.1f} ms of CPU a batch"
    )


def _not_enough(chosen: _Seen) -> str:
    share = chosen.figures.waiting
    return f"; {share:.0%} of the time is still waiting: try more workers (--workers)" if share > 0.1 else ""


def _by_rate(ours: list[_Seen], seen: dict[str, _Seen]) -> str:
    enough = max(one.figures.batches_per_s for one in ours) / (1 + _SLACK)
    chosen = next(one for one in ours if one.figures.batches_per_s >= enough)
    rate = chosen.figures.batches_per_s
    beside = [
        f"{rate / seen[name].figures.batches_per_s:.2f} times {said}"
        for name, said in ((BARE, "the bare loop"), (PLAIN, "plain from_generator"))
        if name in seen
    ]
    than = f", {' and '.join(beside)}" if beside else ""
    return f"use {chosen.code}: {rate:.1f} batches/s{than}"
