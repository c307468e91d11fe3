"""``feed.dataset()``: what tf.data gets, in which order, and who holds the feed meanwhile."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from streams import Tally, copied, digest, eventually, in_turn, leaves, mapping_at

import mpfeed
from mpfeed import Shard
from mpfeed._options import BackendName

tf = pytest.importorskip("tensorflow")
_tf = pytest.importorskip("mpfeed._tf")
# A main thread that waits inside TensorFlow runs no signal handler: the timeout is a thread's.
pytestmark = pytest.mark.timeout(120, method="thread")

Keep = Callable[[mpfeed.Feed], mpfeed.Feed]


def numpy_of(ds: Any) -> list[Any]:
    """The elements as NumPy structures, text as bytes."""
    return [tf.nest.map_structure(lambda tensor: tensor.numpy(), element) for element in ds]


def ints(ds: Any) -> list[int]:
    return [int(number) for element in ds for number in np.ravel(element.numpy())]


def pairs(count: int, **options: Any) -> mpfeed.Feed:
    """Items i as {"x": (3, 2) float32 of i, "name": text, "n": i}."""

    def sample(i: int) -> Any:
        return {"x": np.full((3, 2), i, np.float32), "name": f"item {i}", "n": np.int64(i)}

    return mpfeed.from_map(sample, range(count), **{"workers": 2, "backend": "process", **options})


def test_the_spec_and_the_tensors_are_those_of_the_numpy_stream(backend: BackendName, keep: Keep) -> None:
    ds = keep(pairs(11, backend=backend, shuffle=True, batch_size=4)).dataset()
    assert ds.element_spec == {
        "x": tf.TensorSpec((None, 3, 2), tf.float32),
        "name": tf.TensorSpec((None,), tf.string),
        "n": tf.TensorSpec((None,), tf.int64),
    }
    alone = keep(pairs(11, backend="inprocess", shuffle=True, batch_size=4))
    for _ in range(2):
        want = [copied(element) for element in alone]
        for element in want:
            element["name"] = np.array([word.encode() for word in element["name"]], object)
        assert digest(numpy_of(ds)) == digest(want)


@pytest.mark.parametrize(
    ("options", "first"), [({}, ()), ({"batch_size": 4}, (None,)), ({"batch_size": 4, "drop_remainder": True}, (4,))]
)
def test_the_batch_dimension_is_known_where_it_is_certain(options: Any, first: Any, keep: Keep) -> None:
    feed = keep(pairs(6, **options))
    assert feed.dataset().element_spec["x"] == tf.TensorSpec((*first, 3, 2), tf.float32)
    assert feed.element_spec["x"].shape == (*first, 3, 2)


def test_the_cardinality_is_set_where_it_is_certain_only(keep: Keep) -> None:
    unknown = tf.data.UNKNOWN_CARDINALITY
    assert int(keep(pairs(7, batch_size=2)).dataset().cardinality()) == 4
    assert int(keep(pairs(7, batch_size=2, drop_remainder=True)).dataset().cardinality()) == 3
    assert int(keep(pairs(7, on_error="skip")).dataset().cardinality()) == unknown


@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_dataset_goes_on_in_the_middle_of_an_epoch_whenever_it_was_made(batch_size: int | None, keep: Keep) -> None:
    first = keep(pairs(7, batch_size=batch_size))
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    feed = keep(pairs(7, batch_size=batch_size))
    before = feed.dataset()
    feed.load_state_dict(first.state_dict())
    whole = len(feed)
    assert [len(list(dataset)) for dataset in (before, before, feed.dataset())] == [whole - 3, whole, whole]
    assert {int(dataset.cardinality()) for dataset in (before, feed.dataset())} == {whole}


def test_a_part_of_small_elements_of_a_generator_is_that_part_alone(keep: Keep) -> None:
    def source(shard: Shard) -> Iterator[np.int64]:
        return (np.int64(i) for i in shard.of(range(11)))

    feed = keep(mpfeed.from_generator(source, shards=2, backend="inprocess"))
    for part, expected in zip(feed.split(2, remainder="keep"), ([0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9]), strict=True):
        assert [int(element) for element in part.dataset()] == expected


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("size", [(), (20_000,)], ids=["small", "large"])
def test_every_element_of_several_shards_comes_exactly_once_in_order(count: int, size: Any, keep: Keep) -> None:
    def source(shard: Shard) -> Iterator[Any]:
        for i in range(700 + shard.index if size == () else 9 + shard.index):
            yield np.full(size, shard.index * 1000 + i, np.int64), f"{shard.index}"

    feed = keep(mpfeed.from_generator(source, shards=3, workers=count, backend="process"))
    lengths = [(700 if size == () else 9) + s for s in range(3)]
    want = in_turn([[s * 1000 + i for i in range(length)] for s, length in enumerate(lengths)])
    ds = feed.dataset()
    for _ in range(2):
        got = numpy_of(ds)
        assert [int(np.max(n)) for n, _ in got] == want
        assert [int(np.min(n)) for n, _ in got] == want
        assert [int(text) for _, text in got] == [n // 1000 for n in want]


@pytest.mark.parametrize("workers", [1, 2])
def test_in_process_only_a_dataset_lets_a_source_of_small_elements_run_ahead(workers: int, keep: Keep) -> None:
    made: list[int] = []

    def source(shard: Shard) -> Iterator[Any]:
        for i in shard.of(range(500)):
            made.append(i)
            yield np.full(4, i, np.int64)

    feed = keep(mpfeed.from_generator(source, shards=workers, workers=workers, backend="inprocess"))
    assert [int(element[0]) for element in feed] == list(range(500))
    if workers == 1:
        made.clear()
        iterator = iter(feed)
        next(iterator)
        assert made == [0]
        iterator.close()
    assert [int(element[0]) for element in feed.dataset(prefetch=0)] == list(range(500))


@pytest.mark.parametrize("count", [1, 60_000])  # in chunks, and one by one
def test_a_full_buffer_is_refilled_after_its_reader_has_taken_an_element(
    count: int, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked: list[float] = []
    monkeypatch.setattr(_tf, "_let_pass", parked.append)
    feed = keep(mpfeed.from_map(lambda i: np.full(count, i), range(5), workers=1, backend="inprocess"))
    for _ in feed.dataset(prefetch=0):
        pass
    assert not parked  # there is no buffer: its reader waits
    for _ in feed.dataset(prefetch=2):
        pass
    assert parked


def test_refilling_waits_for_a_small_part_of_a_long_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    for parked_s in (0.0, 0.001, 0.02):
        _tf._let_pass(parked_s)
    assert slept == []
    for parked_s in (0.03, 0.1, 10.0):
        _tf._let_pass(parked_s)
    assert slept == pytest.approx([0.0006, 0.001, 0.001])


def test_with_chunk_1_elements_are_handed_over_one_by_one(keep: Keep) -> None:
    feed = keep(mpfeed.from_map(np.int64, range(50), workers=1, backend="process"))
    ds = feed.dataset(chunk=1, prefetch=None)
    assert ints(ds.take(3)) == [0, 1, 2]
    assert feed.state_dict()["taken"] <= 4  # TensorFlow reads one ahead
    with pytest.raises(ValueError, match="chunk=8: give 1"):
        feed.dataset(chunk=8)


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_small_elements_without_any_entry_arrive(shape: Any, keep: Keep) -> None:
    feed = keep(mpfeed.from_map(lambda i: {"boxes": np.empty(shape), "n": i}, range(3), backend="inprocess"))
    got = numpy_of(feed.dataset())
    assert [(element["boxes"].shape, int(element["n"])) for element in got] == [(shape, n) for n in range(3)]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "int4", "uint4"])
def test_small_elements_of_a_dtype_that_numpy_has_not_arrive(name: str, keep: Keep) -> None:
    feed = keep(mpfeed.from_map(lambda i: np.full(3, i).astype(name), range(3), backend="inprocess"))
    got = numpy_of(feed.dataset())
    assert [(array.dtype.name, array.astype(int).tolist()) for array in got] == [(name, [n] * 3) for n in range(3)]


def test_repeat_take_zip_cache_and_shuffle_work_as_on_any_dataset(keep: Keep) -> None:
    ds = keep(mpfeed.from_map(np.int64, range(6), workers=2, backend="process", batch_size=1)).dataset()
    whole = list(range(6))
    assert ints(ds.repeat(2)) == whole * 2
    assert ints(ds.take(0)) == []
    assert ints(ds.take(2)) == [0, 1]
    assert ints(ds.skip(4)) == [4, 5]
    zipped = tf.data.Dataset.zip((ds, ds))
    assert [(int(a[0]), int(b[0])) for a, b in zipped] == [(i, i) for i in whole]
    cached = ds.cache()
    assert ints(cached) == ints(cached) == whole
    assert sorted(ints(ds.shuffle(10))) == whole
    assert ints(ds.map(lambda x: x * x)) == [i * i for i in whole]


def test_cache_gets_elements_that_stay_as_they_were(backend: BackendName, keep: Keep) -> None:
    if backend == "ray":
        pytest.skip("copied by the same code")

    def sample(i: int) -> Any:
        return np.full(50_000, i, np.int32)

    feed = keep(mpfeed.from_map(sample, range(150), workers=1, backend=backend, batch_size=1))
    cached = feed.dataset().cache()
    for _ in range(2):
        got = [(int(t[0, 0]), int(t[0, -1])) for t in cached]
        assert got == [(i, i) for i in range(150)]
    assert (feed.stats().copies > 0) == (backend == "process")  # beyond the leases


def test_an_iteration_is_the_next_epoch_and_a_break_ends_one(keep: Keep) -> None:
    def sample(i: int, rng: np.random.Generator) -> Any:
        return rng.random()

    def build() -> mpfeed.Feed:
        return keep(mpfeed.from_map(sample, range(5), workers=1, backend="process", batch_size=1))

    ds, alone = build().dataset(), build()
    want = [[float(element[0]) for element in alone] for _ in range(3)]
    for element in ds:
        assert float(element[0]) == want[0][0]
        break
    assert [[float(e[0]) for e in ds] for _ in range(2)] == want[1:]


def test_the_dataset_holds_its_feed_and_so_does_what_is_derived_from_it() -> None:
    feed = mpfeed.from_map(np.int64, range(40), workers=1, backend="process", batch_size=1)
    alive = weakref.ref(feed)
    ds = feed.dataset()
    del feed
    gc.collect()
    assert ints(ds) == list(range(40))
    derived = ds.map(lambda x: x).prefetch(1)
    iterator = iter(derived)
    del ds, derived
    gc.collect()
    assert next(iterator).numpy().tolist() == [0]
    held = alive()
    assert held is not None
    held.close()
    del held, iterator
    assert eventually(lambda: gc.collect() is not None and alive() is None)


def test_a_dataset_in_one_line_is_closed_with_a_warning_when_it_is_collected() -> None:
    def read() -> list[int]:
        return ints(mpfeed.from_map(np.int64, range(5), workers=1, backend="process").dataset())

    with pytest.warns(ResourceWarning, match="was forgotten"):
        assert (read(), gc.collect() >= 0) == (list(range(5)), True)


def test_a_closed_feed_ends_its_dataset_with_an_error_and_never_early() -> None:
    with pairs(400, batch_size=1) as feed:
        ds = feed.dataset(prefetch=None)
        iterator = iter(ds)
        next(iterator)
        feed.close()
        with pytest.raises(tf.errors.OpError, match="FeedClosed"):
            list(iterator)
        with pytest.raises(tf.errors.OpError, match="FeedClosed"):
            next(iter(ds))
        with pytest.raises(mpfeed.FeedClosed):
            iter(feed)


def test_an_error_of_the_source_comes_after_the_elements_before_it() -> None:
    def fragile(i: int) -> np.int64:
        if i == 6:
            raise KeyError("no such sample")
        return np.int64(i)

    with mpfeed.from_map(fragile, range(20), workers=2, backend="process") as feed:
        iterator = iter(feed.dataset())
        assert [int(next(iterator)) for _ in range(6)] == list(range(6))
        with pytest.raises(tf.errors.OpError, match=r"KeyError: 'no such sample'[\s\S]*item 6"):
            next(iterator)


def test_a_source_that_fails_at_once_fails_the_dataset_too_and_an_empty_one_asks_for_a_signature(keep: Keep) -> None:
    def stillborn(i: int) -> None:
        raise FileNotFoundError("/no/such/index")

    with pytest.raises(mpfeed.WorkerError, match="/no/such/index"):
        keep(mpfeed.from_map(stillborn, range(3), workers=1, backend="process")).dataset()
    empty = keep(mpfeed.from_map(np.int64, [], workers=1, backend="process"))
    with pytest.raises(mpfeed.SignatureError, match="output_signature="):
        empty.dataset()
    assert ints(empty.dataset(output_signature=tf.TensorSpec((), tf.int64))) == []


def test_a_declared_signature_casts_what_is_safe_and_admits_varying_shapes(keep: Keep) -> None:
    def sample(i: int) -> Any:
        return [np.arange(i, dtype=np.int16), (i, np.float32(i))]

    feed = keep(mpfeed.from_map(sample, range(5), workers=1, backend="process"))
    signature = [tf.TensorSpec((None,), tf.int32), (tf.TensorSpec((), tf.uint8), tf.TensorSpec((), tf.float64))]
    ds = feed.dataset(output_signature=signature)
    assert ds.element_spec == (signature[0], signature[1])
    for i, (wave, (number, real)) in enumerate(ds):
        assert wave.numpy().tolist() == list(range(i))
        assert (int(number), float(real)) == (i, float(i))


def test_a_shape_that_varies_is_refused_with_the_signature_that_would_accept_it(keep: Keep) -> None:
    def sample(i: int) -> Any:
        return {"wave": np.zeros(5 if i < 7 else 4)}

    ds = keep(mpfeed.from_map(sample, range(10), workers=1, backend="process")).dataset()
    with pytest.raises(tf.errors.OpError) as error:
        list(ds)
    text = str(error.value)
    assert "element 7: leaf ['wave'] has shape (4,)" in text
    assert "output_signature={'wave': tf.TensorSpec(shape=(None,), dtype=tf.float64)}" in text


@pytest.mark.parametrize(
    "spec", [tf.RaggedTensorSpec((None, None), tf.int32), tf.SparseTensorSpec((None,), tf.int32), tf.int32]
)
def test_only_dense_tensors_can_be_declared(spec: Any, keep: Keep) -> None:
    feed = keep(pairs(3))
    with pytest.raises(TypeError, match=r"leaf \['x'\] is .* tf\.TensorSpec"):
        feed.dataset(output_signature={"x": spec, "name": tf.TensorSpec((), tf.string)})


@pytest.mark.parametrize("make", [lambda: np.zeros(2, "M8[s]"), lambda: np.zeros(2, np.longdouble)])
def test_a_dtype_that_tensorflow_has_not_is_named(make: Any, keep: Keep) -> None:
    feed = keep(mpfeed.from_map(lambda i: {"when": make()}, range(2), workers=1, backend="inprocess"))
    with pytest.raises(mpfeed.SignatureError, match=r"leaf \['when'\] is .*, which TensorFlow has no type for"):
        feed.dataset()


def test_large_batches_are_not_copied_in_the_training_process(remote: BackendName, keep: Keep) -> None:
    def sample(i: int) -> Any:
        return np.full((256, 256), i, np.float32)

    feed = keep(mpfeed.from_map(sample, range(24), batch_size=4, workers=1, backend=remote))
    shared = 0
    for k, tensor in enumerate(feed.dataset()):
        assert float(tensor[3, -1, -1]) == 4 * k + 3
        address = np.frombuffer(memoryview(tensor), np.uint8).__array_interface__["data"][0]
        assert address % 64 == 0
        shared += "memfd:mpfeed" in mapping_at(address)
    assert shared == 6


def test_the_spec_costs_one_element_which_the_dataset_delivers(keep: Keep, tally: Tally) -> None:
    notes = Tally(tally.path)

    def sample(i: int) -> np.int64:
        notes.note(i)
        return np.int64(i)

    feed = keep(mpfeed.from_map(sample, range(5), workers=1, backend="process", epochs=1))
    ds = feed.dataset()
    assert tally.lines() == ["0"]
    assert ints(ds) == list(range(5))
    assert tally.lines() == list("01234")


def test_keras_trains_and_evaluates_on_datasets(keep: Keep) -> None:
    def sample(i: int) -> Any:
        return np.array([i, 1], np.float32), np.array([2 * i], np.float32)

    def build(**options: Any) -> Any:
        return keep(mpfeed.from_map(sample, range(24), batch_size=8, workers=2, **options)).dataset()

    model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(build(shuffle=True), validation_data=build(vary_epochs=False), epochs=2, verbose=0)
    assert [len(values) for values in history.history.values()] == [2, 2]
    assert sorted(name for name, _ in leaves({"loss": 0, "val_loss": 0})) == sorted(f"['{n}']" for n in history.history)


def test_a_loop_inside_a_tf_function_reads_a_dataset(keep: Keep) -> None:
    ds = keep(pairs(6)).dataset()

    @tf.function  # type: ignore[untyped-decorator]
    def total(data: Any) -> Any:
        result = tf.constant(0, tf.int64)
        for element in data:
            result += element["n"]
        return result

    assert int(total(ds)) == int(total(ds)) == 15


def test_a_dataset_made_inside_a_traced_function_runs_the_code_as_it_is_written() -> None:
    seen: list[str] = []

    def source() -> Iterator[int]:
        frame = __import__("sys")._getframe()
        while frame is not None:
            seen.append(frame.f_code.co_name)
            frame = frame.f_back
        yield from range(3)

    with mpfeed.from_generator(source, workers=1, backend="inprocess") as feed:
        interleaved = tf.data.Dataset.range(2).interleave(lambda _: feed.dataset(), cycle_length=1)
        assert ints(interleaved) == [0, 1, 2, 0, 1, 2]
    assert "signature" in seen
    assert "tf__signature" not in seen  # AutoGraph's name for what it rewrote


@pytest.mark.parametrize("chunk", [None, 1])
def test_without_prefetch_tensorflow_takes_one_element_ahead(
    backend: BackendName, chunk: int | None, keep: Keep
) -> None:
    feed = keep(mpfeed.from_map(np.int64, range(40), batch_size=2, backend=backend, workers=1))
    data = feed.dataset(prefetch=0, chunk=chunk)
    assert data.options().experimental_optimization.inject_prefetch is False
    elements = iter(data)
    for _ in range(5):
        next(elements)
    assert not eventually(lambda: feed.state_dict()["taken"] > 6, 0.3)


def test_each_dataset_is_held_to_its_own_signature(keep: Keep) -> None:
    feed = keep(mpfeed.from_map(lambda i: 300 + i, range(3), workers=1, backend="process"))
    small = feed.dataset(output_signature=tf.TensorSpec((), tf.uint8))
    large = feed.dataset(output_signature=tf.TensorSpec((), tf.int64))
    with pytest.raises(tf.errors.OpError, match="the Python number 300 where output_signature says"):
        ints(small)
    assert ints(large) == [300, 301, 302]


def test_a_dataset_that_goes_on_from_a_state_keeps_its_signature(keep: Keep) -> None:
    feed = keep(mpfeed.from_map(lambda i: i if i < 4 else i + 0.5, range(8), workers=1, backend="process"))
    ds = feed.dataset()
    iterator = iter(feed)
    for _ in range(4):
        next(iterator)
    feed.load_state_dict(feed.state_dict())
    with pytest.raises(tf.errors.OpError, match=r"the Python number 4\.5"):
        ints(ds)
