"""Fresh worker processes: their environment, how they start, and how their end is seen.

A worker is a new interpreter (fork and exec through ``subprocess``), never a fork of the caller: it re-imports
nothing of the caller's ``__main__``, inherits no lock that a thread held, and a daemonic parent may start one.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

# A process that was killed is there until the kernel has taken it down, which on a loaded machine takes its time.
_KILLED_S = 5.0

# The caller's sys.path must hold before mpfeed itself is imported.
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from mpfeed.backends.worker import main; main(json.loads(sys.argv[2]))"
)


class _Spawner:
    """Starts processes from a thread that lives as long as this process.

    The parent-death signal follows the *thread* that started a process: one of TensorFlow's would take the
    workers along when it ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], Any]) -> Any:
        """The result of the function, called in that thread."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mpfeed-spawner", daemon=True)
                self._thread.start()
        future: Future[Any] = Future()
        self._calls.put((future, function))
        return future.result()

    def _run(self) -> None:
        while True:
            future, function = self._calls.get()
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            del future, function


_spawner = _Spawner()


def _renew_spawner() -> None:
    global _spawner
    _spawner = _Spawner()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_spawner)


def in_lasting_thread(function: Callable[[], Any]) -> Any:
    """What a function gives that starts processes which are to live as long as this one."""
    return _spawner.call(function)


class Child:
    """A worker process and the ways to see and cause its end; OSError where it cannot be started."""

    def __init__(self, arguments: dict[str, Any], fds: tuple[int, ...], environment: dict[str, str]) -> None:
        command = [
            sys.executable,
            *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
            "-c",
            _BOOT,
            json.dumps([os.fspath(entry) for entry in sys.path]),
            json.dumps({**arguments, "parent": os.getpid()}),
        ]
        # Its own process group: Ctrl-C reaches the driver alone, and what the worker starts ends with it.
        self._process: subprocess.Popen[bytes] = in_lasting_thread(
            lambda: subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=fds, process_group=0)
        )
        self.pid = self._process.pid
        try:
            self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1
        except OSError:
            self._pidfd = -1
            end_all([self], 0)
            raise

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once the process ended, or -1."""
        return self._pidfd

    def reap(self, timeout_s: float) -> int | None:
        """The exit code (a signal negated), waiting that long for it; None while it lives."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """SIGKILL to the process and those it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """Give back the descriptor."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def end_all(children: list[Child], grace_s: float) -> None:
    """Wait for processes that were told to end; kill those that have not by then; reap and close all."""
    deadline = time.monotonic() + grace_s
    for child in children:
        if child.reap(max(0.0, deadline - time.monotonic())) is None:
            child.kill()
    deadline = time.monotonic() + _KILLED_S
    for child in children:
        child.kill()
        child.reap(max(0.0, deadline - time.monotonic()))
        child.close()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """(the driver's end, the worker's end) of a channel."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
