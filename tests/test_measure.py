"""``mpfeed measure``: which settings are tried, which one is advised, and what the report shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from mpfeed._measure import Row, Task, advised, code, reason, search
from mpfeed._report import Report, page, picture
from mpfeed._trial import Outcome, Setting, Source
from mpfeed.cli import app

STEP_S = 0.1
MODULE = """
import time

def samples(shard):
    for i in shard.of(range(100_000)):
        time.sleep(0.002)
        yield i

def alone():
    while True:
        time.sleep(0.002)
        yield 1

def broken(shard):
    raise RuntimeError("no such photograph")
    yield

def double(i):
    return 2 * i

ITEMS = range(64)
ALONE = [alone, alone]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of a user's in the current directory."""
    name = f"sources_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


def outcome(rate: float, step_s: float = STEP_S) -> Outcome:
    """Ten batches at that rate."""
    wait_ms = max(0.0, 1 / rate - step_s) * 1e3
    return Outcome((wait_ms,) * 10, 10 / rate, 0.01, 0.5, 1000, "")


def task(**options: object) -> Task:
    return Task(Source("data:batches"), STEP_S, most=16, backends=("inprocess", "process"), **options)  # type: ignore[arg-type]


def tried(rates: dict[tuple[str, int], float], given: Task) -> list[Row]:
    """What a search finds of settings with known rates; others give one batch a second."""
    return search(given, lambda s: Row(s, [outcome(rates.get((s.backend, s.workers), 1.0))]))


def test_workers_double_while_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpfeed._measure.usable_cpus", lambda: 2)
    rates = {("process", 2): 2.0, ("process", 4): 4.0, ("process", 8): 8.0, ("process", 16): 8.1}
    rows = tried(rates, task(rounds=1))
    assert [row.setting.workers for row in rows if row.setting.backend == "process"] == [2, 4, 8, 16]
    assert [row.setting.workers for row in rows if row.setting.backend == "inprocess"] == [1, 2, 4]


def test_fewer_are_tried_where_as_many_as_cores_keep_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpfeed._measure.usable_cpus", lambda: 4)
    keeps_up = 1 / STEP_S
    rows = tried({("process", 4): keeps_up, ("process", 2): keeps_up, ("process", 1): 5.0}, task(rounds=1))
    assert [row.setting.workers for row in rows if row.setting.backend == "process"] == [4, 2, 1]
    chosen = advised(rows)
    assert chosen is not None
    assert chosen.setting == Setting("process", 2)


def test_the_simplest_of_those_that_do_as_well_is_advised() -> None:
    rates = {("inprocess", 1): 9.9, ("inprocess", 2): 10.0, ("process", 4): 10.0}
    rows = [Row(Setting(*name), [outcome(rate)]) for name, rate in rates.items()]
    first = advised(rows)
    assert first is rows[0]
    second = advised(rows[1:])
    assert second is rows[2]  # processes leave the training its GIL
    assert "as good: threads, 2 workers" in reason(rows[1:], rows[2], STEP_S)


def test_settings_near_the_best_are_measured_again_and_their_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpfeed._measure.usable_cpus", lambda: 2)
    rows = tried({("process", 2): 5.0, ("process", 4): 5.1}, task(rounds=3))
    assert {row.setting.workers: len(row.outcomes) for row in rows if row.setting.backend == "process"} == {2: 3, 4: 3}


def test_a_source_without_shards_is_tried_with_one_worker_only() -> None:
    rows = tried({}, task(rounds=1, single=True))
    assert [row.setting for row in rows] == [Setting("inprocess", 1), Setting("process", 1)]


def test_no_more_workers_are_tried_than_asked_for() -> None:
    rows = tried({}, replace(task(rounds=1), most=1))
    assert [row.setting for row in rows] == [Setting("inprocess", 1), Setting("process", 1)]


def test_nothing_is_advised_where_every_setting_failed() -> None:
    rows = [Row(Setting("process", 2), [], "RuntimeError: no such photograph")]
    report = Report(task(), rows, advised(rows))
    assert report.chosen is None
    assert "no such photograph" in page(report)
    assert report.code == ""


