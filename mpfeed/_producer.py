"""A worker's half: requests in, replies out. The same code runs in threads, processes and actors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpfeed import _context, _seed
from mpfeed._collating import CHUNK_S, MAX_ROWS, Answers, Batch, Chunk, EarlySender
from mpfeed._copying import own_item
from mpfeed._effort import Meter
from mpfeed._errors import ArenaFull, SignatureError
from mpfeed._layout import Allocator, Payload
from mpfeed._messages import CONTINUE, Arguments, Calls, Collate, Drop, Failure, MakeItems, MakeShard, Reply, Request
from mpfeed._packing import Packing
from mpfeed._serialize import failure_of, freeze, loads
from mpfeed._source import CallSource, GeneratorSource, MapSource, Shard, Source
from mpfeed._structure import map_leaves

log = logging.getLogger("mpfeed")
_FIRST_ROWS = 16


@dataclass(frozen=True, slots=True)
class Work:
    """The user's code, which travels in one pickle, so that its parts share their globals."""

    source: Source
    collate: Callable[[list[Any]], Any] | None
    worker_init: Callable[[], Any] | None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a producer must know of the feed's options."""

    workers: int
    batch_size: int | None
    seed: int
    vary_epochs: bool = True
    # In threads of the calling process, beside others: the global generators belong to everyone, so that only `rng` is
    # promised, and Ctrl-C, which Python raises in the main thread, is never meant for them.
    threaded: bool = False


class _OpenShard:
    """A shard in progress."""

    __slots__ = ("ended", "failure", "iterator", "position", "random_state", "rows")

    def __init__(self, iterator: Iterator[Any] | None, rows: int = _FIRST_ROWS) -> None:
        self.iterator = iterator
        self.position = 0
        self.random_state: Any = None
        self.ended = False
        self.failure: Failure | None = None
        self.rows = rows


