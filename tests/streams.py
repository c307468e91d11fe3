"""Reading streams: private copies, fingerprints, and what ended them."""

from __future__ import annotations

import hashlib
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np


class Closes(Protocol):
    """What a test leaves to ``keep`` to be closed."""

    def close(self) -> None: ...


def leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """(path, leaf) of every leaf; containers show in the path."""
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield from ((f"[{key!r}]{path}", leaf) for path, leaf in leaves(tree[key]))
    elif isinstance(tree, (tuple, list)):
        names = getattr(tree, "_fields", None) or range(len(tree))
        for name, part in zip(names, tree, strict=True):
            yield from ((f"{type(tree).__name__}.{name}{path}", leaf) for path, leaf in leaves(part))
    else:
        yield "", tree


def copied(tree: Any) -> Any:
    """The same structure in memory of its own."""
    if isinstance(tree, dict):
        return {key: copied(part) for key, part in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(copied, tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map(copied, tree))
    return np.array(tree)


def digest(elements: Iterable[Any]) -> str:
    """A fingerprint of a stream: structures, dtypes, shapes and every bit, element by element."""
    total = hashlib.sha256()
    for element in elements:
        for path, leaf in leaves(element):
            array = np.asarray(leaf)
            total.update(f"{path} {array.dtype.str} {array.dtype.name} {array.shape};".encode())
            total.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
        total.update(b"|")
    return total.hexdigest()


def drain(elements: Iterable[Any]) -> tuple[list[Any], BaseException | None]:
    """(copies of the elements that came, what was raised after them)."""
    got: list[Any] = []
    try:
        for element in elements:
            got.append(copied(element))
    except Exception as error:
        return got, error
    return got, None


def numbers(elements: Iterable[Any], key: str | None = None) -> list[int]:
    """All integers of a stream, batched or not, in order."""
    parts = [np.ravel(element if key is None else element[key]) for element in elements]
    return [int(number) for part in parts for number in part]


def in_turn(shards: Iterable[Sequence[Any]]) -> list[Any]:
    """Element k from shard k mod S, exhausted shards skipped."""
    queues = [list(shard) for shard in shards]
    stream = []
    while any(queues):
        stream += [queue.pop(0) for queue in queues if queue]
    return stream


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> bool:
    """Whether the condition comes to hold within so many seconds."""
    never, pause = threading.Event(), 0.005
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        never.wait(pause)
        pause = min(2 * pause, 0.25)
    return bool(condition())


def mapping_at(address: int) -> str:
    """What the kernel says is mapped there."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, _, end = line.partition(" ")[0].partition("-")
            if int(start, 16) <= address < int(end, 16):
                return line
    return "nothing"


class Tally:
    """Counts over all processes: one line a note, in a file that is appended to."""

    def __init__(self, path: Any) -> None:
        self.path = os.fspath(path)
        open(self.path, "a").close()

    def note(self, word: object) -> None:
        """Append a line, whole."""
        with open(self.path, "ab", buffering=0) as file:
            file.write(f"{word}\n".encode())

    def lines(self) -> list[str]:
        """What was noted so far."""
        with open(self.path) as file:
            return file.read().splitlines()

    def reached(self, count: int) -> bool:
        """Whether so many lines were noted."""
        return len(self.lines()) >= count


class Gate:
    """Closed until it is opened, in whichever process; a file."""

    def __init__(self, path: Any) -> None:
        self.path = os.fspath(path)

    def open(self) -> None:
        """Let all pass."""
        open(self.path, "w").close()

    def wait(self, seconds: float = 60.0) -> None:
        """Return once it is open."""
        if not eventually(lambda: os.path.exists(self.path), seconds):
            raise TimeoutError(f"nobody opened {self.path}")


def reader_of(part: Any, ray: Any, **options: Any) -> Any:
    """A consumer of a feed's part in an actor of its own; options are the actor's."""

    class Reader:  # defined here, so that it travels by value
        def __init__(self, part: bytes) -> None:
            self._batches = iter(pickle.loads(part))

        def read(self, count: int) -> list[Any]:
            return [next(self._batches).tolist() for _ in range(count)]

        def die(self) -> None:
            os._exit(1)

    return ray.remote(Reader).options(num_cpus=0, **options).remote(pickle.dumps(part))
