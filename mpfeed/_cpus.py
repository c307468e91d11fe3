"""How many CPUs this process may use."""

from __future__ import annotations

import math
import os
import time

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

_MOST_PER_CPU, _FEWEST_AT_MOST = 8, 16


def usable_cpus() -> int:
    """CPUs of the affinity mask, limited by the cgroup's quota (``cpu.max`` or ``cfs_quota_us``); at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, count if quota is None else min(count, math.ceil(quota)))


def _cgroup_quota() -> float | None:
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        with open("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") as file:
            limit = int(file.read())
        with open("/sys/fs/cgroup/cpu/cpu.cfs_period_us") as file:
            return None if limit <= 0 else limit / int(file.read())
    except (OSError, ValueError):
        return None


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
