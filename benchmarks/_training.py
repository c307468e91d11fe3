"""A small training that may be killed at any moment: ``python -m benchmarks._training FOLDER``.

It backs itself up in the folder every few steps, goes on from there when it is started again, and leaves a fingerprint
of its weights when it has ended. ``killed`` starts it, kills it with SIGKILL at random moments and starts it again.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

_CHECKOUT = Path(__file__).resolve().parents[1]
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONWARNINGS": "ignore"}
EPOCHS, ITEMS, BATCH_SIZE, SAVE_FREQ = 10, 320, 8, 7
_LIFE_S = 120.0


def train(folder: Path) -> None:
    """Train to the end, from wherever the folder says."""
    import keras
    import numpy as np
    import tensorflow as tf

    import mpfeed
    from mpfeed.keras import FeedCheckpoint

    class Steps(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            os.write(1, b".")  # whoever looks on counts the steps

    def sample(number: int, rng: Any) -> Any:
        noise = rng.normal(size=(12, 12, 1)).astype(np.float32)
        return noise + number % 10, np.int64(number % 10)

    keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((12, 12, 1)), layers.Conv2D(8, 3, activation="relu"), layers.Flatten(), layers.Dense(10)]
    )
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with mpfeed.from_map(sample, range(ITEMS), shuffle=True, batch_size=BATCH_SIZE, workers=2) as feed:
        backup = keras.callbacks.BackupAndRestore(folder / "backup", save_freq=SAVE_FREQ, double_checkpoint=True)
        callbacks = [backup, FeedCheckpoint(feed, folder / "feed.json"), Steps()]
        model.fit(feed.dataset(), epochs=EPOCHS, verbose=0, callbacks=callbacks)
    print(f"{hashlib.sha256(b''.join(w.tobytes() for w in model.get_weights())).hexdigest()}", flush=True)


def killed(kills: int, seed: int) -> tuple[str, list[int]]:
    """(the weights' fingerprint after so many deaths, the steps that each life made)."""
    draw, lives = random.Random(seed), []
    folder = Path(tempfile.mkdtemp(prefix="training-"))
    try:
        for _ in range(kills):
            lives.append(_life(folder, draw.randrange(SAVE_FREQ + 1, 4 * SAVE_FREQ), draw.uniform(0, 0.02))[1])
        words, steps = _life(folder)
        return words, [*lives, steps]
    finally:
        shutil.rmtree(folder)


def _life(folder: Path, steps: int | None = None, later_s: float = 0.0) -> tuple[str, int]:
    """(what it said at its end, steps it made); it is killed a moment after so many steps."""
    paths = os.pathsep.join(path for path in (str(_CHECKOUT), os.environ.get("PYTHONPATH", "")) if path)
    command = [sys.executable, "-m", "benchmarks._training", str(folder)]
    environment = {**os.environ, **_QUIET, "PYTHONPATH": paths}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment, start_new_session=True
        ) as process,
    ):
        watchdog = threading.Timer(_LIFE_S, process.kill)
        watchdog.start()
        try:
            made, said = _followed(process, steps, later_s)
        finally:
            watchdog.cancel()
            process.kill()
        code = process.wait()
        errors.seek(0)
        if code != (0 if steps is None else -signal.SIGKILL):
            raise RuntimeError(f"the training ended with exit code {code}: {errors.read()[-2000:]}")
        return said, made


def _followed(process: subprocess.Popen[bytes], steps: int | None, later_s: float) -> tuple[int, str]:
    """(steps, the rest of what it said) until its end, which it is given after so many steps."""
    assert process.stdout is not None
    made, said = 0, b""
    while piece := os.read(process.stdout.fileno(), 1):
        if piece == b".":
            made += 1
        else:
            said += piece
        if made == steps:
            threading.Event().wait(later_s)
            process.kill()
    process.wait()
    return made, said.decode().strip()


if __name__ == "__main__":
    train(Path(sys.argv[1]))
