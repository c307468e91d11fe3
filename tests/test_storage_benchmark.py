"""``benchmarks/storage.py`` and ``convert.py`` measure what they say, and write it where they are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from snippets import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def measured(name: str, *arguments: str, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """(the rows, the page it wrote into)."""
    page = folder / "page.md"
    page.write_text(f"# A page\n\n<!-- {name}: begin; written by the benchmark -->\nold\n<!-- {name}: end -->\nafter\n")
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    command += ["--json", str(folder / "rows.json"), "--page", str(page)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "rows.json").read_text())["rows"], page.read_text()


def test_reading_from_slow_storage_is_measured_against_what_the_latency_allows(tmp_path: Path) -> None:
    rows, page = measured("storage", "--objects", "50", "--seconds", "0.5", folder=tmp_path)
    assert not [row for row in rows if "error" in row]
    assert all(row["latency_ms"] >= 50 for row in rows[:-1])
    assert rows[-1]["requests"] == 50  # the second epoch comes from the cache
    assert "1 processes × 1 reads" in page
    assert "old" not in page
    assert page.endswith("after\n")


def test_a_conversion_is_timed_beside_live_epochs(tmp_path: Path) -> None:
    rows, page = measured("convert", "--samples", "64", folder=tmp_path)
    assert not [row for row in rows if "error" in row]
    assert [row["mode"] for row in rows] == ["live", "tfrecord", "tfrecord GZIP", "save", "cache"] * 2
    assert {row["mode"] for row in rows if row["nbytes"]} == {"tfrecord", "tfrecord GZIP", "save"}
    assert page.count("| light |") == 5
