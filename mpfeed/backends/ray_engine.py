"""The Ray backend at work: one actor a worker, batches in shared memory or, from other nodes, in the object store.

An actor is asked for one message at a time, a few calls ahead. On this node it writes batches to memory that it shares
with this process (``ray_memory``), and its answer is what the reply says. Elsewhere the bytes are in the answer too,
one object, and arrive here as read-only arrays over the store, which are freed when they die. Streaming generators are
not used: they hang after a node died (DESIGN, measured facts).
"""

from __future__ import annotations

import contextlib
import queue
import sys
import time
import weakref
from collections import Counter, deque
from concurrent import futures
from typing import TYPE_CHECKING, Any

from mpfeed._errors import MpfeedError
from mpfeed._messages import (
    Arrived,
    Died,
    Draining,
    Drop,
    Event,
    Failure,
    Joined,
    Late,
    Request,
    StartFailed,
    Unschedulable,
)
from mpfeed._serialize import loads, main_arguments
from mpfeed.backends.base import GRACE_S, Plan
from mpfeed.backends.environment import memory_settings, thread_limits
from mpfeed.backends.ray_loans import Loans, warn_of_small_store
from mpfeed.backends.ray_member import ActorMember, shortened
from mpfeed.backends.ray_memory import offer
from mpfeed.backends.ray_nodes import addresses, answers, draining, havens, no_room, refusing, starting
from mpfeed.backends.ray_session import SHUT_DOWN, Session, disconnect

if TYPE_CHECKING:
    from mpfeed.backends.ray_actors import Ray

# Part of this node's object store that messages on their way may take: with what is lent below the 0.8 at which Ray
# begins to spill to disk.
IN_FLIGHT_SHARE = 0.4
_STACK_S = 2.0
# How long a worker may be without a process, while others are there, before they do its work: it takes 1 to 2 s to
# start. At the beginning, when many start at once, longer; and as long as it is known to be starting.
PATIENCE_S = 2.0
_FIRST_PATIENCE_S = 30.0
# After one call of an actor failed: how long the answers to calls before it may take to get here from its node. Ray
# itself knows of a lost node only after five missed heartbeats, 15 s.
_LAST_WORDS_S = 1.0
# How often the cluster is asked for nodes that are to go, and for room where nobody can start.
_LOOK_S = 1.0
# So long after a node was seen to be gone Ray may still send actors there: it misses five heartbeats first, 15 s.
_GHOST_S = 20.0
# After so long without the head, and without any answer, the feed ends: Ray itself ends the process after 60 s.
_HEADLESS_S = 10.0
# An answer of more bytes lies in the store (Ray's max_direct_call_object_size): one with much text.
_INLINE_BYTES = 100 << 10


