"""Ray clusters of several nodes on one machine, also with a real network between them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._delay_line import MTU

_CHECKOUT = Path(__file__).resolve().parents[1]
_STORE_BYTES = 400 << 20
# Nobody else reaches the namespaces, so that a token would guard nothing.
UNGUARDED = {"RAY_AUTH_MODE": "disabled"}


@dataclass(frozen=True, slots=True)
class Link:
    """What lies between the consumer's node and each other one."""

    delay_ms: float
    mbit_per_s: float


class Nodes:
    """A head without CPUs, where this process is, and nodes with CPUs, all on this machine.

    Args:
        cpus: of each node.
        store_bytes: of each node's object store, the head's included.

    Attributes:
        address: of the head.
        living: Ray's handles of the nodes with CPUs, oldest first.
    """

    def __init__(self, cpus: int, store_bytes: int = _STORE_BYTES) -> None:
        from ray.cluster_utils import Cluster

        self._own = {"object_store_memory": store_bytes}
        self._cpus = cpus
        head = {"num_cpus": 0, "include_dashboard": False, **self._own}
        self._cluster = Cluster(initialize_head=True, shutdown_at_exit=False, head_node_args=head)
        _forget_address()
        self.address: str = self._cluster.address
        self.living: list[Any] = []

    def add(self, count: int = 1) -> None:
        """Start so many more nodes."""
        self.living += [self._cluster.add_node(num_cpus=self._cpus, wait=False, **self._own) for _ in range(count)]

    def ready(self) -> None:
        """Wait until all nodes have joined."""
        self._cluster.wait_for_nodes(60)

    def kill(self, node: Any) -> None:
        """End a node as a machine ends that loses its power."""
        self.living.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *exc: object) -> None:
        self._cluster.shutdown()


def _forget_address() -> None:
    """Other programs on this machine must not find the cluster by themselves."""
    from ray._common.utils import get_ray_address_file

    with contextlib.suppress(OSError):
        os.remove(get_ray_address_file(None))


@contextmanager
def linked_cluster(cpus: int, link: Link) -> Iterator[tuple[str, list[str]]]:
    """A head and one node in network namespaces of their own, with a link between them. Needs root.

    Gives the cluster's address, and what runs a command beside the head.
    """
    names = [f"mpfeed{os.getpid()}{side}" for side in "ab"]
    started: list[subprocess.Popen[Any]] = []
    with tempfile.TemporaryDirectory(prefix="mp") as folder:
        try:
            for name in names:
                _ip("netns", "add", name)
            wire = [sys.executable, "-m", "benchmarks._delay_line", *names, str(link.delay_ms), str(link.mbit_per_s)]
            line = subprocess.Popen(wire, stdout=subprocess.PIPE, cwd=_CHECKOUT, start_new_session=True)
            started.append(line)
            assert line.stdout is not None
            line.stdout.readline()
            for number, name in enumerate(names, 1):
                _set_up(name, f"10.77.0.{number}/24")
            head = ("--head", "--port=6379", "--node-ip-address=10.77.0.1", "--include-dashboard=false")
            started.append(_ray(names[0], folder, *head, "--num-cpus=0"))
            _wait_for(lambda: _reaches(names[0]))
            far = ("--address=10.77.0.1:6379", "--node-ip-address=10.77.0.2")
            started.append(_ray(names[1], folder, *far, f"--num-cpus={cpus}"))
            yield "10.77.0.1:6379", ["ip", "netns", "exec", names[0]]
        finally:
            for process in reversed(started):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for name in names:
                _end_all(name)
                subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _set_up(name: str, address: str) -> None:
    _ip("-n", name, "link", "set", "lo", "up")
    _ip("-n", name, "link", "set", "wire", "mtu", str(MTU), "up")
    _ip("-n", name, "addr", "add", address, "dev", "wire")
    # As for any long, fast link: windows that hold more than its bandwidth times its delay.
    for which in ("rmem", "wmem"):
        setting = f"net.ipv4.tcp_{which}=4096 1048576 33554432"
        subprocess.run(["ip", "netns", "exec", name, "sysctl", "-qw", setting], check=False)


def _ray(namespace: str, folder: str, *words: str) -> subprocess.Popen[Any]:
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--object-store-memory={_STORE_BYTES}"]
    return subprocess.Popen(
        ["ip", "netns", "exec", namespace, *ray, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, **UNGUARDED, "RAY_TMPDIR": folder, "PYTHONPATH": str(_CHECKOUT)},
    )


def _reaches(namespace: str) -> bool:
    probe = "import socket; socket.create_connection(('10.77.0.1', 6379), 1)"
    done = subprocess.run(["ip", "netns", "exec", namespace, sys.executable, "-c", probe], check=False,
                          stderr=subprocess.DEVNULL)  # fmt: skip
    return done.returncode == 0


def _wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the head of the cluster did not start")
        time.sleep(0.2)


def _end_all(namespace: str) -> None:
    """Ray's daemons leave their group; what is in the namespace is ours."""
    found = subprocess.run(["ip", "netns", "pids", namespace], check=False, capture_output=True, text=True)
    for pid in found.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
