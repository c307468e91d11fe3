"""Feeds and their iterators: the public half, above runs and crews."""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from mpfeed._auto import Auto
from mpfeed._counters import Counters, label
from mpfeed._crew import Crew
from mpfeed._epochs import Epochs
from mpfeed._errors import FeedClosed, MpfeedError, SignatureError
from mpfeed._iterator import FeedIterator, Reading, copied, pumped, unbroken
from mpfeed._leaves import Array
from mpfeed._leaving import calls
from mpfeed._messages import Parcel
from mpfeed._opening import Opening
from mpfeed._options import Options, backend_of, worker_count
from mpfeed._plans import FeedPlan, MapPlan
from mpfeed._position import Passage, Position
from mpfeed._producer import Settings, Work
from mpfeed._runs import BaseRun, End, Span
from mpfeed._serialize import dumps, loads
from mpfeed._spec import Signature
from mpfeed._split import WHOLE, Part, parts
from mpfeed._state import compare, fingerprint, fingerprint_in, state_of
from mpfeed._stats import FeedStats
from mpfeed._structure import Treespec
from mpfeed._trace import Trace
from mpfeed.backends.base import Plan

if TYPE_CHECKING:
    import tensorflow as tf

    from mpfeed.backends.ray_hub import SharedProducers

log = logging.getLogger("mpfeed")
AUTOTUNE = -1  # tf.data.AUTOTUNE, without importing TensorFlow