class RayEngine:
    """See ``Engine``."""

    may_lose = True

    def __init__(self, plan: Plan, backend: Ray, session: Session) -> None:
        self._plan = plan
        self._backend = backend
        self._session: Session | None = session
        self._ray = session.ray
        self._reserves = session.reserves
        self._store_bytes = session.store_bytes
        self._members: dict[int, ActorMember] = {}
        self._storing: set[ActorMember] = set()  # those of whom messages lie in the store
        self._shares = True  # whether memory is offered
        self._left: weakref.WeakSet[Any] = weakref.WeakSet()
        # What Ray's own thread hands over: who has an answer, or None from `wake`.
        self._done: queue.SimpleQueue[ActorMember | None] = queue.SimpleQueue()
        self._heard: list[ActorMember | None] = []
        self._events: deque[Event] = deque()
        self._loans = Loans(session.store_bytes)
        self._warned = False  # of a small store
        self._work = self._ray.put(plan.work)
        self._looked_s = time.monotonic()
        self._nodes: dict[int, str] = {}  # where a worker was, before it was started again
        self._deserted_s: float | None = None  # when a node was last seen to be gone
        self._addresses: dict[str, str] = {}  # of nodes, by their ids
        context = self._ray.get_runtime_context()
        self._head: str = context.gcs_address
        self._node: str = context.get_node_id()
        self._headless_s: float | None = None  # since when, and since the latest answer

    @property
    def room_bytes(self) -> int | None:
        """For the store; None where every worker that has a process shares memory instead."""
        shared = not self._storing and any(member.memory is not None for member in self._members.values())
        return None if shared else int(IN_FLIGHT_SHARE * self._store_bytes) or None

    # ------------------------------------------------------------------------------------ workers

    def start_worker(self, worker: int) -> None:
        if not self._connected():
            raise MpfeedError(SHUT_DOWN)
        lost = self._deserted_s is not None and time.monotonic() < self._deserted_s + _GHOST_S
        self._start(worker, next(iter(self._havens()), None) if lost else None)

    def _start(self, worker: int, haven: str | None) -> None:
        """Start a worker, on a node that it may leave if there is no room after all, or wherever Ray sends it."""
        p, b = self._plan, self._backend
        assert self._session is not None
        strategy = b.scheduling_strategy
        if haven is not None:
            affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            strategy = affinity(haven, soft=True, _spill_on_unavailable=True)
        environment = {} if b.runtime_env == self._session.job_env else dict(b.runtime_env or {})
        limits = thread_limits(p.threads_per_worker)
        environment["env_vars"] = {**memory_settings(), **limits, **environment.get("env_vars", {})}
        labels = {"label_selector": b.label_selector} if b.label_selector else {}
        here = p.threads_per_worker, list(sys.path), main_arguments()
        actor_class = self._session.actor_class.options(
            num_cpus=b.num_cpus if self._reserves else 0,
            resources=b.resources,
            runtime_env=environment,
            scheduling_strategy=strategy,
            max_restarts=0,
            max_task_retries=0,
            **labels,
        )
        offered = offer(self._node, self._left, has_arguments=p.has_arguments) if self._shares else None
        try:
            actor = actor_class.remote(self._work, p.settings, worker, here, offered and offered.invitation)
            member = ActorMember(worker, actor, self._patience_s(worker), haven, offered, p.owns_memory)
        except BaseException:
            if offered is not None:
                offered.close()
            raise
        self._members[worker] = member
        self._nodes.setdefault(worker, "")
        self._watch(member, "hello", actor.hello.remote())
        self._watch(member, "start", actor.start.remote())
        member.presence = self._future(member, actor.stay.options(concurrency_group="presence").remote())

    def _patience_s(self, worker: int) -> float:
        """How long it may take until there is a process, if nothing is wrong."""
        return PATIENCE_S if self._nodes.get(worker) else _FIRST_PATIENCE_S

    def _watch(self, member: ActorMember, kind: str, ref: Any) -> None:
        member.calls.append((kind, self._future(member, ref)))

    def _future(self, member: ActorMember, ref: Any) -> Any:
        future = ref.future()
        future.add_done_callback(lambda _: self._done.put(member))
        return future

    def send(self, worker: int, message: Request | Drop) -> None:
        member = self._members.get(worker)
        if member is None:
            return
        try:
            if isinstance(message, Drop):
                member.actor.drop.options(concurrency_group="control").remote(message.run)
            else:
                self._ask(member, message)
        except Exception:
            if self._connected():
                raise

    def _ask(self, member: ActorMember, request: Request) -> None:
        if member.awaited_s is None:
            member.awaited_s = time.monotonic()
        self._watch(member, "answer", member.ask(request))

    def retire_worker(self, worker: int) -> None:
        if (member := self._members.pop(worker, None)) is not None:  # not gone with the whole of Ray
            self._end([member])

    # ------------------------------------------------------------------------------------- events

    def wait(self, timeout_s: float | None) -> None:
        look_s = self._next_look() if timeout_s is None else min(self._next_look(), timeout_s)
        with contextlib.suppress(queue.Empty):
            self._heard.append(self._done.get(timeout=look_s))

    def events(self) -> list[Event]:
        try:
            while True:
                self._heard.append(self._done.get_nowait())
        except queue.Empty:
            pass
        heard, self._heard = self._heard, []
        if heard and self._headless_s is not None:
            self._headless_s = time.monotonic()
        try:
            for item in heard:
                self._hear(item)
        except Exception:
            if self._connected():
                raise
        self._look()
        if self._storing and not self._warned:
            self._warned = True
            warn_of_small_store(self._store_bytes)  # last: where warnings are errors it raises
        events = list(self._events)
        self._events.clear()
        return events

    def wake(self) -> None:
        self._done.put(None)

    # ----------------------------------------------------------------------------- what does not report itself

    def _next_look(self) -> float:
        """Seconds until something that no answer tells may have happened."""
        members = list(self._members.values())
        due = [member.failed_s + _LAST_WORDS_S for member in members if member.failed_s is not None]
        if any(member.joined and not member.leaving for member in members):
            due += [m.awaited_s + m.patience_s for m in members if m.awaited_s is not None and m.pid is None]
        due.append(self._looked_s + _LOOK_S)
        return max(0.0, min(due) - time.monotonic())

    def _look(self) -> None:
        now_s = time.monotonic()
        due = now_s >= self._looked_s + _LOOK_S
        if due:
            self._looked_s = now_s
        if (due or any(member.failed_s is not None for member in self._members.values())) and not self._connected():
            return
        self._look_at_failed(now_s)
        for member in self._late(now_s):
            self._start_anew(member, next(iter(self._havens()), None))
        if due and self._reserves and self._session is not None:
            self._look_at_cluster(now_s)

    def _connected(self) -> bool:
        """Whether Ray is still there; if it is not, no answer comes, and Ray says nothing either."""
        if self._session is None or self._session.alive:
            return True
        self._strand(list(self._members.values()), SHUT_DOWN)
        return False

    def _start_anew(self, member: ActorMember, haven: str | None) -> None:
        self._kill(member)  # and what it was sent with it; another queues in its place
        self._start(member.worker, haven)
        self._events.append(Late(member.worker))

    def _havens(self) -> list[str]:
        if not answers(self._head):  # it would be waited for
            return []
        sent = Counter(m.haven for m in self._members.values() if m.haven is not None and m.pid is None)
        return havens(self._ray, self._backend, sent)

    def _look_for_havens(self, now_s: float) -> None:
        """Those who have no process yet may have been sent to a node that is gone: bring them to one with room."""
        members = [member for member in self._members.values() if member.pid is None]
        slow = [member for member in members if now_s >= member.started_s + self._patience_s(member.worker)]
        if not slow:
            return
        self._addresses = addresses(self._ray)
        sent = {m.haven for m in slow if m.haven is not None}
        gone = refusing({node: self._addresses[node] for node in sent if node in self._addresses})
        lost = [m for m in slow if m.haven is None or m.haven in gone]  # others are starting where they were sent
        for member, haven in zip(lost, self._havens() if lost else [], strict=False):
            self._start_anew(member, haven)

    def _look_at_failed(self, now_s: float) -> None:
        failed = [member for member in self._members.values() if member.failed_s is not None]
        news = [member for member in failed if not member.asked_about]
        for member in news:
            member.asked_about = True
        self._desert({member.node: member.errors()[0] for member in news})
        for member in failed:
            assert member.failed_s is not None
            spoken = not member.calls or (member.calls[0][1].done() and member.calls[0][1].exception())
            if self._members.get(member.worker) is member and (spoken or now_s >= member.failed_s + _LAST_WORDS_S):
                self._lost(member, member.errors()[0])

    def _look_for_lost_nodes(self) -> None:
        """Processes of a node that was lost may take 2 s to notice it, and their calls fail only then."""
        error = ConnectionRefusedError("its node is gone")
        self._desert({m.node: error for m in self._members.values() if m.calls and m.pid is not None})

    def _desert(self, nodes: dict[str, BaseException]) -> None:
        """Give up all workers on those of the nodes that are gone: no last words come from there."""
        gone = refusing({node: self._addresses[node] for node in nodes if node in self._addresses})
        if gone:
            self._deserted_s = time.monotonic()
        for member in [m for m in self._members.values() if m.node in gone]:
            self._lost(member, nodes[member.node], deserted=True)

    def _late(self, now_s: float) -> list[ActorMember]:
        """Those that others had better stand in for."""
        members = list(self._members.values())
        waits = {m: now_s - m.awaited_s for m in members if m.pid is None and m.awaited_s is not None}
        slow = [member for member, waited_s in waits.items() if waited_s >= member.patience_s]
        if not slow or not any(member.joined and not member.leaving for member in members):
            return []
        nodes = {self._nodes[member.worker] for member in slow}
        on_their_way = starting(self._ray, self._backend, nodes) if answers(self._head) else set()
        for member in slow:
            member.patience_s = waits[member] + _LOOK_S
        return [member for member in slow if self._nodes[member.worker] not in on_their_way]

    def _look_at_cluster(self, now_s: float) -> None:
        if not answers(self._head):  # asked first: what else asks the head waits for it, up to a minute
            self._headless_s = self._headless_s or now_s
            if now_s - self._headless_s >= _HEADLESS_S:
                text = f"the head of the Ray cluster, {self._head}, has not answered for {_HEADLESS_S:.0f} s, nor has"
                self._strand(list(self._members.values()), f"{text} any worker: the cluster is gone")
            return
        self._headless_s = None
        self._look_for_lost_nodes()
        self._look_for_havens(now_s)
        drained = draining(self._ray)
        for member in self._members.values():
            if member.node in drained and not member.leaving:
                member.leaving = True
                self._events.append(Draining(member.worker))
        waits = [m.awaited_s for m in self._members.values() if m.awaited_s is not None]
        if waits and not any(member.pid is not None for member in self._members.values()):
            missing = no_room(self._ray, self._backend, now_s - min(waits))
            if missing is not None:
                self._strand(list(self._members.values()), missing)

    def _strand(self, members: list[ActorMember], text: str) -> None:
        for member in members:
            del self._members[member.worker]
            self._kill(member)
            self._events.append(Unschedulable(member.worker, text))

    def _hear(self, member: ActorMember | None) -> None:
        """What an actor answered, in the order of the calls: callbacks may come in another, a death before a reply."""
        if member is None:
            return
        while member.calls and member.calls[0][1].done() and not member.calls[0][1].exception():
            if self._members.get(member.worker) is not member:
                return  # of an actor that is gone: its death was reported
            kind, future = member.calls.popleft()
            self._hear_call(member, kind, future.result())
        if member.failed_s is None and member.errors():
            member.failed_s = time.monotonic()

    def _hear_call(self, member: ActorMember, kind: str, result: Any) -> None:
        if kind == "hello":
            self._greeted(member, result)
        elif kind == "start":
            self._started(member, result)
        elif isinstance(result, bytes):
            self._answered(member, result, [])
        elif result is not None:
            self._answered(member, *result)

    def _greeted(self, member: ActorMember, result: Any) -> None:
        try:
            member.greeted(*result)
        except (OSError, ValueError):  # no descriptor or address space is left: from now on all use the store
            self._shares = False
            self._start_anew(member, None)
            return
        if member.memory is None:
            self._storing.add(member)
        self._nodes[member.worker] = member.node
        if member.node not in self._addresses:
            self._addresses = addresses(self._ray)

    def _started(self, member: ActorMember, result: Any) -> None:
        if isinstance(result, Failure):
            del self._members[member.worker]
            self._kill(member)
            self._events.append(StartFailed(member.worker, result))
        else:
            member.joined = True
            self._events.append(Joined(member.worker, member.pid, member.host))

    def _answered(self, member: ActorMember, data: bytes, stored: list[Any]) -> None:
        reply = loads(data)
        if stored or len(data) > _INLINE_BYTES:
            self._storing.add(member)
        if reply.more:
            self._watch(member, "answer", member.ask(None))
        self._events.append(Arrived(member.worker, member.deliver(reply, stored, self._loans)))

    def _lost(self, member: ActorMember, error: BaseException, *, deserted: bool = False) -> None:
        """A call came to nothing: the actor, its node or its object is gone."""
        del self._members[member.worker]
        self._kill(member)
        text = f"died ({type(error).__name__}: {shortened(str(error))})"
        self._events.append(Died(member.worker, text, member.pid, node=member.host, deserted=deserted))

    # --------------------------------------------------------------------------------------- end

    def stacks(self) -> dict[int, str]:
        if not self._connected():
            return {}
        refs = {w: m.actor.stacks.options(concurrency_group="control").remote() for w, m in self._members.items()}
        found = {}
        deadline = time.monotonic() + _STACK_S
        for worker, ref in refs.items():
            try:
                found[worker] = self._ray.get(ref, timeout=max(0.1, deadline - time.monotonic()))
            except Exception as error:
                found[worker] = f"no Python stack ({type(error).__name__})"
        return found

    def _part_with(self, member: ActorMember) -> None:
        member.leave()
        self._storing.discard(member)

    def _kill(self, member: ActorMember) -> None:
        self._part_with(member)
        if self._session is None or not self._session.alive:
            return  # Ray would start itself anew to do it
        with contextlib.suppress(Exception):  # it is gone already
            self._ray.kill(member.actor)

    def _end(self, members: list[ActorMember]) -> None:
        for member in members:
            self._part_with(member)
        if self._session is None or not self._session.alive:
            return
        try:
            leaving = [m.actor.leave.options(concurrency_group="control").remote() for m in members if m.joined]
            if leaving:
                self._ray.wait(leaving, num_returns=len(leaving), timeout=GRACE_S)
        except Exception:
            pass  # Ray is going down
        for member in members:
            self._kill(member)

    def stop(self) -> None:
        members = list(self._members.values())
        self._members.clear()
        self._end(members)  # steps 2 and 3
        # Ray ends the process where an answer comes in the middle of `ray.shutdown()` (2.60: SubscribePlasmaReady).
        futures.wait([future for member in members for _, future in member.calls], GRACE_S)
        for member in members:  # answers that nobody will take are objects in the store
            member.calls.clear()
        self._events.clear()
        self._heard.clear()
        self._work = None
        if self._session is not None:  # step 4
            session, self._session = self._session, None
            disconnect(session)
