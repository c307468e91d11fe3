"""The Ray backend: one actor a worker, batches in the shared-memory object store.

An actor is asked for one message at a time, a few calls ahead. Its answer is one object: what the reply says, and
beside it the bytes, which arrive here as read-only arrays over the store and are freed when they die. Streaming
generators are not used: they hang after a node died (DESIGN, measured facts).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpfeed import _seed
from mpfeed._cpus import usable_cpus
from mpfeed._errors import MpfeedError
from mpfeed._layout import Bytes
from mpfeed._messages import Arrived, Died, Drop, Event, Failure, Joined, Parcel, Reply, Request, Unfit
from mpfeed._producer import Producer, Work
from mpfeed._serialize import dump_source, dumps, failure_of, freeze, loads, main_arguments
from mpfeed.backends.base import GRACE_S, Engine, Plan, deliver
from mpfeed.backends.spawn import thread_limits
from mpfeed.transport.arena import Heap

# Part of this node's object store that a consumer may hold in place; beyond it gets copies, so that views of old
# batches never stop the store from taking new ones.
LENT_SHARE = 0.3
# ... and that messages on their way may take: together below the 0.8 at which Ray begins to spill to disk.
IN_FLIGHT_SHARE = 0.4
# How long room for a first worker, and for the others, is waited for.
_NO_ROOM_S = 30.0
_ROOM_S = 4.0
_STACK_S = 2.0
_SMALL_STORE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Ray:
    """Run the source in Ray actors, on this machine or a cluster.

    Args:
        address: of a running cluster ("auto", "ray://...", "host:port"); None uses the Ray this process is connected
            to, or starts a local one, which mpfeed then stops.
        num_cpus: logical CPUs an actor reserves; 0 and fractions too. A Ray that mpfeed starts itself is not limited
            by cores.
        resources: custom resources an actor reserves.
        runtime_env: Ray's runtime environment for the actors.
        scheduling_strategy: where actors go; "SPREAD" over the nodes, or what Ray takes.

    Raises:
        TypeError, ValueError: an option of a wrong type or out of range.
    """

    address: str | None = None
    num_cpus: float = 1
    resources: dict[str, float] | None = None
    runtime_env: dict[str, Any] | None = None
    scheduling_strategy: Any = "SPREAD"

    def __post_init__(self) -> None:
        num_cpus: Any = self.num_cpus
        if not isinstance(num_cpus, (int, float)) or isinstance(num_cpus, bool):
            raise TypeError(f"num_cpus={self.num_cpus!r}: give a number")
        if self.num_cpus < 0:
            raise ValueError(f"num_cpus={self.num_cpus}: give 0 or more")
        if self.address is not None and not isinstance(self.address, str):
            raise TypeError(f"address={self.address!r}: give the address of a cluster, or None")
        for name in ("resources", "runtime_env"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), dict):
                raise TypeError(f"{name}={getattr(self, name)!r}: give a dict, or None")

    @property
    def name(self) -> str:
        return "ray"

    @property
    def remote(self) -> bool:
        return True

    def default_workers(self) -> int:
        return usable_cpus()

    def fit(self, workers: int) -> int:
        session = _connect(self)
        try:
            return _fitting(session.ray, self, workers) if session.reserves else workers
        finally:
            _release(session)

    def prepare(self, work: Work) -> bytes:
        return dump_source({"source": work.source, "collate": work.collate, "worker_init": work.worker_init})

    def open(self, plan: Plan) -> Engine:
        return _Engine(plan, self, _connect(self))


# ----------------------------------------------------------------------------------------- Ray itself


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MpfeedError("backend=\"ray\" needs Ray, which is not installed: pip install 'mpfeed[ray]'") from error
    return ray


class _Session:
    """A connection to Ray, and whether this library started it."""

    def __init__(self, ray: Any, started: bool) -> None:
        self.ray = ray
        self.started = started
        # On a Ray of our own the user says how many workers there are, not how many cores.
        self.reserves = True
        self.store_bytes = _store_bytes(ray)


_lock = threading.Lock()
_session: _Session | None = None
_users = 0


def _connect(backend: Ray) -> _Session:
    """The session of this process, started if need be; each call is matched by ``_disconnect``."""
    global _session, _users
    ray = _import_ray()
    with _lock:
        if _session is not None and not ray.is_initialized():
            _session = None  # the user shut it down
            _users = 0
        if _session is None:
            _session = _Session(ray, _start(ray, backend))
            _session.reserves = not _session.started or _address(backend) is not None
        _users += 1
        return _session


def _address(backend: Ray) -> str | None:
    return backend.address or os.environ.get("RAY_ADDRESS")


def _start(ray: Any, backend: Ray) -> bool:
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning", "include_dashboard": False}
    address = _address(backend)
    if address is not None:
        quiet.pop("include_dashboard")
        ray.init(address=address, log_to_driver=False, logging_level="warning")
        return True
    ray.init(num_cpus=usable_cpus(), **quiet)
    return True


def _release(session: _Session) -> None:
    """Undo a ``_connect`` without ending what it started: an engine is about to use it."""
    global _users
    with _lock:
        if _session is session:
            _users = max(0, _users - 1)


def _fitting(ray: Any, backend: Ray, workers: int) -> int:
    """How many actors a cluster has room for; actors that were just killed give their room back within seconds."""
    asked = {"CPU": float(backend.num_cpus), **(backend.resources or {})}
    asked = {name: amount for name, amount in asked.items() if amount > 0}
    start, fits = time.monotonic(), 0
    while asked and time.monotonic() - start < (_NO_ROOM_S if not fits else _ROOM_S):
        free = ray.available_resources()
        fits = min(int(free.get(name, 0.0) / amount + 1e-9) for name, amount in asked.items())
        if fits >= workers:
            return workers
        time.sleep(0.1)
    if not asked:
        return workers
    have = {name: ray.cluster_resources().get(name, 0.0) for name in asked}
    free = {name: ray.available_resources().get(name, 0.0) for name in asked}
    if not fits:
        raise MpfeedError(
            f"the Ray cluster has no room for a worker: each of {workers} asks for {asked}, free are {free} of {have}. "
            "Free resources, add nodes, or ask for less (mpfeed.Ray(num_cpus=0.5))"
        )
    warnings.warn(
        f"the Ray cluster has room for {fits} of the {workers} workers: each asks for {asked}, free are {free} "
        f"of {have}. The feed runs on {fits}; its stream is the same",
        RuntimeWarning,
        stacklevel=2,
    )
    return fits


def _disconnect(session: _Session) -> None:
    global _session, _users
    with _lock:
        _users = max(0, _users - 1)
        if _users == 0 and _session is session:
            _session = None
            if session.started and session.ray.is_initialized():
                session.ray.shutdown()


def _store_bytes(ray: Any) -> int:
    """Bytes of this node's object store."""
    here = ray.get_runtime_context().get_node_id()
    for node in ray.nodes():
        if node["NodeID"] == here:
            return int(node["Resources"].get("object_store_memory", 0))
    return 0


