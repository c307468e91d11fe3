"""``Feed.split(n, shared=True)``: one set of producers, and a hub from which n consumers draw.

The hub is an actor that reads the whole feed and deals its elements out, in turn; an element goes from the worker's
node to the hub's, and from there to the consumer's, before it is asked for. Each consumer has a *beacon*, a small
actor that it owns: Ray ends it with the consumer's process or node, and so the hub hears of it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from mpfeed._errors import FeedClosed, FeedTimeout, MpfeedError
from mpfeed._serialize import dumps, loads
from mpfeed.backends.ray_session import SHUT_DOWN, Session, connect, disconnect, inherit

log = logging.getLogger("mpfeed")
# Without a timeout, a wait of this long is worth a word.
TELL_S = 20.0
_POLL_S = 0.5
_NAMESPACE = "mpfeed"


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the parts of a shared split go on together.

    Attributes:
        count: how many parts.
        remainder: see ``Feed.split``.
        window: elements that a part may be ahead of the slowest.
        on_lost: what the death of one part's process means for the others.
        tell_s: how long a consumer waits before it is told for whom.
    """

    count: int
    remainder: str
    window: int
    on_lost: Literal["raise", "continue"]
    tell_s: float = TELL_S

    @property
    def depth(self) -> int:
        """Elements on their way to a part, or there, before they are asked for."""
        return min(self.window, 3)


@dataclass(frozen=True, slots=True)
class Dealt:
    """The hub's answer: an element, the end of an epoch, an error (pickled), or for whom it waits."""

    kind: Literal["element", "end", "error", "waits", "stale"]
    value: Any = None


@dataclass(slots=True)
class _Part:
    """A part as the hub sees it."""

    messages: dict[int, tuple[int, Dealt]]
    made: int = 0  # number of its next message
    used: int = 0  # messages its consumer is done with
    visit: int = 0
    skipped: int = -1  # the latest epoch its consumer has left
    state: Literal["unread", "reading", "gone"] = "unread"
    beacon: Any = None  # of the process that reads it now


