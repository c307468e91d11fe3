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
    """Lets each step take its time, and times it by hand: when its input had come, and when it ended."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s = step_s
        self._begun_s = 0.0
        self.fetches_s: list[float] = []
        self.ends_s: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begun_s = time.time()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.fetches_s.append(float(self.model.arrived_s.numpy()) - self._begun_s)
        time.sleep(self._step_s)
        self.ends_s.append(time.perf_counter())


class _Corner(keras.layers.Layer):
    """Looks at little of a batch, however large: the step shall cost what the callback says."""

    def call(self, x: Any) -> Any:
        return x[:, 0, :64]


class Timed(keras.Model):
    """Notes when a step has its input."""

    arrived_s = tf.Variable(0.0, trainable=False, dtype=tf.float64)

    def train_step(self, data: Any) -> Any:
        with tf.control_dependencies(tf.nest.flatten(data)):
            self.arrived_s.assign(tf.timestamp())
        return super().train_step(data)


def _model(mix: Mix) -> Any:
    inputs = keras.Input(mix.shape[1:])
    outputs = keras.layers.Dense(2, activation="softmax")(_Corner()(inputs))
    model = Timed(inputs, outputs)
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)  # XLA has no clock
    return model


def _without_waits(mix: Mix) -> tuple[float, float]:
    """Seconds that a step takes where the input is there already, and that it takes to its input: the medians."""
    batch = np.zeros(mix.shape, np.float32), np.zeros(mix.shape[0], np.int32)
    step = _Step(mix.step_s)
    data = tf.data.Dataset.from_tensors(batch).repeat()
    _model(mix).fit(data, steps_per_epoch=_WARM_UP, callbacks=[InputMonitor(), step], verbose=0)
    return float(np.median(np.diff(step.ends_s[1:]))), float(np.median(step.fetches_s[1:]))


def _feed(mix: Mix) -> mpfeed.Feed:
    backend = mpfeed.Process(transport=mix.transport)
    return mpfeed.from_generator(mix.source(), workers=mix.workers, buffer=_BUFFER, backend=backend)


def measured(mix: Mix) -> dict[str, Any]:
    """The figures of a mix."""
    step_s, fetch_s = _without_waits(mix)
    with _feed(mix) as feed:
        monitor, step = InputMonitor(feed), _Step(mix.step_s)
        data = feed.dataset(prefetch=_PREFETCH)
        _model(mix).fit(data, steps_per_epoch=mix.steps, callbacks=[monitor, step], verbose=0)
        wall_s = step.ends_s[-1] - step.ends_s[0]
        by_hand = sum(step.fetches_s[1:]) - (len(step.fetches_s) - 1) * fetch_s
        known = simulated(mix, step_s, credit=_BUFFER + 1, ahead=_PREFETCH) if mix.cost_s is not None else None
        return {
            "reported": monitor.waiting,
            "by_construction": known,
            "by_hand": by_hand / wall_s,
            "accounted": 1 - (len(step.ends_s) - 1) * step_s / wall_s,
            "kind": monitor.verdict.kind,
            "verdict": str(monitor.verdict),
            "step_ms": step_s * 1e3,
            "stats": repr(feed.stats()).splitlines(),
        }


if __name__ == "__main__":
    print(json.dumps(measured(MIXES[sys.argv[1]])))
