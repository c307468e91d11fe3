"""One iteration of a ``from_generator`` feed: shards taken in turn, left-over samples merged at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from mpfeed._collating import MAX_ROWS
from mpfeed._crew import Crew
from mpfeed._deal import Deal, ShardProgress
from mpfeed._errors import MpfeedError
from mpfeed._interleaving import Interleaved, alike, interleaved
from mpfeed._messages import CONTINUE, Collate, MakeShard, Parcel, Reply
from mpfeed._options import Options
from mpfeed._runs import END, BaseRun, CollateUnit, End, Made, Span

_NO_LIMIT = 1 << 30
# A worker that dies loses less work than this on small samples, one a message: what took longer was sent early.
_LOST_S = 1.0


@dataclass(slots=True, eq=False)
class _ShardUnit:
    shard: ShardProgress


class GeneratorRun(BaseRun):
    """See ``BaseRun``. Element k comes from shard k mod S, exhausted ones skipped.

    Args:
        options: of the feed.
        shards: how many.
        state: where to begin, from ``state()``.
    """

    def __init__(
        self, crew: Crew, epoch: int, options: Options, shards: int, state: dict[str, Any] | None = None
    ) -> None:
        super().__init__(crew, epoch, options.buffer)
        self._batch_size = options.batch_size
        self._ordered = options.ordered
        self._drop_remainder = options.drop_remainder
        workers = crew.roster.at_work
        self._shards = [ShardProgress(i, workers[i % len(workers)]) for i in range(shards)]
        self._deal = Deal(self._shards, crew.roster.most)
        self._turns = list(self._shards)  # those not exhausted, in order
        self._turn = 0
        self._arrived: deque[Made] = deque()  # unordered: as they came
        self._units: dict[int, ShardProgress] = {}
        self._tail: deque[CollateUnit] | None = None
        self._tail_taken = 0
        # In this process a source runs ahead of its consumer only where that one takes rows, as TensorFlow does.
        self._gathers = False
        if state is not None:
            self._begin_at(state)

    def _begin_at(self, state: dict[str, Any]) -> None:
        for shard, position in zip(self._shards, state["positions"], strict=True):
            shard.taken = shard.received = position
        exhausted = set(state["exhausted"])
        self._turns = [shard for shard in self._shards if shard.index not in exhausted]
        if self._turns:
            self._turn = next((i for i, s in enumerate(self._turns) if s.index >= state["turn"]), 0)
        self._tail_taken = state["tail"]
        # An exhausted shard is asked once more: for its left-over samples.

    def state(self) -> dict[str, Any]:
        left = {shard.index for shard in self._turns}
        return {
            "positions": [shard.taken for shard in self._shards],
            "exhausted": [shard.index for shard in self._shards if shard.index not in left],
            "turn": self._turns[self._turn % len(self._turns)].index if self._turns else 0,
            "tail": self._tail_taken,
        }

    def discard(self) -> None:
        for shard in self._shards:
            shard.queue.clear()
            shard.rest = ()
        self._arrived.clear()
        self._units.clear()
        self._tail = None

    # ------------------------------------------------------------------------------------------ asking

    def pump(self) -> None:
        if self.closed:
            return
        if self.priming:
            self._ask_for_next()
            return
        credit = self.credit
        for worker, held in enumerate(self._deal.held):
            if held < self._worker_credit(worker, credit):
                self._ask_worker(worker, credit)
        self._ask_for_next()

    def _ask_worker(self, worker: int, credit: int) -> None:
        while self._deal.held[worker] < self._worker_credit(worker, credit):
            shard = self._deal.next_of(worker)
            if shard is None:
                return
            self._ask(shard)

    def _worker_credit(self, worker: int, credit: int) -> int:
        shards = self._deal.of[worker]
        if self.crew.roster.away(worker) and any(shard.asked for shard in shards):
            return 0  # a shard moves once it has answered
        if any(shard.received < shard.careful_until for shard in shards):
            return 1  # a death is blamed on what was asked for last; Ray may lose the answer just before it
        if self._batch_size is not None or len(shards) <= credit:
            return credit
        # Elements of a worker's shards alternate, so each shard needs a message of its own in hand.
        return max(credit, sum(not shard.ended for shard in shards))

    def _ask_for_next(self) -> None:
        """Whatever credit says, the shard that everyone waits for is asked."""
        if self._tail is not None or not self._turns:
            for shard in self._shards:
                if not shard.ended and not shard.asked and shard not in self._turns:
                    self._ask(shard)
            return
        shard = self._turns[self._turn % len(self._turns)]
        if not shard.queue and not shard.asked and not shard.ended:
            self._ask(shard)

    def _ask(self, shard: ShardProgress) -> None:
        shard.asked += 1
        self._deal.hold(shard, 1)
        self.crew.submit(self, _ShardUnit(shard), shard.worker)

    def issued_all(self, worker: int) -> bool:
        return all(shard.ended for shard in self._deal.of[worker])

    # ---------------------------------------------------------------------------------- the crew's side

    def holds(self, worker: int) -> bool:
        return any(not shard.ended and shard.begun for shard in self._deal.of[worker])

    def resized(self) -> None:
        self._deal.anew(self.crew.roster.at_work)

    def request(self, number: int, unit: Any, worker: int, incarnation: int) -> MakeShard | Collate:
        if isinstance(unit, CollateUnit):
            return self.collate_request(number, unit)
        shard = unit.shard
        if shard.worker != worker:
            self._deal.move(shard, worker)
        position = CONTINUE
        if shard.incarnation != incarnation:
            shard.incarnation, position = incarnation, shard.received
        limit = 1 if self._alone(shard) else _NO_LIMIT
        count, traced = len(self._shards), self.crew.traced
        return MakeShard(number, self.number, self.epoch, shard.index, count, position, limit, traced)

    def _alone(self, shard: ShardProgress) -> bool:
        """Whether a message holds one element."""
        return shard.received < shard.careful_until or self.priming or not (self._gathers or self.crew.remote)

    def receive(self, unit: Any, reply: Reply) -> None:
        if isinstance(unit, CollateUnit):
            unit.made = Made()
            unit.made.take_reply(reply)
            return
        shard = unit.shard
        shard.asked -= not reply.more
        made = Made()
        made.take_reply(reply)
        count = sum(parcel.count for parcel in made.parcels)
        shard.received += count * (self._batch_size or 1)
        if reply.end and not shard.ended:
            shard.ended = True
            shard.rest = reply.rest
        elif reply.end:
            made.error = None  # a failed shard repeats its failure to requests that were on their way
        if shard.verdict is not None:
            self._judge(shard, made, reply)
        self._keep(shard, made)

    @staticmethod
    def _judge(shard: ShardProgress, made: Made, reply: Reply) -> None:
        """End a shard whose worker died where no other may, once what was lost with it has come again."""
        shard.careful_s -= reply.busy_s
        if reply.end or shard.careful_s <= 0 or shard.received >= shard.careful_until:
            made.error = made.error or shard.verdict
            shard.verdict, shard.ended = None, True

    def _keep(self, shard: ShardProgress, made: Made) -> None:
        if made.spent:
            self._deal.hold(shard, -(not made.more))
            return
        shard.queue.append(made)
        if not self._ordered:
            self._units[id(made)] = shard
            self._arrived.append(made)

    def fail(self, unit: Any, error: MpfeedError) -> None:
        made = Made(error=error)
        if isinstance(unit, CollateUnit):
            unit.made = made
            return
        unit.shard.asked -= 1
        unit.shard.ended = True
        self._keep(unit.shard, made)

    def position(self, unit: Any) -> Hashable:
        if isinstance(unit, CollateUnit):
            return "tail", id(unit)
        return unit.shard.index, unit.shard.received

    def describe(self, unit: Any) -> str:
        if isinstance(unit, CollateUnit):
            return "a batch of left-over samples"
        shard = unit.shard
        if self._batch_size is not None:
            return f"the batch that starts with sample {shard.received} of shard {shard.index} (epoch {self.epoch})"
        if self._alone(shard):
            return f"element {shard.received} of shard {shard.index} (epoch {self.epoch})"
        return f"elements of shard {shard.index} from {shard.received} on (epoch {self.epoch})"

    def retry(self, unit: Any) -> list[Any]:
        if not isinstance(unit, CollateUnit):
            unit.shard.careful_until = unit.shard.received + MAX_ROWS
        return [unit]

    def narrow(self, unit: Any, error: MpfeedError) -> list[Any]:
        if isinstance(unit, CollateUnit) or self._batch_size is not None:
            return []
        shard = unit.shard
        if shard.received < shard.careful_until or not self._ordered:
            return []
        shard.verdict, shard.careful_s = error, _LOST_S
        return self.retry(unit)

    # --------------------------------------------------------------------------------------- delivering

    def peek(self) -> Parcel | End | None:
        made = self._current()
        if isinstance(made, Made):
            if not made.parcels:
                made.span()  # raises
            return made.parcels[0]
        return made

    def next_span(self) -> Span | End | None:
        made = self._current()
        if not isinstance(made, Made):
            return made
        if self._tail is not None and not self._turns:
            span = made.span()
            self._tail.popleft()
            if span is not None:
                span.mark = None
            return span
        shard = self._units[id(made)] if not self._ordered else self._turns[self._turn]
        # Alone, a shard's rows follow one another; otherwise the next element is another shard's.
        alone = len(self._turns) == 1 or not self._ordered
        span = made.span(None if alone else 1)
        assert span is not None
        span.mark = shard
        if made.spent:
            shard.queue.remove(made)
            self._deal.hold(shard, -(not made.more))
            if not self._ordered:
                self._arrived.popleft()
                del self._units[id(made)]
        if self._ordered:
            self._turn = (self._turn + 1) % len(self._turns)
        return span

    def _current(self) -> Made | End | None:
        """What holds the next element; moves on over exhausted shards, and to the tail after the last."""
        while self._turns:
            if not self._ordered:
                if self._arrived:
                    return self._arrived[0]
                self._turns = [shard for shard in self._turns if not (shard.ended and not shard.asked)]
                if self._turns:
                    return None
                break
            self._turn %= len(self._turns)
            shard = self._turns[self._turn]
            if shard.queue:
                return shard.queue[0]
            if not shard.ended:
                return None
            del self._turns[self._turn]
        return self._tail_head()

    def _tail_head(self) -> Made | End | None:
        if self._tail is None:
            if not all(shard.ended for shard in self._shards):
                return None
            self._tail = deque(self._left_over())
            for unit in self._tail:
                self.crew.submit(self, unit, self.crew.roster.freest())
        if not self._tail:
            return END
        return self._tail[0].made

    def _left_over(self) -> list[CollateUnit]:
        """Batches of the samples that did not fill one in their shard, in shard order."""
        if self._batch_size is None:
            return []
        rest = [sample for shard in self._shards for sample in shard.rest]
        units = [CollateUnit(tuple(rest[i : i + self._batch_size])) for i in range(0, len(rest), self._batch_size)]
        if units and self._drop_remainder and len(units[-1].samples) < self._batch_size:
            units.pop()
        return units[self._tail_taken :]

    def consumed(self, span: Span, count: int) -> None:
        if span.mark is None:
            self._tail_taken += count
        else:
            span.mark.taken += count * (self._batch_size or 1)

    # ----------------------------------------------------------------------------------- chunks for tf.data

    def next_rows(self) -> Span | End | None:
        """Like ``next_span``, but rows of several shards are interleaved into one new message where they stack."""
        self._gathers = True
        made = self._current()
        if not isinstance(made, Made) or not self._ordered or len(self._turns) < 2:
            return self.next_span()
        turns = [*self._turns[self._turn :], *self._turns[: self._turn]]
        if any(not shard.queue and not shard.ended for shard in turns[1:]):
            return self.next_span()  # a late shard must not hold back the rows that come before its own
        heads = [shard.queue[0] if shard.queue else None for shard in turns]
        rounds = min(head.rows if head is not None else 0 for head in heads)
        parcels = [head.parcels[0] for head in heads if head is not None and head.parcels]
        if rounds < 2 or not all(p.stacked and alike(p, parcels[0]) for p in parcels):
            return self.next_span()
        spans = []
        for shard, head in zip(turns, heads, strict=True):
            assert head is not None
            spans.append(self._advance(shard, head, rounds))
        return Span(interleaved(spans), 0, rounds * len(spans), Interleaved(turns))

    def _advance(self, shard: ShardProgress, head: Made, rows: int) -> Span:
        span = head.span(rows)
        assert span is not None
        if head.spent:
            shard.queue.popleft()
            self._deal.hold(shard, -(not head.more))
        return span
