"""``mpfeed.keras.InputMonitor``: how long ``model.fit`` waits for its input, measured where it fetches."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

from mpfeed._feed import Feed
from mpfeed._monitor import verdict_for
from mpfeed._verdict import Verdict

try:
    import keras
    import tensorflow as tf
except ImportError as error:
    raise ImportError("this needs TensorFlow and Keras: pip install 'mpfeed[tf]'") from error

log = logging.getLogger("mpfeed")
# Reading the clock's variable takes 20 µs; a progress bar is read by eye.
_READ_EVERY_S = 0.2


class InputMonitor(keras.callbacks.Callback):  # type: ignore[misc]
    """Measures the share of its time that ``model.fit`` spends waiting for input.

    The wait is timed inside the training function, around its own fetch from the iterator: what prefetching hid is not
    counted. The first step, which builds the function and starts the workers, and the time between epochs
    (validation, checkpoints) are left out. ``input_wait`` (0 to 1) appears in the progress bar and in the logs: put
    this callback before ``TensorBoard``, ``CSVLogger`` and the like.

    Args:
        feed: where the input comes from, for a verdict that names the cause; None: only whether it waits.
        warn_above: warn at the end where the share is higher, such as 0.05; None: never.
        log_dir: also write the scalar ``input_wait`` of each epoch there, for TensorBoard.

    Attributes:
        waiting: the share so far, 0 to 1.
        wait_s: seconds waited, in all.
        step_s: seconds of the steps without the waits, in all.
        steps: how many are counted.
        verdict: what limits the training; at the end of training it is logged (``logging``, "mpfeed", INFO).

    Raises:
        RuntimeError: when training starts, if Keras does not run on TensorFlow; see ``mpfeed.monitor``.
    """

    def __init__(self, feed: Feed | None = None, *, warn_above: float | None = None, log_dir: Any = None) -> None:
        super().__init__()
        self._feed = feed
        self._warn_above = warn_above
        self._log_dir = log_dir
        self._writer: Any = None
        self._clock: Any = None
        self._inner: Any = None
        self._reset()

    def _reset(self) -> None:
        self.steps = 0
        self._past_s = 0.0  # of the epochs before
        self._epoch_s: float | None = None  # when what is counted of this epoch began
        self._now_s = 0.0
        self._read_s = 0.0
        self._seen_s = self._left_out_s = 0.0
        self._started = False

    # ---------------------------------------------------------------------------------------- figures

    @property
    def wait_s(self) -> float:
        return self._seen_s - self._left_out_s

    @property
    def step_s(self) -> float:
        return max(0.0, self._total_s() - self.wait_s)

    @property
    def waiting(self) -> float:
        total = self._total_s()
        return min(1.0, self.wait_s / total) if total else 0.0

    @property
    def verdict(self) -> Verdict:
        return verdict_for(self._feed, self.waiting, self.steps, self.step_s)

    def _total_s(self) -> float:
        return self._past_s + (self._now_s - self._epoch_s if self._epoch_s is not None else 0.0)

    # ---------------------------------------------------------------------------------------- training

    def on_train_begin(self, logs: Any = None) -> None:
        """Put the clock around the fetch."""
        if keras.backend.backend() != "tensorflow":
            raise RuntimeError(
                f"InputMonitor needs Keras on TensorFlow, not {keras.backend.backend()}: use mpfeed.monitor"
            )
        self._reset()
        self._clock = clock = Clock()
        self._inner = inner = self.model.train_function
        self.model.train_function = lambda iterator: inner(clock.around(iterator))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch_s = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._epoch_s is None:
            self._epoch_s = self._now_s = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the step; the share goes into ``logs``, which the progress bar shows."""
        self._now_s = time.perf_counter()
        if not self._started:
            self._started = True
            self._epoch_s = self._now_s
            self._seen_s = self._left_out_s = self._clock.seconds()
            return
        self.steps += 1
        if self._now_s - self._read_s > _READ_EVERY_S:
            self._read()
        if logs is not None:
            logs["input_wait"] = self.waiting

    def _read(self) -> None:
        self._seen_s, self._read_s = self._clock.seconds(), self._now_s

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The share so far into the epoch's logs and TensorBoard's scalars."""
        self._read()
        self._past_s, self._epoch_s = self._total_s(), None
        if logs is not None:
            logs["input_wait"] = self.waiting
        if self._log_dir is not None:
            self._writer = self._writer or tf.summary.create_file_writer(str(self._log_dir))
            with self._writer.as_default():
                tf.summary.write("input_wait", tf.constant(self.waiting), step=epoch, metadata=_scalar())

    def on_train_end(self, logs: Any = None) -> None:
        """Take the clock away again, and say what was found."""
        self.model.train_function, self._inner = self._inner, None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        log.info("%s", self)
        if self._warn_above is not None and self.waiting > self._warn_above:
            warnings.warn(f"training waited for input {self.waiting:.0%} of its time. {self.verdict}", stacklevel=2)

    def __repr__(self) -> str:
        mean_ms = 1e3 * self.wait_s / max(self.steps, 1)
        return f"waits: {self.waiting:.1%} of the time in {self.steps:,} steps; mean {mean_ms:.2f} ms\n{self.verdict}"


def _scalar() -> Any:
    """What makes TensorBoard draw a value as a scalar; ``tf.summary.scalar`` itself needs TensorBoard installed."""
    kind = tf.compat.v1.SummaryMetadata
    return kind(plugin_data=kind.PluginData(plugin_name="scalars"))


# ----------------------------------------------------------------------------------- the clock in the graph


class Clock:
    """Times the fetches of training functions, inside their graphs."""

    def __init__(self) -> None:
        with tf.init_scope():
            self._variable = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="mpfeed_input_wait_s")
        self._specs: dict[type, type] = {}

    def seconds(self) -> float:
        """Waited so far."""
        return float(self._variable.numpy())

    def around(self, iterator: Any) -> Any:
        """The iterator, timed; what is no iterator of TensorFlow's, as it is."""
        if isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            return _Timed(iterator, self)
        return iterator

    def fetch(self, fetch: Callable[[], Any]) -> Any:
        """What ``fetch`` gives, timed; in a graph, by operations around it."""
        with tf.device("CPU:0"):
            begun = tf.timestamp()
        with tf.control_dependencies([begun]):
            fetched = fetch()
        tensors = [t for t in tf.nest.flatten(fetched, expand_composites=True) if tf.is_tensor(t)]
        with tf.control_dependencies(tensors), tf.device("CPU:0"):
            self._variable.assign_add(tf.timestamp() - begun)
        return fetched

    def spec(self, inner: Any) -> Any:
        """The type of a timed iterator: that of what it times, by another name."""
        kind = type(inner)
        if kind not in self._specs:
            self._specs[kind] = _timed_kind(kind, self)
        spec: Any = object.__new__(self._specs[kind])
        # Field by field: those of distributed iterators can be neither copied nor serialized.
        spec.__dict__.update(vars(inner))
        for name in (name for base in kind.__mro__ for name in getattr(base, "__slots__", ())):
            if hasattr(inner, name):
                setattr(spec, name, getattr(inner, name))
        return spec


class _Timed(tf.data.Iterator):  # type: ignore[misc]
    """Passes everything on to an iterator, and times it.

    A training function takes its iterator apart and, where it is traced, puts it together again as its type says: so a
    timed one has a type of its own.
    """

    def __init__(self, inner: Any, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock

    @property
    def element_spec(self) -> Any:
        return self._inner.element_spec

    @property
    def _type_spec(self) -> Any:
        return self._clock.spec(self._inner._type_spec)

    def get_next(self) -> Any:
        return self._clock.fetch(self._inner.get_next)

    def get_next_as_optional(self) -> Any:
        return self._clock.fetch(self._inner.get_next_as_optional)

    def __next__(self) -> Any:
        return self._clock.fetch(self._inner.__next__)

    def __iter__(self) -> _Timed:
        return self


def _timed_kind(kind: Any, clock: Clock) -> type:
    class TimedSpec(kind):  # type: ignore[misc]
        @property
        def value_type(self) -> type:
            return _Timed

        def _to_components(self, value: _Timed) -> Any:
            return super()._to_components(value._inner)

        def _from_components(self, components: Any) -> _Timed:
            return _Timed(super()._from_components(components), clock)

    return TimedSpec
