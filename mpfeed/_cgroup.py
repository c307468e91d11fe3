"""The control groups that this process is in: what it may use of the machine."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def folders(controller: str) -> list[Path]:
    """Folders of its group for a controller, the nearest first, then of those around it; version 2, then version 1."""
    found: list[Path] = []
    for line in sorted(text(Path("/proc/self/cgroup")).splitlines()):
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = _ROOT / (controller if controllers else "")
            inner = root / path.lstrip("/")
            found += [folder for folder in (inner, *inner.parents) if folder == root or root in folder.parents]
    return found


def number(path: Path) -> int | None:
    """What the file says, None where it is not there or says "max"."""
    try:
        return int(text(path))
    except ValueError:
        return None


def text(path: Path) -> str:
    """The file's text, "" where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
