"""How much memory this process and those it starts may use."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that may be used in all, and that are free of those."""

    total: int
    available: int


def usable_memory() -> Memory | None:
    """The machine's memory, or what the cgroup leaves of it; None where the kernel does not say."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        total, available = (int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return None
    for limit_file, usage_file in _CGROUPS:
        limit, usage = _number(limit_file), _number(usage_file)
        if limit is not None and usage is not None and limit < total:
            return Memory(limit, max(0, min(available, limit - usage)))
    return Memory(total, available)


def resident_bytes(pid: int) -> int:
    """Memory a process has in RAM, without what it shares; 0 where that is unknown."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            pages = file.read().split()
        return (int(pages[1]) - int(pages[2])) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0


def _number(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):  # there is no such group, or it says "max"
        return None
