"""The public surface, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mpfeed

NAMES = [
    "Feed", "FeedClosed", "FeedIterator", "FeedStats", "FeedTimeout", "InProcess", "Monitor", "MpfeedError",
    "NumpyFunction", "Process", "Ray", "Resizing", "Shard", "SignatureError", "SlowestSample", "Trace", "Verdict",
    "Worker", "WorkerDied", "WorkerError", "WorkerStats", "collate_padded", "empty", "from_generator", "from_map",
    "monitor", "numpy_function", "span", "tfrecord", "worker",
]  # fmt: skip


def test_the_public_names_are_these_and_sorted() -> None:
    assert sorted(mpfeed.__all__) == mpfeed.__all__ == NAMES
    assert all(hasattr(mpfeed, name) for name in NAMES)


def test_every_other_name_of_the_package_is_private() -> None:
    for name in NAMES:
        getattr(mpfeed, name)  # imported on first use
    modules = {name for name, value in vars(mpfeed).items() if type(value) is type(mpfeed)}
    assert {name for name in vars(mpfeed) if not name.startswith("_")} - modules == set(NAMES) - modules


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name in NAMES if not getattr(mpfeed, name).__doc__] == []


def test_every_error_is_an_mpfeed_error() -> None:
    for name in ("FeedClosed", "FeedTimeout", "SignatureError", "WorkerDied", "WorkerError"):
        assert issubclass(getattr(mpfeed, name), mpfeed.MpfeedError)
    assert not issubclass(mpfeed.MpfeedError, (ValueError, TypeError, OSError))


@pytest.mark.parametrize("code", ["import mpfeed", "from mpfeed import *"])
def test_importing_loads_none_of_the_heavy_packages(code: str) -> None:
    heavy = "{'tensorflow', 'ray', 'cv2', 'keras', 'ml_dtypes', 'multiprocessing', 'typer', 'rich'}"
    program = f"import sys\n{code}\nprint(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_worker_loads_none_of_the_heavy_packages() -> None:
    def loaded(i: int) -> bool:
        return bool({"tensorflow", "ray", "cv2", "keras"} & set(__import__("sys").modules))

    with mpfeed.from_map(loaded, range(2), workers=1, backend="process") as feed:
        assert [bool(e) for e in feed] == [False, False]


def test_outside_a_worker_there_is_no_worker_and_empty_is_plain_memory() -> None:
    with pytest.raises(RuntimeError, match="outside a worker"):
        mpfeed.worker()
    array = mpfeed.empty((3, 4), "int16")
    assert (array.shape, array.dtype.name, array.flags.writeable) == ((3, 4), "int16", True)
