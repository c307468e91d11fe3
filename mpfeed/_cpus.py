"""How many CPUs this process may use."""

from __future__ import annotations

import math
import os


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
