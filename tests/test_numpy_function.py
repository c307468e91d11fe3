"""``numpy_function``: the results of ``tf.numpy_function``, made in workers."""

from __future__ import annotations

import collections
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from streams import Gate, Tally, eventually, mapping_at

import mpfeed
from mpfeed._cpus import usable_cpus
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


DTYPES = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
]  # fmt: skip


def given(tree: Any, text: Any, pair: Any) -> Any:
    """What a function is handed: types, dtypes and shapes in words, and the values as they are."""
    words = [
        f"{type(x).__name__} {np.asarray(x).dtype} {np.shape(x)} {getattr(x, 'flags', {'WRITEABLE': 0})['WRITEABLE']}"
        for part in (*tree.values(), text, pair)
        for x in (part if isinstance(part, tuple) else (part,))
    ]
    return "; ".join(words), text, *(x for part in tree.values() for x in part)


def test_every_dtype_and_structure_is_handed_over_as_tf_numpy_function_does(remote: BackendName, keep: Keep) -> None:
    parts = [tf.reshape(tf.range(6.0), (2, 3)), tf.constant(1.0), tf.zeros((0, 2))]
    tree = {name: tuple(tf.cast(part, name) for part in parts) for name in sorted(DTYPES)}
    arguments = (tree, tf.constant([["", "z\0"], ["\u65e5", "b"]]), (tf.constant("one"), tf.constant(3)))
    leaves = tf.nest.flatten(arguments)
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in tf.nest.flatten(tree)]
    signature = (tf.TensorSpec((), tf.string), tf.TensorSpec((2, 2), tf.string), *specs)
    here = tf.function(  # eagerly, TensorFlow fails on a bfloat16 without dimensions
        lambda: tf.numpy_function(
            lambda *values: given(*tf.nest.pack_sequence_as(arguments, list(values))),
            leaves,
            [spec.dtype for spec in signature],
        )
    )()
    function = keep(mpfeed.numpy_function(given, signature, backend=remote, workers=1))
    for _ in range(3):  # the first ones may be sent before a worker has said how it takes them
        there = tf.function(lambda: function(*arguments))()
        assert there[0].numpy() == here[0].numpy()
        for one, other in zip(there, here, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert np.array(one.numpy()).tolist() == np.array(other.numpy()).tolist()


@pytest.mark.parametrize("remote", ["process", "ray", "queue"])
def test_what_the_function_keeps_or_changes_of_its_arguments_is_its_own(
    remote: Any, keep: Keep, request: pytest.FixtureRequest
) -> None:
    if remote == "ray":
        request.getfixturevalue("local_ray")
    kept: list[Any] = []

    def greedy(x: Any) -> Any:
        kept.append(x)
        x += 1  # TensorFlow's own memory must not see this
        return np.array([int(a.ravel()[-1]) for a in kept])

    spec = tf.TensorSpec((None,), tf.int64)
    backend = mpfeed.Process(transport="queue") if remote == "queue" else remote
    function = keep(mpfeed.numpy_function(greedy, spec, backend=backend, workers=1))
    images = [np.full((40 + k, 50, 3), k, np.int64) for k in range(6)]  # 48 kB and more, of varying shape
    for k, image in enumerate(images):
        assert function.call((image,))[0].tolist() == list(range(1, k + 2))
        assert image.ravel()[0] == k


def test_a_result_lies_where_the_worker_wrote_it(remote: BackendName, keep: Keep) -> None:
    spec = tf.TensorSpec((400, 400), tf.float32)
    function = keep(mpfeed.numpy_function(lambda x: x + 1, spec, backend=remote, workers=1))
    ds = tf.data.Dataset.from_tensors(tf.zeros((400, 400))).map(function)
    array = np.asarray(memoryview(next(iter(ds))))
    assert array[0, 0] == 1
    assert "memfd:mpfeed" in mapping_at(array.ctypes.data)
    del array
    # TensorFlow lets go of an array whose tensor died on one of its own threads when it next calls Python.
    tf.numpy_function(lambda: np.int32(0), [], tf.int32)


def test_arguments_lie_where_the_worker_reads_them(remote: BackendName, keep: Keep) -> None:
    def where(x: Any) -> Any:
        return mapping_at(x.ctypes.data).encode()

    function = keep(mpfeed.numpy_function(where, tf.TensorSpec((), tf.string), backend=remote, workers=1))
    image = np.zeros((400, 400), np.float32)
    function.call((image,))  # this one is sent before it is known that the worker shares memory
    assert b"memfd:mpfeed" in function.call((image,))[0].item()


def test_without_order_all_results_come(backend: BackendName, keep: Keep) -> None:
    function = keep(mpfeed.numpy_function(lambda x: x * 2, INT, backend=backend, workers=2))
    ds = tf.data.Dataset.range(50).map(function, num_parallel_calls=4, deterministic=False)
    assert sorted(ints(ds)) == list(range(0, 100, 2))


def in_threads(function: mpfeed.NumpyFunction, numbers: Any) -> dict[int, Any]:
    """The result of each number, or what was raised; all are asked for at once."""
    got: dict[int, Any] = {}

    def ask(number: int) -> None:
        try:
            got[number] = int(function.call((np.int64(number),))[0])
        except mpfeed.MpfeedError as error:
            got[number] = error

    threads = [threading.Thread(target=ask, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def crowd(gate: Gate, odd: Callable[[], Any], keep: Keep, **options: Any) -> tuple[dict[int, Any], int]:
    """Results of calls that gathered behind a held one, call 20 being ``odd``, and in how many messages they came."""
    held = Gate(gate.path)

    def quick(x: Any) -> Any:
        if x == 0:
            held.wait()
        return odd() if x == 20 else x

    function = keep(mpfeed.numpy_function(quick, INT, workers=1, **options))
    assert in_threads(function, [1]) == {1: 1}
    for number in range(2, 12):
        function.call((np.int64(number),))
    before = function.stats().workers[0].messages
    got: dict[int, Any] = {}
    holder = threading.Thread(target=lambda: got.update(in_threads(function, [0])))
    holder.start()
    crew = function._opened().crew
    assert eventually(lambda: crew.roster.load(0) == 1)  # the held call leaves before all others
    others = threading.Thread(target=lambda: got.update(in_threads(function, range(12, 60))))
    others.start()
    assert eventually(lambda: function.waiting == 47)  # one is being made, one is behind it
    held.open()
    holder.join()
    others.join()
    return got, function.stats().workers[0].messages - before


def test_quick_calls_that_wait_share_messages_and_an_error_is_its_own_calls(gate: Gate, keep: Keep) -> None:
    got, messages = crowd(gate, lambda: 1 / 0, keep)
    assert messages < 30
    assert isinstance(got.pop(20), mpfeed.WorkerError)
    assert got == {x: x for x in (0, *range(12, 60)) if x != 20}


def test_of_calls_that_share_a_message_only_the_deadly_one_is_lost(gate: Gate, keep: Keep) -> None:
    got, _ = crowd(gate, lambda: os._exit(3), keep, max_restarts=1)
    assert isinstance(got.pop(20), mpfeed.WorkerDied)
    assert got == {x: x for x in (0, *range(12, 60)) if x != 20}


def test_a_function_that_tensorflow_has_seen_does_not_bring_it_along(keep: Keep) -> None:
    def seen(x: Any) -> Any:
        return np.int64("tensorflow" in sys.modules)

    assert ints(tf.data.Dataset.range(1).map(lambda x: tf.numpy_function(seen, [x], tf.int64))) == [1]
    assert [name for name in vars(seen) if "ag" in name]  # what it leaves there leads to TensorFlow's modules
    assert int(keep(mpfeed.numpy_function(seen, INT, workers=1))(tf.constant(0, tf.int64))) == 0


def test_workers_that_cannot_start_fail_every_call_that_waits(keep: Keep) -> None:
    def refuse() -> None:
        raise RuntimeError("no camera")

    function = keep(mpfeed.numpy_function(lambda x: x, INT, workers=2, worker_init=refuse))
    got = in_threads(function, range(8))
    assert len(got) == 8
    assert all("no camera" in str(error) for error in got.values())


def test_a_call_that_takes_too_long_is_a_timeout(gate: Gate, keep: Keep) -> None:
    held = Gate(gate.path)

    def late(x: Any) -> Any:
        held.wait()
        return x

    function = keep(mpfeed.numpy_function(late, INT, workers=1, timeout=1))
    with pytest.raises(mpfeed.FeedTimeout, match="worker 0"):
        function.call((np.int64(0),))


def test_a_dataset_holds_its_function_and_one_that_is_dropped_halfway_leaves_nothing(keep: Keep) -> None:
    ds = tf.data.Dataset.range(1000).map(mpfeed.numpy_function(functools.partial(np.add, 1), INT, workers=1))
    iterator = iter(ds.prefetch(4))
    assert [int(next(iterator)) for _ in range(3)] == [1, 2, 3]
    del iterator, ds  # the leak guard looks for its worker


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


def test_a_function_closed_while_it_makes_room_for_its_workers_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    function = mpfeed.numpy_function(lambda x: x, INT, backend="process", workers=1)

    def fit(backend: mpfeed.Process, workers: int, opening: Any) -> int:
        function.close()  # as by another thread, which finds no workers to stop
        return workers

    monkeypatch.setattr(mpfeed.Process, "fit", fit)
    with pytest.raises(mpfeed.FeedClosed):
        function.call((np.int64(0),))


def test_a_bad_argument_is_refused_before_any_worker_exists() -> None:
    with pytest.raises(TypeError, match="needs a function, not int"):
        mpfeed.numpy_function(3, INT)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="workers=0"):
        mpfeed.numpy_function(np.sum, INT, workers=0)
    with pytest.raises(TypeError, match=r"tf\.TensorSpec"):
        mpfeed.numpy_function(np.sum, tf.RaggedTensorSpec((None, None)))


def test_a_function_with_rng_asks_for_the_number_that_seeds_it(keep: Keep) -> None:
    function = keep(mpfeed.numpy_function(lambda x, rng: x, INT, backend="inprocess"))
    for given in ((tf.constant(1.5),), (tf.constant([1, 2]),), ()):
        with pytest.raises(TypeError, match="one more last argument, an integer tensor"):
            function(*given)
    assert int(function(tf.constant(5, tf.int64), 3)) == 5


def test_in_this_process_too_a_function_may_change_what_it_is_given(keep: Keep) -> None:
    def changed(x: Any) -> Any:
        x += 1
        return x

    function = keep(mpfeed.numpy_function(changed, tf.TensorSpec((2,), tf.int64), backend="inprocess"))
    given = tf.constant([1, 2], tf.int64)
    assert [function(given).numpy().tolist() for _ in range(2)] == [[2, 3], [2, 3]]
    assert given.numpy().tolist() == [1, 2]


@pytest.mark.parametrize(("max_restarts", "callers"), [(3, 9), (0, 3)])
def test_its_options_give_tf_data_threads_for_messages_of_calls_where_they_share_any(
    gate: Gate, keep: Keep, max_restarts: int, callers: int
) -> None:
    held = Gate(gate.path)

    def slow(x: Any) -> Any:
        held.wait()
        return x

    function = keep(mpfeed.numpy_function(slow, INT, backend="process", workers=1, max_restarts=max_restarts))
    ds = tf.data.Dataset.range(40).map(function, num_parallel_calls=40).with_options(function.options())
    got: list[int] = []
    reader = threading.Thread(target=lambda: got.extend(ints(ds)))
    reader.start()
    in_hand = 2
    assert eventually(lambda: function.waiting == callers + usable_cpus() - in_hand)
    held.open()
    reader.join()
    assert got == list(range(40))


def test_calls_that_wait_beside_one_that_finds_no_room_are_refused_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, refuse = [], threading.Event()

    def fit(*_: Any) -> int:
        asked.append(1)
        refuse.wait(60)
        raise mpfeed.MpfeedError("no room")

    class Turns:
        """A lock that tells who has come to it."""

        def __init__(self) -> None:
            self.came: list[int] = []
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            self.came.append(threading.get_ident())
            self._lock.acquire()

        def __exit__(self, *_: Any) -> None:
            self._lock.release()

    monkeypatch.setattr(mpfeed.Process, "fit", fit)
    function = mpfeed.numpy_function(lambda x: x, tf.TensorSpec((), tf.int64))
    turns = Turns()
    monkeypatch.setattr(function, "_lock", turns)
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(function.call, (np.int64(i),)) for i in range(4)]
        assert eventually(lambda: len(turns.came) == 4)  # the others wait for the first
        refuse.set()
        errors = [answer.exception(60) for answer in answers]
    assert [type(error) for error in errors] == [mpfeed.MpfeedError] * 4
    assert len(asked) == 1
    with pytest.raises(mpfeed.MpfeedError, match="no room"):  # a later call asks anew
        function.call((np.int64(4),))
    assert len(asked) == 2


@pytest.mark.parametrize("size", [5_000, 400_000])
def test_a_function_may_refill_one_array_again_and_again(backend: BackendName, size: int, keep: Keep) -> None:
    buffer = np.zeros(size, np.int64)

    def refilled(i: Any) -> Any:
        buffer[:] = i
        return buffer

    function = keep(
        mpfeed.numpy_function(refilled, tf.TensorSpec((size,), tf.int64), backend=backend, workers=1)
    )  # quick: calls share messages
    held = list(tf.data.Dataset.range(60).map(function, num_parallel_calls=8))
    assert [(int(x[0]), int(x[-1])) for x in held] == [(i, i) for i in range(60)]


def test_arguments_may_be_namedtuples_that_no_worker_can_import(backend: BackendName, keep: Keep) -> None:
    point = collections.namedtuple("point", "x y")
    points = tf.data.Dataset.from_tensor_slices(point(tf.range(40, dtype=tf.int64), tf.ones(40, tf.int64)))
    function = keep(mpfeed.numpy_function(lambda p: p.x + p.y, INT, backend=backend, workers=1))
    assert ints(points.map(function)) == list(range(1, 41))


def test_calls_that_ctrl_c_cut_short_in_process_take_no_room_from_those_after(keep: Keep) -> None:
    def cut_short(x: Any) -> Any:
        if x < 0:
            raise KeyboardInterrupt
        return x

    function = keep(mpfeed.numpy_function(cut_short, INT, backend="inprocess"))
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            function.call((np.int64(-1),))
    assert function.call((np.int64(5),))[0] == 5


def test_a_function_that_calls_itself_in_process_is_told_so_and_runs_no_more_often_than_it_is_called(
    keep: Keep,
) -> None:
    runs = []

    def itself(x: Any) -> Any:
        runs.append(x)
        with pytest.raises(mpfeed.MpfeedError, match="wait for itself"):
            made.call((x,))
        return x

    made = keep(mpfeed.numpy_function(itself, INT, backend="inprocess"))
    assert [made.call((np.int64(i),))[0] for i in range(3)] == [0, 1, 2]
    assert runs == [0, 1, 2]


def test_without_rng_no_call_repeats_the_random_numbers_of_another(backend: BackendName, keep: Keep) -> None:
    def drawn(x: Any) -> Any:
        import random

        import cv2

        noise = np.zeros(1)
        cv2.randu(noise, 0, 1)
        return np.array([random.random(), np.random.rand(), noise[0], mpfeed.worker().index])

    def streams(workers: int) -> Any:
        made = keep(
            mpfeed.numpy_function(drawn, tf.TensorSpec((4,), tf.float64), backend=backend, workers=workers, seed=5)
        )
        ds = tf.data.Dataset.range(24).map(made, num_parallel_calls=None if workers == 1 else 6)
        return np.array([element.numpy() for element in ds])

    alone = streams(1)
    assert np.array_equal(alone, streams(1))
    several = streams(1 if backend == "inprocess" else 2)  # its threads share the generators of the program
    for column in range(3):
        assert len(set(several[:, column])) == len(several)
    if backend != "inprocess":
        assert set(several[:, 3]) == {0, 1}


def test_the_generators_of_the_program_are_left_alone_by_calls_in_process(keep: Keep) -> None:
    np.random.seed(3)
    want = np.random.rand(2)
    np.random.seed(3)
    made = keep(mpfeed.numpy_function(lambda x: np.random.rand(), tf.TensorSpec((), tf.float64), backend="inprocess"))
    got = [np.random.rand(), made.call((np.int64(0),))[0], np.random.rand()]
    assert [got[0], got[2]] == list(want)
    assert got[1] not in want


@pytest.mark.parametrize(
    ("fn", "arguments", "words"),
    [
        (lambda x, y: x, 1, "called with 1 arguments: missing a required argument: 'y'"),
        (lambda x: x, 2, "called with 2 arguments: too many positional arguments"),
        (lambda x, y, rng: x, 2, "the last of which seeds its rng: missing a required argument: 'y'"),
    ],
)
def test_a_call_with_too_few_or_too_many_arguments_is_refused_where_the_pipeline_is_built(
    fn: Any, arguments: int, words: str, keep: Keep
) -> None:
    made = keep(mpfeed.numpy_function(fn, INT, workers=1))
    ds = tf.data.Dataset.range(3)
    with pytest.raises(TypeError, match=words):
        ds.map(lambda x: made(*[x] * arguments))


def test_an_rng_that_partial_binds_is_the_users_own(keep: Keep) -> None:
    def add(x: Any, rng: int) -> Any:
        return x + rng

    made = keep(mpfeed.numpy_function(functools.partial(add, rng=3), INT, backend="inprocess"))
    assert int(made(tf.constant(4, tf.int64))) == 7


@pytest.mark.parametrize("tout", [tf.float32, np.float32, np.dtype("f4"), [tf.float32, tf.int64]])
def test_dtypes_alone_in_place_of_a_signature_are_told_how_to_become_one(tout: Any) -> None:
    with pytest.raises(TypeError, match=r"is a dtype: write tf\.TensorSpec\(shape, .*float32"):
        mpfeed.numpy_function(np.sum, tout)


def test_the_account_of_a_function_leaves_out_the_waits_that_it_does_not_see(keep: Keep) -> None:
    made = keep(mpfeed.numpy_function(lambda x: x, INT, backend="inprocess"))
    made.call((np.int64(0),))
    assert "waits" not in str(made.stats())
    assert "1 elements" in str(made.stats())


def test_a_list_in_place_of_an_array_is_told_how_to_become_one(keep: Keep) -> None:
    made = keep(mpfeed.numpy_function(lambda x: [x, x], tf.TensorSpec((2,), tf.int64), backend="inprocess"))
    with pytest.raises(mpfeed.SignatureError, match=r"A list is a structure of its parts: np\.asarray"):
        made.call((np.int64(1),))
