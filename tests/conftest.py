"""Fixtures: every backend in turn, one local Ray a session, and a leak guard after each test."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

import pytest
from leaks import Holdings, spare_imports
from streams import Closes, Gate, Tally

from mpfeed._options import BackendName

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a shell's background job; programs of the tests inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A fourth backend is one line here (and one in REMOTE, if its sources run elsewhere).
BACKENDS: list[BackendName] = ["inprocess", "process", "ray"]
REMOTE: list[BackendName] = ["process", "ray"]

C = TypeVar("C", bound=Closes)
_REPORT = pytest.StashKey[pytest.TestReport]()


@pytest.fixture(scope="session")
def local_ray() -> Iterator[Any]:
    """A Ray of this machine with a small object store, started by the first test that needs it."""
    ray = pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray announces changes of its own
        ray.init(
            address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="warning",
            object_store_memory=256 << 20,
        )  # fmt: skip
    yield ray
    ray.shutdown()


def _ready(request: pytest.FixtureRequest) -> BackendName:
    name: BackendName = request.param
    if name == "ray":
        request.getfixturevalue("local_ray")
    return name


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> BackendName:
    """Every backend in turn."""
    return _ready(request)


@pytest.fixture(params=REMOTE)
def remote(request: pytest.FixtureRequest) -> BackendName:
    """Every backend whose sources run in other processes."""
    return _ready(request)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_REPORT] = report
    return report


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test that passed, the process holds no more than before it."""
    callspec = getattr(request.node, "callspec", None)
    chosen = [] if callspec is None else [callspec.params.get("backend"), callspec.params.get("remote")]
    if "ray" in chosen or "local_ray" in request.fixturenames:
        request.getfixturevalue("local_ray")  # what it opens is Ray's, and there before the test
    spare_imports()
    before = Holdings.now()
    yield
    report = request.node.stash.get(_REPORT, None)
    if report is None or not report.passed:
        return  # what failed is told already, and its traceback holds on to much
    left = before.left_behind()
    assert not left, f"the test left behind: {left}"


@pytest.fixture
def keep() -> Iterator[Callable[[C], C]]:
    """Gives a feed back and closes it when the test is over, whatever happened."""
    kept: list[Closes] = []

    def register(feed: C) -> C:
        kept.append(feed)
        return feed

    yield register
    for feed in reversed(kept):
        feed.close()


@pytest.fixture
def tally(tmp_path: Any) -> Tally:
    """Counts over all processes."""
    return Tally(tmp_path / "tally")


@pytest.fixture
def gate(tmp_path: Any) -> Gate:
    """A gate that a source can wait at."""
    return Gate(tmp_path / "gate")
