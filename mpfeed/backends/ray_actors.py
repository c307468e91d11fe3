"""The settings of the Ray backend: where its actors run, and what each of them reserves. ``ray_engine`` runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpfeed._cpus import most_local_workers, usable_cpus
from mpfeed._opening import Opening
from mpfeed._producer import Work
from mpfeed._serialize import dump_source, freeze
from mpfeed.backends.base import Engine, Plan
from mpfeed.backends.ray_nodes import fitting
from mpfeed.backends.ray_session import CLIENT, NO_CLIENT, abandon, connect, disconnect, release


@dataclass(frozen=True, slots=True)
class Ray:
    """Run the source in Ray actors, on this machine or a cluster.

    Actors on this process's node hand batches over in shared memory, as worker processes do; from other nodes batches
    come through the nodes' object stores.

    Args:
        address: of a running cluster ("auto", "host:port"), on a node of which this process runs; None uses the Ray
            this process is connected to, or starts a local one, which mpfeed then stops.
        num_cpus: logical CPUs an actor reserves; 0 and fractions too. A Ray that mpfeed starts itself is not limited
            by cores.
        resources: custom resources an actor reserves.
        runtime_env: Ray's runtime environment for the actors.
        scheduling_strategy: where actors go; "SPREAD" over the nodes, or what Ray takes (a placement group, a node).
        label_selector: labels that a node must have, in Ray's words: {"zone": "a", "market": "!spot"}.

    Raises:
        TypeError, ValueError: an option of a wrong type or out of range.
    """

    address: str | None = None
    num_cpus: float = 1
    resources: dict[str, float] | None = None
    runtime_env: dict[str, Any] | None = None
    scheduling_strategy: Any = "SPREAD"
    label_selector: dict[str, str] | None = None

    def __post_init__(self) -> None:
        num_cpus: Any = self.num_cpus
        if not isinstance(num_cpus, (int, float)) or isinstance(num_cpus, bool):
            raise TypeError(f"num_cpus={self.num_cpus!r}: give a number")
        if self.num_cpus < 0:
            raise ValueError(f"num_cpus={self.num_cpus}: give 0 or more")
        if self.address is not None and not isinstance(self.address, str):
            raise TypeError(f"address={self.address!r}: give the address of a cluster, or None")
        if self.address is not None and self.address.startswith(CLIENT):
            raise ValueError(f"address={self.address!r}: {NO_CLIENT}")
        for name in ("resources", "runtime_env", "label_selector"):
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

    def most_workers(self, workers: int) -> int:
        session = connect(self)
        try:
            return workers if session.reserves else most_local_workers()
        finally:
            release(session)

    def fit(self, workers: int, opening: Opening) -> int:
        session = connect(self)
        try:
            room = fitting(session.ray, self, workers, opening) if session.reserves else workers
        except BaseException:
            disconnect(session)
            raise
        release(session)
        return room

    def abandon(self) -> None:
        """After ``fit``, where no engine is opened: end the Ray that was started for it."""
        abandon()

    def prepare(self, work: Work) -> bytes:
        return dump_source({"source": work.source, "collate": work.collate, "worker_init": work.worker_init})

    def freeze(self, value: Any) -> bytes:
        return freeze(value)

    def open(self, plan: Plan) -> Engine:
        from mpfeed.backends.ray_engine import RayEngine

        return RayEngine(plan, self, connect(self))
