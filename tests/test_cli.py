"""The command line: what it finds, and what it says where something is missing."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from mpfeed import _doctor
from mpfeed.cli import app


def test_doctor_says_ok_or_what_to_do_for_everything_it_looks_at() -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    findings = [_doctor.Finding(**finding) for finding in json.loads(done.output)]
    assert [finding.name for finding in findings] == [
        "cores", "memory", "/dev/shm", "ulimit -n", "versions", "OpenCV threads", "BLAS threads", "start method",
        "worker process", "Ray",
    ]  # fmt: skip
    assert all(finding.found and (finding.level == "ok") == (not finding.remedy) for finding in findings)
    assert done.exit_code == any(finding.level == "fault" for finding in findings)


def test_doctor_prints_every_finding_for_people() -> None:
    done = CliRunner().invoke(app, ["doctor"])
    assert all(name in done.output for name in ("cores", "ulimit -n", "worker process", "ok"))


def test_doctor_names_a_cluster_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", f"ray://{address}")
        assert "has no object store" in _doctor.ray().found
        monkeypatch.setenv("RAY_ADDRESS", address)
        refused = _doctor.ray()
        listener.listen()
        answered = _doctor.ray()
    assert refused.level == "advice"
    assert address in refused.found
    assert "ray start" in refused.remedy
    assert answered.level == "ok"


def test_doctor_asks_for_more_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    finding = _doctor.descriptors()
    assert finding.level == "advice"
    assert "ulimit -n 4096" in finding.remedy


def test_doctor_tells_thread_pools_that_are_larger_than_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "100000")
    finding = _doctor.blas_threads()
    assert finding.level == "advice"
    assert "OMP_NUM_THREADS" in finding.remedy


def test_doctor_reports_a_worker_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    finding = _doctor.worker()
    assert finding.level == "fault"
    assert "/nonexistent/python" in finding.found


def test_the_command_line_without_its_libraries_says_how_to_get_them() -> None:
    program = "import sys; sys.modules['typer'] = None; from mpfeed.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert done.returncode == 1
    assert done.stderr == "the command line needs typer: pip install 'mpfeed[cli]'\n"
