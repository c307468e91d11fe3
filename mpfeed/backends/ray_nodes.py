"""The nodes of a Ray cluster: which answer, what is free on them, and where actors find room."""

from __future__ import annotations

import gc
import socket
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from mpfeed._errors import MpfeedError
from mpfeed._opening import Opening

if TYPE_CHECKING:
    from mpfeed.backends.ray_actors import Ray

# How long room for a first worker, and for the others, is waited for.
NO_ROOM_S = 30.0
_ROOM_S = 4.0
_ANSWER_S = 0.5
_CALLERS = 32


def fitting(ray: Any, backend: Ray, workers: int, opening: Opening) -> int:
    """How many actors a cluster has room for; actors that were just killed give their room back within seconds.

    Where actors go into a placement group, it is the group that has waited for room: all.
    """
    asked = _asked(backend)
    if not asked or hasattr(backend.scheduling_strategy, "placement_group"):
        return workers
    start, fits, collected = time.monotonic(), 0, False
    while time.monotonic() - start < (NO_ROOM_S if not fits else _ROOM_S):
        fits = sum(_places(free, asked) for free in _free_by_node(ray, backend).values())
        if fits >= workers:
            return workers
        if fits and opening.overdue:
            break
        if not collected:  # a feed that was dropped in a cycle of the user's holds its room until then
            collected = True
            gc.collect()
        opening.pause(0.1, lambda: _shortage(ray, backend))
    if not fits:
        raise MpfeedError(_shortage(ray, backend))
    warnings.warn(
        f"the Ray cluster has room for {fits} of the {workers} workers now: {_figures(ray, backend)}. The feed begins "
        "with those, and the others join when there is room; its stream is the same",
        RuntimeWarning,
        stacklevel=2,
    )
    return fits


def no_room(ray: Any, backend: Ray, waited_s: float) -> str | None:
    """What is missing where actors have queued for room long enough; None while they may get it, or have it."""
    asked = _asked(backend)
    if waited_s <= NO_ROOM_S or not asked or hasattr(backend.scheduling_strategy, "placement_group"):
        return None
    if any(_places(free, asked) for free in _free_by_node(ray, backend).values()):
        return None
    # What is not free may be what the actors were given, while their processes start.
    return _shortage(ray, backend) if _queued(ray, backend) else None


def starting(ray: Any, backend: Ray, nodes: set[str]) -> set[str]:
    """Where actors that have no process yet have room, and are on their way: on a loaded machine that takes its time.

    Args:
        ray: the module.
        backend: what the actors ask for.
        nodes: ids of the nodes where those before them were, "" where there was none. A lost node counts as alive for
            15 s and is sent actors.

    Returns:
        Those of ``nodes``.
    """
    if _queued(ray, backend):
        return set()
    there = addresses(ray)
    return {node for node in nodes if node not in there or answers(there[node])}


def havens(ray: Any, backend: Ray, taken: Counter[str]) -> list[str]:
    """Where actors had better go while the cluster has not noticed yet that it lost a node, and sends them there.

    Args:
        ray: the module.
        backend: what the actors ask for.
        taken: workers that were just sent to nodes, by their ids: that may not show in what is free.

    Returns:
        Ids of nodes that answer, once for each worker that there is room for. None where all answer, since Ray places
        well then; nor where the user has said where actors go.
    """
    if not isinstance(backend.scheduling_strategy, (str, type(None))):
        return []
    there = {node["NodeID"]: _address(node) for node in ray.nodes() if node["Alive"]}
    living = {node for node, error in _all_called(there).items() if error is None}
    if len(living) == len(there):
        return []
    asked, free = _asked(backend), _free_by_node(ray, backend)
    rooms = {node: _places(have, asked) - taken[node] for node, have in free.items() if node in living}
    return [node for turn in range(max(rooms.values(), default=0)) for node, room in rooms.items() if turn < room]


def _queued(ray: Any, backend: Ray) -> bool:
    """Whether actors that ask for as much queue for room, as the cluster tells its autoscaler a second later.

    True where that cannot be told.
    """
    if hasattr(backend.scheduling_strategy, "placement_group"):
        return True  # a bundle's resources have names of their own
    try:
        from ray.autoscaler.v2.sdk import get_cluster_resource_state

        state: Any = get_cluster_resource_state(ray._private.worker.global_worker.gcs_client)
        asked = _asked(backend)
        return any(dict(demand.request.resources_bundle) == asked for demand in state.pending_resource_requests)
    except Exception:  # another Ray, or one that is going down
        return True


