"""A feed in TFRecord files reads as it was; what was interrupted is taken up, and never taken for whole."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from streams import digest

import mpfeed
from mpfeed import tfrecord

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.timeout(120, method="thread")

Pair = collections.namedtuple("Pair", ["left", "right"])
DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", "bfloat16", "int4", "uint4",
]  # fmt: skip


def elements(ds: Any) -> list[Any]:
    return [tf.nest.map_structure(lambda tensor: tensor.numpy(), element) for element in ds]


def as_tf(element: Any) -> list[Any]:
    """Every leaf as (dtype, shape, values), text as TensorFlow has it."""
    leaves = tf.nest.flatten(element)
    arrays = [np.array(leaf, object) if isinstance(leaf, bytes) else np.asarray(leaf) for leaf in leaves]
    texts = [[t.encode() if isinstance(t, str) else t for t in array.ravel().tolist()] for array in arrays]
    return [
        (array.dtype.kind in "OS" or array.dtype, array.shape, text)
        for array, text in zip(arrays, texts, strict=True)
    ]  # fmt: skip


def in_process(fn: Callable[..., Any], count: int, **options: Any) -> mpfeed.Feed:
    return mpfeed.from_map(fn, range(count), backend="inprocess", **options)


def round_trip(make: Callable[[], mpfeed.Feed], folder: Path, **options: Any) -> tuple[list[Any], list[Any]]:
    """(what a dataset of the feed delivers, what is read back of it)."""
    with make() as feed:
        tfrecord.write(feed, folder, **options)
    with make() as feed:
        return elements(feed.dataset(prefetch=0)), elements(tfrecord.read(folder))


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    with in_process(lambda i: (np.arange(6).reshape(2, 3) % 7 + i % 2).astype(dtype), 5) as feed:
        want = [np.array(element) for element in feed]
        tfrecord.write(feed, tmp_path)  # the next epoch, which is the same here
    got = elements(tfrecord.read(tmp_path))
    assert [array.dtype for array in got] == [dtype] * 5
    assert [array.tobytes() for array in got] == [array.tobytes() for array in want]


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
def test_structures_text_scalars_and_empty_arrays_come_back_as_they_were(compression: Any, tmp_path: Path) -> None:
    def sample(i: int) -> Any:
        return {
            "nested": [np.full((2, i), i, np.int16), Pair({"deep": 1.5 * i}, "grün\0" * i)],
            "bytes": b"\xff\0" * i,
            "words": np.array([["a", "bc"], ["", "ß"]], object),
            "none": np.zeros((0, 3), np.float32),
            "flag": i % 2 == 0,
        }

    with in_process(sample, 7) as feed:
        want = [as_tf(element) for element in feed]
        tfrecord.write(feed, tmp_path, compression=compression, shards=3)  # the next epoch, which is the same here
    got = elements(tfrecord.read(tmp_path))
    assert got[3]["nested"][1].right == "grün\0grün\0grün\0".encode()
    assert [as_tf(element) for element in got] == want


def test_the_order_is_the_feeds_for_any_number_of_shards(tmp_path: Path) -> None:
    for shards in (1, 4, 50):
        with in_process(lambda i: i, 23) as feed:
            done = tfrecord.write(feed, tmp_path / str(shards), shards=shards)
        assert (done.elements, done.files) == (23, min(shards, 23))
        ds = tfrecord.read(tmp_path / str(shards))
        assert int(ds.cardinality()) == 23
        assert [elements(ds), elements(ds)] == [list(range(23))] * 2


def test_batches_of_worker_processes_come_back_with_their_spec(tmp_path: Path) -> None:
    def feed() -> mpfeed.Feed:
        return mpfeed.from_map(
            lambda i, rng: {"x": rng.random((3,)), "n": i}, range(10), shuffle=True, batch_size=4, workers=2
        )

    want, got = round_trip(feed, tmp_path)
    assert digest(got) == digest(want)
    assert tfrecord.read(tmp_path).element_spec == {
        "x": tf.TensorSpec((None, 3), tf.float64),
        "n": tf.TensorSpec((None,), tf.int64),
    }


def test_shapes_and_ranks_that_vary_are_read_as_unknown(tmp_path: Path) -> None:
    with in_process(lambda i: (np.zeros((2, i)), np.zeros((1,) * i)), 3) as feed:
        tfrecord.write(feed, tmp_path)
    assert tfrecord.read(tmp_path).element_spec == (
        tf.TensorSpec((2, None), tf.float64),
        tf.TensorSpec(None, tf.float64),
    )
    assert [[a.shape for a in pair] for pair in elements(tfrecord.read(tmp_path))] == [
        [(2, i), (1,) * i] for i in range(3)
    ]


def test_dataset_save_keeps_a_feed_as_well(tmp_path: Path) -> None:
    with in_process(lambda i: {"n": i, "text": f"{i}"}, 9, batch_size=4) as feed:
        feed.dataset().save(str(tmp_path / "saved"))
    assert [e["n"].tolist() for e in elements(tf.data.Dataset.load(str(tmp_path / "saved")))] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8],
    ]  # fmt: skip


# ----------------------------------------------------------------------------------------- interruptions


def noisy(i: int, rng: np.random.Generator) -> Any:
    return {"x": rng.random(50), "n": i}


class Stopped(Exception):
    """Whatever ends a write in the middle."""


@pytest.mark.parametrize("compression", [None, "GZIP"])
@pytest.mark.parametrize("every", [1, 4])
def test_an_interrupted_write_does_not_read_and_is_taken_up(
    compression: Any, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def feed() -> mpfeed.Feed:
        return in_process(noisy, 30, shuffle=True)

    want, _ = round_trip(feed, tmp_path / "whole")
    clock = iter(range(10**6))  # a look a tick: after each element one for the next checkpoint
    monkeypatch.setattr("mpfeed._tf_records.CHECKPOINT_S", every)
    monkeypatch.setattr("mpfeed._tf_records.time.monotonic", lambda: next(clock))

    made: list[int] = []
    for stop in (7, 1, 8, 100):  # after one element, three of the four shards have no new part
        with feed() as one:
            stopping = _stops(one, stop, made)
            try:
                tfrecord.write(stopping, tmp_path / "cut", shards=4, compression=compression)
            except Stopped:
                with pytest.raises(FileNotFoundError, match="not complete"):
                    tfrecord.read(tmp_path / "cut")
    assert len(made) < 30 + 3 * every
    assert digest(elements(tfrecord.read(tmp_path / "cut"))) == digest(want)
    assert not (tmp_path / "cut" / "unfinished.json").exists()


def _stops(feed: mpfeed.Feed, after: int, made: list[int]) -> Any:
    """The feed, but its iterators raise after so many elements."""

    class Stopping:
        state_dict = staticmethod(feed.state_dict)
        load_state_dict = staticmethod(feed.load_state_dict)

        def __len__(self) -> int:
            return len(feed)

        def __iter__(self) -> Iterator[Any]:
            iterator = iter(feed)
            for number, element in enumerate(iterator):
                if number == after:
                    raise Stopped
                made.append(number)
                yield element

    return Stopping()


KILLED = """
import os, signal, sys
import numpy as np
import mpfeed
from mpfeed import _tf_records, tfrecord

