"""The README is true: its code runs as scripts, and its tables name every option with its default.

Each Python block is run by itself in a fresh process. `<!-- continues -->` above a block joins it to the one
before, `<!-- not run: reason -->` leaves it out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import get_type_hints

import pytest

import mpfeed
from mpfeed._options import FeedOptions, Options

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]*) -->\n+)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
TIMEOUT_S = 110


@dataclass
class Script:
    """Blocks that run in one namespace."""

    title: str
    line: int
    blocks: list[str] = field(default_factory=list)


def scripts() -> list[Script]:
    """What is to run, in the README's order."""
    text = README.read_text()
    found: list[Script] = []
    for block in BLOCK.finditer(text):
        mark = block["mark"] or ""
        if mark.startswith("not run: "):
            continue
        if mark == "continues":
            found[-1].blocks.append(block["code"])
            continue
        headings = HEADING.findall(text, 0, block.start())
        line = text.count("\n", 0, block.start("code")) + 1
        found.append(Script(headings[-1] if headings else "The first example", line, [block["code"]]))
    return found


def rows(heading: str) -> dict[str, list[str]]:
    """The cells of the tables below a heading, by the first word in backquotes that starts with a lower-case letter."""
    section = README.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip("| ") for cell in row] for row in table]
    return {named[1]: row for row in cells if (named := re.search(r"`([a-z]\w*)`", " ".join(row[:2])))}


@pytest.mark.parametrize("script", scripts(), ids=lambda script: f"line {script.line}: {script.title}")
def test_the_code_of_the_readme_runs(script: Script, tmp_path: Path) -> None:
    path = tmp_path / "snippet.py"
    path.write_text("\n".join(script.blocks))
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "was forgotten" not in done.stderr, done.stderr


def test_every_option_of_a_feed_is_listed_with_its_default() -> None:
    listed = rows("Options")
    defaults = {option.name: option.default for option in fields(Options)}
    assert set(get_type_hints(FeedOptions)) == set(defaults)
    for name, default in defaults.items():
        assert listed[name][1].replace('"', "'") == f"`{default!r}`", name


@pytest.mark.parametrize("backend", [mpfeed.Process(), mpfeed.Ray()], ids=lambda backend: str(backend.name))
def test_every_option_of_a_backend_is_listed_with_its_default(backend: mpfeed.Process | mpfeed.Ray) -> None:
    listed = rows("Options")
    for option in fields(backend):
        assert f"`{option.default!r}`" in [cell.replace('"', "'") for cell in listed[option.name]], option.name


def test_every_error_is_listed() -> None:
    listed = README.read_text().partition("\n## Errors\n")[2].partition("\n## ")[0]
    errors = [name for name in mpfeed.__all__ if isinstance(getattr(mpfeed, name), type)]
    for name in errors:
        if issubclass(getattr(mpfeed, name), mpfeed.MpfeedError):
            assert f"`{name}`" in listed or f"`mpfeed.{name}`" in listed, name


def test_every_file_the_readme_names_is_there() -> None:
    named = re.findall(r"`((?:mpfeed|backends|transport|tests|examples|benchmarks)/[\w/]+\.py)`", README.read_text())
    root = README.parent
    assert named
    for path in named:
        assert (root / path).is_file() or (root / "mpfeed" / path).is_file(), path
