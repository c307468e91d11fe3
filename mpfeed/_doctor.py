"""Is this machine fit to feed from? What is found, each with ok or what to do.

Nothing is changed. One worker process is started, as a feed would start it.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import resource
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Literal

from mpfeed._cpus import busy_share, usable_cpus
from mpfeed._memory import usable_memory
from mpfeed.backends.ray_session import CLIENT, NO_CLIENT

_GIB = 1 << 30
# A worker takes four descriptors in the training process while it starts; TensorFlow and Ray some hundreds.
_FEW_DESCRIPTORS = 1024
_SMALL_SHM_BYTES = 1 << 30
_LOOK_S = 0.3
_BUSY = 0.2
_SLOW_START_S = 2.0
_REACH_S = 2.0
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_OPENCV = (
    "opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless",
)  # fmt: skip
_RAY_CLUSTER = Path("/tmp/ray/ray_current_cluster")  # where `ray start` leaves its address


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        name: what.
        found: how it is, with units.
        level: "ok"; "advice": it works, and could be better; "fault": feeds will fail.
        remedy: what to do, where it is not ok.
    """

    name: str
    found: str
    level: Literal["ok", "advice", "fault"] = "ok"
    remedy: str = ""


def examine() -> Iterator[Finding]:
    """All findings, one after the other as they are made; it takes about two seconds."""
    for look in _LOOKS:
        yield look()


def cores() -> Finding:
    """Cores this process may use, and how busy others keep them."""
    usable, there = usable_cpus(), os.cpu_count() or 1
    busy = busy_share(_LOOK_S)
    found = f"{usable} of {there} usable" + ("" if busy is None else f", {busy:.0%} busy with other work")
    if busy is not None and busy > _BUSY:
        return Finding("cores", found, "advice", "other programs take part of them: measure again without those")
    if usable == 1:
        return Finding("cores", found, "advice", "workers would share it with training: allow more (docker --cpus)")
    return Finding("cores", found)


def memory() -> Finding:
    """Memory left within the cgroup's limit."""
    seen = usable_memory()
    if seen is None:
        return Finding("memory", "unknown: the kernel does not say")
    found = f"{seen.available / _GIB:.1f} GiB free of {seen.total / _GIB:.1f}"
    if seen.available < _GIB:
        return Finding("memory", found, "advice", "fewer workers, a smaller batch_size= or buffer=1")
    return Finding("memory", found)


def shared_memory() -> Finding:
    """Size of /dev/shm, through which batches of other nodes of Ray come."""
    try:
        size = shutil.disk_usage("/dev/shm")
    except OSError:
        return Finding("/dev/shm", "there is none", "advice", "Ray on several nodes is slow without it")
    found = f"{size.free / _GIB:.2f} GiB free of {size.total / _GIB:.2f}"
    if size.free < _SMALL_SHM_BYTES:
        remedy = "Ray on several nodes wants more (docker run --shm-size=4g); one node hardly uses it"
        return Finding("/dev/shm", found, "advice", remedy)
    return Finding("/dev/shm", found)