def draining(ray: Any) -> frozenset[str]:
    """Ids of the nodes that are to go, as a preemption notice tells."""
    try:
        return frozenset(ray._private.state.state.get_draining_nodes())
    except Exception:  # an older Ray, or one that is going down
        return frozenset()


def answers(address: str) -> bool:
    """Whether somebody listens at the address of a node or of the head."""
    return _called(address) is None


def refusing(addresses: dict[str, str]) -> set[str]:
    """Those, by their ids, where it is certain that nobody listens: the machine says so."""
    return {node for node, error in _all_called(addresses).items() if isinstance(error, ConnectionRefusedError)}


def _all_called(addresses: dict[str, str]) -> dict[str, OSError | None]:
    """What came of calling each, by their ids; those that answer nothing are waited for together."""
    if not addresses:
        return {}
    try:
        with ThreadPoolExecutor(_CALLERS) as pool:
            return dict(zip(addresses, pool.map(_called, addresses.values()), strict=True))
    except RuntimeError:  # the interpreter is ending and starts no thread any more
        return dict.fromkeys(addresses)


def _called(address: str) -> OSError | None:
    """What came of calling there; None: an answer."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except OSError as error:
        return error
    return None


def addresses(ray: Any) -> dict[str, str]:
    """Where the nodes listen that were ever there, by their ids."""
    return {node["NodeID"]: _address(node) for node in ray.nodes()}


def _address(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"


def _asked(backend: Ray) -> dict[str, float]:
    asked = {"CPU": float(backend.num_cpus), **(backend.resources or {})}
    return {name: amount for name, amount in asked.items() if amount > 0}


def _places(free: dict[str, float], asked: dict[str, float]) -> int:
    """How many find room; one where nothing is asked for."""
    return min((int(free.get(name, 0.0) / amount + 1e-9) for name, amount in asked.items()), default=1)


def _free_by_node(ray: Any, backend: Ray) -> dict[str, dict[str, float]]:
    """Free resources of each node that actors may go to."""
    free = ray._private.state.available_resources_per_node()
    return {node: free.get(node, {}) for node in _nodes(ray, backend)}


def _nodes(ray: Any, backend: Ray) -> dict[str, dict[str, float]]:
    """All resources of each node that actors may go to."""
    wanted = backend.label_selector or {}
    only = None if getattr(backend.scheduling_strategy, "soft", True) else backend.scheduling_strategy.node_id
    return {
        node["NodeID"]: node["Resources"]
        for node in ray.nodes()
        if node["Alive"]
        and only in (None, node["NodeID"])
        and all(_matches(node.get("Labels", {}).get(key), value) for key, value in wanted.items())
    }


def _matches(label: str | None, condition: str) -> bool:
    """Ray's conditions on a label: "a", "!a", "in(a, b)", "!in(a, b)"."""
    negated, condition = condition.startswith("!"), condition.removeprefix("!")
    values = condition[3:-1].split(",") if condition.startswith("in(") else [condition]
    return (label in [value.strip() for value in values]) != negated


def _shortage(ray: Any, backend: Ray) -> str:
    asked, nodes = _asked(backend), _nodes(ray, backend)
    free = _free_by_node(ray, backend).values()
    never = [name for name, amount in asked.items() if all(have.get(name, 0.0) < amount for have in nodes.values())]
    now = [name for name, amount in asked.items() if all(have.get(name, 0.0) < amount for have in free)]
    if not nodes:
        missing = "no living node is one that workers may go to"
    elif never:
        missing = f"no node has so much {_listed(never)} at all"
    else:
        missing = f"no node has so much {_listed(now)} free" if now else "no node has all of it free at once"
    return (
        f"the Ray cluster has no room for a worker: {missing}. {_figures(ray, backend)}. "
        "Free resources, add nodes, or ask for less (mpfeed.Ray(num_cpus=0.5))"
    )


def _figures(ray: Any, backend: Ray) -> str:
    """Asked, free and there, in words."""
    asked, nodes = _asked(backend), _nodes(ray, backend)
    free = list(_free_by_node(ray, backend).values())
    where = f" on nodes with {backend.label_selector}" if backend.label_selector else ""
    sums = ", ".join(
        f"{name} {sum(n.get(name, 0.0) for n in free):g} of {sum(n.get(name, 0.0) for n in nodes.values()):g}"
        for name in asked
    )
    each = ", ".join(f"{name} {amount:g}" for name, amount in asked.items())
    return f"each asks for {each}{where}; free are {sums} on {len(nodes)} nodes"


def _listed(names: list[str]) -> str:
    return " and ".join(names)
