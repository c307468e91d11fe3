"""The tf.data adapter: ``Feed.dataset()``. TensorFlow is imported here and nowhere else in the package."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mpfeed import _interrupts
from mpfeed._errors import FeedClosed, SignatureError
from mpfeed._leaving import calls
from mpfeed._messages import Arguments
from mpfeed._spec import LeafSpec, Signature
from mpfeed._structure import Treespec, flatten, paths, with_tuples

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError("this needs TensorFlow, which is not installed: pip install 'mpfeed[tf]'") from error

if TYPE_CHECKING:
    from mpfeed._feed import Feed
    from mpfeed._function import NumpyFunction
    from mpfeed._iterator import FeedIterator

# Below this an element costs TensorFlow more to be handed over alone (0.1 to 0.2 ms) than to be cut out of a chunk in
# C++, which copies it.
CHUNKED_BYTES = 64 << 10

# What a training thread needs of the GIL to take an element from a prefetch buffer, caches cold: 0.8 to 1 ms.
_TAKING_S = 1e-3
# The part of a training step that a buffer may be refilled later, to leave the GIL to that thread first.
_POLITE = 0.02
_SHORT_STEP_S = 0.02


# A dataset that is made, or a function that is called, while TensorFlow traces a graph is none of AutoGraph's business:
# it would rewrite every function on the way, a backend's too, for a minute.
@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def dataset(feed: Feed, *, output_signature: Any, prefetch: int | None, chunk: int | None) -> tf.data.Dataset:
    """See ``Feed.dataset``."""
    if chunk is not None and chunk != 1:
        raise ValueError(f"chunk={chunk!r}: give 1 to hand elements over one by one, or None")
    _interrupts.install()
    calls.install()
    if output_signature is not None:
        specs, signature = declared(output_signature)
        feed.declare(signature)
    else:
        signature = feed.signature()
        specs = tensor_specs(signature)
    chunked = chunk is None and not feed.batched and _is_small(signature)
    reference = weakref.ref(feed)
    polite = bool(prefetch)
    if chunked:
        stacked = tf.nest.map_structure(lambda s: tf.TensorSpec([None, *s.shape], s.dtype), specs)
        rows = _generator(reference, signature, _chunk(signature.treespec), polite)
        made = tf.data.Dataset.from_generator(rows, output_signature=stacked).unbatch()
    else:
        elements = _generator(reference, signature, _element, polite)
        made = tf.data.Dataset.from_generator(elements, output_signature=specs)
    made = _with_length(feed.certain_length(), made)
    made = made.prefetch(prefetch) if prefetch else made.with_options(_as_it_is())
    # Derived datasets and iterators keep this object, TensorFlow's registry of generators does not.
    made._mpfeed_feed = feed
    return made


def _as_it_is() -> tf.data.Options:
    """tf.data puts a prefetch of its own behind a dataset without one, which takes 2 to 6 elements ahead."""
    chosen = tf.data.Options()
    chosen.experimental_optimization.inject_prefetch = False
    return chosen


def _with_length(length: int | None, made: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset with its cardinality, which an epoch that is resumed midway may fall short of.

    ``assert_cardinality`` would raise there, and without one Keras takes the length of that first epoch for the length
    of all. So what counts as endless, and is empty, is put behind it, and no more than the length is taken.
    """
    if length is None:
        return made
    nothing = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=made.element_spec).repeat()
    return made.concatenate(nothing).take(length)


def _is_small(signature: Signature) -> bool:
    """Whether every element has the same small size and TensorFlow can cut elements out of a chunk of them."""
    total = 0
    for leaf in signature.leaves:
        if leaf.shape is None or None in leaf.shape or not _cuttable(leaf):
            return False
        total += (64 if leaf.dtype == object else leaf.dtype.itemsize) * math.prod(size or 0 for size in leaf.shape)
    return total <= CHUNKED_BYTES


def _cuttable(leaf: LeafSpec) -> bool:
    """Whether ``unbatch`` takes the leaf: it crashes the process on one without entries, and has no float8 or int4."""
    registered = leaf.dtype.isbuiltin == 2  # with NumPy by another package: ml_dtypes
    return 0 not in (leaf.shape or ()) and (not registered or leaf.dtype.name == "bfloat16")


def _live(reference: weakref.ref[Feed]) -> Feed:
    feed = reference()
    if feed is None:
        raise FeedClosed("the feed of this dataset was collected: keep the dataset or the feed while it is read")
    return feed


def _generator(
    reference: weakref.ref[Feed], signature: Signature, take: Callable[[FeedIterator], Any], polite: bool
) -> Callable[[], Any]:
    """A generator function for TensorFlow that holds the feed weakly: it is kept for the life of the process.

    ``take`` gives what TensorFlow is handed next.
    """

    def generator() -> Iterator[Any]:
        iterator: FeedIterator | None = None
        try:
            while True:
                try:
                    with calls, tf.profiler.experimental.Trace("mpfeed wait"):
                        iterator = iterator or _live(reference).iterate(signature)
                        element = take(iterator)
                except StopIteration:
                    return
                except (FeedClosed, _interrupts.Interrupted) as error:
                    if _unheard(error):
                        return
                    raise
                left_s = time.perf_counter()
                yield element
                del element
                if polite:
                    _let_pass(time.perf_counter() - left_s)
        finally:
            if iterator is not None:
                iterator.close()

    return generator


def _element(iterator: FeedIterator) -> Any:
    return _for_tf(next(iterator))


