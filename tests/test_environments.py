"""Where a machine is short of something: the feed works, or says what is short and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

READ = """
import sys
import numpy as np
import mpfeed
with mpfeed.from_map(lambda i: np.full(6_000_000, i, np.uint8), range(12), workers=2, backend="process") as feed:
    print(sum(int(element[-1]) for element in feed))
"""
KEPT = """
import os
import numpy as np
import mpfeed
with mpfeed.from_map(lambda i: {"n": np.full(1000, i)}, range(600), workers=2, batch_size=1, backend="process") as feed:
    held = [batch for batch in feed]
    print(len(held), all((held[i]["n"] == i).all() for i in range(600)), len(os.listdir("/proc/self/fd")) < 40)
"""
TOO_MANY = """
import mpfeed
with mpfeed.from_map(int, range(600), workers=40, batch_size=1, backend="process") as feed:
    try:
        list(feed)
    except mpfeed.MpfeedError as error:
        print(error)
"""
CPUS = "from mpfeed._cpus import usable_cpus; print(usable_cpus())"
HUNGRY = """
import numpy as np
import mpfeed
with mpfeed.from_map(lambda i: np.ones(200_000_000), range(2), workers=1, max_restarts=0, backend="process") as feed:
    try:
        print(next(iter(feed)).shape)
    except mpfeed.WorkerDied as error:
        print(error)
"""


@dataclass(frozen=True)
class Place:
    """A machine that is short of something.

    Attributes:
        make: shell commands that make it so, in a mount namespace of their own.
        code: what runs there.
        words: that it prints.
    """

    make: str
    code: str
    words: tuple[str, ...]


PLACES = {
    "a /dev/shm of 1 MB": Place("mount -t tmpfs -o size=1m tmpfs /dev/shm", READ, ("66",)),
    "no /dev/shm": Place(
        "mount -t tmpfs tmpfs /dev; mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/zero c 1 5; "
        "mknod -m 666 /dev/urandom c 1 9",
        READ, ("66",),
    ),
    "a full disk": Place(
        "mount -t tmpfs -o size=4k tmpfs $TMPDIR; cd $TMPDIR; cat /dev/zero > full 2>/dev/null || true", READ, ("66",)
    ),
    "a read-only file system": Place("mount -t tmpfs -o ro tmpfs $TMPDIR; cd $TMPDIR", READ, ("66",)),
    "64 descriptors": Place("ulimit -n 64", KEPT, ("600 True True",)),
    "64 descriptors and 40 workers": Place("ulimit -n 64", TOO_MANY, ("could not be started", "ulimit -n")),
    "a control group with one CPU": Place(
        "group=/sys/fs/cgroup/cpu/mpfeed-$$; mkdir $group && echo 100000 > $group/cpu.cfs_period_us && "
        "echo 100000 > $group/cpu.cfs_quota_us && echo $$ > $group/tasks",
        CPUS, ("1",),
    ),
    "a control group with 700 MB": Place(
        "group=/sys/fs/cgroup/memory/mpfeed-$$; mkdir $group && echo 700000000 > $group/memory.limit_in_bytes && "
        "echo $$ > $group/tasks",
        HUNGRY, ("SIGKILL", "its control group uses", "of 0.7 GiB"),
    ),
}  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount namespace of its own")
@pytest.mark.parametrize("name", PLACES)
def test_what_a_machine_is_short_of(name: str, tmp_path: Path) -> None:
    place = PLACES[name]
    program = tmp_path / "program.py"
    program.write_text(place.code)
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
    shell = f"set -e\n{place.make} || exit 77\n'{sys.executable}' '{program}'\n"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", shell], capture_output=True, text=True, timeout=100, env=environment, check=False
    )
    _leave_groups()
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"not to be had here: {done.stderr.strip()}")
    assert [word for word in place.words if word not in done.stdout] == [], done.stdout + done.stderr
    assert done.stderr == ""


def _leave_groups() -> None:
    for folder in Path("/sys/fs/cgroup").glob("*/mpfeed-*"):
        folder.rmdir()
