"""This process's connection to Ray: shared by its feeds, ended by mpfeed only where mpfeed started it."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpfeed._cpus import usable_cpus
from mpfeed._errors import MpfeedError
from mpfeed.backends.ray_worker import Actor
from mpfeed.backends.spawn import in_lasting_thread

if TYPE_CHECKING:
    from mpfeed.backends.ray_actors import Ray

# The concurrency group of an actor that runs two calls at a time. Ray begins its calls in order, as it would not with
# max_concurrency=2: then two that wait for a third could keep it from beginning.
OVERLAPPING = "overlapping"
CLIENT = "ray://"
SHUT_DOWN = (
    "Ray was shut down, or begun anew, while this feed was at work: close the feed before, and make another after"
)
_PRESTART = "RAY_prestart_worker_first_driver"
NO_CLIENT = (
    "a Ray Client is outside the cluster and has no object store to read batches from: run the training on a node of "
    'the cluster (ray job submit), and give "auto"'
)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MpfeedError("backend=\"ray\" needs Ray, which is not installed: pip install 'mpfeed[ray]'") from error
    return ray


class Session:
    """A connection to Ray, and whether this library started it."""

    def __init__(self, ray: Any, started: bool) -> None:
        self.ray = ray
        self.started = started
        self._identity = _identity(ray)
        # On a Ray of our own the user says how many workers there are, not how many cores.
        self.reserves = True
        # Made once: each actor class is exported to the cluster and stays there.
        self.actor_class = ray.remote(concurrency_groups={"control": 1, "presence": 1, OVERLAPPING: 2})(Actor)
        self.store_bytes = _store_bytes(ray)
        self.job_env: dict[str, Any] | None = None  # what the whole job was given

    @property
    def alive(self) -> bool:
        """Whether this process is still connected by it: the user may have shut Ray down, or begun another since."""
        try:
            return bool(self.ray.is_initialized()) and _identity(self.ray) == self._identity
        except Exception:  # shut down this very moment
            return False


def _identity(ray: Any) -> tuple[str, str]:
    """(node, job): drawn anew by each Ray, and by each connection to it."""
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()


_lock = threading.Lock()
_session: Session | None = None
_users = 0
_inherited_reserves: bool | None = None


def inherit(reserves: bool) -> None:
    """In an actor that reads a feed for another process: whether workers are to reserve what they use, as there."""
    global _inherited_reserves
    _inherited_reserves = reserves


def connect(backend: Ray) -> Session:
    """The session of this process, started if need be; each call is matched by ``disconnect`` or ``release``."""
    global _session, _users
    ray = _import_ray()
    with _lock:
        if _session is not None and not _session.alive:
            _session = None  # the user shut it down
            _users = 0
        if _session is None:
            _session = Session(ray, _start(ray, backend))
            _session.reserves = not _session.started or _address(backend) is not None
            if _inherited_reserves is not None:
                _session.reserves = _inherited_reserves
            if _session.started and _session.reserves:
                _session.job_env = backend.runtime_env
        _users += 1
        return _session


def _address(backend: Ray) -> str | None:
    return backend.address or os.environ.get("RAY_ADDRESS")


def _start(ray: Any, backend: Ray) -> bool:
    if ray.is_initialized():
        if ray.util.client.ray.is_connected():
            raise MpfeedError(f"this process is connected to Ray through a client: {NO_CLIENT}")
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning", "include_dashboard": False}
    address = _address(backend)
    if address is not None and address.startswith(CLIENT):
        raise MpfeedError(f"RAY_ADDRESS={address}: {NO_CLIENT}")
    if address is not None:
        # Only a job's environment may name folders of this machine (py_modules=[mpfeed]); Ray uploads them.
        ray.init(address=address, log_to_driver=False, logging_level="warning", runtime_env=backend.runtime_env)
        return True

    def begin() -> None:
        with _no_idle_workers():
            # "local": not a cluster that happens to run on this machine
            ray.init(address="local", num_cpus=usable_cpus(), **quiet)

    # Ray's processes die with the thread that starts them, and tf.data's threads end; in the main thread Ray also
    # installs its handler of SIGTERM.
    begin() if threading.current_thread() is threading.main_thread() else in_lasting_thread(begin)
    return True


@contextlib.contextmanager
def _no_idle_workers() -> Iterator[None]:
    """A Ray that is started in here starts no workers ahead of their work.

    Actors have an environment of their own, so that none of them would be used: they lengthen Ray's start (on two
    cores 2.8 to 4.0 s in place of 2.4 to 3.5, in turns), and take memory and time ever after.
    """
    if _PRESTART in os.environ:
        yield
        return
    os.environ[_PRESTART] = "0"
    try:
        yield
    finally:
        os.environ.pop(_PRESTART, None)


def release(session: Session) -> None:
    """Undo a ``connect`` without ending what it started: an engine is about to use it."""
    global _users
    with _lock:
        if _session is session:
            _users = max(0, _users - 1)


def abandon() -> None:
    """There will be no engine after all: end what was started for it, unless another uses it."""
    with _lock:
        if _users == 0 and _session is not None:
            _end(_session)


def disconnect(session: Session) -> None:
    """An engine no longer needs the session; the last one ends a Ray that mpfeed started."""
    global _users
    with _lock:
        if _session is not session:
            return  # of a Ray that the user shut down: those who use the next one are not to lose it
        _users = max(0, _users - 1)
        if _users == 0:
            _end(session)


def _end(session: Session) -> None:
    global _session
    _session = None
    if session.started and session.alive:
        folder = _own_folder(session)
        session.ray.shutdown()
        _remove(folder)


def _own_folder(session: Session) -> Path | None:
    """Where the Ray that this library started keeps its logs and sockets; None for one that it only connected to."""
    try:
        node = session.ray._private.worker._global_node
        return Path(node.get_session_dir_path()) if node.head else None
    except AttributeError:  # another Ray
        return None


def _remove(folder: Path | None) -> None:
    if folder is None:
        return
    shutil.rmtree(folder, ignore_errors=True)
    latest = folder.parent / "session_latest"
    with contextlib.suppress(OSError):  # another program's by now
        if latest.is_symlink() and Path(os.readlink(latest)).name == folder.name:
            latest.unlink()


def _store_bytes(ray: Any) -> int:
    """Bytes of this node's object store."""
    here = ray.get_runtime_context().get_node_id()
    for node in ray.nodes():
        if node["NodeID"] == here:
            return int(node["Resources"].get("object_store_memory", 0))
    return 0
