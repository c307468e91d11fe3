"""The actor: a producer in a Ray worker."""

from __future__ import annotations

import os
import pickle
import queue
import socket
import sys
import threading
import traceback
from typing import Any

from mpfeed import _seed
from mpfeed._layout import Allocator, Bytes
from mpfeed._messages import Drop, Failure, Parcel, Reply
from mpfeed._producer import Producer, Work
from mpfeed._serialize import dumps, failure_of, loads
from mpfeed.backends.arguments import PackedCalls, Unpacker
from mpfeed.backends.layouts import SentLayouts
from mpfeed.backends.ray_memory import Invitation, accepted
from mpfeed.transport.arena import Heap, Slot


class Actor:
    """Runs a producer in a Ray worker, in a thread of its own.

    Calls are numbered. Each hands in a request and takes out the reply of its number, which may be that to a request
    before: replies that are sent early are more than the requests, and the driver calls once more for each (``more``).
    Where messages own their memory, two calls run at a time, so that the producer has its next request while Ray sends
    a reply; elsewhere that is copied before its source goes on.
    """

    def __init__(
        self,
        work: bytes,
        settings: Any,
        worker: int,
        here: tuple[int, list[str], list[str]],
        invitation: Invitation | None = None,
    ) -> None:
        self._allocator: Allocator
        self._unpacker: Unpacker | None
        memory = accepted(invitation, _node()) if invitation is not None else None
        self._allocator, self._unpacker = memory if memory is not None else (Heap(adopts=True), None)
        self._shares = memory is not None
        self._arguments = work, settings, worker, here
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._started: queue.SimpleQueue[Failure | None] = queue.SimpleQueue()
        self._calls = threading.Condition()
        self._early: dict[int, Any] = {}  # requests by call, while an earlier call is still to begin
        self._begun = 0  # calls, in their order
        self._replies: dict[int, Any] = {}  # by call
        self._replied = 0
        self._replying = threading.Lock()
        self._layouts = SentLayouts()
        self._dropped: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="mpfeed-worker", daemon=True)

    def hello(self) -> Any:
        """There is a process: (pid, id of the node, name of its machine, whether it shares what it was offered)."""
        return os.getpid(), _node(), socket.gethostname(), self._shares

    def start(self) -> Any:
        """Bring the user's code up: None, or what it raised."""
        self._thread.start()
        return self._started.get()

    def answer(self, call: int, request: bytes) -> Any:
        """Hand in a request; a pickled reply, or (that, the bytes of those messages that are not in shared memory)."""
        return self._take(call, pickle.loads(request))

    def more(self, call: int) -> Any:
        """The next reply."""
        return self._take(call, None)

    def _take(self, call: int, request: Any) -> Any:
        with self._calls:
            self._early[call] = request  # threads may begin in another order than they were called
            while self._begun in self._early:
                if (message := self._early.pop(self._begun)) is not None:
                    self._requests.put(message)
                self._begun += 1
            self._calls.wait_for(lambda: call in self._replies)
            return self._replies.pop(call)

    def _put(self, reply: Any) -> None:
        with self._calls:
            self._replies[self._replied] = reply
            self._replied += 1
            self._calls.notify_all()

    def drop(self, run: int) -> None:
        """From the control group: forget a run; its requests that are still to come are needless."""
        self._dropped.add(run)
        self._requests.put(Drop(run))

    def stacks(self) -> str:
        """From the control group: what the worker's thread does."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else "no thread"

    def stay(self) -> None:
        """In a group of its own: never returns, so that the caller hears when this process ends."""
        threading.Event().wait()

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
            producer = Producer(Work(*loads(work)), settings, worker, self._allocator, remote=True, emit=self._reply)
            producer.open()
        except BaseException as error:
            where = "the source (unpickling it)" if producer is None else "worker_init"
            self._started.put(failure_of(error, where, remote=True))
            return
        self._started.put(None)
        try:
            self._serve(producer)
        except BaseException:  # of a message that cannot be read or written: whoever waits is to hear of a death
            traceback.print_exc()
            os._exit(1)

    def _serve(self, producer: Producer) -> None:
        while (message := self._requests.get()) is not None:
            if isinstance(message, PackedCalls):  # here, in the order in which they were packed; also needless ones
                assert self._unpacker is not None
                message = self._unpacker.unpack(message)
            if isinstance(message, Drop):
                producer.drop(message)
            elif message.run in self._dropped:
                self._put(None)
            else:
                self._reply(producer.handle(message))
        producer.close()

    def _reply(self, reply: Reply) -> None:
        stored: list[Bytes] = []

        def name(region: Slot | Bytes) -> Slot | int:
            if isinstance(region, tuple):
                return region
            stored.append(region)
            return len(stored) - 1

        with self._replying:  # layouts are numbered in the order of the replies
            for payload in reply.payloads:
                assert not isinstance(payload, Parcel)
                payload.regions = [name(region) for region in payload.regions]
            self._layouts.refer_all(reply)
            data = _dumped(reply)
            self._put((data, stored) if stored else data)  # Ray pickles everything but bytes


def _node() -> str:
    import ray

    node: str = ray.get_runtime_context().get_node_id()
    return node


def _dumped(reply: Reply) -> bytes:
    try:
        return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return dumps(reply)
