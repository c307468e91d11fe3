"""What a process and its workers hold, looked at again and again, and drawn over time."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks._memory import pss_bytes, tree

# Growth from the second quarter of a run to its last that is still flat.
_FLAT = {"driver_mb": 20.0, "all_mb": 60.0, "descriptors": 2.0, "threads": 1.0, "processes": 1.0, "names": 0.0}


@dataclass(frozen=True, slots=True)
class Sample:
    """Holdings at a moment.

    Attributes:
        at_s: since the beginning.
        driver_mb: PSS of this process.
        all_mb: of it and all it started.
        descriptors, threads: of this process.
        processes: it and all it started.
        names: entries of mpfeed's in /dev/shm and the temporary folder.
    """

    at_s: float
    driver_mb: float
    all_mb: float
    descriptors: int
    threads: int
    processes: int
    names: int


class Gauges:
    """Looks every ``every_s`` seconds until it is left."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._begun = time.monotonic()
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gauges", daemon=True)
        self.samples: list[Sample] = []

    def __enter__(self) -> Gauges:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._left.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._left.wait(self._every_s):
            self.samples.append(self._look())

    def _look(self) -> Sample:
        processes = tree(os.getpid())
        sizes = [pss_bytes(process.pid) / 1e6 for process in processes]
        me = psutil.Process()
        return Sample(
            at_s=round(time.monotonic() - self._begun, 1),
            driver_mb=round(sizes[0], 2),
            all_mb=round(sum(sizes), 2),
            descriptors=me.num_fds(),
            threads=me.num_threads(),
            processes=len(processes),
            names=_names(),
        )


def _names() -> int:
    return sum("mpfeed" in name for folder in ("/dev/shm", tempfile.gettempdir()) for name in os.listdir(folder))


def growth(samples: list[Sample]) -> dict[str, float]:
    """Median of the last quarter less that of the second, after warm-up, for each gauge."""
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    return {name: round(_median(late, name) - _median(early, name), 2) for name in _FLAT} if quarter else {}


def steep(growths: dict[str, float]) -> list[str]:
    """The gauges that grew by more than chance."""
    return [f"{name} grew by {value:g}" for name, value in growths.items() if value > _FLAT[name]]


def _median(samples: list[Sample], name: str) -> float:
    return float(np.median([getattr(sample, name) for sample in samples]))


def plot(samples: list[Sample], title: str, path: Path) -> None:
    """A panel a gauge."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    panels: Any
    figure, panels = pyplot.subplots(len(_FLAT), 1, figsize=(10, 11), sharex=True, layout="constrained")
    minutes = [sample.at_s / 60 for sample in samples]
    for axes, name in zip(panels, _FLAT, strict=True):
        axes.plot(minutes, [getattr(sample, name) for sample in samples], linewidth=0.8)
        axes.set_ylabel(name.replace("_mb", ", MB"))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    panels[0].set_title(title)
    panels[-1].set_xlabel("minutes")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def to_json(samples: list[Sample]) -> list[dict[str, Any]]:
    """The raw samples."""
    return [asdict(sample) for sample in samples]
