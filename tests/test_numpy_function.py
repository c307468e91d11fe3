"""``numpy_function``: the results of ``tf.numpy_function``, made in workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from streams import Gate, Tally

import mpfeed
from mpfeed._options import BackendName

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.timeout(120, method="thread")

Keep = Callable[[mpfeed.NumpyFunction], mpfeed.NumpyFunction]
INT = tf.TensorSpec((), tf.int64)


def ints(ds: Any) -> list[int]:
    return [int(element) for element in ds]


def test_results_and_shapes_are_those_of_tf_numpy_function(backend: BackendName, keep: Keep) -> None:
    def work(x: Any, word: Any) -> Any:
        return {"sum": x.sum(keepdims=True), "word": (word + b"!", np.float32(x.max()))}

    signature = {
        "sum": tf.TensorSpec((1,), tf.int64),
        "word": (tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.float32)),
    }
    function = keep(mpfeed.numpy_function(work, signature, backend=backend, workers=2))
    assert function.workers == 2
    xs = tf.reshape(tf.range(40, dtype=tf.int64), (10, 4))
    words = tf.constant([f"w{i}" for i in range(10)])
    ds = tf.data.Dataset.from_tensor_slices((xs, words)).map(function, num_parallel_calls=function.workers)
    assert ds.element_spec == signature
    for i, element in enumerate(ds):
        assert element["sum"].numpy().tolist() == [int(xs[i].numpy().sum())]
        assert element["word"][0].numpy() == f"w{i}!".encode()
        assert float(element["word"][1]) == 4 * i + 3
    assert function.stats().elements == 10


def test_it_works_eagerly_and_with_structures_as_arguments(keep: Keep) -> None:
    function = keep(
        mpfeed.numpy_function(lambda d, pair: d["a"] + pair[0] * pair[1], INT, backend="process", workers=1)
    )
    got = function({"a": tf.constant(1, tf.int64)}, (tf.constant(2, tf.int64), tf.constant(3, tf.int64)))
    assert int(got) == 7


def test_calls_run_at_once_in_as_many_workers_and_their_order_holds(tmp_path: Any, keep: Keep) -> None:
    gates = [Gate(tmp_path / f"gate {i}") for i in range(2)]

    def meet(x: Any) -> Any:
        gates[int(x) % 2].open()  # each waits until the other is being made too
        gates[1 - int(x) % 2].wait()
        return np.int64(x) * 10 + (os.getpid() % 2 * 0)

    function = keep(mpfeed.numpy_function(meet, INT, backend="process", workers=2))
    ds = tf.data.Dataset.range(6).map(function, num_parallel_calls=2, deterministic=True)
    assert ints(ds) == [0, 10, 20, 30, 40, 50]


def test_rng_depends_on_seed_and_the_last_argument_alone(keep: Keep) -> None:
    def noise(x: Any, rng: np.random.Generator) -> Any:
        return np.array([rng.random(), np.random.random()])

    def draws(seed: int, workers: int) -> list[tuple[float, ...]]:
        spec = tf.TensorSpec((2,), tf.float64)
        function = keep(mpfeed.numpy_function(noise, spec, backend="process", workers=workers, seed=seed))
        ds = tf.data.Dataset.range(8).map(lambda i: function(tf.zeros(()), i % 4), num_parallel_calls=workers)
        return [tuple(element.numpy()) for element in ds]

    first = draws(3, 2)
    assert first[:4] == first[4:]
    assert len({number for pair in first for number in pair}) == 8
    assert draws(3, 1) == first
    assert not set(draws(4, 1)) & set(first)


def test_an_error_of_the_function_reaches_the_consumer_and_the_next_call_works(
    backend: BackendName, keep: Keep
) -> None:
    def fragile(x: Any) -> Any:
        if x == 3:
            raise LookupError("the third")
        return x

    function = keep(mpfeed.numpy_function(fragile, INT, backend=backend, workers=1))
    iterator = iter(tf.data.Dataset.range(6).map(function))
    assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(tf.errors.OpError, match="LookupError: the third"):
        next(iterator)
    assert ints(tf.data.Dataset.range(3).map(function)) == [0, 1, 2]
    with pytest.raises(mpfeed.WorkerError, match="LookupError: the third"):
        function.call((np.int64(3),))


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda: np.zeros(3, np.int64), r"shape \(3,\) where .* shape \(\)"),
        (lambda: np.float64(1), r"float64 where .* int64"),
        (lambda: "text", "text where"),
        (lambda: None, "is None"),
        (lambda: (np.int64(1), np.int64(2)), "structure"),
    ],
)
def test_a_result_unlike_the_signature_is_refused(result: Callable[[], Any], words: str, keep: Keep) -> None:
    make = result
    function = keep(mpfeed.numpy_function(lambda x: make(), INT, backend="inprocess"))
    with pytest.raises(mpfeed.SignatureError, match=words):
        function.call((np.int64(0),))


def test_a_worker_that_dies_is_replaced_and_the_call_made_again(tally: Tally, keep: Keep) -> None:
    notes = Tally(tally.path)

    def once(x: Any) -> Any:
        if x == 2 and not notes.lines():
            notes.note("died")
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    function = keep(mpfeed.numpy_function(once, INT, backend="process", workers=2, max_restarts=1))
    ds = tf.data.Dataset.range(6).map(function, num_parallel_calls=2)
    assert ints(ds) == list(range(6))
    assert tally.lines() == ["died"]


def test_a_closed_function_says_so_inside_a_dataset_too() -> None:
    with mpfeed.numpy_function(lambda x: x, INT, backend="process", workers=1) as function:
        ds = tf.data.Dataset.range(3).map(function)
        assert ints(ds) == [0, 1, 2]
    function.close()
    with pytest.raises(mpfeed.FeedClosed):
        function.call((np.int64(0),))
    with pytest.raises(tf.errors.OpError, match="FeedClosed"):
        ints(ds)


def test_a_bad_argument_is_refused_before_any_worker_exists() -> None:
    with pytest.raises(TypeError, match="needs a function, not int"):
        mpfeed.numpy_function(3, INT)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="workers=0"):
        mpfeed.numpy_function(np.sum, INT, workers=0)
    with pytest.raises(TypeError, match=r"tf\.TensorSpec"):
        mpfeed.numpy_function(np.sum, tf.RaggedTensorSpec((None, None)))
