"""Monitors: of any loop, and of ``model.fit``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import mpfeed
from mpfeed._monitor import feed_of
from mpfeed.keras import InputMonitor


def test_a_monitor_passes_everything_on_and_counts_steps() -> None:
    watched = mpfeed.monitor(["a", "b", "c"])
    assert watched.verdict.kind == "unknown"
    assert list(watched) + list(watched) == ["a", "b", "c"] * 2
    assert len(watched) == 3
    assert (watched.steps, watched.first_s is not None) == (5, True)
    assert watched.wait_s > 0
    assert watched.step_s > 0
    assert 0 < watched.waiting < 1
    assert repr(watched).endswith(str(watched.verdict))


def test_a_monitored_loop_that_is_left_closes_what_it_read() -> None:
    closed = []

    def source() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.append(True)

    loop = iter(mpfeed.monitor(source()))
    assert next(loop) == 0
    loop.close()  # type: ignore[attr-defined]
    assert closed == [True]


def test_a_monitor_finds_the_feed_behind_a_dataset() -> None:
    with mpfeed.from_map(float, range(64), batch_size=2, workers=1, backend="inprocess") as feed:
        watched = mpfeed.monitor(feed.dataset().map(lambda x: x + 1).batch(2))
        assert watched.feed is feed
        assert sum(1 for _ in watched) == 16
        assert watched.verdict.kind != "unknown"
    assert feed_of(tf.data.Dataset.range(3)) is None
    assert feed_of([1, 2]) is None


# --------------------------------------------------------------------------------------------- model.fit


def _sample(item: int) -> tuple[Any, int]:
    return np.full(4, item, np.float32), item % 2


def _model(**options: Any) -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", **options)
    return model


class _Waiting(InputMonitor):
    """Keeps what the progress bar was told."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.told: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        if logs is not None and "input_wait" in logs:
            self.told.append(logs["input_wait"])


@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 4}, {"run_eagerly": True}])
def test_fit_tells_the_share_of_waiting_and_trains_as_ever(options: dict[str, Any]) -> None:
    executions = 24 // options.get("steps_per_execution", 1)
    with mpfeed.from_map(_sample, range(96), batch_size=4, workers=1, epochs=2, backend="inprocess") as feed:
        model, monitor = _model(**options), _Waiting(feed)
        model.make_train_function()
        before = model.train_function
        history = model.fit(feed.dataset(), epochs=2, callbacks=[monitor], verbose=0).history
        assert model.train_function is before
        assert monitor.steps == 2 * executions - 1
        assert len(monitor.told) == monitor.steps
        assert len(history["input_wait"]) == 2
        assert history["input_wait"][-1] == monitor.waiting
        assert 0 < monitor.waiting < 1
        assert monitor.wait_s > 0
        assert monitor.step_s > 0
        assert repr(monitor).endswith(str(monitor.verdict))


def test_a_second_fit_and_one_without_the_monitor_go_on_as_usual() -> None:
    data = tf.data.Dataset.from_tensor_slices((np.zeros((32, 4), np.float32), np.zeros(32, np.int32))).batch(4)
    model, monitor = _model(), InputMonitor()
    model.fit(data, epochs=1, callbacks=[monitor], verbose=0)
    first = monitor.steps
    function = model.train_function
    model.fit(data, epochs=2, callbacks=[monitor], validation_data=data, verbose=0)
    assert (first, monitor.steps) == (7, 15)
    assert model.train_function is function
    assert "input_wait" not in model.fit(data, verbose=0).history


def test_two_devices_under_a_strategy_are_measured_too() -> None:
    data = tf.data.Dataset.from_tensor_slices((np.zeros((32, 4), np.float32), np.zeros(32, np.int32))).batch(4)
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{device.name[-1]}" for device in tf.config.list_logical_devices("CPU")]
    )
    with strategy.scope():
        model = _model()
    monitor = InputMonitor()
    model.fit(data, epochs=1, callbacks=[monitor], verbose=0)
    assert monitor.steps == 7
    assert 0 < monitor.waiting < 1


def test_it_warns_above_a_limit_and_writes_a_scalar_an_epoch(tmp_path: Any) -> None:
    data = tf.data.Dataset.from_tensor_slices((np.zeros((32, 4), np.float32), np.zeros(32, np.int32))).batch(4)
    with pytest.warns(UserWarning, match="training waited for input"):
        _model().fit(data, epochs=3, callbacks=[InputMonitor(warn_above=0.0, log_dir=tmp_path)], verbose=0)
    records = tf.data.TFRecordDataset([str(path) for path in tmp_path.iterdir()])
    events = [tf.compat.v1.Event.FromString(record.numpy()) for record in records]
    assert [event.step for event in events if any(v.tag == "input_wait" for v in event.summary.value)] == [0, 1, 2]


def test_tensorboard_and_logs_after_it_get_the_share(tmp_path: Any) -> None:
    data = tf.data.Dataset.from_tensor_slices((np.zeros((32, 4), np.float32), np.zeros(32, np.int32))).batch(4)
    log = tmp_path / "log.csv"
    _model().fit(data, epochs=1, callbacks=[InputMonitor(), keras.callbacks.CSVLogger(log)], verbose=0)
    assert "input_wait" in log.read_text().splitlines()[0]
