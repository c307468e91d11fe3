"""What ``mpfeed measure`` found, as a picture (SVG) and as one HTML page that needs nothing else."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib import metadata

from mpfeed._cpus import usable_cpus
from mpfeed._measure import Row, Task, code, reason

_BAR, _GAP, _LEFT, _WIDTH, _STRIP = 18, 10, 190, 380, 360
_TOP, _BOTTOM = 46, 30
_FASTEST_MS = 0.01  # left end of the scale of waits
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24 }
table { border-collapse: collapse }
td, th { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #d8dee4 }
td:first-child, th:first-child { text-align: left } tr.chosen { background: #dafbe1 } td.error { text-align: left }
pre { background: #f6f8fa; padding: .8rem; overflow-x: auto } svg { max-width: 100%; height: auto }
footer { color: #57606a; font-size: 13px }
"""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is shown."""

    task: Task
    rows: list[Row]
    chosen: Row | None

    @property
    def advice(self) -> str:
        """The sentence that says what to use."""
        if self.chosen is None:
            return "no setting worked: see the errors"
        return reason(self.rows, self.chosen, self.task.step_s)

    @property
    def code(self) -> str:
        """The call to copy; nothing where no setting worked."""
        return "" if self.chosen is None else code(self.task.source, self.chosen.setting)


def columns(row: Row) -> list[str]:
    """The cells of a row that has outcomes; see ``HEADINGS``."""
    seen = row.typical
    numbers = [sum(seen.waits_ms) / len(seen.waits_ms), *(seen.wait_ms(percent) for percent in (50, 95)), seen.cpu_ms]
    mean, p50, p95, cpu = (f"{number:.1f}" for number in numbers)
    rounds = str(len(row.outcomes))
    return [
        str(row.setting),
        f"{row.rate:.1f}",
        f"{seen.waiting:.0%}",
        mean,
        p50,
        p95,
        cpu,
        f"{seen.first_s:.2f}",
        rounds,
    ]


HEADINGS = ("setting", "batches/s", "waiting", "wait ms mean", "p50", "p95", "CPU ms/batch", "first s", "rounds")


def picture(report: Report) -> str:
    """Time a batch, and each wait, of every setting: SVG."""
    rows = [row for row in report.rows if row.outcomes]
    height = _TOP + len(rows) * (_BAR + _GAP) + _BOTTOM
    longest_ms = max((1e3 / row.rate for row in rows), default=1.0)
    slowest_ms = max((max(row.typical.waits_ms) for row in rows), default=1.0)
    parts = [
        _text(_LEFT, 16, "ms a batch: waiting (red), the rest (grey)", weight="bold"),
        _text(_LEFT + _WIDTH + 70, 16, "each wait, ms (logarithmic)", weight="bold"),
        *_scale(slowest_ms, height),
    ]
    for place, row in enumerate(rows):
        parts += _lane(report, row, _TOP + place * (_BAR + _GAP), (longest_ms, slowest_ms))
    width = _LEFT + _WIDTH + 70 + _STRIP + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>'
    )


def _lane(report: Report, row: Row, top: float, scales: tuple[float, float]) -> list[str]:
    longest_ms, slowest_ms = scales
    each_ms = 1e3 / row.rate
    wait = each_ms * min(1.0, row.typical.waiting) / longest_ms * _WIDTH
    whole = each_ms / longest_ms * _WIDTH
    weight = "bold" if row is report.chosen else "normal"
    dots = "".join(
        f'<circle cx="{_across(ms, slowest_ms):.1f}" cy="{top + _BAR * (0.2 + 0.6 * (i * 0.618 % 1)):.1f}" r="2"/>'
        for i, ms in enumerate(row.typical.waits_ms)
    )
    return [
        _text(_LEFT - 8, top + 13, str(row.setting), anchor="end", weight=weight),
        f'<rect x="{_LEFT}" y="{top}" width="{whole:.1f}" height="{_BAR}" fill="#afb8c1"/>',
        f'<rect x="{_LEFT}" y="{top}" width="{wait:.1f}" height="{_BAR}" fill="#cf222e"/>',
        _text(_LEFT + whole + 5, top + 13, f"{each_ms:.0f}", weight=weight),
        f'<g fill="#0969da" fill-opacity="0.45">{dots}</g>',
    ]


def _across(ms: float, slowest_ms: float) -> float:
    share = math.log(max(ms, _FASTEST_MS) / _FASTEST_MS) / math.log(max(slowest_ms, 1.0) / _FASTEST_MS)
    return _LEFT + _WIDTH + 70 + share * _STRIP


def _scale(slowest_ms: float, height: int) -> list[str]:
    parts, ms = [], _FASTEST_MS
    while ms <= max(slowest_ms, 1.0):
        x = _across(ms, slowest_ms)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{height - _BOTTOM}" stroke="#d8dee4"/>')
        parts.append(_text(x, height - 12, f"{ms:g}", anchor="middle"))
        ms *= 10
    return parts


def _text(x: float, y: float, said: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(said)}</text>'


def page(report: Report) -> str:
    """The report as one HTML page, with its picture and style inside it."""
    source = report.task.source
    parts = [
        f"<h1>Feeding from {escape(source.name)}</h1>",
        f"<p><strong>{escape(report.advice)}</strong></p>",
        f"<pre><code>{escape(report.code)}</code></pre>" if report.code else "",
        f"<p>Training step {report.task.step_s:g} s; {escape(_batches(report))}</p>",
        picture(report),
        _table(report),
        _verdicts(report),
        f"<footer><p>{escape(_surroundings())}</p></footer>",
    ]
    head = f'<meta charset="utf-8"><title>mpfeed: {escape(source.name)}</title><style>{_STYLE}</style>'
    body = "".join(parts)
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _batches(report: Report) -> str:
    size = f"batches of {report.task.source.batch_size}" if report.task.source.batch_size else "batches as they come"
    if report.chosen is None:
        return size
    return f"{size}, {report.chosen.typical.batch_bytes / 1e6:.2f} MB each"


def _table(report: Report) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in HEADINGS)
    body = []
    for row in report.rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in columns(row)) if row.outcomes else _failed(row)
        body.append(f"<tr{' class=chosen' if row is report.chosen else ''}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _failed(row: Row) -> str:
    return (
        f'<td>{escape(str(row.setting))}</td><td class="error" colspan="{len(HEADINGS) - 1}">{escape(row.error)}</td>'
    )


def _verdicts(report: Report) -> str:
    said = [(row.setting, row.typical.verdict) for row in report.rows if row.outcomes and row.typical.verdict]
    lines = "".join(f"<dt>{escape(str(setting))}</dt><dd>{escape(verdict)}</dd>" for setting, verdict in said)
    return f"<h2>What limits each</h2><dl>{lines}</dl>" if lines else ""


def _surroundings() -> str:
    versions = [f"Python {platform.python_version()}"]
    for name in ("mpfeed", "numpy", "tensorflow", "ray"):
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    when = datetime.now(UTC).isoformat(timespec="minutes")
    return f"Measured {when} on {usable_cpus()} usable cores; {', '.join(versions)}. The step is a sleep."