_tf_records.CHECKPOINT_S = 0
count = 0

def noisy(i, rng):
    return {"x": rng.random(50), "n": i}

class Killed:
    def __init__(self, feed):
        self.state_dict = feed.state_dict
        self.load_state_dict = feed.load_state_dict
        self.feed = feed
    def __iter__(self):
        for number, element in enumerate(self.feed):
            if number == int(sys.argv[3]):
                os.kill(os.getpid(), signal.SIGKILL)
            yield element

with mpfeed.from_map(noisy, range(30), shuffle=True, backend="inprocess") as feed:
    tfrecord.write(Killed(feed), sys.argv[1], shards=4, compression=sys.argv[2] or None)
"""


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_a_killed_write_is_taken_up_to_the_same_result(compression: str, tmp_path: Path) -> None:
    def write(killed_at: int) -> int:
        program = [sys.executable, "-c", KILLED, str(tmp_path / "cut"), compression, str(killed_at)]
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        return subprocess.run(program, env=environment, capture_output=True, check=False, timeout=100).returncode

    assert write(killed_at=11) == -signal.SIGKILL
    with pytest.raises(FileNotFoundError, match=r"not complete \(11 elements"):
        tfrecord.read(tmp_path / "cut")
    assert write(killed_at=100) == 0
    want, _ = round_trip(lambda: in_process(noisy, 30, shuffle=True), tmp_path / "whole")
    assert digest(elements(tfrecord.read(tmp_path / "cut"))) == digest(want)


def test_what_cannot_be_taken_up_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpfeed._tf_records.CHECKPOINT_S", 0)

    def broken(i: int) -> int:
        return i // (i < 5)

    with in_process(broken, 10) as feed, pytest.raises(mpfeed.WorkerError):
        tfrecord.write(feed, tmp_path, shards=2)
    with in_process(broken, 10) as feed, pytest.raises(ValueError, match="shards=2"):
        tfrecord.write(feed, tmp_path, shards=3)
    with in_process(broken, 10, seed=1) as feed, pytest.raises(ValueError, match="another feed"):
        tfrecord.write(feed, tmp_path, shards=2)
    with in_process(lambda i: broken(i) / 2, 3) as feed:
        feed.load_state_dict = lambda state: None  # type: ignore[method-assign]  # its items are fewer
        with pytest.raises(ValueError, match="another structure or dtype"):
            tfrecord.write(feed, tmp_path, shards=2)


def test_a_complete_folder_is_not_written_over_and_a_damaged_one_not_read(tmp_path: Path) -> None:
    with in_process(lambda i: i, 4) as feed:
        tfrecord.write(feed, tmp_path)
        with pytest.raises(FileExistsError, match="complete"):
            tfrecord.write(feed, tmp_path)
    with next(tmp_path.glob("shard-00001*")).open("ab") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match=r"shard-00001.* bytes"):
        tfrecord.read(tmp_path)


def test_only_one_may_write_to_a_folder(tmp_path: Path) -> None:
    def sample(i: int) -> int:
        with in_process(lambda j: j, 2) as other, pytest.raises(mpfeed.MpfeedError, match="another process"):
            tfrecord.write(other, tmp_path)
        return i

    with in_process(sample, 2) as feed:
        tfrecord.write(feed, tmp_path)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for fn, error, match in (
        (lambda i: np.datetime64("2026-01-01"), mpfeed.SignatureError, "datetime64"),
        (lambda i: np.zeros(2, ml_dtypes.float8_e5m2), mpfeed.SignatureError, "float8"),
        (lambda i: {(1, 2): i}, TypeError, "key"),
    ):
        with in_process(fn, 2) as feed, pytest.raises(error, match=match):
            tfrecord.write(feed, tmp_path / str(match))
    with in_process(lambda i: i, 0) as feed, pytest.raises(mpfeed.SignatureError, match="empty"):
        tfrecord.write(feed, tmp_path / "empty")
    bad: list[dict[str, Any]] = [{"shards": 0}, {"shards": True}, {"compression": "gzip"}]
    for options in bad:
        with in_process(lambda i: i, 2) as feed, pytest.raises((ValueError, TypeError)):
            tfrecord.write(feed, tmp_path / "bad", **options)
    with pytest.raises(FileNotFoundError, match="no dataset"):
        tfrecord.read(tmp_path)


def test_progress_is_a_line_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpfeed.tfrecord._Line._EVERY_S", 0.0)
    with in_process(lambda i: i, 4) as feed:
        tfrecord.write(feed, tmp_path, progress=True)
    assert "2 of 4 (50%) elements" in capsys.readouterr().err
