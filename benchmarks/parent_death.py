"""Does anything outlive a training process that is killed?

A program that reads a feed is started again and again and killed with SIGKILL at a random moment of its first seconds:
while it starts its workers, waits, reads or begins an epoch. Measured is how long the last of its processes lives on;
looked for are names that it leaves in /dev/shm and in its temporary folder.

On Ray the program joins a running Ray, whose daemons go on; what must go are its actors.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from benchmarks._memory import tree
from benchmarks._ray import local_ray
from benchmarks._rows import Surroundings

_PROGRAM = """
import sys, time
import numpy as np
import mpfeed

def source(shard):
    for i in shard.of(range(40)):
        if i % 7 == 0:
            time.sleep(0.05)
        yield np.full(100_000, i)

backend = mpfeed.Ray(address=sys.argv[2]) if sys.argv[1] == "ray" else sys.argv[1]
feed = mpfeed.from_generator(source, workers=2, shards=2, batch_size=4, backend=backend)
while True:
    for batch in feed:
        pass
"""
_LIMIT_S = {"process": 2.0, "ray": 5.0}
_PATIENCE_S = 30.0
_ACTOR = "ray::Actor"


def outlived(find: Callable[[], list[psutil.Process]]) -> float:
    """Seconds until none of the processes lives; those that do after a while are ended."""
    begun = time.monotonic()
    while left := find():
        if time.monotonic() - begun > _PATIENCE_S:
            for process in left:
                process.kill()
            return _PATIENCE_S
        time.sleep(0.01)
    return time.monotonic() - begun


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _actors() -> list[psutil.Process]:
    found = []
    for process in tree(os.getpid()):
        try:
            if any(word.startswith(_ACTOR) for word in process.cmdline()) and _runs(process):
                found.append(process)
        except psutil.Error:
            pass
    return found


def _names_in_use(pids: list[int]) -> set[str]:
    """Names in /dev/shm that the processes have open or mapped; other programs' are none of ours."""
    names = set()
    for pid in pids:
        with suppress(OSError):
            descriptors = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
            maps = [line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
            names |= {name for name in (*descriptors, *maps) if name.startswith("/dev/shm/")}
    return names


def once(backend: str, address: str, after_s: float) -> dict[str, Any]:
    """Start the program, kill it so long after its start, and look at what is left."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TMPDIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)}
        program = subprocess.Popen([sys.executable, "-c", _PROGRAM, backend, address], env=environment)
        time.sleep(after_s)
        program.send_signal(signal.SIGSTOP)  # so that it starts nothing between the look and its end
        family = tree(program.pid)[1:]
        names = _names_in_use([program.pid, *(process.pid for process in family)])
        program.send_signal(signal.SIGKILL)
        program.wait()
        alive_s = outlived(_actors if backend == "ray" else lambda: [process for process in family if _runs(process)])
        left = [] if backend == "ray" else sorted(name for name in names if os.path.exists(name))
        return {
            "after_s": round(after_s, 3), "processes": len(family), "alive_s": round(alive_s, 3),
            "names": left + sorted(name for name in os.listdir(folder) if name != "ray"),
        }  # fmt: skip


def main(
    backend: Annotated[str, typer.Option(help="process or ray.")] = "process",
    times: Annotated[int, typer.Option(min=1, help="How often.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Append the run to this file.")] = None,
) -> None:
    """Kill a training process again and again; exit code 1 if anything outlived it for too long."""
    moments = random.Random(seed)
    with local_ray(4) if backend == "ray" else nullcontext():
        address = _address() if backend == "ray" else ""
        longest_s = 6.0 if backend == "ray" else 2.0
        deaths = [once(backend, address, moments.uniform(0.05, longest_s)) for _ in range(times)]
    limit_s = _LIMIT_S[backend]
    late = [death for death in deaths if death["alive_s"] > limit_s or death["names"]]
    seen = {
        "backend": backend, "times": times, "limit_s": limit_s, "late": len(late),
        "longest_s": max(death["alive_s"] for death in deaths), "deaths": deaths,
        "surroundings": asdict(Surroundings.now()),
    }  # fmt: skip
    if json_path is not None:
        runs = json.loads(json_path.read_text())["runs"] if json_path.exists() else []
        json_path.write_text(json.dumps({"benchmark": "parent_death", "runs": [*runs, seen]}, indent=1) + "\n")
    print({name: value for name, value in seen.items() if name not in ("deaths", "surroundings")})
    for death in late:
        print(death)
    raise typer.Exit(bool(late))


def _address() -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)


if __name__ == "__main__":
    typer.run(main)
