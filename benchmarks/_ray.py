"""A Ray of a row's own, and nothing of it afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


@contextmanager
def local_ray(workers: int) -> Iterator[None]:
    """Ray with room for so many workers, whatever the machine has."""
    import ray

    folder = tempfile.mkdtemp(prefix="ray-")
    cpus = max(workers, os.cpu_count() or 1)
    ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    try:
        yield
    finally:
        daemons = psutil.Process().children(recursive=True)
        ray.shutdown()
        # Some of Ray's outlive their session by many seconds, and some are still being started.
        for daemon in {*daemons, *psutil.Process().children(recursive=True)}:
            with suppress(psutil.Error):
                daemon.kill()
        shutil.rmtree(folder, ignore_errors=True)
