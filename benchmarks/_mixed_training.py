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


def measured(mix: Mix) -> dict[str, Any]:
    """The figures of a mix."""
    step_s = _true_step_s(mix)
    backend = mpfeed.Process(transport=mix.transport)
    feed = mpfeed.from_generator(mix.source(), workers=mix.workers, buffer=_BUFFER, backend=backend)
    with feed:
        monitor, step = InputMonitor(feed), _Step(mix.step_s)
        data = feed.dataset(prefetch=_PREFETCH)
        _model(mix).fit(data, steps_per_epoch=mix.steps, callbacks=[monitor, step], verbose=0)
        wall_s = step.ends_s[-1] - step.ends_s[0]
        # TensorFlow's generator reads one element ahead of its prefetching.
        constructed = None
        if mix.cost_s is not None:
            constructed = simulated(mix, step_s, credit=_BUFFER + 1, ahead=_PREFETCH + 1)
        return {
            "reported": monitor.waiting,
            "constructed": constructed,
            "accounted": 1 - (len(step.ends_s) - 1) * step_s / wall_s,
            "kind": monitor.verdict.kind,
            "verdict": str(monitor.verdict),
            "step_ms": step_s * 1e3,
            "stats": repr(feed.stats()).splitlines(),
        }


if __name__ == "__main__":
    print(json.dumps(measured(MIXES[sys.argv[1]])))
