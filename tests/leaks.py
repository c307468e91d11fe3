"""What a process holds: children, threads, descriptors, names in /dev/shm."""

from __future__ import annotations

import gc
import os
import sys
import threading
from dataclasses import dataclass

import psutil
from streams import eventually

# Threads that live as long as the process, whoever started them.
_LASTING_THREADS = ("mpfeed-spawner", "mpfeed-signals", "PythonGCThread", "ray_", "pytest_timeout")
_WAIT_S = 10.0


def ray_runs() -> bool:
    """Whether this process is connected to Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and hasattr(ray, "is_initialized") and bool(ray.is_initialized())


def children(pid: int | None = None) -> dict[int, str]:
    """Living descendants and zombies, without Ray's daemons and idle workers; a Ray actor is one."""
    found = {}
    try:
        for child in psutil.Process(pid).children():
            words = _words(child)
            if words and any("/ray/" in word for word in words[:4]):
                found.update({p: w for p, w in _all_below(child).items() if w.startswith("ray::Actor")})
            elif not words or not words[0].startswith("ray::"):
                found[child.pid] = " ".join(words)[:200] or "a zombie"
                found.update(children(child.pid))
    except psutil.Error:
        pass
    return found


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _all_below(process: psutil.Process) -> dict[int, str]:
    try:
        return {child.pid: " ".join(_words(child)) for child in process.children(recursive=True)}
    except psutil.Error:
        return {}


def _threads() -> set[str]:
    return {
        f"{thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread) and not thread.name.startswith(_LASTING_THREADS)
    }


def _descriptors() -> set[str]:
    found = set()
    # Ray opens connections of its own whenever it likes.
    unclear = ("socket:", "anon_inode:[event", "anon_inode:[timerfd", "/tmp/ray/") if ray_runs() else ("/tmp/ray/",)
    lasting = _lasting_descriptors()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the listing's own
        if not target.startswith(unclear) and int(name) not in lasting:
            found.add(f"{name} -> {target}")
    return found


def _lasting_descriptors() -> set[int]:
    interrupts = sys.modules.get("mpfeed._interrupts")
    wakeup = getattr(interrupts, "_wakeup", None)
    return {getattr(wakeup, "_read", -1), getattr(wakeup, "_write", -1)}


_imported = 0


def spare_imports() -> None:
    """Let later collections pass over what was imported since: with TensorFlow and Ray each takes 0.3 s otherwise."""
    global _imported
    if len(sys.modules) > _imported + 50:
        gc.collect()
        gc.freeze()
        _imported = len(sys.modules)


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process holds at a moment."""

    children: frozenset[str]
    threads: frozenset[str]
    descriptors: frozenset[str]
    shared_names: frozenset[str]

    @classmethod
    def now(cls) -> Holdings:
        gc.collect()
        found = frozenset(f"{pid}: {words}" for pid, words in children().items())
        return cls(found, frozenset(_threads()), frozenset(_descriptors()), frozenset(os.listdir("/dev/shm")))

    def gained(self) -> dict[str, list[str]]:
        """What came since and is still there."""
        now = self.now()
        both = {
            "children": now.children - self.children,
            "threads": now.threads - self.threads,
            "descriptors": now.descriptors - self.descriptors,
            "names in /dev/shm": now.shared_names - self.shared_names,
        }
        return {what: sorted(more) for what, more in both.items() if more}

    def left_behind(self) -> dict[str, list[str]]:
        """What came since and does not go within a bounded time."""
        return {} if eventually(lambda: not self.gained(), _WAIT_S) else self.gained()
