"""The comparison with others gives each the same batches, and its page says what was measured and how."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import _peers_table, _ready_made
from benchmarks._job import Job, Leaf, Limits, Workload
from benchmarks._measure import Outcome
from benchmarks._peers import Numbered, shard_batches
from benchmarks._peers_page import into_readme, page
from benchmarks._peers_table import BACKENDS
from benchmarks._rows import Row, Surroundings, medians
from benchmarks._source import Source

README = Path(__file__).resolve().parents[1] / "README.md"
LEAF = Leaf((4, 64), "uint8")


def workload() -> Workload:
    source = Source(f"{_ready_made.__name__}:tuples", {"shape": list(LEAF.shape), "dtype": LEAF.dtype})
    return Workload("small", source, 2, 0.0, 100, (LEAF,), marked=True)


def large() -> Workload:
    return replace(workload(), name="48MB")


def row(backend: str, wall_s: float | None, others: float = 0.0) -> Row:
    """A row whose ten batches took so long; None: one that failed."""
    outcome = wall_s and Outcome(
        (wall_s * 100,) * 10, 1, 0.5, wall_s, 0.1, 0.2, others, LEAF.nbytes, "numpy.ndarray", 0, 0
    )
    job = Job(workload(), backend, Limits(), _peers_table.__name__)
    error = None if outcome else "ValueError: no"
    return Row(job, BACKENDS[backend].label, 2, 0.0, Surroundings.now(), outcome or None, error)


@pytest.mark.parametrize("name", BACKENDS)
def test_every_way_says_how_it_is_used(name: str) -> None:
    assert (BACKENDS[name].open.__doc__ or "").strip()


def test_a_source_that_costs_nothing_costs_nothing_as_a_function_of_the_number() -> None:
    numbered = Numbered(workload())
    (first,), (second,) = numbered(3), numbered(4)
    assert first is second
    (there,) = pickle.loads(pickle.dumps(numbered))(3)
    assert (there.shape, there.dtype) == (first.shape, first.dtype)


def test_a_batch_by_its_number_is_made_as_a_shard_makes_it() -> None:
    small = Workload("gil", Source("benchmarks.workloads:gil", {"iterations": 1}), 2, 0.0, 10, numbered=True)
    by_shard = list(islice(shard_batches(small, 1, 2), 3))
    by_number = [Numbered(small)(number) for number in (1, 3, 5)]
    for ours, theirs in zip(by_shard, by_number, strict=True):
        assert all((a == b).all() and a.dtype == b.dtype for a, b in zip(ours, theirs, strict=True))


def test_a_round_that_others_disturbed_counts_only_where_there_is_no_calmer_one() -> None:
    disturbed = [row("torch", 0.1, others=0.5), row("torch", 0.2, others=0.5)]
    assert medians(disturbed) == disturbed[:1]
    assert medians([*disturbed, calm := row("torch", 1.0)]) == [calm]


def test_the_page_has_the_median_round_of_each_row_and_tells_what_failed() -> None:
    rows = [row("torch", 1.0), row("torch", 2.0), row("torch", 4.0), row("mpfeed/numpy", 0.5), row("grain", None)]
    text = page(rows)
    assert "| mpfeed process, NumPy | NumPy array | 20 |" in text
    assert "| PyTorch DataLoader | NumPy array | 5 |" in text
    assert "Grain mp_prefetch: ValueError: no" in text
    assert "Up to 3 rounds" in text


def test_the_readme_has_a_place_for_the_short_table_and_the_rest_of_it_stays(tmp_path: Path) -> None:
    copy = tmp_path / "README.md"
    text = README.read_text()
    copy.write_text(text)
    into_readme([replace(row("torch", 1.0), job=replace(row("torch", 1.0).job, workload=large()))], copy)
    again = copy.read_text()
    assert "| PyTorch DataLoader | NumPy array | 10 | 10 |" in again
    assert again.partition("<!-- peers: begin")[0] == text.partition("<!-- peers: begin")[0]
    assert again.partition("<!-- peers: end")[2] == text.partition("<!-- peers: end")[2]
    with pytest.raises(ValueError, match="no place"):
        into_readme([row("torch", 1.0)], Path(__file__))
