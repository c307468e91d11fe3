"""What a benchmark leaves behind: rows that carry their raw waits, the machine and the versions, as JSON."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks._job import Job
from benchmarks._measure import Outcome

DISTURBED = 0.1
_LOOK_S = 0.2
_PACKAGES = ("mpfeed", "tensorflow", "numpy", "ray", "opencv-python")
_PEERS = ("torch", "grain", "spdl", "datasets", "keras", "batchgenerators", "tensorpack")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where and when a row was measured. ``busy``: share of the CPUs that others used just before."""

    machine: str
    cpus: int
    memory_gib: float
    system: str
    busy: float
    measured_at: str
    versions: dict[str, str]

    @classmethod
    def now(cls) -> Surroundings:
        return cls(
            machine=_cpu_model(),
            cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
            system=platform.platform(terse=True),
            busy=round(psutil.cpu_percent(_LOOK_S) / 100, 2),
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={"python": platform.python_version(), **_versions()},
        )

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{self.machine}, {self.cpus} CPUs, {self.memory_gib} GiB; {self.system}; {versions}"


@dataclass(frozen=True, slots=True)
class Row:
    """One backend under one workload.

    Attributes:
        workers: that the backend used.
        step_s: of the training step that the loop simulated; none where TensorFlow takes no part.
        outcome: None if the row failed.
        error: why it failed, the traceback included.
        peak_pss_bytes: over all its processes, in the warm-up and after the measured batches.
        notes: what else is to be known.
    """

    job: Job
    label: str
    workers: int
    step_s: float
    surroundings: Surroundings
    outcome: Outcome | None
    error: str | None = None
    peak_pss_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def figures(self) -> Figures | None:
        """What is read off the outcome; None if the row failed."""
        return None if self.outcome is None else figures(self.outcome, self.step_s)

    @property
    def fault(self) -> str | None:
        """What is wrong with the row in one line: it failed, or gave a batch twice."""
        if self.error is not None:
            # TensorFlow, too, indents what it adds to a message.
            lines = [line for line in self.error.splitlines() if line and not line[0].isspace()]
            return lines[-1] if lines else "failed"
        if self.outcome is not None and self.outcome.repeated:
            return f"{self.outcome.repeated} of {self.outcome.seen} batches had come before"
        return None

    @property
    def backend(self) -> str:
        return self.job.backend

    @property
    def workload(self) -> str:
        return self.job.workload.name

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        """A row as ``to_json`` gave it."""
        plain = {field: data[field] for field in ("label", "workers", "step_s", "error", "peak_pss_bytes")}
        return cls(
            job=Job.from_json(data["job"]),
            surroundings=Surroundings(**data["surroundings"]),
            outcome=Outcome.from_json(data["outcome"]) if "outcome" in data else None,
            notes=tuple(data["notes"]),
            **plain,
        )

    def to_json(self) -> dict[str, Any]:
        """All of it, and the figures of the table beside the raw waits."""
        data = {field: getattr(self, field) for field in ("label", "workers", "step_s", "error", "notes")}
        data |= {"job": self.job.to_json(), "surroundings": asdict(self.surroundings)}
        data |= {"workload": self.workload, "backend": self.backend, "peak_pss_bytes": self.peak_pss_bytes}
        if self.outcome is not None:
            data |= {"outcome": self.outcome.to_json(), "figures": asdict(figures(self.outcome, self.step_s))}
        return data


@dataclass(frozen=True, slots=True)
class Figures:
    """What is read off an outcome.

    Attributes:
        waiting: share of the wall time spent waiting.
        step_ms: what passed between two waits, per batch.
        lost_ms: what a batch took beyond the step that was asked for.
        cpu_ms: CPU time of the training process, per batch.
        workers_cpu_ms: of the processes that it started, per batch.
    """

    wait_mean_ms: float
    wait_p50_ms: float
    wait_p95_ms: float
    wait_max_ms: float
    waiting: float
    step_ms: float
    lost_ms: float
    batches_per_s: float
    cpu_ms: float
    workers_cpu_ms: float


def figures(outcome: Outcome, step_s: float) -> Figures:
    """The figures of the table, for a step that was asked to take so long."""
    waits = np.array(outcome.waits_ms)
    batch_ms = outcome.wall_s / len(waits) * 1e3
    p50, p95 = (float(p) for p in np.percentile(waits, (50, 95)))
    return Figures(
        wait_mean_ms=float(waits.mean()),
        wait_p50_ms=p50,
        wait_p95_ms=p95,
        wait_max_ms=float(waits.max()),
        waiting=float(waits.mean()) / batch_ms,
        step_ms=batch_ms - float(waits.mean()),
        lost_ms=batch_ms - step_s * 1e3,
        batches_per_s=1e3 / batch_ms,
        cpu_ms=outcome.cpu_s / len(waits) * 1e3,
        workers_cpu_ms=outcome.workers_cpu_s / len(waits) * 1e3,
    )


def medians(rows: list[Row]) -> list[Row]:
    """Of each workload and backend the row that lost the median time; one with a fault comes before all.

    Rows during which others used more than ``DISTURBED`` of the CPUs count where there is no calmer one.
    """
    alike: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        alike.setdefault((row.workload, row.backend), []).append(row)
    return [_median(group) for group in alike.values()]


def _median(rows: list[Row]) -> Row:
    faulty = [row for row in rows if row.fault or row.figures is None]
    if faulty:
        return faulty[0]
    calm = [row for row in rows if row.outcome is not None and row.outcome.others <= DISTURBED]
    rows = calm or rows
    return sorted(rows, key=lambda row: row.figures.lost_ms if row.figures else 0.0)[(len(rows) - 1) // 2]


def write(rows: list[Row], path: Path, **beside: Any) -> None:
    """All rows to a file of JSON, and what is said beside them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**beside, "rows": [row.to_json() for row in rows]}, indent=1)
    path.write_text(text.replace(f"{Path(__file__).resolve().parents[1]}/", "") + "\n")  # results may be published


def read(path: Path) -> list[Row]:
    """The rows that ``write`` wrote."""
    return [Row.from_json(row) for row in json.loads(path.read_text())["rows"]]


def _versions() -> dict[str, str]:
    found = {}
    for name in (*_PACKAGES, *_PEERS):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