class Producer:
    """Runs the source of one worker.

    Args:
        work: the user's code.
        settings: the options that matter here.
        index: of this worker.
        allocator: where outgoing bytes lie.
        remote: whether samples and errors leave this process (they are pickled, and nothing of the caller's
            is here to be restored).
        emit: sends a reply before its request is done, from any thread; None where nobody could take it: a sample
            then waits for those that were quick enough to join its message, and for the one that was not.
    """

    def __init__(  # noqa: PLR0913 (the two last say where it runs; see above)
        self, work: Work, settings: Settings, index: int, allocator: Allocator, *, remote: bool,
        emit: Callable[[Reply], None] | None = None,
    ) -> None:  # fmt: skip
        self._work = work
        self._settings = settings
        self._allocator = allocator
        self._packing = Packing(allocator)  # of single calls' results
        self._remote = remote
        self._worker = _context.Worker(index, settings.workers)
        self._shards: dict[tuple[int, int], _OpenShard] = {}
        self._active: _OpenShard | None = None
        self._random = _seed.LegacyRandom()
        self._left: AbstractContextManager[Any] | None = None
        self._early = None if emit is None else EarlySender(emit)
        self._calls_seeded = False
        self._meter = Meter(owns_process=remote)

    # ------------------------------------------------------------------------------------- life

    def open(self) -> None:
        """Run ``worker_init``; whatever it raises passes through."""
        if self._work.worker_init is None:
            return
        with self._inside():
            state = self._work.worker_init()
            if hasattr(state, "__enter__") and hasattr(state, "__exit__"):
                left, state = state, state.__enter__()
                self._left = left  # where entering it fails there is nothing to leave
        self._worker = _context.Worker(self._worker.index, self._worker.count, state)

    def close(self) -> None:
        """Close all iterators, then leave what ``worker_init`` entered. What the user's code raises there is logged."""
        if self._early is not None:
            self._early.close()
        left, self._left = self._left, None
        with self._inside(), ExitStack() as ends:
            if left is not None:
                ends.callback(self._clean_up, left.__exit__, None, None, None)
            self._close_shards(ends, list(self._shards))

    def drop(self, message: Drop) -> None:
        """Close the iterators of a run. What the user's code raises there is logged."""
        with self._inside(), self._borrowed(), ExitStack() as ends:
            self._close_shards(ends, [key for key in self._shards if key[0] == message.run])

    def _close_shards(self, ends: ExitStack, keys: list[tuple[int, int]]) -> None:
        """Have their iterators closed: all of them, also where Ctrl-C ends one's closing."""
        for key in keys:
            ends.callback(self._clean_up, _close, self._shards.pop(key).iterator)

    def _clean_up(self, end: Callable[..., Any], *arguments: Any) -> None:
        """End something of the user's: nobody waits for what that raises, and the worker has other things to do."""
        try:
            end(*arguments)
        except BaseException as error:
            self.pass_interrupt(error)
            log.warning("worker %d: a source raised while it was closed", self._worker.index, exc_info=True)

    def handle(self, request: Request) -> Reply:
        """Answer a request. Exceptions of the user's code are in the reply; only Ctrl-C that is the caller's passes."""
        self._meter.begin(self._allocator.waited_s, traced=request.traced)
        with self._inside(), self._borrowed():
            match request:
                case MakeShard():
                    reply = self._make_shard(request)
                case MakeItems():
                    reply = self._make_items(request)
                case Collate():
                    reply = self._collate_raw(request)
                case Calls():
                    reply = self._make_calls(request)
        reply.effort = self._meter.end(reply.samples, self._allocator.waited_s)
        return reply

    def _inside(self) -> AbstractContextManager[None]:
        return _context.inside(self._worker, self._allocator if self._remote else None)

    def _borrowed(self) -> AbstractContextManager[None]:
        if self._remote or self._settings.threaded:
            return nullcontext()
        return self._random.borrowed()

    def _epoch(self, epoch: int) -> int:
        return epoch if self._settings.vary_epochs else 0

    # ------------------------------------------------------------------------------ from_generator

    def _make_shard(self, request: MakeShard) -> Reply:
        shard = self._shards.get((request.run, request.shard))
        try:
            if request.position != CONTINUE or shard is None:
                shard = self._open_shard(request)
                self._meter.mark()  # what was run again is not the next sample's time
            self._enter(shard, request)
            if shard.failure is not None:
                return Reply(request.number, end=True, failure=shard.failure)
            if shard.ended:
                return Reply(request.number, end=True)
            before = shard.position
            reply = (self._chunk if self._settings.batch_size is None else self._batch)(request, shard)
            reply.samples = shard.position - before
            return reply
        except BaseException as error:
            self.pass_interrupt(error)
            # Opening or replaying failed: the shard is over.
            shard = self._shards.setdefault((request.run, request.shard), _OpenShard(None))
            shard.failure = self._failed(error, f"shard {request.shard}", shard=request.shard, index=shard.position)
            return Reply(request.number, end=True, failure=shard.failure)
        finally:
            self._leave(shard)

    def _open_shard(self, request: MakeShard) -> _OpenShard:
        old = self._shards.pop((request.run, request.shard), None)
        if old is not None:
            self._clean_up(_close, old.iterator)
        source = self._work.source
        assert isinstance(source, GeneratorSource)
        # Nothing leaves early where nobody could take it, so that a slow source must show itself first.
        rows = _FIRST_ROWS if self._early is not None else 1
        opened = self._shards[request.run, request.shard] = _OpenShard(None, rows)
        self._enter(opened, request)
        epoch = self._epoch(request.epoch)
        opened.iterator = source.iterate(Shard(request.shard, request.shards, epoch, self._settings.seed))
        for _ in range(max(request.position, 0)):
            try:
                next(opened.iterator)
            except StopIteration:
                raise RuntimeError(
                    f"shard {request.shard} ended after {opened.position} samples, but {request.position} of it were "
                    "delivered before: a source must yield the same again when it is replayed"
                ) from None
            opened.position += 1
        return opened

    def _enter(self, shard: _OpenShard, request: MakeShard) -> None:
        """Give the global generators to a shard: seeded when it starts, swapped where a worker holds several."""
        if self._settings.threaded or self._active is shard:
            return
        if self._active is not None:
            self._active.random_state = self._random.state()
        if shard.random_state is None:
            self._random.seed(self._settings.seed, _seed.SHARD, self._epoch(request.epoch), request.shard)
        else:
            self._random.restore(shard.random_state)
        self._active = shard

    def _leave(self, shard: _OpenShard | None) -> None:
        if self._remote or self._settings.threaded or self._active is None:
            return
        self._active.random_state = self._random.state()
        self._active = None

    def _batch(self, request: MakeShard, shard: _OpenShard) -> Reply:
        assert self._settings.batch_size is not None
        batch = Batch(self._allocator, self._work.collate, self._settings.batch_size)
        reply = Reply(request.number)
        add = self._adder(batch, lambda: (request.shard, shard.position))
        while not batch.full:
            try:
                add(next(shard.iterator))  # type: ignore[arg-type]
            except StopIteration:
                shard.ended = reply.end = True
                reply.rest = tuple(self._frozen(sample) for sample in batch.samples())
                return reply
            except BaseException as error:
                return self._broken(reply, shard, error, request.shard)
            shard.position += 1
        self._meter.mark()
        try:
            reply.payloads = (batch.finish(),)
        except BaseException as error:
            self.pass_interrupt(error)
            reply.failure = self._failed(error, f"a batch of shard {request.shard} (collate)", shard=request.shard)
        self._meter.added()
        return reply

    def _adder(self, many: Batch | Chunk, place: Callable[[], tuple[int, int]]) -> Callable[[Any], None]:
        """What takes a sample, and the time of it where that is worth while; ``place`` names the sample."""
        meter = self._meter
        if not meter.fine:
            return many.add

        def add(sample: Any) -> None:
            meter.made(*place())
            many.add(sample)
            meter.added()

        return add

    def _chunk(self, request: MakeShard, shard: _OpenShard) -> Reply:
        reply = Reply(request.number)
        chunk = Chunk(self._allocator, min(shard.rows, request.limit), self._early, request.number)
        add = self._adder(chunk, lambda: (request.shard, shard.position))
        deadline = time.perf_counter() + CHUNK_S
        while True:
            try:
                add(next(shard.iterator))  # type: ignore[arg-type]
            except StopIteration:
                shard.ended = reply.end = True
                break
            except BaseException as error:
                self._broken(reply, shard, error, request.shard)
                break
            shard.position += 1
            if chunk.full:
                # One that fills a message alone needs no chunk, in which it would be copied.
                shard.rows = 1 if chunk.lone else min(shard.rows * 2, MAX_ROWS)
                break
            if time.perf_counter() >= deadline:
                shard.rows = max(chunk.count, 1)
                break
        reply.payloads, _ = chunk.close()
        return reply

    def _broken(self, reply: Reply, shard: _OpenShard, error: BaseException, index: int) -> Reply:
        """The shard's source raised: it is over."""
        self.pass_interrupt(error)
        where = f"element {shard.position} of shard {index}"
        shard.failure = self._failed(error, where, shard=index, index=shard.position)
        reply.failure, reply.end = shard.failure, True
        self._clean_up(_close, shard.iterator)
        return reply

    # ------------------------------------------------------------------------------------ from_map

    def _make_items(self, request: MakeItems) -> Reply:
        reply = Reply(request.number)
        try:
            items = loads(request.items) if self._remote else request.items
        except BaseException as error:
            self.pass_interrupt(error)
            reply.failure = self._failed(error, f"item {request.indices[0]} (reading it)", index=request.indices[0])
            return reply
        if self._settings.batch_size is None:
            rows = len(request.indices) if self._early is not None else 1
            chunk = Chunk(self._allocator, rows, self._early, request.number)
            self._run_items(request, reply, items, chunk)
            reply.payloads, reply.skipped = chunk.close()
            return reply
        batch = Batch(self._allocator, self._work.collate, len(request.indices), keep=request.raw)
        self._run_items(request, reply, items, batch)
        reply.skipped = tuple(batch.skipped)
        return self._finish_batch(request, reply, batch)

    def _run_items(self, request: MakeItems, reply: Reply, items: Any, many: Batch | Chunk) -> None:
        reply.samples = len(request.indices)
        add = self._adder(many, lambda: (index, -1))
        for index, item in zip(request.indices, items, strict=True):
            try:
                add(self._sample(item, request.epoch, index))
            except BaseException as error:
                self.pass_interrupt(error)
                if not self._skips(error):
                    reply.failure = self._failed(error, f"item {index}", index=index)
                    return
                many.skip(index, f"{type(error).__name__}: {error}")

    def _finish_batch(self, request: MakeItems, reply: Reply, batch: Batch) -> Reply:
        if reply.failure is not None:
            return reply
        if request.raw:
            reply.rest = tuple(self._frozen(sample) for sample in batch.samples())
        elif batch.count:
            self._meter.mark()
            try:
                reply.payloads = (batch.finish(),)
            except BaseException as error:
                self.pass_interrupt(error)
                reply.failure = self._failed(error, f"the batch of items {_listed(request.indices)} (collate)")
            self._meter.added()
        return reply

    def _sample(self, item: Any, epoch: int, index: int) -> Any:
        source = self._work.source
        assert isinstance(source, MapSource)
        epoch = self._epoch(epoch)
        if not self._settings.threaded:
            self._random.seed(self._settings.seed, _seed.ITEM, epoch, index)
        if not self._remote:
            item = own_item(item)  # in a worker process it is a copy, which `fn` may change
        return source.sample(item, self._settings.seed, epoch, index)

    def _skips(self, error: BaseException) -> bool:
        source = self._work.source
        skip = isinstance(source, MapSource) and source.skip_errors
        return skip and isinstance(error, Exception) and not isinstance(error, (SignatureError, ArenaFull))

    # ------------------------------------------------------------------- raw samples, and single calls

    def _collate_raw(self, request: Collate) -> Reply:
        reply = Reply(request.number)
        try:
            batch = Batch(self._allocator, self._work.collate, len(request.samples))
            for sample in request.samples:
                batch.add(loads(sample) if self._remote else sample)
            reply.payloads = (batch.finish(),)
        except BaseException as error:
            self.pass_interrupt(error)
            reply.failure = self._failed(error, "a batch of left-over samples (collate)")
        return reply

    def _make_calls(self, request: Calls) -> Reply:
        source = self._work.source
        assert isinstance(source, CallSource)
        # With an `rng` each call has its own seed. Without, a worker that replaces another begins at a later request.
        if not (self._settings.threaded or source.takes_rng or (self._remote and self._calls_seeded)):
            self._random.seed(self._settings.seed, _seed.CALL, self._worker.index, request.number)
            self._calls_seeded = True
        answers = Answers(request.number, self._early if len(request.arguments) > 1 else None)
        for arguments in request.arguments:
            try:
                answers.add(self._call(arguments, goes_on=len(request.arguments) > 1))
            except BaseException as error:
                self.pass_interrupt(error)
                answers.fail(self._failed(error, "the result of a call"))
        reply = answers.close()
        reply.samples = len(request.arguments)
        return reply

    def _call(self, arguments: Arguments, *, goes_on: bool) -> Payload:
        source = self._work.source
        assert isinstance(source, CallSource)
        # What `fn` changes is its own, as in a worker process; here it would be the tensors' memory.
        given = arguments.structure() if self._remote else map_leaves(_own, arguments.structure())
        if not self._settings.threaded and source.takes_rng:
            key = int(given[-1]) & 0xFFFFFFFFFFFFFFFF
            self._random.seed(self._settings.seed, _seed.CALL, key)
        result = source.call(given, self._settings.seed)
        self._meter.made(-1)
        payload = self._packing.pack(result, goes_on=goes_on)
        self._meter.added()
        return payload

    def seed_cv2(self) -> None:
        """OpenCV was imported just now: seed it as it would have been."""
        self._random.seed_cv2()

    # ---------------------------------------------------------------------------------------- errors

    def _failed(
        self, error: BaseException, where: str, *, shard: int | None = None, index: int | None = None
    ) -> Failure:
        return failure_of(error, where, remote=self._remote, shard=shard, index=index)

    def pass_interrupt(self, error: BaseException) -> None:
        """Raise Ctrl-C, which is the caller's in a thread of the caller's; in a worker it is just another exception."""
        if not (self._remote or self._settings.threaded) and isinstance(error, KeyboardInterrupt):
            raise error

    def _frozen(self, sample: Any) -> Any:
        return freeze(sample) if self._remote else sample


def _own(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if callable(close):
        close()


def _listed(indices: tuple[int, ...]) -> str:
    head = ", ".join(map(str, indices[:4]))
    return head if len(indices) <= 4 else f"{head}, ... ({len(indices)} items)"
