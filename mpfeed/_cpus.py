"""How many CPUs this process may use."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

from mpfeed._cgroup import folders, number, text

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

_MOST_PER_CPU, _FEWEST_AT_MOST = 8, 16


def usable_cpus() -> int:
    """CPUs of the affinity mask, limited by the control groups' quotas; at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [math.ceil(quota) for folder in folders("cpu") if (quota := _quota(folder)) is not None]
    return max(1, min([count, *quotas]))


def _quota(folder: Path) -> float | None:
    """CPUs of one group: ``cpu.max`` in version 2, ``cpu.cfs_quota_us`` in version 1; None without a limit."""
    quota, _, period = text(folder / "cpu.max").partition(" ")
    if quota.isdigit():
        return int(quota) / int(period)
    limit, period_us = number(folder / "cpu.cfs_quota_us"), number(folder / "cpu.cfs_period_us")
    return limit / period_us if limit is not None and limit > 0 and period_us else None


def most_local_workers() -> int:
    """Workers that a source may have here that does not compute but waits."""
    return max(_FEWEST_AT_MOST, _MOST_PER_CPU * usable_cpus())


def busy_share(seconds: float) -> float | None:
    """Share of all CPUs' time that something used while this process slept so long; None where that is unknown."""
    before = cpu_times()
    time.sleep(seconds)
    after = cpu_times()
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def cpu_times() -> tuple[float, float] | None:
    """(busy, all) CPU seconds of the machine since it started, over all its CPUs; None where that is unknown."""
    try:
        with open("/proc/stat") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = sum(ticks[3:5])  # and waiting for I/O
    return (sum(ticks) - idle) / _TICKS_PER_S, sum(ticks) / _TICKS_PER_S
