"""``FeedCheckpoint``: a training that was killed ends with the weights of one that never was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np
import pytest

import mpfeed
from mpfeed import Shard
from mpfeed.keras import FeedCheckpoint

Keep = Callable[[mpfeed.Feed], mpfeed.Feed]
EPOCHS = 4


class Killed(Exception):
    pass


class Kills(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the training after so many steps."""

    def __init__(self, steps: int | None) -> None:
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise Killed


def sample(i: int, rng: np.random.Generator) -> Any:
    return rng.normal(size=3).astype(np.float32) + i / 10, np.float32(i % 3)


def mapped(**options: Any) -> mpfeed.Feed:
    return mpfeed.from_map(sample, range(22), **{"shuffle": True, "backend": "inprocess", **options})


def generated(**options: Any) -> mpfeed.Feed:
    def source(shard: Shard) -> Iterator[Any]:
        for i in shard.of(range(22)):
            yield sample(i, shard.rng)

    return mpfeed.from_generator(source, **{"shards": 3, "backend": "inprocess", **options})


def network() -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


class Training:
    """One training, in as many lives as it takes."""

    def __init__(self, folder: Path, keep: Keep, make: Callable[[], mpfeed.Feed], **how: Any) -> None:
        self.folder, self.keep, self.make = folder, keep, make
        self.freq: Any = how.pop("save_freq", "epoch")
        self.elements: int = how.pop("elements_per_step", 1)
        self.derive: Callable[[Any], Any] = how.pop("derive", lambda dataset: dataset)
        self.fit = how
        self.logs: list[Any] = []

    @property
    def path(self) -> Path:
        return self.folder / "feed.json"

    def live(self, steps: int | None) -> Any:
        """Train until killed after so many steps, or to the end; the model."""
        model, feed = network(), self.keep(self.make())
        backup = keras.callbacks.BackupAndRestore(self.folder / "backup", save_freq=self.freq)
        callbacks = [backup, FeedCheckpoint(feed, self.path, self.elements), Kills(steps)]
        try:
            dataset = self.derive(feed.dataset())
            model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=callbacks, shuffle=False, **self.fit)
        finally:
            feed.close()
        return model

    def lives(self, *steps: int) -> list[Any]:
        """Weights after all these deaths and a last life."""
        for life in steps:
            with pytest.raises(Killed):
                self.live(life)
        return list(self.live(None).get_weights())


def assert_same(got: list[Any], expected: list[Any]) -> None:
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


WAYS: dict[str, tuple[Callable[[], mpfeed.Feed], dict[str, Any]]] = {
    "each epoch": (lambda: mapped(batch_size=4), {}),
    "each step": (lambda: mapped(batch_size=4), {"save_freq": 1}),
    "every third step": (lambda: mapped(batch_size=4), {"save_freq": 3}),
    "batches of tf.data, each step": (
        mapped,
        {"save_freq": 1, "elements_per_step": 4, "derive": lambda dataset: dataset.batch(4)},
    ),
    "batches of tf.data, the rest dropped": (
        mapped,
        {"save_freq": 3, "elements_per_step": 4, "derive": lambda dataset: dataset.batch(4, drop_remainder=True)},
    ),
    "steps of an endless dataset": (
        lambda: mapped(batch_size=4),
        {"save_freq": 3, "steps_per_epoch": 8, "derive": lambda dataset: dataset.repeat()},
    ),
    "a generator, each epoch": (lambda: generated(batch_size=4), {}),
    "a generator, steps of an endless dataset": (
        lambda: generated(batch_size=4),
        {"steps_per_epoch": 8, "derive": lambda dataset: dataset.repeat()},
    ),
    "skipping, each epoch": (lambda: mapped(batch_size=4, on_error="skip"), {}),
}


LONG = WAYS.keys() - {"every third step", "steps of an endless dataset", "a generator, each epoch"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in WAYS])
def test_a_training_that_was_killed_ends_with_the_same_weights(name: str, tmp_path: Path, keep: Keep) -> None:
    make, how = WAYS[name]
    whole = Training(tmp_path / "whole", keep, make, **how).lives()
    deaths = (2, 9, 8, 1) if name in LONG else (9,)
    assert_same(Training(tmp_path / "killed", keep, make, **how).lives(*deaths), whole)