class Hub:
    """Reads a feed in a thread and deals its elements out. Calls block, in threads of their own."""

    def __init__(self, feed: bytes, sharing: Sharing, path: list[str], reserves: bool | None = None) -> None:
        sys.path.extend(entry for entry in path if entry not in sys.path)
        if reserves is not None:
            inherit(reserves)
        self._feed = loads(feed)
        self._sharing = sharing
        self._parts = [_Part({}) for _ in range(sharing.count)]
        self._changed = threading.Condition()
        self._error: Dealt | None = None  # comes after all elements before it
        self._lost: Dealt | None = None  # comes at once
        self._epoch = 0
        threading.Thread(target=self._produce, name="mpfeed-hub", daemon=True).start()

    # ---------------------------------------------------------------------------------- what parts call

    def join(self, index: int, beacon: Any) -> tuple[int, int]:
        """A part begins to read: (its visit, the number of its next message)."""
        with self._changed:
            part = self._parts[index]
            part.beacon = beacon
            part.state = "reading"
            part.visit += 1
            threading.Thread(target=self._watch, args=(index, beacon), name="mpfeed-beacon", daemon=True).start()
            return part.visit, part.used

    def take(self, index: int, visit: int, number: int) -> Dealt:
        """Message ``number`` of a part, whose consumer is done with those ``depth`` before it."""
        part = self._parts[index]
        until_s = time.monotonic() + self._sharing.tell_s
        with self._changed:
            self._note_used(part, visit, number + 1 - self._sharing.depth)
            while True:
                if visit != part.visit:
                    return Dealt("stale")
                if self._lost is not None:
                    return self._lost
                if number in part.messages:
                    return part.messages[number][1]
                if self._error is not None:
                    return self._error
                if not self._changed.wait(max(0.0, until_s - time.monotonic())):
                    return Dealt("waits", self._waits_for())

    def _note_used(self, part: _Part, visit: int, used: int) -> None:
        if visit == part.visit and used > part.used:
            for number in range(part.used, used):
                part.messages.pop(number, None)
            part.used = used
            self._changed.notify_all()

    def skip(self, index: int, visit: int, epoch: int) -> tuple[int, int]:
        """A part has ended an epoch, or left it: (its new visit, the number of its next message)."""
        with self._changed:
            part = self._parts[index]
            if visit != part.visit:
                return visit, part.used  # another process reads it now
            part.visit += 1
            part.skipped = epoch
            part.messages = {n: m for n, m in part.messages.items() if m[0] > epoch}
            part.used = min(part.messages, default=part.made)
            self._changed.notify_all()
            return part.visit, part.used

    def leave(self, index: int, beacon: Any) -> None:
        """A part is closed by the process of this beacon; what would be its own is passed over."""
        with self._changed:
            if self._parts[index].beacon == beacon:
                self._part_with(index)

    def close(self) -> None:
        """End the producers."""
        self._feed.close()

    # ----------------------------------------------------------------------------------------- dealing

    def _produce(self) -> None:
        try:
            while True:
                self._deal_epoch()
                self._epoch += 1
        except BaseException as error:
            with self._changed:
                self._error = Dealt("error", dumps(error))
                self._changed.notify_all()

    def _deal_epoch(self) -> None:
        count, remainder = self._sharing.count, self._sharing.remainder
        group: list[Any] = []
        first: list[Any] = []
        for element in self._feed:
            group.append(element)
            if remainder == "pad" and len(first) < count:
                first.append(element)
            if len(group) == count:
                self._deal(group)
                group = []
        if group and remainder == "pad":
            self._deal([*group, *(first[i % len(first)] for i in range(count - len(group)))])
        elif group and remainder == "keep":
            self._deal(group)
        for index in range(count):
            self._put(index, Dealt("end"))

    def _deal(self, group: list[Any]) -> None:
        with self._changed:  # none gets its own before all can
            self._changed.wait_for(lambda: all(self._has_room(part) for part in self._parts))
        for index, element in enumerate(group):
            self._put(index, Dealt("element", element))

    def _put(self, index: int, message: Dealt) -> None:
        with self._changed:
            part = self._parts[index]
            self._changed.wait_for(lambda: self._has_room(part))
            if self._lost is not None:
                raise MpfeedError("a part is lost")  # ends the producing; the parts have been told more
            if part.state != "gone" and part.skipped < self._epoch:
                part.messages[part.made] = self._epoch, message
                part.made += 1
                self._changed.notify_all()

    def _has_room(self, part: _Part) -> bool:
        room = part.made < part.used + self._sharing.window
        return room or part.state == "gone" or part.skipped >= self._epoch or self._lost is not None

    def _waits_for(self) -> str:
        full = [i for i, p in enumerate(self._parts) if p.state != "gone" and p.made >= p.used + self._sharing.window]
        if not full:
            return "no worker has finished an element"
        said = [
            f"part {i} ({'was never read' if self._parts[i].state == 'unread' else 'is not read on'})" for i in full
        ]
        return f"the window of {self._sharing.window} elements is full for {', '.join(said)}"

    # ------------------------------------------------------------------------------------------- deaths

    def _watch(self, index: int, beacon: Any) -> None:
        import ray

        try:
            ray.get(beacon.shine.remote())
        except Exception:
            self._lose(index, beacon)

    def _lose(self, index: int, beacon: Any) -> None:
        with self._changed:
            # A death may be heard of after another process has begun to read the part.
            if self._parts[index].state == "gone" or self._parts[index].beacon != beacon:
                return
            if self._sharing.on_lost == "raise":
                text = (
                    f"part {index} of {self._sharing.count} is lost: the process that read it, or its node, died. "
                    'The other parts end here; split(..., on_lost="continue") lets them go on without it'
                )
                self._lost = Dealt("error", dumps(MpfeedError(text)))
            self._part_with(index)

    def _part_with(self, index: int) -> None:
        part = self._parts[index]
        part.state = "gone"
        part.messages.clear()
        self._changed.notify_all()


class Beacon:
    """Lives as long as the process that owns it."""

    def shine(self) -> None:
        """Return when the part was closed."""
        self._closed = threading.Event()
        self._closed.wait()


