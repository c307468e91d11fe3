"""A part of a page that a benchmark writes itself: between two comments, each on a line of its own."""

from __future__ import annotations

from pathlib import Path

from benchmarks._rows import Surroundings


def into_page(path: Path, name: str, text: str) -> None:
    """Put the text in the place of what ``python -m benchmarks.<name>`` wrote there before.

    Raises:
        ValueError: the page has no place for it.
    """
    begin, end = f"<!-- {name}: begin; written by the benchmark -->", f"<!-- {name}: end -->"
    page = path.read_text()
    if begin not in page or end not in page:
        raise ValueError(f"{path} has no place for the table: {begin} and {end}, each on a line")
    before, after = page.partition(begin)[0], page.partition(end)[2]
    path.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Rows as a table of Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def where(command: str) -> str:
    """When, where and with which command something was measured."""
    here = Surroundings.now()
    return f"Measured on {here.measured_at[:10]} with `{command}`: {here}."
