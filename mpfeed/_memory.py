"""How much memory this process and those it starts may use."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

from mpfeed._cgroup import folders, number, text

# Of version 2 of control groups, and version 1: limit, use, and the file that counts kills.
_FILES = (
    ("memory.max", "memory.current", "memory.events"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that may be used in all, and that are free of those."""

    total: int
    available: int


def usable_memory() -> Memory | None:
    """The machine's memory, or what its control group leaves of it; None where the kernel does not say."""
    machine = _machine()
    group = _group(machine.total) if machine is not None else None
    if machine is None or group is None:
        return machine
    limit, usage, _ = group
    return Memory(limit, max(0, min(machine.available, limit - usage)))


def memory_words() -> str:
    """Memory in use and its limit: of the control group that limits this process, else of the machine; or ""."""
    machine = _machine()
    if machine is None:
        return ""
    if (group := _group(machine.total)) is not None:
        limit, usage, kills = group
        killed = f", and the kernel has killed {kills} processes there for want of memory" if kills else ""
        return f"its control group uses {_gib(usage)} of {_gib(limit)}{killed}"
    return f"{_gib(machine.available)} of the machine's {_gib(machine.total)} are available"


def _machine() -> Memory | None:
    try:
        lines = dict(line.split(":", 1) for line in text(Path("/proc/meminfo")).splitlines())
        total, available = (int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    except (KeyError, ValueError):
        return None
    return Memory(total, available)


def _group(total: int) -> tuple[int, int, str] | None:
    """(limit, use, processes killed) of the nearest control group that limits memory to less than the machine has."""
    for folder in folders("memory"):
        for limit_name, usage_name, kills_name in _FILES:
            limit, usage = number(folder / limit_name), number(folder / usage_name)
            if limit is not None and usage is not None and limit < total:
                counts = dict(line.split(" ", 1) for line in text(folder / kills_name).splitlines())
                return limit, usage, counts.get("oom_kill", "")
    return None


def resident_bytes(pid: int) -> int:
    """Memory a process has in RAM, without what it shares; 0 where that is unknown."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            pages = file.read().split()
        return (int(pages[1]) - int(pages[2])) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"
