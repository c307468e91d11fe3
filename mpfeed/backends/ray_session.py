"""This process's connection to Ray: shared by its feeds, ended by mpfeed only where mpfeed started it."""

from __future__ import annotations

import os
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

from mpfeed._cpus import usable_cpus
from mpfeed._errors import MpfeedError
from mpfeed.backends.ray_worker import Actor

if TYPE_CHECKING:
    from mpfeed.backends.ray_actors import Ray

# How long room for a first worker, and for the others, is waited for.
_NO_ROOM_S = 30.0
_ROOM_S = 4.0


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
        # On a Ray of our own the user says how many workers there are, not how many cores.
        self.reserves = True
        # Made once: each actor class is exported to the cluster and stays there.
        self.actor_class = ray.remote(concurrency_groups={"control": 1})(Actor)
        self.store_bytes = _store_bytes(ray)


_lock = threading.Lock()
_session: Session | None = None
_users = 0


def connect(backend: Ray) -> Session:
    """The session of this process, started if need be; each call is matched by ``_disconnect``."""
    global _session, _users
    ray = _import_ray()
    with _lock:
        if _session is not None and not ray.is_initialized():
            _session = None  # the user shut it down
            _users = 0
        if _session is None:
            _session = Session(ray, _start(ray, backend))
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
    ray.init(address="local", num_cpus=usable_cpus(), **quiet)  # not a cluster that happens to run on this machine
    return True


def release(session: Session) -> None:
    """Undo a ``_connect`` without ending what it started: an engine is about to use it."""
    global _users
    with _lock:
        if _session is session:
            _users = max(0, _users - 1)


def fitting(ray: Any, backend: Ray, workers: int) -> int:
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


def disconnect(session: Session) -> None:
    """An engine no longer needs the session; the last one ends a Ray that mpfeed started."""
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
