"""What crosses the seam between the feed and a backend: a small closed set of requests, replies and events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mpfeed._effort import Effort
from mpfeed._errors import MpfeedError
from mpfeed._layout import Layout, Payload
from mpfeed._leaves import Array
from mpfeed._structure import Treespec

CONTINUE = -1


@dataclass(frozen=True, slots=True)
class MakeShard:
    """Make the next message of a shard.

    Attributes:
        number: of the request; replies carry it back.
        run: the iteration it belongs to.
        epoch: which pass over the data.
        shard: index of the shard.
        position: number of its samples that precede the message, or CONTINUE after the request before.
        limit: samples at most in a message without ``batch_size``.
        traced: its effort shall tell what was done when.
    """

    number: int
    run: int
    epoch: int
    shard: int
    shards: int
    position: int
    limit: int
    traced: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Half the time of what dataclasses does for slots; so in the other messages that every batch needs.
        return MakeShard, (
            self.number, self.run, self.epoch, self.shard, self.shards, self.position, self.limit,
            self.traced,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MakeItems:
    """Make the samples of some items: a batch, or a chunk of samples. ``items`` may be frozen (pickled)."""

    number: int
    run: int
    epoch: int
    indices: tuple[int, ...]
    items: Any
    raw: bool = False
    traced: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return MakeItems, (self.number, self.run, self.epoch, self.indices, self.items, self.raw, self.traced)


@dataclass(frozen=True, slots=True)
class Collate:
    """Collate samples that travelled raw. ``samples`` are frozen one by one."""

    number: int
    run: int
    samples: tuple[Any, ...]
    traced: bool = False


@dataclass(frozen=True, slots=True)
class Arguments:
    """What one call of a function is given: its leaves (arrays, NumPy scalars, text as bytes) and their structure."""

    values: list[Any]
    treespec: Treespec

    def structure(self) -> Any:
        """The positional arguments, as a tuple."""
        return self.treespec.unflatten(self.values)

    def __reduce__(self) -> tuple[Any, ...]:
        from mpfeed._serialize import structure_bytes  # which needs this module

        return _arguments, (self.values, structure_bytes(self.treespec))


def _arguments(values: list[Any], structure: bytes) -> Arguments:
    """Arguments that were pickled."""
    from mpfeed._serialize import structure_of

    return Arguments(values, structure_of(structure))


@dataclass(frozen=True, slots=True)
class Calls:
    """Call the function once with each of these, in order; replies may come in several parts."""

    number: int
    run: int
    arguments: tuple[Arguments, ...]
    traced: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a run: close its iterators. No reply."""

    run: int


Request = MakeShard | MakeItems | Collate | Calls


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of the user's code on its way.

    Attributes:
        kind: qualified name of its type.
        text: its message.
        traceback: formatted in the worker, the user's frames only.
        pickled: the exception itself, where it survives a round trip; b"" elsewhere.
        own: the class of mpfeed's own error about an element; None for the user's exceptions.
        where: what was being made ("item 5", "element 3 of shard 1", "worker_init").
    """

    kind: str
    text: str
    traceback: str
    pickled: bytes
    own: type[MpfeedError] | None
    where: str
    shard: int | None = None
    index: int | None = None
    worker: int | None = None
    pid: int | None = None
    node: str = ""
    original: BaseException | None = field(default=None, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # `original` is the exception object itself, for the in-process backend only.
        return Failure, (
            self.kind, self.text, self.traceback, self.pickled, self.own, self.where,
            self.shard, self.index, self.worker, self.pid, self.node,
        )  # fmt: skip


@dataclass(slots=True)
class Parcel:
    """A delivered message: arrays in the consumer's hands.

    Attributes:
        arrays: the leaves; of a stack, with ``count`` rows.
        count: elements in it.
        stacked: whether the first axis counts elements.
        nbytes: bytes of its regions and, about, of its text.
        crowded: its backend lends more memory than it should: hand out a copy.
        ready_s: when its worker had made it, by this process's ``time.perf_counter``; 0 where nobody knows.
        worker: who made it, or None for one made of several.
    """

    layout: Layout
    arrays: list[Array]
    count: int
    stacked: bool
    nbytes: int
    crowded: Any = None
    ready_s: float = 0.0
    worker: int | None = None


@dataclass(slots=True)
class Reply:
    """What a worker made of a request.

    Attributes:
        number: of the request.
        payloads: the messages, in order; the backend turns them into Parcels.
        end: the shard has ended.
        rest: the samples left over at the end of a shard, or (``raw``) all samples, frozen one by one.
        skipped: items left out: (own index, what was raised).
        failure: raised after the samples of ``payloads``.
        samples: made for it, those left over included.
        effort: what it took; None for what was sent early.
        more: only what was ready in time; another reply to the same request follows.
    """

    number: int
    payloads: tuple[Payload, ...] | tuple[Parcel, ...] = ()
    end: bool = False
    rest: tuple[Any, ...] = ()
    skipped: tuple[tuple[int, str], ...] = ()
    failure: Failure | None = None
    samples: int = 0
    effort: Effort | None = None
    more: bool = False

    @property
    def busy_s(self) -> float:
        """Seconds spent on it; 0 for what was sent early."""
        return 0.0 if self.effort is None else self.effort.busy_s

    def __reduce__(self) -> tuple[Any, ...]:
        # What it holds as its values: to look up each class would take longer than to read them.
        effort = None if self.effort is None else self.effort.values()
        payloads = [payload.values() for payload in self.payloads]  # type: ignore[union-attr]
        return _received, (
            self.number, payloads, self.end, self.rest, self.skipped, self.failure, self.samples, self.more, effort,
        )  # fmt: skip


def _received(*fields: Any) -> Reply:
    """A reply that was pickled."""
    number, payloads, end, rest, skipped, failure, samples, more, effort = fields
    made = None if effort is None else Effort(*effort)
    payloads = tuple([Payload(*payload) for payload in payloads])
    return Reply(number, payloads, end, rest, skipped, failure, samples, made, more)


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker is ready: its interpreter is up and ``worker_init`` has run."""

    worker: int
    pid: int | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A reply came."""

    worker: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A worker could not start: unpickling the source or ``worker_init`` raised. It is gone."""

    worker: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Died:
    """A worker vanished; every reply it sent before has arrived.

    Attributes:
        exit_code: exit code, or the negated signal number, or None where unknown.
        text: the backend's own words for it.
        deserted: its machine is gone too, so that it may take long until it is there again: others do its work.
    """

    worker: int
    text: str
    pid: int | None = None
    exit_code: int | None = None
    node: str = ""
    deserted: bool = False


@dataclass(frozen=True, slots=True)
class Late:
    """A worker does not start in time and is started anew: it may join later, without what it was sent."""

    worker: int


@dataclass(frozen=True, slots=True)
class Draining:
    """A worker must go soon (its node is drained): it answers what it was sent, and should be sent nothing more."""

    worker: int


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """There is no place for a worker, nor for any other; ``text`` says what is missing."""

    worker: int
    text: str


Event = Joined | Arrived | StartFailed | Died | Late | Draining | Unschedulable