class Feed:
    """Elements made by workers: iterate it for NumPy structures, or take ``dataset()`` for tf.data.

    Each ``iter(feed)`` is one epoch, and the next call the next epoch; workers outlive it. Use it in a ``with``
    statement or call ``close()``; a forgotten feed is closed when it is collected, with a ``ResourceWarning``.
    Made by ``from_generator`` and ``from_map``.
    """

    def __init__(self, plan: FeedPlan, options: Options, seed: int, *, part: Part | None = None) -> None:
        self._plan = plan
        self._options = options
        self._seed = seed
        # A part of a split that runs everything and discards what is others' (from_generator).
        self.filter = part
        self._backend = backend_of(options.backend)
        work = Work(plan.source, options.collate, options.worker_init)
        self._work = self._backend.prepare(work)
        self._lock = threading.RLock()
        self._crew: Crew | None = None
        self._closed = False
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self.counters = Counters(label(self._backend), options.buffer)
        self._signature: Signature | None = None
        self._epochs = Epochs(plan, options)
        self._current: Reading | None = None
        # What a checkpoint follows: the iterations since it began to look on.
        self.passages: list[Passage] | None = None
        self._parts: list[weakref.ref[Feed]] = []
        self._owned = False  # another feed, of which this is a part, closes it
        self._shared: list[SharedProducers] = []
        self._logged_skip = False

    # ------------------------------------------------------------------------------------------ reading

    def __iter__(self) -> FeedIterator:
        """One epoch as NumPy structures, arrays read-only; the next call is the next epoch.

        Raises:
            FeedClosed: the feed was closed, or its ``epochs`` are over.
        """
        return self.iterate(None)

    def iterate(self, signature: Signature | None) -> FeedIterator:
        """See ``__iter__``; with a signature, a dataset's, every element is held to that."""
        with self._lock:
            run, begin = self._epochs.take(self._opened())
            self._current = reading = Reading(self, run, begin, signature)
            if self.passages is not None:
                self.passages.append(reading.passage)
            return FeedIterator(self, reading)

    def _opened(self) -> Crew:
        if self._crew is None and not self._closed:
            self._crew = self._new_crew()
            self._finalizer = weakref.finalize(self, _close_forgotten, self._crew, None if self._owned else repr(self))
            calls.end_with(self, self._finalizer)
        if self._closed or self._crew is None:
            if self._crew is not None:  # closed meanwhile, perhaps by a thread that saw no crew
                self._crew.close()
            raise FeedClosed("the feed was closed")
        return self._crew

    def _new_crew(self) -> Crew:
        o = self._options
        asked = worker_count(o.workers, self._backend)
        self._plan.settle(asked)
        most = self._plan.limit_workers(asked)
        workers = self._backend.fit(most, Opening(lambda: self._closed, o.timeout))
        # Where there is room for fewer, the others join when there is more: nothing is to be found out.
        adapts = o.workers == "auto" and self._backend.remote and workers == most
        if adapts:
            most = max(workers, self._plan.limit_workers(self._backend.most_workers(workers)))
        self.counters.room = workers * o.buffer
        settings = Settings(most, o.batch_size, self._seed, o.vary_epochs)
        stacked = o.batch_size is not None and o.collate is None
        plan = Plan(self._work, settings, most, o.buffer, o.threads_per_worker, owns_memory=stacked)
        present = None if adapts else workers
        crew = Crew(self._backend, plan, o.max_restarts, o.max_tasks_per_worker, o.timeout, present=present)
        if adapts:
            crew.adapt(Auto(most), workers)
        return crew

    def read_ahead(self, run: BaseRun) -> None:
        """Let workers that have nothing left to do in a run begin the next epoch. The crew's lock is held."""
        self._epochs.read_ahead(run)

    # ---------------------------------------------------------------------------------------- signature

    @property
    def element_spec(self) -> Any:
        """The structure of an element; each leaf has ``.shape`` and ``.dtype``.

        Where it is not known yet, this starts the workers and makes element 0, which the next iterator then gets.

        Raises:
            SignatureError: the source is empty, so that there is no first element.
            WorkerError: the source raised while making it.
        """
        return self.signature().tree()

    def signature(self) -> Signature:
        """What every element must look like; see ``element_spec``."""
        with self._lock:
            if self._signature is None or not self._signature.fixed:
                self._signature = self._infer()
            return self._signature

    def _infer(self) -> Signature:
        first = self._prime()
        batching = self._batching
        size = batching.batch_size
        variable: set[int] = set()
        if size is not None and not batching.drop_remainder:
            collates = batching.collate is not None
            variable = {
                i
                for i, leaf in enumerate(first.layout.leaves)
                if leaf.shape and (not collates or leaf.shape[0] == first.arrays[i].shape[0] == size)
            }
        return Signature.of(first, variable=variable)

    def _prime(self) -> Parcel:
        """Element 0 of the next epoch, which stays where it is; of the one after it, where only its end is left."""
        run = self._epochs.prime(self._opened())
        start = time.perf_counter()
        first = self._first_of(run)
        if isinstance(first, End) and (after := self._epochs.prime_after(run)) is not None:
            first = self._first_of(after)
        if isinstance(first, End):
            raise SignatureError(
                "the source is empty, so there is no first element to infer the signature from: "
                "pass dataset(output_signature=...)"
            )
        if self.counters.first_s is None:
            self.counters.first_s = time.perf_counter() - start
        return first

    def _first_of(self, run: BaseRun) -> Parcel | End:
        try:
            first: Parcel | End = unbroken(lambda: run.crew.wait_for(lambda: _primed(run)))
            return first
        except BaseException:
            self._epochs.discard(run.crew)
            raise

    def declare(self, signature: Signature) -> None:
        """Hold every element to a declared signature from now on."""
        with self._lock:
            self._signature = signature

    def dataset(
        self, *, output_signature: Any = None, prefetch: int | None = AUTOTUNE, chunk: int | None = None
    ) -> tf.data.Dataset:
        """The feed as a ``tf.data.Dataset``; every iteration of it is the next epoch.

        Args:
            output_signature: structure of ``tf.TensorSpec``; default: taken from the first element, which is made now
                and delivered later. Needed where shapes vary.
            prefetch: elements TensorFlow keeps ready, ``tf.data.AUTOTUNE`` by default; None or 0 for none.
            chunk: small elements travel to TensorFlow in chunks, which it splits; 1 hands them over one by one, so
                that ``state_dict`` is exact to the element.

        Raises:
            SignatureError: the source is empty, or a leaf has no TensorFlow type.
            WorkerError: the source raised while making the first element.
            ImportError: TensorFlow is missing (``pip install 'mpfeed[tf]'``).
        """
        from mpfeed import _tf

        return _tf.dataset(self, output_signature=output_signature, prefetch=prefetch, chunk=chunk)

    def __len__(self) -> int:
        """Elements an epoch.

        Raises:
            TypeError: it is not known beforehand (from_generator, items without length, ``on_error="skip"``).
        """
        length = self.certain_length()
        if length is None:
            raise TypeError("the length of this feed is not known before it is read")
        return length

    def __bool__(self) -> bool:
        """True, whatever its length: a feed, rather than None."""
        return True

    def certain_length(self) -> int | None:
        """Elements every full epoch has, or None where it is not certain."""
        return self._plan.length() if self.filter is None else None

    @property
    def batched(self) -> bool:
        """Whether elements are batches."""
        return self._batching.batch_size is not None

    @property
    def _batching(self) -> Options:
        """The options that say what an element is."""
        return self._options

    # -------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Where the consumer is: plain data (JSON-safe) that ``load_state_dict`` of a like feed takes.

        It counts what was taken from mpfeed by the latest iterator: elements for NumPy; for TensorFlow, whose
        prefetch has taken more than was trained on, what it was handed (``mpfeed.keras.FeedCheckpoint`` counts what
        was trained on). After the last element of a from_map epoch it is the beginning of the next.

        Raises:
            MpfeedError: ``ordered=False``, where "where" has no meaning.
        """
        with self._lock:
            if not self._options.ordered:
                raise MpfeedError("state_dict() needs ordered=True: without order a position means nothing")
            return self.state_at(self._where())

    def state_at(self, position: Position) -> dict[str, Any]:
        """The state of a consumer that is there."""
        return state_of(self._fingerprint(), position)

    def _where(self) -> Position:
        if self._current is not None:
            return self._current.position()
        return self._epochs.position

    def position_after(self, passage: Passage, taken: int) -> Position:
        """Where a consumer is that has used so many elements of a passage's epoch, whatever it was handed beyond."""
        length = self.certain_length()
        if taken >= length if length is not None else passage.over and taken >= passage.taken:
            return Position(passage.begin.epoch + 1)
        at = self._plan.at(taken) if self.filter is None else None
        return passage.after(taken) if at is None else Position(passage.begin.epoch, taken, at)

    def _fingerprint(self) -> dict[str, Any]:
        return fingerprint(self._plan, self._options, self._seed, self._split())

    def _split(self) -> Part:
        if isinstance(self._plan, MapPlan):
            return self.filter or self._plan.part
        return self.filter or WHOLE

    def load_state_dict(self, state: Any) -> None:
        """Let the next iterator begin where a state was taken; workers and backend may differ.

        ``from_map`` begins there at once; ``from_generator`` runs each shard again and discards what was delivered.

        Raises:
            ValueError: the state is of another feed, naming what differs; or is not a state.
            MpfeedError: ``ordered=False``.
        """
        with self._lock:
            if not self._options.ordered:
                raise MpfeedError("load_state_dict() needs ordered=True: without order a position means nothing")
            there, position = fingerprint_in(state), Position.of(state)
            here = self._fingerprint()
            if self._crew is None:
                here |= {name: there.get(name) for name in self._open_names()}
            compare(here, there)
            self._plan.check(position.at, there)
            if self._crew is None:
                self._adopt(there)
            self._epochs.move(position, self._crew)
            if self._signature is not None and not self._signature.declared:
                self._signature = None
            self._current = None

    def _open_names(self) -> list[str]:
        """What of the fingerprint this feed leaves open, before a worker is started with it."""
        open_names = [name for name, value in self._plan.fingerprint().items() if name == "shards" and value is None]
        return open_names + ["seed"] * (self._options.seed is None)

    def _adopt(self, there: dict[str, Any]) -> None:
        self._plan.adopt(there)
        if self._options.seed is None:
            self._seed = there.get("seed", self._seed)
            if isinstance(self._plan, MapPlan):
                self._plan.seed = self._seed

    # ------------------------------------------------------------------------------------------ sharing

    def split(
        self, n: int, *, remainder: Literal["drop", "pad", "keep"] = "drop", shared: bool = False, window: int = 8,
        on_lost: Literal["raise", "continue"] = "raise",
    ) -> list[Feed]:  # fmt: skip
        """Independent feeds for ``n`` consumers: part i delivers elements i, i + n, ... of this feed's stream.

        The parts never wait for one another, can be pickled, and are closed with this feed. A from_map part makes only
        its own batches; a from_generator part (and one that skips items) runs every shard and discards.

        Args:
            n: how many.
            remainder: "drop" for equal counts; "pad" for equal counts by repeating the epoch's first elements; "keep"
                delivers everything.
            shared: on Ray: one set of producers for all parts, which read at one pace. They are read in this process
                or others, on any node, while this feed is open; this feed itself should then not be read.
            window: shared: elements that one part may be ahead of the slowest; then it waits, with a warning that says
                for whom.
            on_lost: shared: when the process of a part dies, the others raise ``MpfeedError``, or "continue" without.

        Raises:
            TypeError: ``n`` is no whole number.
            ValueError: ``n`` or ``window`` below 1, another remainder or ``on_lost``, or a shared split of a feed that
                is not on Ray.
            MpfeedError: ``ordered=False``, or this feed is a part already.
        """
        chosen = parts(n, remainder)
        if not self._options.ordered:
            raise MpfeedError("split() needs ordered=True: without order the parts would overlap")
        if self._split().count > 1:
            raise MpfeedError("this feed is a part of a split already: split the whole one")
        if shared:
            return self._share(len(chosen), remainder, window, on_lost)
        self._plan.settle(worker_count(self._options.workers, self._backend))
        feeds = [self._part(part) for part in chosen]
        self._own(feeds)
        return feeds

    def _own(self, feeds: list[Feed]) -> None:
        for feed in feeds:
            feed._owned = True
            self._parts.append(weakref.ref(feed))

    def _share(self, n: int, remainder: str, window: int, on_lost: Any) -> list[Feed]:
        from mpfeed import _shared

        sharing = _shared.sharing(n, remainder, window, on_lost, self._options.timeout)
        producers, feeds = _shared.share(self, self._options, sharing)
        self._shared.append(producers)
        self._own(feeds)
        return feeds

    def _part(self, part: Part) -> Feed:
        plan = self._plan.split(part)
        if plan is not None:
            return Feed(plan, self._options, self._seed)
        return Feed(self._plan, self._options, self._seed, part=part)

    def __reduce__(self) -> tuple[Any, ...]:
        """A feed travels as its recipe, unread and without its workers."""
        return _rebuild, (dumps((self._plan, self._options, self._seed, self.filter)),)

    # -------------------------------------------------------------------------------------------- end

    def stats(self) -> FeedStats:
        """What the feed has seen of itself so far."""
        crew = self._crew
        if crew is None or crew.auto is None:
            return self.counters.snapshot(crew.roster.counts() if crew is not None else [])
        self.counters.room = crew.workers * self._options.buffer
        return replace(self.counters.snapshot(crew.roster.counts()), resizings=tuple(crew.auto.resizings))

    def trace(self, path: str | os.PathLike[str]) -> Trace:
        """Record from now on what the workers and the consumer do, for Perfetto (ui.perfetto.dev) or chrome://tracing.

        Each worker's track shows its messages, and in them computing, collating, waiting for work and for room, and
        what the source names with ``mpfeed.span``; the consumer's its waits and steps. The file is written when what is
        returned is closed (``with feed.trace(path): ...``), or with the feed.

        Raises:
            MpfeedError: this feed is being traced already.
            FeedClosed: the feed was closed.
            OSError: the file cannot be written.
        """
        with self._lock:
            crew = self._opened()
            if crew.trace is not None:
                raise MpfeedError(f"this feed is being traced already, to {crew.trace.path}: close that trace first")
            crew.trace = Trace(path, crew.untrace)
            return crew.trace

    def close(self) -> None:
        """Stop the workers; live iterators and datasets raise ``FeedClosed``. Arrays that are held stay valid.

        Idempotent, from any thread; returns within seconds, whatever the workers do.
        """
        self._closed = True
        if self._finalizer is not None:
            self._finalizer.detach()
        crew = self._crew
        if crew is not None:
            crew.close()
            self._epochs.discard(crew)  # what they were sent is memory of the workers
            if self._current is not None:
                self._current.let_go()
        for part in self._parts:
            feed = part()
            if feed is not None:
                feed.close()
        while self._shared:
            self._shared.pop().close()
        # The last, as its file may not be writable any more; in a fork it is the parent's.
        if crew is not None and crew.trace is not None and not crew.forked():
            crew.trace.close()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join(self._plan.fingerprint()["source"])
        return f"<mpfeed.Feed of {names} on {self._backend.name}>"

    # ------------------------------------------------------------------------------- the iterator's side

    def deliver(self, span: Span, number: int, signature: Signature | None = None) -> tuple[list[Array], Treespec]:
        """(a span's arrays, checked, cast and copied as need be; the structure of its elements).

        What they are held to is the signature of the dataset that reads them, or else the feed's.
        """
        parcel = span.parcel
        if self._signature is None:
            self._signature = signature or Signature.of(parcel, free=True)
        signature = signature or self._signature
        arrays = signature.conform(parcel, number)
        cast = arrays is not parcel.arrays  # some of them: the others still alias the worker's memory
        self.counters.copied_cast += cast
        if parcel.crowded is not None and parcel.crowded(parcel):
            self.counters.copied_held += not cast
            parcel.arrays = [copied(array) for array in parcel.arrays]
            parcel.crowded = None
            arrays = signature.conform(parcel, number) if cast else parcel.arrays
        self.counters.nbytes += parcel.nbytes * span.count // max(parcel.count, 1)
        # Equal structures may differ in the order of a dict's keys, and have the first element's.
        structure = parcel.layout.treespec
        return arrays, signature.treespec if structure == signature.treespec else structure

    def count_skipped(self, skipped: list[tuple[int, str]]) -> None:
        self.counters.skipped += len(skipped)
        if not self._logged_skip:
            self._logged_skip = True
            index, text = skipped[0]
            log.warning("item %d was skipped: %s (on_error='skip'; further ones are counted in stats())", index, text)


def _primed(run: BaseRun) -> Any:
    """The first element once it is there; meanwhile those workers start too that it does not need."""
    first = pumped(run, run.peek)
    run.crew.start_all()
    return first


def _close_forgotten(crew: Crew, name: str | None) -> None:
    forgotten = name is not None and crew.started and not crew.closed
    crew.close()
    if crew.trace is not None and not crew.forked():
        try:
            crew.trace.close()
        except OSError:
            log.warning("a trace could not be written to %s", crew.trace.path, exc_info=True)
    if forgotten:  # last: where warnings are errors it raises
        warnings.warn(f"{name} was forgotten: use `with feed:` or feed.close()", ResourceWarning, stacklevel=2)


def _rebuild(recipe: bytes) -> Feed:
    plan, options, seed, part = loads(recipe)
    return Feed(plan, options, seed, part=part)
