"""The README is true: its tables name every option with its default. Its code is run by test_docs.py."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import get_type_hints

import pytest
from snippets import ROOT

import mpfeed
from mpfeed._options import FeedOptions, Options

README = ROOT / "README.md"


def rows(heading: str) -> dict[str, list[str]]:
    """The cells of the tables below a heading, by the first word in backquotes that starts with a lower-case letter."""
    section = README.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip("| ") for cell in row] for row in table]
    return {named[1]: row for row in cells if (named := re.search(r"`([a-z]\w*)`", " ".join(row[:2])))}


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