@pytest.fixture(scope="module")
def first_life(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a training left that was killed in the step after its first epoch."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.raises(Killed):
        Training(folder, lambda feed: feed, lambda: mapped(batch_size=4)).live(7)
    return folder


@pytest.fixture
def left(first_life: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(first_life, tmp_path / "left"))


def test_the_file_is_deleted_when_training_has_ended_well_and_only_then(left: Path, keep: Keep) -> None:
    training = Training(left, keep, lambda: mapped(batch_size=4))
    assert [anchor["iterations"] for anchor in json.loads(training.path.read_text())["positions"]] == [0, 6]
    training.live(None)
    assert not training.path.exists()


@pytest.mark.parametrize(
    ("options", "how", "words"),
    [
        (
            {},
            {"derive": lambda dataset: dataset.batch(4)},
            "the epoch had 6 steps, and the feed handed out 22 elements",
        ),
        ({"batch_size": 4}, {"elements_per_step": 2}, "the feed handed out 6 elements where elements_per_step=2"),
    ],
)
def test_steps_that_take_another_number_of_elements_are_refused(
    options: Any, how: Any, words: str, tmp_path: Path, keep: Keep
) -> None:
    training = Training(tmp_path, keep, lambda: mapped(on_error="skip", **options), **how)
    with pytest.raises(mpfeed.MpfeedError, match=words):
        training.live(None)


def test_the_middle_of_an_epoch_of_unknown_length_is_refused_with_the_reason(tmp_path: Path, keep: Keep) -> None:
    training = Training(tmp_path, keep, lambda: generated(batch_size=4), save_freq=2)
    with pytest.raises(mpfeed.MpfeedError, match="2 steps into epoch 0, and Keras cannot go on in the middle"):
        training.lives(3)


def test_a_feed_that_is_another_stream_is_refused(left: Path, keep: Keep) -> None:
    with pytest.raises(ValueError, match="seed was 0 and is 1"):
        Training(left, keep, lambda: mapped(batch_size=4, seed=1)).live(None)


def test_a_model_with_no_position_is_refused(left: Path, keep: Keep) -> None:
    training = Training(left, keep, lambda: mapped(batch_size=4))
    content = json.loads(training.path.read_text())
    training.path.write_text(json.dumps({**content, "positions": [{**content["positions"][0], "iterations": 9}]}))
    with pytest.raises(mpfeed.MpfeedError, match=r"the model has made 6 steps, and .* keeps only positions of later"):
        training.live(None)


def test_a_file_of_someone_else_is_not_touched(tmp_path: Path, keep: Keep) -> None:
    training = Training(tmp_path, keep, lambda: mapped(batch_size=4))
    training.path.write_text("[1]")
    with pytest.raises(mpfeed.MpfeedError, match="is no file of FeedCheckpoint's"):
        training.live(None)
    assert training.path.read_text() == "[1]"


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda feed: FeedCheckpoint(feed, "x", 0), ValueError, "elements_per_step=0: give at least 1"),
        (lambda feed: FeedCheckpoint(feed, "x", cast(Any, 1.5)), TypeError, "elements_per_step=1.5"),
        (lambda feed: FeedCheckpoint(feed.dataset(), "x"), TypeError, "needs a feed, not "),
    ],
)
def test_bad_arguments_are_refused(make: Any, error: type[Exception], words: str, keep: Keep) -> None:
    with pytest.raises(error, match=words):
        make(keep(mapped()))


def test_it_has_to_come_after_the_callback_that_restores_the_model(left: Path, keep: Keep) -> None:
    feed, model = keep(mapped(batch_size=4)), network()
    backup = keras.callbacks.BackupAndRestore(left / "backup")
    with pytest.raises(mpfeed.MpfeedError, match="list FeedCheckpoint after that one"):
        model.fit(
            feed.dataset(), epochs=EPOCHS, verbose=0, callbacks=[FeedCheckpoint(feed, left / "feed.json"), backup]
        )