# --------------------------------------------------------------------------------------- the actor's side


class _Actor:
    """Runs a producer in a Ray worker, in a thread of its own.

    A call hands in a request and takes out the next reply, which may be that to a request before: replies that are sent
    early are more than the requests, and the driver calls once more for each (``more``).
    """

    def __init__(self, work: bytes, settings: Any, worker: int, here: tuple[int, list[str], list[str]]) -> None:
        self._arguments = work, settings, worker, here
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._dropped: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="mpfeed-worker", daemon=True)

    def start(self) -> Any:
        """Bring the user's code up: the pid, or what it raised."""
        self._thread.start()
        return self._replies.get()

    def answer(self, request: bytes) -> Any:
        """Hand in a request; (a pickled reply, the bytes of its messages)."""
        self._requests.put(pickle.loads(request))
        return self._replies.get()

    def more(self) -> Any:
        """The next reply."""
        return self._replies.get()

    def drop(self, run: int) -> None:
        """From the control group: forget a run; its requests that are still to come are needless."""
        self._dropped.add(run)
        self._requests.put(Drop(run))

    def stacks(self) -> str:
        """From the control group: what the worker's thread does."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else "no thread"

    def leave(self) -> None:
        """From the control group: end after the present request, closing iterators and what ``worker_init`` entered."""
        self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        work, settings, worker, (threads, path, arguments) = self._arguments
        sys.path.extend(entry for entry in path if entry not in sys.path)
        sys.argv = arguments
        producer: Producer | None = None

        def cv2_imported(cv2: Any) -> None:
            cv2.setNumThreads(threads)
            if producer is not None:
                producer.seed_cv2()

        _seed.watch_cv2(cv2_imported)
        try:
            producer = Producer(Work(*loads(work)), settings, worker, Heap(adopts=True), remote=True, emit=self._reply)
            producer.open()
        except BaseException as error:
            where = "the source (unpickling it)" if producer is None else "worker_init"
            self._replies.put(failure_of(error, where, remote=True))
            return
        self._replies.put(os.getpid())
        self._serve(producer)

    def _serve(self, producer: Producer) -> None:
        while (message := self._requests.get()) is not None:
            if isinstance(message, Drop):
                try:
                    producer.drop(message)
                except Exception:
                    traceback.print_exc()  # a source's own clean-up failed; nobody listens to that run
            elif message.run in self._dropped:
                self._replies.put(None)
            else:
                self._reply(producer.handle(message))
        producer.close()

    def _reply(self, reply: Reply) -> None:
        regions: list[Bytes] = []
        for payload in reply.payloads:
            assert not isinstance(payload, Parcel)
            numbers = range(len(regions), len(regions) + len(payload.regions))
            regions += payload.regions
            payload.regions = list(numbers)
        # Ray copies the bytes after this call returned, while the source goes on: what is adopted must stay.
        self._replies.put((_dumped(reply), regions))


def _dumped(reply: Reply) -> bytes:
    try:
        return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return dumps(reply)


# -------------------------------------------------------------------------------------- the driver's side


class _Member:
    """One actor."""

    def __init__(self, worker: int, actor: Any) -> None:
        self.worker = worker
        self.actor = actor
        self.joined = False


class _Loan(weakref.ref[Any]):
    __slots__ = ("nbytes",)
    nbytes: int


class _Engine:
    def __init__(self, plan: Plan, backend: Ray, session: _Session) -> None:
        self._plan = plan
        self._backend = backend
        self._session: _Session | None = session
        self._ray = session.ray
        self._reserves = session.reserves
        self.room_bytes = int(IN_FLIGHT_SHARE * session.store_bytes) or None
        self._members: dict[int, _Member] = {}
        # What Ray's own thread hands over: (member, kind, future), or None from `wake`.
        self._done: queue.SimpleQueue[tuple[_Member, str, Any] | None] = queue.SimpleQueue()
        self._heard: list[tuple[_Member, str, Any] | None] = []
        self._events: deque[Event] = deque()
        self._loans: dict[int, _Loan] = {}
        self._lent_bytes = 0
        self._small_store = False
        self._warn_of_small_store(session)
        self._work = self._ray.put(plan.work)

    def _warn_of_small_store(self, session: _Session) -> None:
        try:
            stats = os.statvfs("/dev/shm")
        except OSError:
            return
        total = stats.f_frsize * stats.f_blocks
        if total < min(_SMALL_STORE_BYTES, session.store_bytes or _SMALL_STORE_BYTES):
            warnings.warn(
                f"/dev/shm holds only {total:,} bytes, so Ray keeps its object store on disk and batches travel "
                "slowly: enlarge it (docker run --shm-size=4g)",
                RuntimeWarning,
                stacklevel=2,
            )

    # ------------------------------------------------------------------------------------ workers

    def start_worker(self, worker: int) -> None:
        p, b = self._plan, self._backend
        environment = dict(b.runtime_env or {})
        environment["env_vars"] = {**thread_limits(p.threads_per_worker), **environment.get("env_vars", {})}
        actor_class = self._ray.remote(concurrency_groups={"control": 1})(_Actor)
        actor = actor_class.options(
            num_cpus=b.num_cpus if self._reserves else 0,
            resources=b.resources,
            runtime_env=environment,
            scheduling_strategy=b.scheduling_strategy,
            max_restarts=0,
            max_task_retries=0,
        ).remote(self._work, p.settings, worker, (p.threads_per_worker, list(sys.path), main_arguments()))
        member = _Member(worker, actor)
        self._members[worker] = member
        self._watch(member, "start", actor.start.remote())

    def _watch(self, member: _Member, kind: str, ref: Any) -> None:
        future = ref.future()
        future.add_done_callback(lambda done: self._done.put((member, kind, done)))

    def send(self, worker: int, message: Request | Drop) -> None:
        member = self._members.get(worker)
        if member is None:
            return
        if isinstance(message, Drop):
            member.actor.drop.options(concurrency_group="control").remote(message.run)
            return
        self._watch(member, "answer", member.actor.answer.remote(pickle.dumps(message, pickle.HIGHEST_PROTOCOL)))

    def retire_worker(self, worker: int) -> None:
        self._end([self._members.pop(worker)])

    def freeze(self, value: Any) -> bytes:
        return freeze(value)

    # ------------------------------------------------------------------------------------- events

    def wait(self, timeout_s: float | None) -> None:
        with contextlib.suppress(queue.Empty):
            self._heard.append(self._done.get(timeout=timeout_s))

    def events(self) -> list[Event]:
        try:
            while True:
                self._heard.append(self._done.get_nowait())
        except queue.Empty:
            pass
        heard, self._heard = self._heard, []
        for item in heard:
            self._hear(item)
        events = list(self._events)
        self._events.clear()
        return events

    def wake(self) -> None:
        self._done.put(None)

    def _hear(self, item: tuple[_Member, str, Any] | None) -> None:
        if item is None:
            return
        member, kind, future = item
        if self._members.get(member.worker) is not member:
            return  # of an actor that is gone: its death was reported
        error = future.exception()
        if error is not None:
            self._lost(member, error)
        elif kind == "start":
            self._started(member, future.result())
        elif (answer := future.result()) is not None:
            self._answered(member, *answer)

    def _started(self, member: _Member, result: Any) -> None:
        if isinstance(result, Failure):
            del self._members[member.worker]
            self._kill(member)
            self._events.append(Unfit(member.worker, result))
        else:
            member.joined = True
            self._events.append(Joined(member.worker, result))

    def _answered(self, member: _Member, data: bytes, regions: list[Any]) -> None:
        reply = loads(data)
        if reply.more:
            self._watch(member, "answer", member.actor.more.remote())
        self._events.append(Arrived(member.worker, deliver(reply, lambda i: self._lend(regions[i]), self._crowded)))

    def _lend(self, region: Any) -> Bytes:
        # NumPy makes the last array of a chain of views the base of further ones: its death says that all are gone.
        owner = region
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        loan = _Loan(owner, self._returned)
        loan.nbytes = region.nbytes
        self._loans[id(loan)] = loan
        self._lent_bytes += loan.nbytes
        memory: Bytes = region
        return memory

    def _returned(self, loan: Any) -> None:
        if self._loans.pop(id(loan), None) is not None:
            self._lent_bytes -= loan.nbytes

    def _crowded(self, parcel: Parcel) -> bool:
        store = self._session.store_bytes if self._session is not None else 0
        return store > 0 and self._lent_bytes > LENT_SHARE * store

    def _lost(self, member: _Member, error: BaseException) -> None:
        """A call came to nothing: the actor, its node or its object is gone."""
        del self._members[member.worker]
        self._kill(member)
        words = " ".join(str(error).split())
        self._events.append(Died(member.worker, f"died ({type(error).__name__}: {words[:600]})"))

    # --------------------------------------------------------------------------------------- end

    def stacks(self) -> dict[int, str]:
        refs = {w: m.actor.stacks.options(concurrency_group="control").remote() for w, m in self._members.items()}
        found = {}
        deadline = time.monotonic() + _STACK_S
        for worker, ref in refs.items():
            try:
                found[worker] = self._ray.get(ref, timeout=max(0.1, deadline - time.monotonic()))
            except Exception as error:
                found[worker] = f"no Python stack ({type(error).__name__})"
        return found

    def _kill(self, member: _Member) -> None:
        with contextlib.suppress(Exception):  # it is gone already, or Ray itself is
            self._ray.kill(member.actor)

    def _end(self, members: list[_Member]) -> None:
        if not self._ray.is_initialized():
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
        self._work = None
        if self._session is not None:  # step 4
            session, self._session = self._session, None
            _disconnect(session)