def _chunk(structure: Treespec) -> Callable[[FeedIterator], Any]:
    return lambda iterator: _for_tf(structure.unflatten(iterator.next_chunk()[0]))


def _let_pass(parked_s: float) -> None:
    """Leave the GIL to the thread that just took an element of a full buffer, and thereby asked for another.

    Both run Python at this moment, the taker wants to go on with its training step, and this thread has all of the
    step's time. ``parked_s`` is how long the buffer was full.
    """
    if parked_s > _SHORT_STEP_S:
        time.sleep(min(_TAKING_S, _POLITE * parked_s))


def _unheard(error: Exception) -> bool:
    """Whether nobody takes what comes after this error, so that TensorFlow need not print it with its traceback."""
    if isinstance(error, _interrupts.Interrupted):
        return error.unheard
    return not threading.main_thread().is_alive()  # the interpreter is ending


def _for_tf(element: Any) -> Any:
    return with_tuples(element) if not isinstance(element, np.ndarray) else element


# --------------------------------------------------------------------------------------------- signatures


def tensor_specs(signature: Signature) -> Any:
    """``tf.TensorSpec`` for each leaf, lists as tuples.

    Raises:
        SignatureError: a leaf's dtype has no TensorFlow type (datetime64, longdouble).
    """
    specs = []
    for path, leaf in zip(paths(signature.treespec), signature.leaves, strict=True):
        specs.append(tf.TensorSpec(leaf.shape, tf_dtype(leaf.dtype, path)))
    return with_tuples(signature.treespec.unflatten(specs))


def tf_dtype(dtype: np.dtype[Any], path: str) -> tf.DType:
    """TensorFlow's type for a dtype; SignatureError names the leaf where there is none."""
    if dtype.kind in "mM":
        raise SignatureError(f"leaf {path} is {dtype}, which TensorFlow has no type for: yield .astype('int64')")
    try:
        return tf.as_dtype(dtype)
    except TypeError as error:
        raise SignatureError(
            f"leaf {path} is {dtype}, which TensorFlow has no type for: cast it in the source"
        ) from error


def declared(output_signature: Any) -> tuple[Any, Signature]:
    """(the signature with tuples for lists, mpfeed's own form of it).

    Raises:
        TypeError: a leaf is not a dense ``tf.TensorSpec``: ragged and sparse tensors are not supported.
    """
    leaves, treespec = flatten(output_signature)
    specs = []
    for path, leaf in zip(paths(treespec), leaves, strict=True):
        if not isinstance(leaf, tf.TensorSpec):
            name = type(leaf).__name__
            if _names_dtype(leaf):
                raise TypeError(f"output_signature: leaf {path} is a dtype: write tf.TensorSpec(shape, {leaf!r})")
            raise TypeError(
                f"output_signature: leaf {path} is {name}; mpfeed delivers dense tensors, so each leaf is a "
                "tf.TensorSpec. For ragged data yield flat values and row lengths and build the tensor in ds.map("
                "tf.RaggedTensor.from_row_lengths), or pad (mpfeed.collate_padded)"
            )
        shape = None if leaf.shape.rank is None else tuple(leaf.shape.as_list())
        dtype = np.dtype(object) if leaf.dtype == tf.string else np.dtype(leaf.dtype.as_numpy_dtype)
        specs.append(LeafSpec(shape, dtype))
    return with_tuples(output_signature), Signature(treespec, specs, declared=True)


def _names_dtype(leaf: Any) -> bool:
    """Whether it is a dtype, as ``tf.numpy_function`` wants for ``Tout``."""
    return isinstance(leaf, (tf.DType, np.dtype)) or (isinstance(leaf, type) and issubclass(leaf, np.generic))


# ----------------------------------------------------------------------------------------- numpy_function


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def traced_call(function: NumpyFunction, arguments: tuple[Any, ...]) -> Any:
    """One call of a ``NumpyFunction``, eager or inside a ``tf.function`` or ``Dataset.map``."""
    _interrupts.install()
    calls.install()
    leaves, treespec = flatten(arguments)
    if function.takes_rng and not _is_key(arguments):
        raise TypeError(
            f"{function.name} has a parameter rng, so it is called with one more last argument, an integer tensor that "
            "seeds it: ds.enumerate().map(lambda number, x: f(x, number)), or a tensor of tf.data.Dataset.random()"
        )
    function.check(arguments)
    reference = weakref.ref(function)

    def run(*values: Any) -> list[Any]:
        live = reference()
        if live is None:
            raise FeedClosed("the numpy_function was collected: keep it while the dataset is read")
        with calls:
            return live.answer(Arguments(list(values), treespec))

    specs = tf.nest.flatten(function.specs)
    results = tf.numpy_function(run, leaves, [spec.dtype for spec in specs], stateful=True)
    results = results if isinstance(results, (list, tuple)) else [results]
    for result, spec in zip(results, specs, strict=True):
        result.set_shape(spec.shape)
    return tf.nest.pack_sequence_as(function.specs, results)


def _is_key(arguments: tuple[Any, ...]) -> bool:
    """Whether the last of some arguments may seed a generator."""
    last = arguments[-1] if arguments else None
    if not tf.is_tensor(last) and not isinstance(last, (int, np.integer)):
        return False
    dtype, shape = tf.convert_to_tensor(last).dtype, tf.convert_to_tensor(last).shape
    return dtype.is_integer and shape.rank in (0, None)


def options(threads: int) -> tf.data.Options:
    """Options of a dataset that runs its functions in so many threads."""
    chosen = tf.data.Options()
    chosen.threading.private_threadpool_size = threads
    return chosen
