"""One mix in a process of its own: trains on it with ``model.fit`` and prints what was reported, and what was true."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import mpfeed
from benchmarks._mixes import MIXES, Mix, simulated
from mpfeed.keras import InputMonitor

_BUFFER = 2
_PREFETCH = 1
_WARM_UP = 20


class _Step(keras.callbacks.Callback):
    """Lets each step take its time, and notes when it ended."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s = step_s
        self.ends_s: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(self._step_s)
        self.ends_s.append(time.perf_counter())


class _Corner(keras.layers.Layer):
    """Looks at little of a batch, however large: the step shall cost what the callback says."""

    def call(self, x: Any) -> Any:
        return x[:, 0, :64]


def _model(mix: Mix) -> Any:
    inputs = keras.Input(mix.shape[1:])
    outputs = keras.layers.Dense(2, activation="softmax")(_Corner()(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def _true_step_s(mix: Mix) -> float:
    """What a step takes where the input is there already: the median."""
    batch = np.zeros(mix.shape, np.float32), np.zeros(mix.shape[0], np.int32)
    step = _Step(mix.step_s)
    data = tf.data.Dataset.from_tensors(batch).repeat()
    _model(mix).fit(data, steps_per_epoch=_WARM_UP, callbacks=[InputMonitor(), step], verbose=0)
    return float(np.median(np.diff(step.ends_s[1:])))


def _feed(mix: Mix) -> mpfeed.Feed:
    backend = mpfeed.Process(transport=mix.transport)
    return mpfeed.from_generator(mix.source(), workers=mix.workers, buffer=_BUFFER, backend=backend)


@tf.function  # type: ignore[untyped-decorator]
def _fetch_s(batches: Any) -> Any:
    begun = tf.timestamp()
    with tf.control_dependencies([begun]):
        batch = next(batches)
    with tf.control_dependencies(tf.nest.flatten(batch)):
        return tf.timestamp() - begun


def _timed_by_hand(mix: Mix, step_s: float) -> float:
    """The share of waiting in a loop without Keras, whose function fetches as a training function does."""
    waited_s = []
    with _feed(mix) as feed:
        batches = iter(feed.dataset(prefetch=_PREFETCH))
        _fetch_s(batches)
        begun_s = time.perf_counter()
        for _ in range(mix.steps):
            time.sleep(step_s)
            waited_s.append(float(_fetch_s(batches)))
        return sum(waited_s) / (time.perf_counter() - begun_s)


def measured(mix: Mix) -> dict[str, Any]:
    """The figures of a mix."""
    step_s = _true_step_s(mix)
    with _feed(mix) as feed:
        monitor, step = InputMonitor(feed), _Step(mix.step_s)
        data = feed.dataset(prefetch=_PREFETCH)
        _model(mix).fit(data, steps_per_epoch=mix.steps, callbacks=[monitor, step], verbose=0)
        wall_s = step.ends_s[-1] - step.ends_s[0]
        if mix.cost_s is not None:
            true = simulated(mix, step_s, credit=_BUFFER + 1, ahead=_PREFETCH)
        else:
            true = _timed_by_hand(mix, step_s)
        return {
            "reported": monitor.waiting,
            "true": true,
            "accounted": 1 - (len(step.ends_s) - 1) * step_s / wall_s,
            "kind": monitor.verdict.kind,
            "verdict": str(monitor.verdict),
            "step_ms": step_s * 1e3,
            "stats": repr(feed.stats()).splitlines(),
        }


if __name__ == "__main__":
    print(json.dumps(measured(MIXES[sys.argv[1]])))
