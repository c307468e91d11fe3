"""The README and the guides are true: their code runs, and their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from snippets import ROOT, TIMEOUT_S, Runner, Script, scripts

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    one = Runner()
    yield one
    one.close()


@pytest.mark.parametrize("script", [s for page in PAGES for s in scripts(page)], ids=str)
def test_the_code_of_a_page_runs(script: Script, runner: Runner, tmp_path: Path) -> None:
    wrong, stderr = runner.run(script, tmp_path)
    assert not wrong, wrong + stderr
    assert "Traceback" not in stderr, stderr
    assert "was forgotten" not in stderr, stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_a_page_links_to_is_there(page: Path) -> None:
    for target, _ in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "api" / "index.html").read_text().count("mpfeed.from_generator") > 1
