"""Memory of a process and all it started: PSS, which counts a page that n processes share as 1/n in each."""

from __future__ import annotations

import time
from pathlib import Path

import psutil


class PeakMemory:
    """The largest PSS seen of a tree of processes.

    A look walks the page tables of gigabytes and holds up the memory calls of whom it looks at: so it is
    taken from outside the tree, seldom, and only while nothing is being measured.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._due = 0.0
        self.peak_bytes = 0

    def look(self) -> None:
        """Look unless the last time is too recent."""
        begun = time.monotonic()
        if begun < self._due:
            return
        self.peak_bytes = max(self.peak_bytes, sum(pss_bytes(process.pid) for process in tree(self._pid)))
        took_s = time.monotonic() - begun
        self._due = begun + max(0.3, 5 * took_s)


def tree(pid: int) -> list[psutil.Process]:
    """The process and all its descendants that are alive."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def pss_bytes(pid: int) -> int:
    """PSS of a process, 0 once it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except FileNotFoundError:
        return _rss(pid)  # no such file: the process has ended, or this is not Linux
    except OSError:
        pass  # ended while it was read
    return 0


def _rss(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