def descriptors() -> Finding:
    """How many files this process may open (``ulimit -n``)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_limit(soft)}, at most {_limit(hard)}"
    if soft != resource.RLIM_INFINITY and soft < _FEW_DESCRIPTORS:
        return Finding("ulimit -n", found, "advice", f"ulimit -n {max(_FEW_DESCRIPTORS * 4, 4096)} before starting")
    return Finding("ulimit -n", found)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def versions() -> Finding:
    """Python and the libraries that are installed."""
    names = ("mpfeed", "numpy", "cloudpickle", "optree", "tensorflow", "keras", "ray", *_OPENCV)
    there = {name: version for name in names if (version := _version(name)) is not None}
    found = ", ".join([f"Python {platform.python_version()}", *(f"{name} {v}" for name, v in there.items())])
    opencv = [name for name in _OPENCV if name in there]
    if len(opencv) > 1:
        remedy = f"{' and '.join(opencv)} overwrite each other's files: uninstall all of them, install one"
        return Finding("versions", found, "advice", remedy)
    if "tensorflow" not in there:
        remedy = "dataset() needs TensorFlow: pip install 'mpfeed[tf]' (reading NumPy does not)"
        return Finding("versions", found, "advice", remedy)
    return Finding("versions", found)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def opencv_threads() -> Finding:
    """Threads OpenCV would take in this process."""
    try:
        cv2 = import_module("cv2")
    except ImportError as error:
        if not any(_version(name) for name in _OPENCV):
            return Finding("OpenCV threads", "OpenCV is not installed")
        remedy = "it needs a library of the system's: install libgl1, or opencv-python-headless in its place"
        return Finding("OpenCV threads", f"OpenCV does not import: {error}", "fault", remedy)
    threads, usable = cv2.getNumThreads(), usable_cpus()
    found = f"{threads} in this process, 1 in a worker (threads_per_worker=)"
    if threads > usable:
        return Finding("OpenCV threads", found, "advice", f"cv2.setNumThreads({usable}): there are no more cores")
    return Finding("OpenCV threads", found)


def blas_threads() -> Finding:
    """Limits of BLAS and OpenMP in this process's environment."""
    given = {name: os.environ[name] for name in _THREADS if name in os.environ}
    said = ", ".join(f"{name}={value}" for name, value in given.items()) or f"no limit, so {usable_cpus()}"
    found = f"{said} in this process, 1 in a worker (threads_per_worker=)"
    high = [name for name, value in given.items() if value.isdigit() and int(value) > usable_cpus()]
    if high:
        remedy = f"set {', '.join(high)} to {usable_cpus()}: there are no more cores"
        return Finding("BLAS threads", found, "advice", remedy)
    return Finding("BLAS threads", found)


def start_method() -> Finding:
    """How Python's own multiprocessing would start processes; mpfeed's workers are fresh interpreters anyway."""
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    found = f"{method} (of multiprocessing; mpfeed's workers are fresh interpreters whatever it is)"
    if platform.system() == "Windows":
        return Finding("start method", found, "fault", 'backend="process" needs Linux: use "inprocess", "ray" or WSL')
    return Finding("start method", found)


def worker() -> Finding:
    """Start one worker process and have it make one element."""
    from mpfeed._factories import from_map

    began = time.perf_counter()
    try:
        with from_map(_one, range(1), workers=1, backend="process", timeout=30) as feed:
            next(iter(feed))
    except Exception as error:
        return Finding(
            "worker process", f"{type(error).__name__}: {error}", "fault", 'use backend="inprocess" or "ray"'
        )
    took_s = time.perf_counter() - began
    found = f"started and answered in {took_s:.2f} s"
    if took_s > _SLOW_START_S:
        remedy = "slow: is Python's installation on a network disk, or the machine busy?"
        return Finding("worker process", found, "advice", remedy)
    return Finding("worker process", found)


def _one(item: int) -> int:
    return item


def ray() -> Finding:
    """Whether Ray is there, and whether the cluster it would connect to can be reached."""
    if _version("ray") is None:
        return Finding("Ray", "not installed; backend=\"ray\" needs pip install 'mpfeed[ray]'")
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "auto", "local"):
        with suppress(OSError):
            address = _RAY_CLUSTER.read_text().strip()
    if address.startswith(CLIENT):
        return Finding("Ray", f"RAY_ADDRESS={address}: {NO_CLIENT}", "advice", "unset RAY_ADDRESS")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return Finding("Ray", 'installed, no cluster is running here; backend="ray" starts one of its own')
    try:
        socket.create_connection((host, int(port)), _REACH_S).close()
    except OSError as error:
        remedy = "start the cluster (ray start --head), or unset RAY_ADDRESS; a stale address: ray stop"
        return Finding("Ray", f"{address} cannot be reached ({error})", "advice", remedy)
    return Finding("Ray", f'cluster at {address} answers: backend=mpfeed.Ray(address="auto")')


_LOOKS: tuple[Callable[[], Finding], ...] = (
    cores, memory, shared_memory, descriptors, versions, opencv_threads, blas_threads, start_method, worker, ray,
)  # fmt: skip
