"""The rows of the pipeline benchmark: the steps of a tf.data pipeline, one after the other, for four kinds of function.

The images are files; ``load`` is the same each time, ``augment`` is random. A row is named kind/step.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from benchmarks import _augment, references
from benchmarks._augment import SHAPE, SIDE
from benchmarks._backends import ONE_THREAD, Backend
from benchmarks._job import Workload
from benchmarks._photographs import photographs
from benchmarks.references import Stream

BATCH = 32
KINDS = {
    "tf": "TensorFlow's own",
    "py_function": "tf.py_function",
    "numpy_function": "tf.numpy_function",
    "mpfeed": "mpfeed.numpy_function",
}
STEPS = {
    "serial": "serial map",
    "parallel": "parallel map",
    "cache_memory": "… cached in memory, second epoch",
    "cache_file": "… cached in a file, second epoch",
    "shuffle": "parallel map, shuffle",
    "prefetch": "parallel map, prefetch",
    "whole": "map, cache, shuffle, augment, batch, prefetch",
}
_SHUFFLE = 512

Function = Callable[..., Any]


class _Functions:
    """``load`` and ``augment`` as functions of tensors, of one kind, and the options that suit them."""

    def __init__(self, kind: str, workers: int, opened: ExitStack) -> None:
        import tensorflow as tf

        self._kind = kind
        self._workers = workers
        self._opened = opened
        self.options = tf.data.Options()  # each kind as its documentation recommends
        own = kind == "tf"
        self.load = _tf_load if own else self.of(_augment.load)
        self.augment = _tf_augment if own else self.of(_augment.augment)

    def of(self, function: Function) -> Function:
        """A Python function in this kind's clothes; it takes tensors and gives an image."""
        import tensorflow as tf

        import mpfeed

        spec = tf.TensorSpec(SHAPE, tf.uint8)
        if self._kind == "mpfeed":
            made = self._opened.enter_context(mpfeed.numpy_function(function, spec, workers=self._workers))
            self.options = made.options()
            return made
        if self._kind == "numpy_function":
            return lambda *tensors: tf.ensure_shape(tf.numpy_function(function, tensors, tf.uint8), SHAPE)

        def eager(*tensors: Any) -> Any:
            return function(*(tensor.numpy() for tensor in tensors))

        return lambda *tensors: tf.ensure_shape(tf.py_function(eager, tensors, tf.uint8), SHAPE)


def _tf_load(path: Any) -> Any:
    import tensorflow as tf

    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.cast(tf.image.resize(image, (SIDE, SIDE)), tf.uint8)


def _tf_augment(image: Any, number: Any) -> Any:
    import tensorflow as tf

    seed = tf.stack([number, number])
    image = tf.image.stateless_random_flip_left_right(image, seed)
    image = tf.image.stateless_random_crop(tf.image.resize(image, (SIDE + 32, SIDE + 32)), SHAPE, seed)
    image = tf.image.stateless_random_hue(image / 255.0, 0.05, seed)
    image = tf.image.stateless_random_contrast(image, 0.8, 1.2, seed)
    return tf.cast(255.0 * tf.clip_by_value(tf.image.stateless_random_brightness(image, 0.08, seed), 0, 1), tf.uint8)


@contextmanager
def _pipeline(kind: str, step: str, workload: Workload, workers: int) -> Iterator[Stream]:
    import tensorflow as tf

    files = sorted(map(str, photographs().iterdir()))
    paths = [files[i % len(files)] for i in range(workload.source.options["images"])]
    with ExitStack() as opened:
        functions = _Functions(kind, workers, opened)
        at_once = None if step == "serial" else tf.data.AUTOTUNE
        ds = tf.data.Dataset.from_tensor_slices(paths).map(functions.load, num_parallel_calls=at_once)
        if step in ("cache_memory", "whole"):
            ds = ds.cache()
        if step == "cache_file":
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="pipeline-"))
            ds = ds.cache(f"{folder}/cache")
        if step in ("shuffle", "whole"):
            ds = ds.shuffle(_SHUFFLE)
        ds = ds.enumerate().map(lambda number, image: functions.augment(image, number), num_parallel_calls=at_once)
        ds = ds.batch(BATCH, drop_remainder=True)
        ds = ds.prefetch(tf.data.AUTOTUNE) if step in ("prefetch", "whole") else ds
        yield ds.with_options(functions.options)


@contextmanager
def _calls(kind: str, workload: Workload, workers: int) -> Iterator[Stream]:
    """One function of one image that is there already, again and again."""
    import tensorflow as tf

    with ExitStack() as opened:
        functions = _Functions(kind, workers, opened)
        function = functions.of(getattr(_augment, workload.source.options["work"]))
        image = tf.constant(_augment.sample())
        ds = tf.data.Dataset.range(2**62)
        ds = ds.map(lambda number: function(image, number), num_parallel_calls=tf.data.AUTOTUNE)
        yield ds.with_options(functions.options)


def _row(label: str, opened: Callable[[Workload, int], AbstractContextManager[Stream]]) -> Backend:
    return Backend(label, opened, environment=ONE_THREAD)


def _rows() -> Iterator[tuple[str, Backend]]:
    for kind, name in KINDS.items():
        for step, words in STEPS.items():
            yield f"{kind}/{step}", _row(f"{name}: {words}", functools.partial(_pipeline, kind, step))
        if kind != "tf":
            yield f"{kind}/calls", _row(name, functools.partial(_calls, kind))


BACKENDS: dict[str, Backend] = {
    **dict(_rows()),
    "bare": Backend(
        "a loop without a pipeline", references.bare, parallel=False, tensors=False, environment=ONE_THREAD
    ),
    "bare_parallel": Backend(
        "{workers} such loops at once", references.bare_parallel, tensors=False, numbers=False, environment=ONE_THREAD
    ),
}