class Draw:
    """A part's end of the hub: an iterable whose every pass is the part of one epoch. Picklable.

    Args:
        backend: how to connect to the cluster.
        name: of the hub.
        index: of the part.
        sharing: as the hub has it.
        timeout_s: longest wait for an element, or None.
    """

    def __init__(self, backend: Any, name: str, index: int, sharing: Sharing, timeout_s: float | None) -> None:
        self._recipe = backend, name, index, sharing, timeout_s
        self.index = index
        self._sharing = sharing
        self._timeout_s = timeout_s
        self._session: Session | None = None
        self._hub: Any = None
        self._beacon: Any = None
        self._reader: object | None = None  # the pass that is under way
        self._visit, self._number, self._epoch = 0, 0, 0
        self.closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Draw, self._recipe

    def elements(self) -> Iterator[Any]:
        """The part's elements of its next epoch.

        Raises:
            MpfeedError: another part is lost, or the hub is; another process or a newer iterator reads this part.
            FeedTimeout, FeedClosed: as for a feed.
        """
        self._open()
        if self._reader is not None:
            self._leave_epoch()
        reader = self._reader = object()
        asked: deque[tuple[int, Any]] = deque()
        try:
            while True:
                if self._reader is not reader:
                    text = f"part {self.index} is read by a newer iterator now: a shared part has one at a time"
                    raise self._as_is(MpfeedError(text))
                self._check_ray()
                while len(asked) < self._sharing.depth:
                    number = self._number + len(asked)
                    asked.append((number, self._hub.take.remote(self.index, self._visit, number)))
                dealt = self._dealt(asked)
                if dealt.kind == "end":
                    return
                yield dealt.value
        finally:
            if self._reader is reader:
                self._reader = None
                self._leave_epoch()

    def _open(self) -> None:
        if self._session is not None:
            return
        session = connect(self._recipe[0])
        try:
            self._join(session.ray)
        except BaseException:
            disconnect(session)
            raise
        self._session = session
        if self.closed:  # meanwhile, by another thread
            self._leave()
            raise self._as_is(FeedClosed("the feed was closed while it was being read"))

    def _join(self, ray: Any) -> None:
        try:
            self._hub = ray.get_actor(self._recipe[1], namespace=_NAMESPACE)
        except ValueError:
            raise self._as_is(FeedClosed("the feed of this part was closed, or its process ended")) from None
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )
        self._beacon = ray.remote(Beacon).options(num_cpus=0, scheduling_strategy=here).remote()
        try:
            self._visit, self._number = ray.get(self._hub.join.remote(self.index, self._beacon))
        except ray.exceptions.RayError as error:
            raise self._hub_lost(error) from None

    def _dealt(self, asked: deque[tuple[int, Any]]) -> Dealt:
        """The oldest message asked for."""
        start_s = time.monotonic()
        while True:
            number, ref = asked[0]
            dealt = self._answer(ref)
            if dealt.kind == "error":
                raise self._as_is(loads(dealt.value))
            if dealt.kind == "stale":
                text = f"part {self.index} is read by another process now: give each of them a part of its own"
                raise self._as_is(MpfeedError(text))
            if dealt.kind != "waits":
                asked.popleft()
                self._number = number + 1
                return dealt
            waited_s = time.monotonic() - start_s
            text = f"part {self.index} got no element within {waited_s:.1f} s: {dealt.value}"
            if self._timeout_s is not None and waited_s >= self._timeout_s:
                raise self._as_is(FeedTimeout(text))
            log.warning("%s", text)
            asked[0] = number, self._hub.take.remote(self.index, self._visit, number)

    def _answer(self, ref: Any) -> Dealt:
        assert self._session is not None
        ray = self._session.ray
        while not ray.wait([ref], timeout=_POLL_S)[0]:
            self._check_ray()
            if self.closed:
                raise self._as_is(FeedClosed("the feed was closed while it was being read"))
        try:
            answer: Dealt = ray.get(ref)
        except ray.exceptions.RayError as error:
            raise self._hub_lost(error) from None
        return answer

    def _check_ray(self) -> None:
        """MpfeedError where Ray was shut down: whatever is asked of it next would start it anew."""
        if self._session is not None and not self._session.alive:
            raise self._as_is(MpfeedError(SHUT_DOWN))

    def _leave_epoch(self) -> None:
        epoch, self._epoch = self._epoch, self._epoch + 1
        if self._session is None or self.closed or not self._session.alive:
            return
        with contextlib.suppress(Exception):  # the hub is gone: the next read says so
            self._visit, self._number = self._session.ray.get(self._hub.skip.remote(self.index, self._visit, epoch))

    def _hub_lost(self, error: Exception) -> MpfeedError:
        words = " ".join(str(error).split())[:300]
        return self._as_is(MpfeedError(f"the hub of a shared split is lost ({words})"))

    @staticmethod
    def _as_is(error: MpfeedError) -> MpfeedError:
        error.__dict__["mpfeed_as_is"] = True
        return error

    def close(self) -> None:
        """Leave the hub. Idempotent."""
        self.closed = True
        self._leave()

    def _leave(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        if session.alive:
            with contextlib.suppress(Exception):  # the hub may be gone
                session.ray.get(self._hub.leave.remote(self.index, self._beacon), timeout=1.0)
                session.ray.kill(self._beacon)
        disconnect(session)


class SharedProducers:
    """The hub, in the hands of the process that split the feed; it ends with ``close`` or with that process."""

    def __init__(self, backend: Any, feed: bytes, sharing: Sharing, name: str) -> None:
        self._session: Session | None = connect(backend)
        ray = self._session.ray
        self.address = ray.get_runtime_context().gcs_address
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )
        self._hub = (
            ray.remote(Hub)
            .options(
                num_cpus=0,
                name=name,
                namespace=_NAMESPACE,
                scheduling_strategy=here,
                max_concurrency=sharing.count * (sharing.depth + 2) + 4,
            )
            .remote(feed, sharing, list(sys.path), self._session.reserves)
        )

    def close(self) -> None:
        """End the hub and its producers. Idempotent."""
        session, self._session = self._session, None
        if session is None:
            return
        if session.alive:
            with contextlib.suppress(Exception):
                session.ray.get(self._hub.close.remote(), timeout=2.0)
            session.ray.kill(self._hub)
        disconnect(session)