def test_the_code_is_the_call_to_copy() -> None:
    source = Source("data:load", "data:ITEMS", 32)
    expected = 'feed = mpfeed.from_map(load, ITEMS, backend="process", workers=4, batch_size=32)'
    assert code(source, Setting("process", 4)) == expected


def test_the_report_stands_alone_and_its_picture_is_well_formed() -> None:
    rows = [Row(Setting("process", 2), [outcome(5.0)]), Row(Setting("inprocess", 1), [], "<failed>")]
    report = Report(task(), rows, rows[0])
    text = page(report)
    assert not re.search(r"(src|href)=|@import|url\(", text)
    assert "&lt;failed&gt;" in text
    circles = ElementTree.fromstring(picture(report)).iter("{http://www.w3.org/2000/svg}circle")
    assert len(list(circles)) == 10


def test_measure_runs_a_source_of_the_current_directory_and_writes_what_it_found(module: str, tmp_path: Path) -> None:
    options = ["--batch-size", "4", "--step", "0.01", "--seconds", "0.2", "--rounds", "1", "--numpy"]
    limits = ["--backend", "process", "--max-workers", "2"]
    outputs = ["--html", "report.html", "--plot", "waits.svg", "--json", "rows.json"]
    done = CliRunner().invoke(app, ["measure", f"{module}:samples", *options, *limits, *outputs])
    assert done.exit_code == 0, done.output
    assert "feed = mpfeed.from_generator(samples, backend=" in done.output
    found = json.loads((tmp_path / "rows.json").read_text())
    assert all(row["outcomes"] for row in found["rows"])
    assert found["code"] in (tmp_path / "report.html").read_text().replace("&quot;", '"')
    ElementTree.parse(tmp_path / "waits.svg")


def test_measure_reads_items_and_sources_without_shards(module: str) -> None:
    options = ["--step", "0", "--seconds", "0.1", "--rounds", "1", "--numpy", "--backend", "inprocess"]
    mapped = CliRunner().invoke(app, ["measure", f"{module}:double", "--items", f"{module}:ITEMS", *options])
    assert 'feed = mpfeed.from_map(double, ITEMS, backend="inprocess"' in mapped.output
    single = CliRunner().invoke(app, ["measure", f"{module}:alone", *options])
    assert 'feed = mpfeed.from_generator(alone, backend="inprocess", workers=1)' in single.output


def test_measure_says_what_a_source_raised(module: str) -> None:
    done = CliRunner().invoke(app, ["measure", f"{module}:broken", "--numpy", "--backend", "process"])
    assert done.exit_code == 1
    assert "no such photograph" in done.output


def test_measure_tries_as_many_workers_as_there_are_functions(module: str) -> None:
    options = ["--step", "0", "--seconds", "0.1", "--rounds", "1", "--numpy", "--backend", "process"]
    done = CliRunner().invoke(app, ["measure", f"{module}:ALONE", *options, "--max-workers", "2"])
    assert done.exit_code == 0, done.output
    assert "process, 2 workers" in done.output


def test_measure_refuses_reports_that_it_could_not_write(module: str) -> None:
    done = CliRunner().invoke(app, ["measure", f"{module}:broken", "--numpy", "--html", "nowhere/report.html"])
    assert done.exit_code == 2
    assert "nowhere/report.html cannot be written" in done.output


def test_measure_refuses_what_is_no_source(module: str) -> None:
    for name in ("nowhere:samples", f"{module}:nothing", f"{module}:ITEMS", "samples"):
        assert CliRunner().invoke(app, ["measure", name]).exit_code == 2


@pytest.mark.long
def test_a_browser_shows_the_report(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium")
    rows = [Row(Setting("process", 2), [outcome(5.0)]), Row(Setting("process", 4), [outcome(9.0)])]
    (tmp_path / "report.html").write_text(page(Report(task(), rows, rows[1])))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    shown = subprocess.run(
        [*command, "--dump-dom", f"file://{tmp_path}/report.html"], capture_output=True, text=True, check=True
    ).stdout
    assert "process, 4 workers: 9.0 batches/s" in shown
    assert shown.count("<circle") == 20
    subprocess.run(
        [*command, f"--screenshot={tmp_path}/shot.png", f"file://{tmp_path}/report.html"],
        check=True,
        capture_output=True,
    )
    assert (tmp_path / "shot.png").read_bytes()[:4] == b"\x89PNG"
